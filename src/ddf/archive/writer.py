"""Writing archives: as a stream, whole or not at all."""

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

from ddf.archive.reader import Archive
from ddf.archive.blocks import (
    MOST_SHARED,
    MOST_SHARED_BYTES,
    Block,
    DamagedArchiveError,
    Kind,
    Method,
)
from ddf.archive.protocol import Array
from ddf.archive.coding import encode_blocks, kind_of
from ddf.archive.flow import IntegerFlow
from ddf.archive.labels import Labels, LabelTables
from ddf.archive.layout import (
    BLOCK,
    EMBEDDED,
    END,
    FOOTER_SIZE,
    INDEX,
    KIND,
    MAGIC,
    MODEL,
    NOTHING,
    STRIDE,
    VERSION,
    Index,
    WrongModelError,
    check_counts,
    check_model,
    wrong_model,
)
from ddf.archive.parallel import Pool, usual_batch
from ddf.archive.varint import write_varint


class ArchiveWriter:
    """Writes an archive. It appears under its name whole, when it is closed, or not at all.

    Arguments:
        path: The file, or anything that can be written to.
        model: The integer flow to code with; None for a general compressor alone, or, with `append`, for the one in
            the archive.
        embed_model: Whether to put the model into the archive, which is then complete in itself.
        maps_per_block: How many arrays of one shape share a block at most. Blocks cost a few bytes each and are read
            whole.
        verify: Whether to decode everything before it is written.
        append: Whether to go on with an archive that is there. It is replaced when this one is closed.
        overwrite: Whether to replace a file that is there.
        processes: How many processes code at once. The archive is the same.
        batch_size: How many arrays of one shape are coded together; None for up to 16, fewer if they are large. The
            archive is the same.
        relabel: Whether the model codes labels that it does not know, such as 255 in masks, as those of other classes.
            They come back as they were. Otherwise a general compressor takes arrays that hold such.

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
        model: IntegerFlow | None,
        embed_model: bool = False,
        maps_per_block: int = 1,
        verify: bool = True,
        append: bool = False,
        overwrite: bool = False,
        processes: int = 1,
        batch_size: int | None = None,
        relabel: bool = True,
    ) -> None:
        check_model(model)
        if append and model is None and isinstance(path, str | PathLike) and Path(path).is_file():
            with Archive(path) as old:
                model = old.model if old.embeds_model else None
        check_counts(maps_per_block=maps_per_block, processes=processes)
        if batch_size is not None:
            check_counts(batch_size=batch_size)
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
        self.batch_size = batch_size
        self.bits = 0.0  # what the model's frequencies say of all that was added
        self.modelled = 0  # how many arrays the model coded, of those that were written
        self._kind: Kind | None = None
        self._kind_at = 0
        self._numbers: dict[Kind, int] = {}  # of the kinds that were said so far
        self._index = Index(0, 0, [], [], [])
        self._blocks = self._maps = 0
        self._waiting: list[tuple[Labels, Array, str]] = []
        self._waiting_kind: Kind | None = None
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._names: set[str] = set()
        self._closed = False
        self._position = 0
        self._before: os.stat_result | None = None  # the file that is there
        self._overwrite = overwrite
        self._tables = LabelTables(model.classes) if relabel and model is not None else None
        self._pool = Pool(model, processes)
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
            raise FileNotFoundError(f"cannot write {self._path}: there is no folder {self._path.parent}")
        if self._path.is_dir():
            raise IsADirectoryError(f"{self._path} is a folder, not the file of an archive")
        if append and not self._path.exists():
            append = False
        elif self._path.exists() and not (append or overwrite):
            raise FileExistsError(f"{self._path} is there already; overwrite=True replaces it, append=True adds to it")
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
        fingerprint = NOTHING if self.model is None else self.model.fingerprint
        header = MAGIC + bytes([VERSION, EMBEDDED if embed_model else 0]) + fingerprint
        self._put(header + zlib.crc32(header).to_bytes(4, "little"))
        if embed_model:
            assert self.model is not None
            data = self.model.to_bytes()
            self._record(MODEL, zlib.crc32(data).to_bytes(4, "little") + data)

    def _continue(self, path: Path, embed_model: bool) -> None:
        """Takes over what an archive holds, but for its end."""
        old = Archive(path, model=self.model)
        if old.fingerprint not in (NOTHING, None if self.model is None else self.model.fingerprint):
            raise WrongModelError(f"{path}: {wrong_model(old.fingerprint, self.model)}")
        if old.fingerprint == NOTHING and self.model is not None:
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
        self._index = Index(0, 0, list(index.points), old.kinds(), list(old.names))
        self._numbers = {Kind.from_bytes(body): number for number, (_, body) in enumerate(self._index.kinds)}
        self._blocks, self._maps = index.blocks, index.maps
        self._names = {name for name in index.names if name}

    @property
    def names(self) -> set[str]:
        """The names of all arrays that have been added, or were there."""
        return self._names

    def add(self, array: Array, name: str = "") -> None:
        """Adds an array of integers, 0-d to any number of dimensions.

        Arguments:
            array: It is copied.
            name: What it is called; all or none of the arrays of a block have names.
        """
        if self._closed:
            raise ValueError("the archive is closed")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask; fill it first, or add its data and its mask")
        array = np.array(array)
        if array.dtype == np.bool_:
            array = array.view(np.uint8) != 0  # whatever bytes its truths are
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
        batch = usual_batch(self.model, array.size) if self.batch_size is None else self.batch_size
        per_block = self._per_block(kind)
        most = max(1, batch // per_block) * per_block  # whole blocks, or the batch would have a say in what they hold
        labels = self._tables.of(array) if self._tables is not None and kind.method == Method.MODEL else ()
        last = self._waiting[-1][0] if self._waiting else ()
        other = kind != self._waiting_kind or (kind.shared and labels != last)
        if self._waiting and (other or len(self._waiting) >= most):
            self._submit()
        self._waiting_kind = kind
        self._waiting.append((labels, array, name))

    def _per_block(self, kind: Kind) -> int:
        most = max(1, min(MOST_SHARED, MOST_SHARED_BYTES // max(1, kind.size)))
        return min(self.maps_per_block, most)

    def _submit(self) -> None:
        """Has what waits coded, and writes what is ready."""
        if self._waiting:
            assert self._waiting_kind is not None
            labels, arrays, names = zip(*self._waiting, strict=True)
            kind = self._waiting_kind
            size = self._per_block(kind) if kind.shared else len(arrays)
            for i in range(0, len(arrays), size):
                some = slice(i, i + size)
                job = kind, labels[some], arrays[some], names[some], self.verify
                self._pool.submit(encode_blocks, *job)
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
        self.bits += block.bits
        self.modelled += len(block.names) if block.kind.method == Method.MODEL else 0

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
        """Gives the file its name, unless there is one meanwhile that is not to be replaced."""
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
                    f"{self._path} has been changed by someone else meanwhile: nothing was added to it"
                )
        elif not self._overwrite and self._path.exists():
            raise FileExistsError(f"{self._path} has been made by someone else meanwhile; it was not replaced")
        self._temporary.replace(self._path)

    def abandon(self) -> None:
        """Gives up: nothing appears under the archive's name."""
        self._closed = True
        if self._temporary is not None:
            with suppress(OSError):  # what is still to be written need not be
                self._file.close()
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None
        self._pool.close(at_once=True)

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def compress(array: Array, model: IntegerFlow | None, embed_model: bool = False, verify: bool = True) -> bytes:
    """An archive of one array, as bytes.

    Examples:
        >>> from ddf.codec import decompress
        >>> data = compress(np.arange(5), model=None)
        >>> decompress(data)
        array([0, 1, 2, 3, 4])
    """
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, embed_model=embed_model, verify=verify) as writer:
        writer.add(array)
    return buffer.getvalue()
