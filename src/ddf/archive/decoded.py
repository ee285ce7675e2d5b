"""A cache of decoded arrays that worker processes share."""

__all__ = ["DecodedCache"]

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ddf.archive.blocks import DTYPES
from ddf.archive.reader import Archive
from ddf.files import scratch_file
from ddf.lazy import lazy
from ddf.shapes import Array


class DecodedCache:
    """Arrays of archives, kept in a temporary file once they have been decoded.

    Every array has a fixed place in the file, so any number of threads and processes may read and write without locks.
    Copies in other processes (forked or unpickled) use the same file, which is deleted together with the original.

    Arguments:
        archives: The archives.
        max_bytes: The maximum size of the file in bytes; arrays that do not fit are decoded every time.
        folder: The folder of the file; None for the default folder for temporary files.
    """

    def __init__(self, archives: list[Archive], max_bytes: int, folder: str | os.PathLike[str] | None = None) -> None:
        self.archives = archives
        starts, stop = [], 0
        for archive in archives:
            table = archive.contents.index.table
            sizes = np.array([table.kinds[i].size for i in table.kind_of], np.int64).repeat(table.counts)
            starts.append(stop + np.append(0, sizes.cumsum()))
            stop = int(starts[-1][-1])
        total = sum(len(archive) for archive in archives)  # one byte for each array, whether it is there
        self._starts = [total + part for part in starts]
        self._firsts = np.cumsum([0, *(len(archive) for archive in archives)]).tolist()
        self.max_bytes = min(max_bytes, total + stop)
        self.path: Path | None = None
        if max_bytes > total and hasattr(os, "pread"):
            self.path, file = scratch_file(Path(folder or tempfile.gettempdir()))
            os.truncate(file.fileno(), self.max_bytes)  # a sparse file: it takes space as it is filled
            self._handle = file.fileno()
            weakref.finalize(self, _delete, self.path, file, os.getpid())

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
        flag = self._firsts[which] + number
        if os.pread(self._handle, 1, flag) == b"\1":
            table = archive.contents.index.table
            kind = table.kinds[table.kind_of[archive.contents.block_of(number)]]
            out = np.empty(kind.shape, DTYPES[kind.dtype])
            if os.preadv(self._handle, [out.reshape(-1).view(np.uint8).data], start) == stop - start:
                return out
        array = archive[number]
        try:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            if data.nbytes == stop - start == os.pwrite(self._handle, data, start):
                os.pwrite(self._handle, b"\1", flag)
        except OSError:  # the disk is full
            self.max_bytes = 0
        return array


def _delete(path: Path, file: Any, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)
        file.close()
