"""Read archives, one array at a time or all of them."""

__all__ = ["Archive", "decompress"]

import operator
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ddf.archive.blocks import Block, Method
from ddf.archive.contents import Contents
from ddf.archive.encoding import decode_block
from ddf.archive.formats import FileFormat
from ddf.archive.limits import DEFAULT_MAX_BYTES
from ddf.archive.parallel import Pool, check_counts, thread_count
from ddf.archive.records import HEADER_SIZE, MODEL, NO_MODEL, read_record
from ddf.archive.sources import open_source
from ddf.errors import (
    ChangedArchiveError,
    DamagedArchiveError,
    DdfError,
    InvalidCodeError,
    MissingArrayError,
    UnknownKindError,
    WrongModelError,
)
from ddf.lazy import lazy
from ddf.models import model_from_bytes
from ddf.protocol import Codec, check_model
from ddf.registry import find_model, how_to_supply
from ddf.remote import folder_of, is_url
from ddf.shapes import Array, check_bytes

if TYPE_CHECKING:
    from PIL import Image


class Archive(Mapping[str | int, Array]):
    """A mapping from the names of an archive's arrays to the arrays, which are decoded when they are accessed.

    Arrays are also accessible by number; those without a name, only by number. Any number of threads and forked
    processes may read at the same time. An archive can be pickled; the copy opens the file on first use.

    Arguments:
        path: The file, a URL that `fsspec` opens, the bytes of an archive, or an open, seekable file.
        model: The codec that it was made with; not needed if the archive contains it or was made without one.
        max_bytes: The largest array, or block of arrays, to decode, in bytes. This limits the memory that a damaged or
            hostile archive can use.
        threads: The number of threads that decode in `items` and `values`; None for one per core.
        storage_options: Options of the file system of a URL.

    Examples:
        >>> from ddf.archive import ArchiveWriter
        >>> with ArchiveWriter("maps.ddf", model=None) as archive:
        ...     archive.add(np.eye(2, dtype=np.uint8), "eye")
        >>> archive = Archive("maps.ddf")
        >>> list(archive)
        ['eye']
        >>> archive["eye"]
        array([[1, 0],
               [0, 1]], dtype=uint8)
    """

    def __init__(
        self,
        path: str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
        model: Codec | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        threads: int | None = None,
        storage_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        check_model(model)
        check_counts(max_bytes=max_bytes)
        thread_count(threads)
        if isinstance(path, PathLike) or (isinstance(path, str) and "://" not in path):
            path = str(Path(path))
            self._path: Any = str(Path(path).absolute())
        else:
            self._path = path
        self._given = model
        self.max_bytes = int(max_bytes)
        self.threads = threads
        self.storage_options = dict(storage_options)
        self._identity = b""
        source = open_source(path, self.storage_options)
        try:
            self.__dict__["contents"] = Contents(source)
        except BaseException:
            source.close()
            raise

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self._path, str | bytes | bytearray | memoryview):
            raise TypeError(
                f"{self.name} was opened as a file object and cannot be pickled: open it by its path or URL"
            )
        options = {name: getattr(self, name) for name in ("_given", "max_bytes", "threads", "storage_options")}
        path = bytes(self._path) if isinstance(self._path, memoryview) else self._path
        return {"_path": path, "_identity": self.contents.identity, **options}

    @lazy
    def contents(self) -> Contents:
        """The header and the index, which a copy reads on first use."""
        contents = Contents(open_source(self._path, self.storage_options))
        if contents.identity != self._identity:
            contents.source.close()
            raise ChangedArchiveError(f"{contents.source.name} has changed since it was opened: open it again")
        return contents

    # ---- Description

    @property
    def name(self) -> str:
        """The path or the URL."""
        return self.contents.source.name

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.contents.source.size

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the model; 16 zero bytes if there is none."""
        return self.contents.header.fingerprint

    @property
    def sha256(self) -> bytes | None:
        """The SHA-256 of everything before it, as stored in the archive; None if it has none. `verify` checks it."""
        record = self.contents.digest
        return None if record is None else record.head

    @property
    def embeds_model(self) -> bool:
        """Whether the archive contains its model."""
        return self.contents.header.embeds_model

    def __repr__(self) -> str:
        model = "no model" if self.fingerprint == NO_MODEL else f"model {self.fingerprint.hex()}"
        inside = ", embedded" if self.embeds_model else ""
        return f"Archive({self.name!r}: {len(self)} arrays, {self.size} bytes; {model}{inside})"

    def _repr_html_(self) -> str:
        """Return a table of the first arrays, with pictures, for notebooks."""
        from ddf.archive.notebook import notebook_html

        return notebook_html(self)

    # ---- The mapping

    def __len__(self) -> int:
        return self.contents.index.table.arrays

    def __iter__(self) -> Iterator[str | int]:
        """Yield the names of the arrays, in order; for an array without a name, its number."""
        names = self.contents.index.table.names
        if not names:
            yield from range(len(self))
            return
        for number, name in enumerate(names):
            yield name or number

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self._numbers
        return isinstance(key, int | np.integer) and bool(-len(self) <= key < len(self))

    def __getitem__(self, key: str | int) -> Array:
        """Return an array by its name or its number."""
        number = self.number_of(key)
        block = self.contents.read_block(self.contents.block_of(number))
        return self.decode_block(block, thread_count(self.threads))[number - block.number]

    def items(self) -> ItemsView[str | int, Array]:
        """Return a view of the names and arrays, which decodes them in order and in several threads."""
        return _Items(self)

    def values(self) -> ValuesView[Array]:
        """Return a view of the arrays, which decodes them in order and in several threads."""
        return _Values(self)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @lazy
    def _numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.contents.index.table.names) if name}

    def number_of(self, key: str | int) -> int:
        """Return the number of an array."""
        if isinstance(key, str):
            if key not in self._numbers:
                raise MissingArrayError(f"{self.name} does not contain an array named {key!r}")
            return self._numbers[key]
        try:
            number = operator.index(key)
        except TypeError:
            raise TypeError(f"an array is selected by its name or its number, not by {key!r}") from None
        if not -len(self) <= number < len(self):
            raise MissingArrayError(f"number {number} is out of range: {self.name} contains {len(self)} arrays")
        return number % len(self)

    def image(self, key: str | int) -> "Image.Image":
        """Return a label map as a Pillow image.

        Its colors are those of the palette of its file, or else those of the model's classes, or else automatic ones.

        Arguments:
            key: The name or the number of a map (height, width).

        Examples:
            >>> from ddf.archive import ArchiveWriter
            >>> with ArchiveWriter("maps.ddf", model=None) as archive:
            ...     archive.add(np.eye(20, 30, dtype=np.uint8), "eye")
            >>> Archive("maps.ddf").image("eye").size
            (30, 20)
        """
        from ddf.archive.pictures import array_picture

        return array_picture(self, key)

    def format_of(self, key: str | int) -> FileFormat | None:
        """Return the format of the file that an array came from; None for other arrays.

        Raises:
            ValueError: The format was written by a newer version of ddf.
        """
        index = self.contents.index
        number = index.table.formats[self.number_of(key)] if index.table.formats else 0
        return FileFormat.from_bytes(index.formats[number - 1]) if number else None

    # ---- Decoding

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order, without decoding them."""
        for number in range(len(self.contents.index.table.sizes)):
            yield self.contents.read_block(number)

    def arrays(self) -> Iterator[tuple[int, Array]]:
        """Yield the number and the values of each array, in order; decode in several threads."""
        pool: Pool[tuple[int, list[Array]]] = Pool(thread_count(self.threads))
        try:
            for block in self.blocks():
                pool.submit(lambda block: (block.number, self.decode_block(block)), block)
                for first, arrays in pool.ready():
                    yield from enumerate(arrays, first)
            for first, arrays in pool.rest():
                yield from enumerate(arrays, first)
        finally:
            pool.close()

    def decode_block(self, block: Block, threads: int = 1) -> list[Array]:
        """Return the arrays of a block, after comparing them with their checksum.

        Arguments:
            block: The block.
            threads: The number of threads for the bands of a large array.
        """
        others = f" and the {block.count - 1:,} arrays in its block" if block.count > 1 else ""
        check_bytes(f"{self.name}: {self.contents.label(block)}{others}", block.kind.size * block.count, self.max_bytes)
        try:
            return decode_block(self.model if block.kind.method == Method.CODEC else None, block, threads)
        except InvalidCodeError as error:
            label = self.contents.label(block)
            raise DamagedArchiveError(f"{self.name} is damaged: {label} cannot be decoded ({error})") from error

    # ---- The model

    @property
    def model(self) -> Codec | None:
        """The codec that the archive needs: the one that was passed, the embedded one, or one that `find_model` finds.

        It is also looked for next to the archive.
        """
        if self.fingerprint == NO_MODEL:
            return None
        if self._given is not None and self._given.fingerprint == self.fingerprint:
            return self._given
        if self.embeds_model:
            return self._embedded
        unusable: list[str] = []
        known = find_model(self.fingerprint, *folder_at(self._path), unusable=unusable) if self._given is None else None
        if known is None:
            raise WrongModelError(f"{self.name}: {wrong_model(self.fingerprint, self._given, unusable)}")
        return known

    @lazy
    def _embedded(self) -> Codec:
        record = read_record(self.contents.source.read, HEADER_SIZE, self.size)
        if record is None or record.type != MODEL:
            raise self.contents.damaged("the embedded model does not match its checksum")
        model = load_embedded(record.head, self.name)
        if model.fingerprint != self.fingerprint:
            raise self.contents.damaged("the embedded model has a different fingerprint from the header")
        return model

    # ---- Closing

    def close(self) -> None:
        """Close the file."""
        self.contents.source.close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Items(ItemsView[str | int, Array]):
    _mapping: Archive

    def __iter__(self) -> Iterator[tuple[str | int, Array]]:
        names = self._mapping.contents.index.table.names
        for number, array in self._mapping.arrays():
            yield (names[number] if names else "") or number, array

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or item[0] not in self._mapping:
            return False
        return np.array_equal(self._mapping[item[0]], item[1])


class _Values(ValuesView[Array]):
    _mapping: Archive

    def __iter__(self) -> Iterator[Array]:
        for _, array in self._mapping.arrays():
            yield array

    def __contains__(self, value: object) -> bool:
        return any(np.array_equal(array, value) for array in self)  # type: ignore[arg-type]


def folder_at(place: object) -> tuple[str, ...]:
    """Return the folder of an archive that is given by its path or URL, and nothing for one that has no folder."""
    if is_url(place):
        return (folder_of(str(place)),)
    return (str(Path(place).parent),) if isinstance(place, str | PathLike) else ()


def wrong_model(needed: bytes, given: Codec | None, unusable: Sequence[str] = ()) -> str:
    """Return the message for an archive that needs another model."""
    if given is None:
        return f"it needs the model {needed.hex()}, but none was passed: {how_to_supply(needed, unusable)}"
    have = f"the one passed is {given.fingerprint.hex()}"
    return f"it needs the model {needed.hex()}, but {have}; pass that one (--model FILE, in Python model=)"


def load_embedded(data: bytes, name: str) -> Codec:
    """Load the model that an archive contains."""
    try:
        model = model_from_bytes(data, "the embedded model")
    except UnknownKindError as error:
        raise UnknownKindError(f"{name}: the embedded model is not readable yet: {error}") from error
    except DdfError as error:
        raise DamagedArchiveError(f"{name} is damaged: the embedded model is unreadable ({error})") from error
    if not isinstance(model, Codec):
        raise DamagedArchiveError(f"{name} is damaged: the embedded model cannot decode")
    return model


def decompress(data: bytes, model: Codec | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> Array:
    """Return the only array of an archive."""
    archive = Archive(data, model, max_bytes)
    if len(archive) != 1:
        raise ValueError(f"this archive contains {len(archive)} arrays, not one; open it as an Archive")
    return archive[0]
