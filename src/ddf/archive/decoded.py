"""A cache of decoded arrays that worker processes share."""

__all__ = ["DecodedCache"]

import hashlib
import os
import tempfile
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ddf.archive.blocks import DTYPES
from ddf.archive.reader import Archive
from ddf.files import scratch_file
from ddf.lazy import lazy
from ddf.shapes import Array

_MARK = 8  # bytes for each array at the beginning of the file


class DecodedCache:
    """Arrays of archives, kept in a file once they have been decoded.

    Every array has a fixed place in the file, and a checksum, so any number of threads and processes may read and write
    without locks. Copies in other processes (forked or unpickled) use the same file. A temporary file is deleted
    together with the original; a file that is kept serves later processes that read the same archives.

    Arguments:
        archives: The archives.
        max_bytes: The maximum size of the file in bytes; arrays that do not fit are decoded every time.
        folder: The folder of the file; None for the default folder for temporary files.
        keep: Whether to keep the file, which requires local archives and a folder.
    """

    def __init__(
        self,
        archives: list[Archive],
        max_bytes: int,
        folder: str | os.PathLike[str] | None = None,
        keep: bool = False,
    ) -> None:
        self.archives = archives
        starts, stop = [], 0
        for archive in archives:
            table = archive.contents.index.table
            sizes = np.array([table.kinds[i].size for i in table.kind_of], np.int64).repeat(table.counts)
            starts.append(stop + np.append(0, sizes.cumsum()))
            stop = int(starts[-1][-1])
        total = _MARK * sum(len(archive) for archive in archives)
        self._starts = [total + part for part in starts]
        self._firsts = np.cumsum([0, *(len(archive) for archive in archives)]).tolist()
        self.max_bytes = min(max_bytes, total + stop)
        self.path: Path | None = None
        if max_bytes > total and hasattr(os, "pread"):
            if keep:
                self.path, file = _kept_file(archives, folder)
                weakref.finalize(self, file.close)
            else:
                self.path, file = scratch_file(Path(folder or tempfile.gettempdir()))
                weakref.finalize(self, _delete, self.path, file, os.getpid())
            self._handle = file.fileno()
            if os.fstat(self._handle).st_size < self.max_bytes:
                os.truncate(self._handle, self.max_bytes)  # a sparse file: it takes space as it is filled

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_handle"}

    @lazy
    def _handle(self) -> int:
        """The descriptor of the file in another process; −1 if it has been deleted."""
        try:
            handle = os.open(self.path or "", os.O_RDWR)
        except OSError:
            return -1
        weakref.finalize(self, os.close, handle)
        return handle

    def get(self, which: int, number: int) -> Array:
        """Return an array.

        Arguments:
            which: The number of the archive.
            number: The number of the array in it.
        """
        archive = self.archives[which]
        start, stop = self._starts[which][number : number + 2].tolist()
        if self.path is None or stop > self.max_bytes or self._handle < 0 or start == stop:
            return archive[number]
        place = _MARK * (self._firsts[which] + number)
        mark = os.pread(self._handle, _MARK, place)
        if any(mark):
            table = archive.contents.index.table
            kind = table.kinds[table.kind_of[archive.contents.block_of(number)]]
            out = np.empty(kind.shape, DTYPES[kind.dtype])
            data = out.reshape(-1).view(np.uint8).data
            if os.preadv(self._handle, [data], start) == stop - start and _mark(data, start) == mark:
                return out
        array = archive[number]
        try:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            if data.nbytes == stop - start == os.pwrite(self._handle, data, start):
                os.pwrite(self._handle, _mark(data, start), place)
        except OSError:  # the disk is full
            self.max_bytes = 0
        return array


def _mark(data: memoryview, start: int) -> bytes:
    """Return what shows that an array is in the file: a checksum of its values and its place, and a bit that is 1."""
    return (1 << 32 | zlib.crc32(data, start & 0xFFFFFFFF)).to_bytes(_MARK, "little")


def _kept_file(archives: list[Archive], folder: str | os.PathLike[str] | None) -> tuple[Path, Any]:
    """Open the file for these archives, whose name depends on their contents and on when they were written."""
    if folder is None:
        raise ValueError("keeping decoded arrays requires a folder for their file")
    key = hashlib.sha256()
    for archive in archives:
        try:
            written = Path(archive.name).stat().st_mtime_ns
        except OSError:
            raise ValueError(f"decoded arrays can be kept only for local archives, not for {archive.name}") from None
        key.update(archive.contents.identity + written.to_bytes(16, "little", signed=True))
    path = Path(folder) / f"{key.hexdigest()[:32]}.maps"
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    return path, file


def _delete(path: Path, file: Any, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)
        file.close()
