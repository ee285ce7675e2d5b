"""Files that are either whole or not there."""

__all__ = ["atomic_write", "locked"]

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path beside `path` to write to, and moves it there when all went well.

    However the writing ends, `path` holds what it held before or the whole of the new: never half a file.

    Examples:
        >>> with atomic_write("notes.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> Path("notes.txt").read_text()
        'whole'
    """
    path = Path(path).resolve()  # a link stays a link
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        handle, name = tempfile.mkstemp(prefix=".ddf-", suffix=".part", dir=path.parent)
    except OSError as error:
        raise type(error)(error.errno, f"cannot write {path}: {error.strerror}") from error
    temporary = Path(name)
    try:
        os.close(handle)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # which names no file
            raise type(error)(error.errno, f"cannot write {path}: {error.strerror}") from error
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process is in here with the same path, a file that comes and goes."""
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    with path.open("a") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
