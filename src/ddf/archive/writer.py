"""Write archives as a stream, atomically."""

__all__ = ["ArchiveWriter", "compress"]

import hashlib
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from ddf.archive.block_table import CHECKSUM_SIZE, Table
from ddf.archive.blocks import Block, Kind, Method, placed
from ddf.archive.encoding import encode_blocks, kind_of
from ddf.archive.formats import FileFormat
from ddf.archive.limits import (
    DEFAULT_MAX_BYTES,
    MAX_ARRAYS,
    MAX_SHARED,
    MAX_SHARED_BYTES,
    table_limit,
)
from ddf.archive.names import check_name, names_weight
from ddf.archive.parallel import Pool, check_counts, thread_count
from ddf.archive.reader import Archive, wrong_model
from ddf.archive.records import (
    DIGEST,
    FORMAT,
    GROUP,
    INDEX,
    MODEL,
    NO_MODEL,
    Group,
    Header,
    Index,
    pack_footer,
    pack_record,
)
from ddf.archive.varint import write_varint
from ddf.errors import LimitError, WrongModelError
from ddf.files import PartFile, exclusive
from ddf.protocol import Codec, check_model
from ddf.shapes import Array, check_bytes

_LEAST, _MOST, _SHARE = 256, 4096, 16  # arrays in a group: at least, at most, and all arrays so far divided by
_MOST_BYTES = 1 << 22  # of the blocks of a group, which are kept in memory until it is written
_PIECE = 1 << 20


class ArchiveWriter:
    """Writes an archive. The file appears under its name only when the writer is closed.

    Arguments:
        path: The file, or an open file to write to.
        model: The codec; None for a general-purpose compressor alone, or, with `append`, for the codec in the archive.
        embed_model: Whether to store the model in the archive, which can then be read without it.
        maps_per_block: The largest number of arrays of one shape that share a block. A block costs a few bytes and is
            decoded as a unit.
        verify: Whether to check everything, by decoding it, before writing it.
        append: Whether to add to an existing archive. It is replaced when the writer is closed; until then, other
            writers that append to it wait.
        overwrite: Whether to replace an existing file.
        threads: The number of threads that encode; None for one per core. It does not affect the archive.
        sha256: Whether to store the SHA-256 of the archive, for `ddf verify`.
        max_bytes: The largest array to accept, in bytes; readers need the same limit.

    Examples:
        >>> with ArchiveWriter("maps.ddf", model=None) as archive:
        ...     archive.add(np.zeros((4, 5), dtype=np.uint8), "zeros")
        ...     archive.add(np.arange(6, dtype=np.int32), "numbers")
        >>> list(Archive("maps.ddf"))
        ['zeros', 'numbers']
        >>> Archive("maps.ddf")["numbers"]
        array([0, 1, 2, 3, 4, 5], dtype=int32)
    """

    def __init__(
        self,
        path: str | PathLike[str] | BinaryIO,
        model: Codec | None,
        embed_model: bool = False,
        maps_per_block: int = 1,
        verify: bool = True,
        append: bool = False,
        overwrite: bool = False,
        threads: int | None = None,
        sha256: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        check_model(model)
        check_counts(maps_per_block=maps_per_block, max_bytes=max_bytes)
        if append and overwrite:
            raise ValueError("append=True adds to a file and overwrite=True replaces it: pass only one of them")
        is_path = isinstance(path, str | PathLike)
        if append and not is_path:
            raise ValueError("append=True requires the path of an archive")
        if isinstance(path, str) and "://" in path:
            raise ValueError(f"{path}: archives are written to files; write a file and upload it")
        if not is_path and not hasattr(path, "write"):
            raise TypeError(f"an archive is written to a path or an open file, not to {path!r}")
        self.model = model
        self.maps_per_block = maps_per_block
        self.verify = verify
        self.max_bytes = max_bytes
        self.coded = 0  # the number of arrays that the codec encoded
        self._threads = thread_count(threads)
        self._hash = hashlib.sha256() if sha256 else None
        self._index = Index()
        self._format_numbers: dict[FileFormat, int] = {}
        self._names: set[str] = set()
        self._waiting: list[Array] = []  # arrays to be encoded in one block
        self._waiting_kind: Kind | None = None
        self._labels: list[tuple[str, FileFormat | None]] = []  # of the arrays that have not been written yet
        self._group: list[Block] = []
        self._group_arrays = self._group_bytes = 0
        self._last_group = 0  # where the last group begins
        self._maps = 0  # arrays in groups that were written
        self._position = 0
        self._closed = False
        self._process = os.getpid()
        self._write: Callable[[bytes], object]
        self._part: PartFile | None = None
        self._stack = ExitStack()
        self._pool: Pool[list[Block]] = Pool(self._threads)
        try:
            if isinstance(path, str | PathLike):
                self._open(Path(path), append, overwrite, embed_model)
            else:
                self._write = path.write
            if not self._position:
                self._begin(embed_model)
        except BaseException:
            self.discard()
            raise

    def _open(self, path: Path, append: bool, overwrite: bool, embed_model: bool) -> None:
        path = path.resolve()
        if append:
            if path.parent.is_dir():  # otherwise, PartFile raises the error
                self._stack.enter_context(exclusive(path))
            append = path.exists()
        elif path.exists() and path.is_file() and not overwrite:
            raise FileExistsError(f"{path} already exists; overwrite=True replaces it, append=True adds to it")
        self._part = PartFile(path, overwrite=append or overwrite)
        self._write = self._part.write
        if append:
            self._continue(path, embed_model)

    def _begin(self, embed_model: bool) -> None:
        if embed_model and self.model is None:
            raise ValueError("embed_model=True requires a model to embed")
        self._put(Header(NO_MODEL if self.model is None else self.model.fingerprint, embed_model).to_bytes())
        if embed_model:
            assert self.model is not None
            self._put(pack_record(MODEL, self.model.to_bytes()))

    def _continue(self, path: Path, embed_model: bool) -> None:
        """Copy the records of an archive up to its index."""
        with Archive(path, model=self.model) as old:
            if self.model is None:
                self.model = old.model if old.embeds_model else None
            if old.fingerprint not in (NO_MODEL, None if self.model is None else self.model.fingerprint):
                raise WrongModelError(f"{path}: {wrong_model(old.fingerprint, self.model)}")
            if old.fingerprint == NO_MODEL and self.model is not None:
                raise WrongModelError(f"{path} was made without a model: append to it without one")
            if embed_model and not old.embeds_model:
                raise ValueError(f"{path} was made without an embedded model, which cannot be added afterwards")
            contents = old.contents
            if self._hash is None and contents.digest is not None:
                self._hash = hashlib.sha256()
            end = contents.end.after if contents.end.type == GROUP else contents.end.position
            for start in range(0, end, _PIECE):
                self._put(contents.source.read(start, min(_PIECE, end - start)))
            self._index, self._last_group = contents.index, contents.end.position
        for number, data in enumerate(self._index.formats, 1):
            self._format_numbers.setdefault(FileFormat.from_bytes(data), number)
        self._maps = self._index.table.arrays
        self._names = {name for name in self._index.table.names if name}

    @property
    def names(self) -> set[str]:
        """The names of all arrays in the archive."""
        return self._names

    # ---- Adding

    def add(self, array: Array, name: str = "", copy: bool = True, file: FileFormat | None = None) -> None:
        """Add an array of integers.

        Arguments:
            array: The array.
            name: Its name, if it has one.
            copy: Whether to copy the array; if not, it must not change before the archive is closed.
            file: The format of the file that it came from, if it came from one.
        """
        if self._closed:
            raise ValueError("the archive is closed")
        self._check_process()
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask: fill it first, or add its data and its mask")
        array = np.array(array) if copy else np.asarray(array)
        if array.dtype == np.bool_:
            array = np.asarray(array.view(np.uint8) != 0)  # Pillow writes 255 for true
        check_name(name)
        if name in self._names:
            raise ValueError(f"the archive already contains an array named {name!r}")
        kind = kind_of(array, shared=self.maps_per_block > 1)
        check_bytes(repr(name) if name else "an array", array.nbytes, self.max_bytes)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if name:
            self._names.add(name)
        if self._waiting and (kind != self._waiting_kind or len(self._waiting) >= self._per_block(kind)):
            self._submit()
        self._waiting_kind = kind
        self._waiting.append(array)
        self._labels.append((name, file))

    def _check_process(self) -> None:
        """Raise an error in a forked process, which has a copy of the writer."""
        if os.getpid() != self._process:
            raise RuntimeError("this archive is written by another process, from which this one was forked")

    def _per_block(self, kind: Kind) -> int:
        most = max(1, min(MAX_SHARED, MAX_SHARED_BYTES // max(1, kind.size)))
        return min(self.maps_per_block, most)

    def _submit(self) -> None:
        """Start encoding the waiting arrays, and collect the blocks that are ready."""
        if self._waiting:
            self._pool.submit(encode_blocks, self.model, self._waiting_kind, self._waiting, self.verify, self._threads)
            self._waiting = []
        for blocks in self._pool.ready():
            self._collect(blocks)

    def _collect(self, blocks: list[Block]) -> None:
        """Add blocks to the group, which is written when it is large enough."""
        for block in blocks:
            self._group.append(block)
            self._group_bytes += len(block.payload)
            self.coded += block.count if block.kind.method == Method.CODEC else 0
            self._group_arrays += block.count
            if self._group_arrays >= min(max(_LEAST, self._maps // _SHARE), _MOST) or self._group_bytes >= _MOST_BYTES:
                self._end_group()

    def _end_group(self) -> None:
        """Write the blocks of the group, after a table of what they hold."""
        if not self._group:
            return
        table = Table()
        number = {kind: i for i, kind in enumerate(dict.fromkeys(block.kind for block in self._group))}
        table.kinds = list(number)
        for block in self._group:
            table.kind_of.append(number[block.kind])
            table.sizes.append(len(block.payload) + CHECKSUM_SIZE)
            table.counts.append(block.count)
        labels, self._labels = self._labels[: table.arrays], self._labels[table.arrays :]
        if any(name for name, _ in labels):
            table.names = [name for name, _ in labels]
        if any(file for _, file in labels):
            table.formats = [self._format_number(file) for _, file in labels]
        if self._maps + table.arrays > MAX_ARRAYS:
            raise LimitError(f"an archive holds at most {MAX_ARRAYS:,} arrays: put the others into another archive")
        group = Group(table, self._index.archive, self._position, self._maps)
        if not self._index.groups:
            group.archive = self._index.archive = table.identity()
        self._last_group = self._position
        self._put(pack_record(GROUP, group.to_bytes(), sum(table.sizes)))
        self._index.groups.append((self._position, len(table.sizes)))
        for block in self._group:
            self._put(placed(block.checksum, self._maps).to_bytes(CHECKSUM_SIZE, "little") + block.payload)
            self._maps += block.count
        self._index.table.extend(table)
        self._group, self._group_arrays, self._group_bytes = [], 0, 0

    def _format_number(self, file: FileFormat | None) -> int:
        """Return the number of a file format; write its record if it is new."""
        if file is None:
            return 0
        if file not in self._format_numbers:
            data = file.to_bytes()
            self._put(pack_record(FORMAT, write_varint(len(self._index.formats) + 1) + data))
            self._index.formats.append(data)
            self._format_numbers[file] = len(self._index.formats)
        return self._format_numbers[file]

    def _put(self, data: bytes) -> None:
        self._write(data)
        if self._hash is not None:
            self._hash.update(data)
        self._position += len(data)

    # ---- Closing

    def close(self) -> None:
        """Write the remaining arrays and the index, and move the archive into place."""
        if self._closed:
            return
        self._check_process()
        try:
            self._submit()
            for blocks in self._pool.rest():
                self._collect(blocks)
            self._end_group()
            self._end()
            if self._part is not None:
                self._part.commit()
        except BaseException:
            self.discard()
            raise
        self._closed = True
        self._pool.close()
        self._stack.close()

    def _end(self) -> None:
        """Write the index (unless a single block makes it superfluous), the SHA-256 (if requested) and the footer."""
        index, start = self._index, self._position
        if len(index.table.sizes) == 1 and not index.formats:
            start = self._last_group
        else:
            self._put(pack_record(INDEX, index.to_bytes()))
        if self._hash is not None:
            self._put(pack_record(DIGEST, self._hash.digest()))
        self._put(pack_footer(start))
        if names_weight(index.table.names) > table_limit(self._position):
            raise LimitError("the names of the arrays are too long: use shorter names, or several archives")

    def discard(self) -> None:
        """Discard the archive: no file is created or replaced."""
        self._closed = True
        if os.getpid() != self._process:
            return  # the process that this one was forked from still writes it
        self._pool.close()
        if self._part is not None:
            self._part.discard()
        self._stack.close()

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def compress(
    array: Array, model: Codec | None, embed_model: bool = False, verify: bool = True, **options: Any
) -> bytes:
    """Return an archive of one array.

    Arguments:
        array: The array.
        model: The codec; None for a general-purpose compressor alone.
        embed_model: Whether to store the model in the archive.
        verify: Whether to check the archive by decoding it.
        options: Other options of `ArchiveWriter`.

    Examples:
        >>> from ddf.archive import decompress
        >>> data = compress(np.arange(5), model=None)
        >>> decompress(data)
        array([0, 1, 2, 3, 4])
    """
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, embed_model=embed_model, verify=verify, **options) as writer:
        writer.add(array)
    return buffer.getvalue()
