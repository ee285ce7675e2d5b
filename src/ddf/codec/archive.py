"""Archives: many arrays in one file, written as a stream, read one by one."""

__all__ = ["Archive", "ArchiveWriter", "Recovered", "WrongModelError", "compress", "decompress", "recover"]

import io
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from ddf.codec.blocks import (
    MOST_SHARED,
    MOST_SHARED_BYTES,
    Block,
    DamagedArchiveError,
    Kind,
    Method,
    decode_blocks,
    encode_blocks,
    kind_of,
    number_of,
)
from ddf.codec.coder import Array
from ddf.codec.flow import IntegerFlow, ModelError
from ddf.codec.parallel import Pool
from ddf.codec.varint import read_varint, write_varint

MAGIC = b"\x89DDF"
END = b"FDD\x89"
VERSION = 1
HEADER_SIZE = 26
FOOTER_SIZE = 8

_BLOCK, _KIND, _MODEL, _INDEX = range(4)  # the types of records
_EMBEDDED = 1  # the flag of an archive with its model inside
_STRIDE = 16  # the index knows where every 16th block begins
_MOST_LOST = 4096  # arrays that `recover` gets over at a time
_HEAD = 10  # the head of a record has fewer bytes than that
_MOST_INDEX = 1 << 32  # bytes; of more, a crafted file would fill the memory
_NOTHING = bytes(16)  # the fingerprint where there is no model


class WrongModelError(ValueError):
    """An archive that needs another model than it was given."""


@dataclass(frozen=True)
class _Index:
    """What the end of an archive says of it.

    Arguments:
        blocks: How many blocks there are.
        maps: How many arrays.
        points: For every 16th block: where it begins, where its kind is, and how many arrays come before it.
        kinds: Where kinds are and what they say, once more: no damage to one of them is to take its arrays along. (If
            there is but one block, none.)
        names: What the arrays are called, "" for those without a name.
    """

    blocks: int
    maps: int
    points: list[tuple[int, int, int]]
    kinds: list[tuple[int, bytes]]
    names: list[str]

    def to_bytes(self) -> bytes:
        out = bytearray(write_varint(self.blocks) + write_varint(self.maps))
        last = (0, 0, 0)
        for point in self.points:
            out += b"".join(write_varint(new - old) for new, old in zip(point, last, strict=True))
            last = point
        if self.blocks > 1:
            out += write_varint(len(self.kinds))
            place = 0
            for position, body in self.kinds:
                out += write_varint(position - place) + write_varint(len(body)) + body
                place = position
        if any(self.names):
            out += "\0".join(self.names).encode()
        plain = bytes(out)
        squeezed = zlib.compress(plain, 9)
        return b"\1" + squeezed if len(squeezed) < len(plain) else b"\0" + plain

    @classmethod
    def from_bytes(cls, data: bytes) -> "_Index":
        plain = zlib.decompressobj().decompress(data[1:], _MOST_INDEX) if data[:1] == b"\1" else data[1:]
        blocks, position = read_varint(plain, 0)
        maps, position = read_varint(plain, position)
        points: list[tuple[int, int, int]] = []
        last = (0, 0, 0)
        for _ in range(-(-blocks // _STRIDE)):
            steps = []
            for _ in range(3):
                step, position = read_varint(plain, position)
                steps.append(step)
            last = (last[0] + steps[0], last[1] + steps[1], last[2] + steps[2])
            points.append(last)
        kinds: list[tuple[int, bytes]] = []
        count, position = read_varint(plain, position) if blocks > 1 else (0, position)
        place = 0
        for _ in range(count):
            step, position = read_varint(plain, position)
            length, position = read_varint(plain, position)
            place += step
            kinds.append((place, plain[position : position + length]))
            position += length
        rest = plain[position:].decode()
        names = rest.split("\0") if rest else [""] * maps
        if len(names) != maps:
            raise ValueError("there are not as many names as arrays")
        return cls(blocks, maps, points, kinds, names)


# ---- Writing ---------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes an archive. It appears under its name whole, when it is closed, or not at all.

    Arguments:
        path: The file, or anything that can be written to.
        model: The integer flow to code with; None for a general compressor alone.
        embed_model: Whether to put the model into the archive, which is then complete in itself.
        maps_per_block: How many arrays of one shape share a block at most. Blocks cost a few bytes each and are read
            whole.
        verify: Whether to decode everything before it is written.
        append: Whether to go on with an archive that is there. It is replaced when this one is closed.
        overwrite: Whether to replace a file that is there.
        processes: How many processes code at once. The archive is the same.
        batch_size: How many arrays of one shape are coded together.

    Example:
        >>> with ArchiveWriter("maps.ddf", model=None) as archive:
        ...     archive.add(np.zeros((4, 5), dtype=np.uint8), "zeros")
        ...     archive.add(np.arange(6, dtype=np.int32), "numbers")
        >>> Archive("maps.ddf").names
        ['zeros', 'numbers']
        >>> Archive("maps.ddf")["numbers"]
        array([0, 1, 2, 3, 4, 5], dtype=int32)
    """

    def __init__(
        self,
        path: str | PathLike[str] | BinaryIO,
        model: IntegerFlow | None,
        embed_model: bool = False,
        maps_per_block: int = 1,
        verify: bool = True,
        append: bool = False,
        overwrite: bool = False,
        processes: int = 1,
        batch_size: int = 1,
    ) -> None:
        _check_counts(maps_per_block=maps_per_block, processes=processes, batch_size=batch_size)
        _check_model(model)
        if append and overwrite:
            raise ValueError("append=True adds to a file and overwrite=True replaces it: one or the other")
        if append and not isinstance(path, str | PathLike):
            raise ValueError("append=True needs the path of an archive")
        if not isinstance(path, str | PathLike) and not hasattr(path, "write"):
            raise TypeError(f"an archive is written to a path or a file that is open, not to {path!r}")
        if embed_model and model is None:
            raise ValueError("embed_model=True, but there is no model to embed")
        self.model = model
        self.maps_per_block = maps_per_block
        self.verify = verify
        self.batch_size = max(batch_size, maps_per_block)
        self.bits = 0.0  # what the model's frequencies say of all that was added
        self._kind: Kind | None = None
        self._kind_at = 0
        self._index = _Index(0, 0, [], [], [])
        self._blocks = self._maps = 0
        self._waiting: list[tuple[Array, str]] = []
        self._waiting_kind: Kind | None = None
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._names: set[str] = set()
        self._closed = False
        self._position = 0
        self._pool = Pool(model, processes)
        if isinstance(path, str | PathLike):
            self._path = Path(path).resolve()
            self._open(append, overwrite, embed_model)
        else:
            self._file: BinaryIO = path
        if not self._position:
            self._begin(embed_model)

    def _open(self, append: bool, overwrite: bool, embed_model: bool) -> None:
        assert self._path is not None
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self._path}: there is no folder {self._path.parent}")
        if self._path.is_dir():
            raise IsADirectoryError(f"{self._path} is a folder, not the file of an archive")
        if append and not self._path.exists():
            append = False
        elif self._path.exists() and not (append or overwrite):
            raise FileExistsError(f"{self._path} is there already; overwrite=True replaces it, append=True adds to it")
        handle, name = tempfile.mkstemp(prefix=".ddf-", suffix=".part", dir=self._path.parent)
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "w+b")
        if append:
            try:
                self._continue(self._path, embed_model)
            except BaseException:
                self.abandon()
                raise

    def _begin(self, embed_model: bool) -> None:
        fingerprint = _NOTHING if self.model is None else self.model.fingerprint
        header = MAGIC + bytes([VERSION, _EMBEDDED if embed_model else 0]) + fingerprint
        self._put(header + zlib.crc32(header).to_bytes(4, "little"))
        if embed_model:
            assert self.model is not None
            data = self.model.to_bytes()
            self._record(_MODEL, zlib.crc32(data).to_bytes(4, "little") + data)

    def _continue(self, path: Path, embed_model: bool) -> None:
        """Takes over what an archive holds, but for its end."""
        old = Archive(path, model=self.model)
        if old.fingerprint not in (_NOTHING, None if self.model is None else self.model.fingerprint):
            raise WrongModelError(_wrong_model(old.fingerprint, self.model))
        if old.fingerprint == _NOTHING and self.model is not None:
            raise WrongModelError(f"{path} was made without a model and cannot go on with one")
        if embed_model and not old.embeds_model:
            raise ValueError(f"{path} was made without its model inside, which cannot be put there afterwards")
        with path.open("rb") as source:
            left = old.end
            while left:
                part = source.read(min(left, 1 << 20))
                if not part:
                    raise DamagedArchiveError(f"{path} is cut off")
                self._put(part)
                left -= len(part)
        index = old.index
        self._index = _Index(0, 0, list(index.points), old.kinds(), list(index.names))
        self._blocks, self._maps = index.blocks, index.maps
        self._names = {name for name in index.names if name}

    def add(self, array: Array, name: str = "") -> None:
        """Adds an array of integers, 0-d to any number of dimensions.

        Arguments:
            array: It is copied.
            name: What it is called; all or none of the arrays of a block have names.
        """
        if self._closed:
            raise ValueError("the archive is closed")
        array = np.array(array)
        if not isinstance(name, str):
            raise TypeError(f"the name of an array is a text, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the name {name!r} is no text that can be written as UTF-8") from error
        if "\0" in name:
            raise ValueError(f"the name {name!r} contains a zero, which names cannot")
        if name in self._names:
            raise ValueError(f"there is an array called {name!r} already")
        kind = kind_of(array, self.model, named=bool(name), shared=self.maps_per_block > 1)
        if name:
            self._names.add(name)
        if self._waiting and (kind != self._waiting_kind or len(self._waiting) >= self.batch_size):
            self._submit()
        self._waiting_kind = kind
        self._waiting.append((array, name))

    def _submit(self) -> None:
        """Has what waits coded, and writes what is ready."""
        if self._waiting:
            assert self._waiting_kind is not None
            arrays, names = zip(*self._waiting, strict=True)
            kind = self._waiting_kind
            most = max(1, min(MOST_SHARED, MOST_SHARED_BYTES // max(1, kind.size)))
            size = min(self.maps_per_block, most) if kind.shared else len(arrays)
            for i in range(0, len(arrays), size):
                job = kind, arrays[i : i + size], names[i : i + size], self.verify
                self._pool.submit(encode_blocks, *job)
            self._waiting = []
        for blocks in self._pool.ready():
            for block in blocks:
                self._write(block)

    def _write(self, block: Block) -> None:
        if block.kind != self._kind:
            self._kind, self._kind_at = block.kind, self._position
            body = block.kind.to_bytes()
            self._index.kinds.append((self._kind_at, body))
            self._record(_KIND, zlib.crc32(body).to_bytes(4, "little") + body)
        if self._blocks % _STRIDE == 0:
            self._index.points.append((self._position, self._kind_at, self._maps))
        self._record(_BLOCK, block.to_bytes(self._maps))
        self._blocks += 1
        self._maps += len(block.names)
        self._index.names.extend(block.names)
        self.bits += block.bits

    def _record(self, kind: int, body: bytes) -> None:
        self._put(write_varint(len(body) << 2 | kind) + body)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._position += len(data)

    def close(self) -> None:
        """Writes what is left and the index, and gives the archive its name."""
        if self._closed:
            return
        try:
            self._submit()
            for blocks in self._pool.rest():
                for block in blocks:
                    self._write(block)
            start = self._position
            body = replace(self._index, blocks=self._blocks, maps=self._maps).to_bytes()
            self._record(_INDEX, zlib.crc32(body).to_bytes(4, "little") + body)
            size = self._position - start + FOOTER_SIZE
            self._put(size.to_bytes(4, "little") + END)
            self._file.flush()
            if self._temporary is not None:
                assert self._path is not None
                os.fsync(self._file.fileno())
                self._file.close()
                mask = os.umask(0)
                os.umask(mask)
                self._temporary.chmod(0o666 & ~mask)
                self._temporary.replace(self._path)
                self._temporary = None
        except BaseException:
            self.abandon()
            raise
        self._closed = True
        self._pool.close()

    def abandon(self) -> None:
        """Gives up: nothing appears under the archive's name."""
        self._closed = True
        self._pool.close()
        if self._temporary is not None:
            self._file.close()
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


# ---- Reading ---------------------------------------------------------------------------------------------------------


class Archive:
    """Reads an archive, one array at a time or all of them.

    Arguments:
        path: The file, or its bytes.
        model: The integer flow it was made with; not needed if the archive holds it, or was made without.
    """

    def __init__(self, path: str | PathLike[str] | bytes, model: IntegerFlow | None = None) -> None:
        _check_model(model)
        self._file: BinaryIO
        if isinstance(path, bytearray | memoryview):
            path = bytes(path)
        if isinstance(path, bytes):
            self._file, self.name = io.BytesIO(path), "the archive"
        else:
            self._file, self.name = Path(path).open("rb"), str(path)  # noqa: SIM115 (closed by close)
        weakref.finalize(self, self._file.close)
        try:
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self.fingerprint, self.embeds_model = self._read_header()
            self.index, self.end = self._read_end()
            self._model = model
            self._embedded: IntegerFlow | None = None
        except BaseException:
            self._file.close()
            raise

    # ---- What is in it

    @property
    def names(self) -> list[str]:
        """What the arrays are called, in order."""
        return self.index.names

    def __len__(self) -> int:
        return self.index.maps

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """All arrays with their names, in order."""
        return self.items()

    def items(self, batch_size: int = 1) -> Iterator[tuple[str, Array]]:
        """All arrays with their names, in order.

        Arguments:
            batch_size: How many blocks of one kind are decoded together. It does not change the result.
        """
        _check_counts(batch_size=batch_size)
        count = 0
        for blocks in self._batches(batch_size):
            for block, arrays in zip(blocks, self.decode(blocks), strict=True):
                yield from zip(block.names, arrays, strict=True)
                count += len(arrays)
        if count != len(self):
            raise self._damaged(f"it holds {count} arrays, but its index says {len(self)}")

    def _batches(self, size: int) -> Iterator[list[Block]]:
        batch: list[Block] = []
        for block in self.blocks():
            if batch and (len(batch) >= size or block.kind != batch[0].kind):
                yield batch
                batch = []
            batch.append(block)
        if batch:
            yield batch

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, which: str | int) -> Array:
        """One array, by its name or its number."""
        if not isinstance(which, str | int | np.integer):
            raise TypeError(f"an array is asked for by its name or its number, not by {which!r}")
        if isinstance(which, str):
            if which not in self._places:
                raise KeyError(f"{self.name} holds no array called {which!r}")
            which = self._places[which]
        number = which + len(self) if which < 0 else which
        if not 0 <= number < len(self):
            raise IndexError(f"{self.name} holds {len(self)} arrays, but number {which} was asked for")
        point = max(i for i, (_, _, before) in enumerate(self.index.points) if before <= number)
        start, kind_at, before = self.index.points[point]
        for block in self.blocks(start, self._kind(kind_at), before):
            if number < before + len(block.names):
                return self.decode([block])[0][number - before]
            before += len(block.names)
        raise self._damaged("its index promises an array that is not there")

    @property
    def _places(self) -> dict[str, int]:
        if not hasattr(self, "_found_places"):
            self._found_places = {name: i for i, name in enumerate(self.index.names) if name}
        return self._found_places

    @property
    def model(self) -> IntegerFlow | None:
        """The model that the archive needs: the one it holds, or the one given."""
        if self.fingerprint == _NOTHING:
            return None
        if self._model is not None and self._model.fingerprint == self.fingerprint:
            return self._model
        if not self.embeds_model:
            raise WrongModelError(f"{self.name}: {_wrong_model(self.fingerprint, self._model)}")
        if self._embedded is None:
            kind, body, _ = self._record(HEADER_SIZE)
            data = body[4:]
            if kind != _MODEL or zlib.crc32(data) != int.from_bytes(body[:4], "little"):
                raise self._damaged("the model in it does not match its checksum")
            try:
                self._embedded = IntegerFlow.from_bytes(data)
            except ModelError as error:
                raise self._damaged(f"the model in it is unreadable ({error})") from error
            if self._embedded.fingerprint != self.fingerprint:
                raise self._damaged("the model in it is another one than it says")
        return self._embedded

    def decode(self, blocks: Sequence[Block]) -> list[list[Array]]:
        """The arrays of blocks of one kind."""
        model = self.model if any(block.kind.method == Method.MODEL for block in blocks) else None
        return decode_blocks(model, blocks)

    def blocks(self, start: int | None = None, kind: Kind | None = None, number: int = 0) -> Iterator[Block]:
        """All blocks in order, from a place in the file on, before which there are so many arrays."""
        position = HEADER_SIZE if start is None else start
        while position < self.end:
            begin = position
            record, body, position = self._record(position)
            if record == _KIND:
                kind = self._checked_kind(body)
            elif record == _BLOCK:
                if kind is None:
                    raise self._damaged("a block comes before its kind")
                block = Block.from_bytes(kind, body, number)
                number += len(block.names)
                yield block
            elif record == _INDEX or begin != HEADER_SIZE or not self.embeds_model:
                raise self._damaged("it has an index or a model in the middle")

    def kinds(self) -> list[tuple[int, bytes]]:
        """Where kinds are in the file, and what they say."""
        if self.index.blocks == 1:
            _, kind_at, _ = self.index.points[0]
            return [(kind_at, self._kind(kind_at).to_bytes())]
        return list(self.index.kinds)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- The bytes

    def _read_header(self) -> tuple[bytes, bool]:
        header = self._bytes(0, min(self.size, HEADER_SIZE))
        if not MAGIC.startswith(header[:4]) or len(header) < 4:
            raise DamagedArchiveError(f"{self.name} is no ddf archive")
        if len(header) < HEADER_SIZE:
            raise self._damaged("it is cut off")
        if zlib.crc32(header[:-4]) != int.from_bytes(header[-4:], "little"):
            raise self._damaged("its header does not match its checksum")
        if header[4] > VERSION:
            raise DamagedArchiveError(
                f"{self.name} has version {header[4]}, but this ddf reads up to {VERSION}: install a newer one"
            )
        if header[4] != VERSION or header[5] > _EMBEDDED:
            raise self._damaged("its header says what cannot be")
        return header[6:22], bool(header[5])

    def _read_end(self) -> tuple[_Index, int]:
        footer = self._bytes(self.size - FOOTER_SIZE, FOOTER_SIZE) if self.size >= HEADER_SIZE + FOOTER_SIZE else b""
        if footer[4:] != END:
            raise self._damaged("it does not end as an archive does; `recover` may save what is left")
        start = self.size - int.from_bytes(footer[:4], "little")
        if start < HEADER_SIZE:
            raise self._damaged("its end says what cannot be; `recover` may save what is left")
        kind, body, after = self._record(start, self.size - FOOTER_SIZE)
        if kind != _INDEX or after != self.size - FOOTER_SIZE or not _matches(body):
            raise self._damaged("its index does not match its checksum; `recover` may save what is left")
        try:
            return _Index.from_bytes(body[4:]), start
        except (ValueError, zlib.error) as error:
            raise self._damaged(f"its index is unreadable ({error})") from error

    def _bytes(self, start: int, count: int) -> bytes:
        if self._file.closed:
            raise ValueError(f"{self.name} is closed")
        self._file.seek(start)
        return self._file.read(count)

    def _record(self, position: int, end: int | None = None) -> tuple[int, bytes, int]:
        """The type and the body of the record at a place, and the place after it."""
        end = self.end if end is None else end
        head = self._bytes(position, min(_HEAD, end - position))
        try:
            number, used = read_varint(head, 0)
        except ValueError as error:
            raise self._damaged(f"a record is unreadable ({error})") from error
        length = number >> 2
        if position + used + length > end:
            raise self._damaged("a record is longer than the file")
        return number & 3, self._bytes(position + used, length), position + used + length

    def _kind(self, position: int) -> Kind:
        record, body, _ = self._record(position)
        if record != _KIND:
            raise self._damaged("its index does not point to a kind")
        return self._checked_kind(body)

    def _checked_kind(self, body: bytes) -> Kind:
        if not _matches(body):
            raise self._damaged("a kind of array does not match its checksum")
        return Kind.from_bytes(body[4:])

    def _damaged(self, why: str) -> DamagedArchiveError:
        return DamagedArchiveError(f"{self.name} is damaged: {why}")


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}, but it must be a positive integer")


def _check_model(model: IntegerFlow | None) -> None:
    if model is not None and not isinstance(model, IntegerFlow):
        raise TypeError(f"the model must be an IntegerFlow, as IntegerFlow.load(path) reads it, but it is {model!r}")


def _matches(body: bytes) -> bool:
    return len(body) >= 4 and zlib.crc32(body[4:]) == int.from_bytes(body[:4], "little")


def _wrong_model(needed: bytes, given: IntegerFlow | None) -> str:
    have = "none was given" if given is None else f"the one given is {given.fingerprint.hex()}"
    return f"it needs the model {needed.hex()}, but {have}"


# ---- In one go -------------------------------------------------------------------------------------------------------


def compress(array: Array, model: IntegerFlow | None, embed_model: bool = False, verify: bool = True) -> bytes:
    """An archive of one array, as bytes.

    Example:
        >>> data = compress(np.arange(5), model=None)
        >>> decompress(data)
        array([0, 1, 2, 3, 4])
    """
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, embed_model=embed_model, verify=verify) as writer:
        writer.add(array)
    return buffer.getvalue()


def decompress(data: bytes, model: IntegerFlow | None = None) -> Array:
    """The array of an archive of one."""
    archive = Archive(data, model)
    if len(archive) != 1:
        raise ValueError(f"this archive holds {len(archive)} arrays, not one; open it as an Archive")
    return archive[0]


# ---- What is left of a damaged archive -------------------------------------------------------------------------------


@dataclass
class Recovered:
    """What could be read of a damaged archive.

    Arguments:
        arrays: The arrays with their names, in order; without a name, their number.
        lost: What was wrong, and where.
    """

    arrays: list[tuple[str, Array]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def recover(path: str | PathLike[str] | bytes, model: IntegerFlow | None = None) -> Recovered:
    """Reads whatever can be read of a damaged archive; everything in it is checked.

    Arguments:
        path: The file, or its bytes.
        model: The integer flow it was made with, if the archive does not hold it.
    """
    data = bytes(path) if isinstance(path, bytes | bytearray | memoryview) else Path(path).read_bytes()
    return _Salvage(data, model).run()


class _Salvage(Archive):
    """An archive that is read from its first byte to its last, whatever its end says."""

    def __init__(self, data: bytes, model: IntegerFlow | None) -> None:
        _check_model(model)
        self.name = "the archive"
        self._file = io.BytesIO(data)
        self._data = data
        self.size = self.end = len(data)
        self._model, self._embedded = model, None
        self.found = Recovered()
        self.number = 0  # of arrays that have come by
        try:
            self.index, self.end = self._read_end()
        except DamagedArchiveError as error:
            self.index = _Index(0, -1, [], [], [])
            self.found.lost.append(str(error))
        self.known = dict(self.index.kinds)
        try:
            self.fingerprint, self.embeds_model = self._read_header()
        except DamagedArchiveError as error:
            if data[:4] != MAGIC and data[-4:] != END:
                raise
            self.found.lost.append(str(error))
            self.fingerprint, self.embeds_model = self._guess_model()

    def _guess_model(self) -> tuple[bytes, bool]:
        """The fingerprint of the model that an archive without a header needs, and whether it is inside."""
        with suppress(DamagedArchiveError, ModelError):
            record, body, _ = self._record(HEADER_SIZE)
            if record == _MODEL and _matches(body):
                self._embedded = IntegerFlow.from_bytes(body[4:])
                return self._embedded.fingerprint, True
        return (_NOTHING if self._model is None else self._model.fingerprint), False

    def run(self) -> Recovered:
        position, kind = HEADER_SIZE, None
        while position < self.end:
            if position in self.known:
                kind = Kind.from_bytes(self.known[position])
            try:
                record, body, after = self._record(position)
                if record == _KIND:
                    kind = self._checked_kind(body)
                elif record == _BLOCK:
                    self._keep(kind, body)
                elif not _matches(body) or (record == _INDEX and after < self.size - FOOTER_SIZE):
                    raise self._damaged("a record does not match its checksum")
                elif record == _INDEX:
                    break
            except (DamagedArchiveError, WrongModelError) as error:
                self.found.lost.append(f"at byte {position}: {error}")
                position, kind = self._resume(position, kind)
            else:
                position = after
        missing = self.index.maps - len(self.found.arrays)
        if missing > 0:
            self.found.lost.append(f"{missing} of {self.index.maps} arrays are missing")
        return self.found

    def _keep(self, kind: Kind | None, body: bytes) -> None:
        if kind is None:
            raise self._damaged("a block comes before its kind")
        block = Block.from_bytes(kind, body, self.number)
        model = self.model if kind.method == Method.MODEL else None
        slack = _MOST_LOST if self.found.lost else 0
        (arrays,) = decode_blocks(model, [block], slack)
        self.number = number_of(block, arrays, slack) or self.number
        for name, array in zip(block.names, arrays, strict=True):
            self.found.arrays.append((name or f"{self.number}", array))
            self.number += 1

    def _resume(self, damaged: int, kind: Kind | None) -> tuple[int, Kind | None]:
        """The next place where a record begins that can be read, and the kind of arrays there.

        Where the damage spared the length of the record, that is right after it: then the block there has the very
        next number. Otherwise it may be anywhere: a place counts if the records from there on lead to the end of the
        archive and the first of them can be read.
        """
        if damaged in self.known:
            body = self.known[damaged]
            return damaged + len(write_varint(len(body) + 4 << 2 | _KIND)) + len(body) + 4, kind
        with suppress(DamagedArchiveError):
            record, body, after = self._record(damaged)
            count = 1
            if record == _BLOCK and kind is not None and kind.shared:
                count = read_varint(body, 0)[0]
            next_kind = min((place for place in self.known if place > damaged), default=-1)
            if after == next_kind or self._readable(after, kind, self.number + count, 0):
                return after, kind
        for position in range(damaged + 1, self.end):
            if position in self.known:
                return position, kind
            if self._leads_on(position) and self._readable(position, kind, self.number, _MOST_LOST):
                return position, kind
        return self.end, kind

    def _readable(self, position: int, kind: Kind | None, number: int, slack: int) -> bool:
        """Whether there is a record here that is what was written."""
        try:
            record, body, _ = self._record(position)
            if record == _KIND:
                self._checked_kind(body)
                return slack > 0
            if record != _BLOCK or kind is None:
                return record == _INDEX and _matches(body) and slack > 0
            model = self.model if kind.method == Method.MODEL else None
            decode_blocks(model, [Block.from_bytes(kind, body, number)], slack)
        except (DamagedArchiveError, WrongModelError, ValueError):
            return False
        return True

    def _leads_on(self, position: int) -> bool:
        """Whether records follow one another from here to the end, or for a while."""
        for _ in range(_STRIDE):
            if position >= self.end:
                return position == self.end
            try:
                number, used = read_varint(self._data[position : position + _HEAD], 0)
            except ValueError:
                return False
            after = position + used + (number >> 2)
            if after > self.end or number & 3 == _MODEL:
                return False
            if number & 3 == _INDEX:
                return after >= self.size - FOOTER_SIZE
            position = after
        return True
