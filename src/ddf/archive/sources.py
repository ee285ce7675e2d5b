"""Where the bytes of an archive come from: a file, memory, an open file, or a URL. Any number of threads may read."""

__all__ = ["Source", "open_source"]

import io
import os
import stat
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from ddf.errors import DamagedArchiveError
from ddf.remote import file_system, is_url, remote_errors, size_of_file

_LEAST_AHEAD, _MOST_AHEAD = 1 << 16, 1 << 20  # bytes that are read ahead from a URL


class Source(ABC):
    """Bytes that are read in ranges. There is no read position for threads or processes to share.

    Arguments:
        name: Its name in error messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of bytes."""

    @abstractmethod
    def _read(self, start: int, count: int) -> bytes: ...

    def read(self, start: int, count: int) -> bytes:
        """Return the bytes of a range, all of which must exist."""
        if self.closed:
            raise ValueError(f"{self.name} is closed")
        data = self._read(start, count) if count > 0 else b""
        if len(data) != max(count, 0):
            raise DamagedArchiveError(f"{self.name} is damaged: it is truncated")
        return data

    def close(self) -> None:
        """Close what the source opened."""
        self.closed = True


class _Memory(Source):
    def __init__(self, data: bytes) -> None:
        super().__init__("the archive")
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    def _read(self, start: int, count: int) -> bytes:
        return self.data[start : start + count]


class _Descriptor(Source):
    """A file that the operating system reads at any position, without moving a file pointer."""

    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name)
        self._handle = handle
        self._size = os.fstat(handle).st_size

    @property
    def size(self) -> int:
        return self._size

    def _read(self, start: int, count: int) -> bytes:
        data = os.pread(self._handle, count, start)
        while len(data) < count:  # the system reads at most 2 GiB at once
            more = os.pread(self._handle, count - len(data), start + len(data))
            if not more:
                break
            data += more
        return data


class _File(_Descriptor):
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder, not an archive")
        if path.exists() and not path.is_file():
            raise DamagedArchiveError(f"{path} is not a ddf archive: it is not a regular file")
        handle = os.open(path, os.O_RDONLY)
        super().__init__(str(path), handle)
        self._close = weakref.finalize(self, os.close, handle)

    def close(self) -> None:
        super().close()
        self._close()


class _Object(Source):
    """An open file that can only be read at its current position."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(str(getattr(file, "name", "the archive")))
        self._file = file
        self._lock, self._process = threading.Lock(), os.getpid()
        self._size = file.seek(0, os.SEEK_END)

    @property
    def size(self) -> int:
        return self._size

    def _read(self, start: int, count: int) -> bytes:
        if os.getpid() != self._process:  # a thread of the parent process may hold the lock forever
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            self._file.seek(start)
            parts = []
            while count and (part := self._file.read(count)):
                parts.append(part)
                count -= len(part)
        return b"".join(parts)


class _Url(Source):
    """A URL, read in ranges. When a range begins where the last one ended, more and more is read ahead.

    Arguments:
        url: The URL.
        options: Options of the file system.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url)
        self.options = dict(options)
        self._connect()
        with remote_errors(url):
            size = size_of_file(self._files, self._path)
        self._whole: bytes | None = None  # the contents, if there is no other way to get a part of them
        # Where the bytes that are kept begin, these bytes, where the last range ended, and how much was read ahead.
        # They are replaced together, because other threads may read at the same time.
        self._recent = 0, b"", -1, 0
        if size is None:
            self._whole = self._fetch(0, None)
            size = len(self._whole)
        self._size = size

    def _connect(self) -> None:
        self._process = os.getpid()
        self._files, self._path = file_system(self.name, self.options)

    @property
    def size(self) -> int:
        return self._size

    def _read(self, start: int, count: int) -> bytes:
        if self._whole is not None:
            return self._whole[start : start + count]
        first, kept, end, ahead = self._recent
        inside = kept[start - first : start - first + count] if first <= start <= first + len(kept) else b""
        if len(inside) < count:
            ahead = min(max(2 * ahead, _LEAST_AHEAD), _MOST_AHEAD) if start == end else 0
            position = start + len(inside)
            more = self._fetch(position, min(self.size, max(start + count, position + ahead)))
            if self._whole is not None:
                return self._whole[start : start + count]
            data = inside + more
            first, kept = (start, data) if len(data) <= 2 * _MOST_AHEAD else (0, b"")
            inside = data[:count]
        self._recent = first, kept, start + count, ahead
        return inside

    def _fetch(self, start: int, end: int | None) -> bytes:
        """Request a range; None as its end for everything."""
        if end is not None and end <= start:
            return b""
        if os.getpid() != self._process:  # the connections of a parent process cannot be shared
            self.options["skip_instance_cache"] = True
            self._connect()
        with remote_errors(self.name):
            data = bytes(self._files.cat_file(self._path, **({} if end is None else {"start": start, "end": end})))
        if end is not None and len(data) == self._size > end - start:  # the server ignores ranges
            self._whole = data
        return data


def open_source(
    where: str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO, options: Mapping[str, Any] | None = None
) -> Source:
    """Open a path, a URL, bytes or an open file.

    Arguments:
        where: The path, URL, bytes or file.
        options: Options of the file system of a URL.
    """
    if isinstance(where, bytes | bytearray | memoryview):
        return _Memory(bytes(where))
    if isinstance(where, str) and is_url(where):
        return _Url(where, options or {})
    if isinstance(where, str | PathLike):
        if hasattr(os, "pread"):
            return _File(Path(where))
        return _Object(Path(where).open("rb"))
    if hasattr(where, "read") and hasattr(where, "seek"):
        if not isinstance(where.read(0), bytes):
            raise TypeError(f"{where!r} is open in text mode: open it in binary mode")
        handle = _regular(where)
        return _Object(where) if handle is None else _Descriptor(str(getattr(where, "name", "the archive")), handle)
    raise TypeError(f"pass a path, a URL, bytes or an open file, not {where!r}")


def _regular(file: BinaryIO) -> int | None:
    """Return the descriptor of an open file if reading from it returns the same bytes; otherwise None."""
    if not isinstance(file, io.FileIO | io.BufferedReader | io.BufferedRandom) or not hasattr(os, "pread"):
        return None
    try:
        file.flush()
        handle = file.fileno()
        return handle if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except (OSError, ValueError):
        return None
