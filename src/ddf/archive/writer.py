"""Write archives as a stream, atomically."""

__all__ = ["ArchiveWriter", "compress"]

import io
import os
import tempfile
import zlib
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from ddf.archive.blocks import MOST_SHARED, MOST_SHARED_BYTES, Block, DamagedArchiveError, Kind, Method
from ddf.archive.coding import encode_blocks, kind_of
from ddf.archive.layout import (
    BLOCK,
    EMBEDDED,
    END,
    FOOTER_SIZE,
    INDEX,
    KIND,
    MAGIC,
    MODEL,
    NO_MODEL,
    STRIDE,
    VERSION,
    Index,
    WrongModelError,
    check_counts,
    check_model,
    thread_count,
    wrong_model,
)
from ddf.archive.parallel import Pool
from ddf.archive.protocol import Array, Codec
from ddf.archive.reader import Archive
from ddf.archive.varint import write_varint


class ArchiveWriter:
    """Writes an archive. The file appears under its name when the writer is closed, and not before.

    Arguments:
        path: The file, or an open file to write to.
        model: The codec; None for a general compressor alone, or, with `append`, for the codec in the archive.
        embed_model: Whether to store the model in the archive, which can then be read without it.
        maps_per_block: The largest number of arrays of one shape that share a block. A block costs a few bytes and is
            decoded as a unit.
        verify: Whether to decode everything before it is written.
        append: Whether to add to an existing archive. It is replaced when the writer is closed.
        overwrite: Whether to replace an existing file.
        threads: The number of threads that encode; None for one per core. The bytes of the archive do not depend on it.

    Examples:
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
        model: Codec | None,
        embed_model: bool = False,
        maps_per_block: int = 1,
        verify: bool = True,
        append: bool = False,
        overwrite: bool = False,
        threads: int | None = None,
    ) -> None:
        check_model(model)
        if append and model is None and isinstance(path, str | PathLike) and Path(path).is_file():
            with Archive(path) as old:
                model = old.model if old.embeds_model else None
        check_counts(maps_per_block=maps_per_block)
        threads = thread_count(threads)
        if append and overwrite:
            raise ValueError("append=True adds to a file and overwrite=True replaces it: pass one of them")
        if append and not isinstance(path, str | PathLike):
            raise ValueError("append=True needs the path of an archive")
        if not isinstance(path, str | PathLike) and not hasattr(path, "write"):
            raise TypeError(f"an archive is written to a path or an open file, not to {path!r}")
        if embed_model and model is None:
            raise ValueError("embed_model=True needs a model to embed")
        self.model = model
        self.maps_per_block = maps_per_block
        self.verify = verify
        self.coded = 0  # the number of arrays that the codec encoded
        self._kind: Kind | None = None
        self._kind_at = 0
        self._numbers: dict[Kind, int] = {}  # of the kinds written so far
        self._index = Index(0, 0, [], [], [])
        self._blocks = self._maps = 0
        self._waiting: list[tuple[Array, str]] = []
        self._waiting_kind: Kind | None = None
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._names: set[str] = set()
        self._closed = False
        self._position = 0
        self._before: os.stat_result | None = None  # the existing file
        self._overwrite = overwrite
        self._pool: Pool[list[Block]] = Pool(threads)
        try:
            if isinstance(path, str | PathLike):
                self._path = Path(path).resolve()
                self._open(append, overwrite, embed_model)
            else:
                self._file: BinaryIO = path
            if not self._position:
                self._begin(embed_model)
        except BaseException:
            self.abandon()
            raise

    def _open(self, append: bool, overwrite: bool, embed_model: bool) -> None:
        assert self._path is not None
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self._path}: the folder {self._path.parent} does not exist")
        if self._path.is_dir():
            raise IsADirectoryError(f"{self._path} is a folder, not a file")
        if append and not self._path.exists():
            append = False
        elif self._path.exists() and not (append or overwrite):
            raise FileExistsError(f"{self._path} already exists; overwrite=True replaces it, append=True adds to it")
        self._before = self._path.stat() if append else None
        try:
            handle, name = tempfile.mkstemp(prefix=".ddf-", suffix=".part", dir=self._path.parent)
        except OSError as error:
            raise type(error)(error.errno, f"cannot write {self._path}: {error.strerror}") from error
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "w+b")
        if append:
            self._continue(self._path, embed_model)

    def _begin(self, embed_model: bool) -> None:
        fingerprint = NO_MODEL if self.model is None else self.model.fingerprint
        header = MAGIC + bytes([VERSION, EMBEDDED if embed_model else 0]) + fingerprint
        self._put(header + zlib.crc32(header).to_bytes(4, "little"))
        if embed_model:
            assert self.model is not None
            data = self.model.to_bytes()
            self._record(MODEL, zlib.crc32(data).to_bytes(4, "little") + data)

    def _continue(self, path: Path, embed_model: bool) -> None:
        """Copy the records of an archive, without its index."""
        old = Archive(path, model=self.model)
        if old.fingerprint not in (NO_MODEL, None if self.model is None else self.model.fingerprint):
            raise WrongModelError(f"{path}: {wrong_model(old.fingerprint, self.model)}")
        if old.fingerprint == NO_MODEL and self.model is not None:
            raise WrongModelError(f"{path} was made without a model: append to it without one")
        if embed_model and not old.embeds_model:
            raise ValueError(f"{path} was made without an embedded model, which cannot be added afterwards")
        with path.open("rb") as source:
            left = old.end
            while left:
                part = source.read(min(left, 1 << 20))
                if not part:
                    raise DamagedArchiveError(f"{path} is cut off")
                self._put(part)
                left -= len(part)
        index = old.index
        self._index = Index(0, 0, list(index.points), old.kinds(), list(old.names))
        self._numbers = {Kind.from_bytes(body): number for number, (_, body) in enumerate(self._index.kinds)}
        self._blocks, self._maps = index.blocks, index.maps
        self._names = {name for name in index.names if name}

    @property
    def names(self) -> set[str]:
        """The names of all arrays in the archive."""
        return self._names

    def add(self, array: Array, name: str = "", copy: bool = True) -> None:
        """Add an array of integers.

        Arguments:
            array: The array.
            name: Its name, if it has one.
            copy: Whether to copy the array; if not, it must not change before the archive is closed.
        """
        if self._closed:
            raise ValueError("the archive is closed")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask: fill it first, or add its data and its mask")
        array = np.array(array) if copy else np.asarray(array)
        if array.dtype == np.bool_:
            array = np.asarray(array.view(np.uint8) != 0)  # Pillow writes 255 for true
        if not isinstance(name, str):
            raise TypeError(f"the name of an array is a string, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the name {name!r} cannot be encoded as UTF-8") from error
        if "\0" in name:
            raise ValueError(f"the name {name!r} contains a zero character")
        if name in self._names:
            raise ValueError(f"the archive already holds an array named {name!r}")
        kind = kind_of(array, named=bool(name), shared=self.maps_per_block > 1)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if name:
            self._names.add(name)
        if self._waiting and (kind != self._waiting_kind or len(self._waiting) >= self._per_block(kind)):
            self._submit()
        self._waiting_kind = kind
        self._waiting.append((array, name))

    def _per_block(self, kind: Kind) -> int:
        most = max(1, min(MOST_SHARED, MOST_SHARED_BYTES // max(1, kind.size)))
        return min(self.maps_per_block, most)

    def _submit(self) -> None:
        """Start encoding the waiting arrays, and write the blocks that are ready."""
        if self._waiting:
            arrays, names = zip(*self._waiting, strict=True)
            self._pool.submit(encode_blocks, self.model, self._waiting_kind, arrays, names, self.verify)
            self._waiting = []
        for blocks in self._pool.ready():
            for block in blocks:
                self._write(block)

    def _write(self, block: Block) -> None:
        if block.kind != self._kind:
            self._kind, self._kind_at = block.kind, self._position
            if block.kind in self._numbers:
                self._put(write_varint(self._numbers[block.kind] << 2 | MODEL))
            else:
                self._numbers[block.kind] = len(self._index.kinds)
                body = block.kind.to_bytes()
                self._index.kinds.append((self._kind_at, body))
                self._record(KIND, zlib.crc32(body).to_bytes(4, "little") + body)
        if self._blocks % STRIDE == 0:
            self._index.points.append((self._position, self._kind_at, self._maps))
        self._record(BLOCK, block.to_bytes(self._maps))
        self._blocks += 1
        self._maps += len(block.names)
        self._index.names.extend(block.names)
        self.coded += len(block.names) if block.kind.method == Method.CODEC else 0

    def _record(self, kind: int, body: bytes) -> None:
        self._put(write_varint(len(body) << 2 | kind) + body)

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            if self._path is None:
                raise
            raise type(error)(error.errno, f"cannot write {self._path}: {error.strerror}") from error
        self._position += len(data)

    def close(self) -> None:
        """Write the remaining arrays and the index, and move the archive to its place."""
        if self._closed:
            return
        try:
            self._submit()
            for blocks in self._pool.rest():
                for block in blocks:
                    self._write(block)
            start = self._position
            body = replace(self._index, blocks=self._blocks, maps=self._maps).to_bytes()
            self._record(INDEX, zlib.crc32(body).to_bytes(4, "little") + body)
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
                self._appear()
                self._temporary = None
        except BaseException:
            self.abandon()
            raise
        self._closed = True
        self._pool.close()

    def _appear(self) -> None:
        """Move the file to its place, unless another file has appeared there in the meantime."""
        assert self._path is not None
        assert self._temporary is not None
        if self._before is not None:
            now = self._path.stat() if self._path.exists() else None
            if now is None or (now.st_ino, now.st_size, now.st_mtime_ns) != (
                self._before.st_ino,
                self._before.st_size,
                self._before.st_mtime_ns,
            ):
                raise FileExistsError(
                    f"{self._path} was changed by another process in the meantime: nothing was added to it"
                )
        elif not self._overwrite and self._path.exists():
            raise FileExistsError(f"{self._path} was created by another process in the meantime; it was not replaced")
        self._temporary.replace(self._path)

    def abandon(self) -> None:
        """Discard the archive: no file appears in its place."""
        self._closed = True
        if self._temporary is not None:
            with suppress(OSError):  # unwritten data is discarded anyway
                self._file.close()
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None
        self._pool.close()

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def compress(array: Array, model: Codec | None, embed_model: bool = False, verify: bool = True) -> bytes:
    """Return an archive of one array.

    Examples:
        >>> from ddf.archive import decompress
        >>> data = compress(np.arange(5), model=None)
        >>> decompress(data)
        array([0, 1, 2, 3, 4])
    """
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, embed_model=embed_model, verify=verify) as writer:
        writer.add(array)
    return buffer.getvalue()
