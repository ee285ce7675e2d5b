"""Atomic writes, locks between processes, and the cache folder."""

__all__ = ["PartFile", "atomic_write", "cache_folder", "exclusive", "scratch_file"]

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PREFIX, _SUFFIX = ".ddf-", ".part"
_swept: set[Path] = set()  # folders from which stale part files were removed


class PartFile:
    """A temporary file next to `path` that takes its place when it is committed.

    However the process ends, `path` holds either what it held before or the complete new contents. A file that is
    replaced keeps its mode and, where permitted, its owner. Only regular files are replaced; links to them stay links.

    Arguments:
        path: The file to write.
        overwrite: Whether to replace an existing file.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = True) -> None:
        self.path = Path(path).resolve()
        self.overwrite = overwrite
        self._process = os.getpid()
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        self._check()
        _sweep(self.path.parent)
        try:
            self.part, self.file = _create(self.path.parent)
        except OSError as error:
            raise type(error)(error.errno, f"cannot write {self.path}: {error.strerror}") from error

    def _check(self) -> os.stat_result | None:
        """Return the status of the file to replace, None if it does not exist; reject all but regular files."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{self.path} is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(f"{self.path} is not a regular file and is never replaced: specify another file")
        if not self.overwrite:
            raise FileExistsError(f"{self.path} already exists")
        return status

    def write(self, data: bytes) -> None:
        """Write to the file; an error names `path`."""
        view = memoryview(data)
        try:
            while view:
                view = view[self.file.write(view) :]
        except OSError as error:
            raise type(error)(error.errno, f"cannot write {self.path}: {error.strerror}") from error

    def commit(self) -> None:
        """Move the file into place."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise type(error)(error.errno, f"cannot write {self.path}: {error.strerror}") from error
        status = self._check()
        if status is not None:
            with suppress(OSError):
                os.chown(self.part, status.st_uid, status.st_gid)  # before the mode is set, which this may clear
            self.part.chmod(stat.S_IMODE(status.st_mode))
        _place(self.part, self.path, self.overwrite)
        self.file.close()

    def discard(self) -> None:
        """Delete the file, unless it was committed, or this process was forked from the one that writes it."""
        if not self.file.closed and os.getpid() == self._process:
            with suppress(OSError):
                self.part.unlink()
        with suppress(OSError):
            self.file.close()


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to, and move it to `path` if no error occurred; see `PartFile`.

    Examples:
        >>> with atomic_write("notes.txt") as temporary:
        ...     _ = temporary.write_text("complete")
        >>> Path("notes.txt").read_text()
        'complete'
    """
    part = PartFile(path)
    try:
        yield part.part
        part.commit()
    except OSError as error:
        if error.errno is not None and error.filename is None and str(part.path) not in str(error):
            raise type(error)(error.errno, f"cannot write {part.path}: {error.strerror}") from error
        raise
    finally:
        part.discard()


def cache_folder() -> Path:
    """Return the folder for downloads and compiled code: `$DDF_CACHE`, or `ddf` in the user's cache folder."""
    named = os.environ.get("DDF_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddf"


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock a path; wait while another process or thread holds its lock.

    The lock is a file next to `path`, which is deleted afterwards.
    """
    from filelock import FileLock

    lock = FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)
    try:
        lock.acquire()
    except RuntimeError as error:  # the same thread holds it, and would wait forever
        raise RuntimeError(f"{path} is already open for appending in this thread; close that writer first") from error
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # waiting processes notice that the file they wait for is gone
        lock.release()


def scratch_file(folder: Path) -> tuple[Path, Any]:
    """Create a temporary file, and return its path and the open file.

    If this process dies without deleting it, the next process that writes to the folder does.
    """
    if not os.access(folder, os.W_OK):
        raise FileNotFoundError(f"cannot write to the folder {folder}: it does not exist or is read-only")
    _sweep(folder)
    return _create(folder)


def _create(folder: Path) -> tuple[Path, Any]:
    """Create a part file that is locked while its process lives."""
    while True:
        part = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        file = os.fdopen(handle, "w+b", buffering=0)  # a forked process would write what a buffer holds again
        if _lock(handle, unsupported=True) and os.fstat(handle).st_nlink:
            return part, file
        file.close()  # another process deleted it as stale before it was locked
        with suppress(OSError):
            part.unlink()


def _sweep(folder: Path) -> None:
    """Delete the part files of dead processes, once per folder."""
    if folder in _swept:
        return
    _swept.add(folder)
    stale: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        stale = [e.path for e in entries if e.name.startswith(_PREFIX) and e.name.endswith(_SUFFIX)]
    for name in stale:
        with suppress(OSError):
            handle = os.open(name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(handle, unsupported=False):
                    os.unlink(name)  # noqa: PTH108 (the name is a string)
            finally:
                os.close(handle)


def _lock(handle: int, unsupported: bool) -> bool:
    """Lock an open file without waiting; return whether that succeeded. The lock ends with its process.

    Arguments:
        handle: The file descriptor.
        unsupported: What to return where files cannot be locked.
    """
    try:
        import fcntl
    except ImportError:  # on Windows, where open files cannot be deleted
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unsupported
    return True


def _place(part: Path, path: Path, overwrite: bool) -> None:
    """Move a part file into place; never replace a file unless requested."""
    if overwrite:
        part.replace(path)
        return
    try:
        os.link(part, path)
    except FileExistsError:
        raise FileExistsError(f"{path} was created by another process in the meantime; it was not replaced") from None
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(f"{path} was created by another process in the meantime") from None
        part.replace(path)
    else:
        part.unlink()
