"""Write files into a folder and never outside it."""

__all__ = ["OutputFolder"]

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path, PurePosixPath

from ddf.errors import DamagedArchiveError

_SAFE = os.open in os.supports_dir_fd and os.link in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_MAX_PART = 255  # bytes of the name of a file or folder
_UNSUPPORTED = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.EACCES}


class OutputFolder:
    """Writes files whose names come from an archive.

    Files are written atomically and never outside the folder: links inside it are not followed.

    Arguments:
        path: The folder, which is created if needed.
        overwrite: Whether to replace existing files. Only regular files are ever replaced.
    """

    def __init__(self, path: str | PathLike[str], overwrite: bool = False) -> None:
        self.path = Path(path)
        self.overwrite = overwrite
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; specify a folder to write to")

    def place(self, name: str) -> Path:
        """Return the path of a file; raise an error for a name that leads out of the folder."""
        relative = PurePosixPath(name)
        foreign = os.name == "nt" and re.search(r'[\\:<>"|?*]', name)
        if any(len(part.encode()) > _MAX_PART for part in relative.parts):
            raise DamagedArchiveError(
                f"the archive contains a file {name[:60]!r}…, but file systems allow at most {_MAX_PART} bytes between "
                "slashes"
            )
        if relative.is_absolute() or ".." in relative.parts or not relative.name or foreign or "\0" in name:
            raise DamagedArchiveError(
                f"the archive contains a file {name!r}, which would be written outside {self.path}"
            )
        return self.path / relative

    def check(self, names: Iterable[str]) -> None:
        """Raise an error for names that lead out of the folder, conflict with one another, or already exist."""
        taken: dict[Path, str] = {}
        folders: dict[Path, str] = {}
        for name in names:
            place = self.place(name)
            if place in taken or place in folders:
                other = taken.get(place) or folders[place]
                raise DamagedArchiveError(f"the archive contains {other!r} and {name!r}, which cannot both be written")
            taken[place] = name
            for parent in PurePosixPath(name).parents[:-1]:
                folder = self.path / parent
                if folder in taken:
                    raise DamagedArchiveError(
                        f"the archive contains {taken[folder]!r} and {name!r}, which cannot both be written"
                    )
                folders[folder] = name
            if not self.overwrite and os.path.lexists(place):
                raise self._exists(place)

    @staticmethod
    def _exists(place: Path) -> FileExistsError:
        return FileExistsError(f"{place} already exists; use --force (in Python, overwrite=True) to replace it")

    def write(self, name: str, data: bytes) -> Path:
        """Write a file and return its path."""
        place = self.place(name)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._write(place, place.relative_to(self.path).parts, data)
        except OSError as error:
            if error.errno is None:
                raise
            raise type(error)(error.errno, f"cannot write {place}: {error.strerror}") from error
        return place

    def _write(self, place: Path, parts: tuple[str, ...], data: bytes) -> None:
        if not _SAFE:
            self._write_by_path(place, data)
            return
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
                try:
                    inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise FileExistsError(f"{place}: {part} is a link or a file, not a folder") from error
                os.close(folder)
                folder = inner
            self._write_in(folder, place, parts[-1], data)
        finally:
            os.close(folder)

    def _write_in(self, folder: int, place: Path, name: str, data: bytes) -> None:
        """Write a file into an open folder."""
        self._check_target(place, lambda: os.stat(name, dir_fd=folder, follow_symlinks=False))
        part = f".ddf-{secrets.token_hex(8)}.part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            if self.overwrite:
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                return
            try:
                os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                raise self._exists(place) from None
            except OSError as error:  # a file system without links
                if error.errno not in _UNSUPPORTED:
                    raise
                self._check_target(place, lambda: os.stat(name, dir_fd=folder, follow_symlinks=False))
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)

    def _check_target(self, place: Path, status: Callable[[], os.stat_result]) -> None:
        try:
            mode = status().st_mode
        except FileNotFoundError:
            return
        if not self.overwrite:
            raise self._exists(place)
        if not stat.S_ISREG(mode):
            raise FileExistsError(f"{place} is not a regular file and is never replaced: delete it first")

    def _write_by_path(self, place: Path, data: bytes) -> None:
        """Write a file on a system that cannot open folders."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if self.path.resolve() not in place.parent.resolve().parents and self.path.resolve() != place.parent.resolve():
            raise FileExistsError(f"{place.parent} is a link to a folder outside {self.path}")
        self._check_target(place, place.lstat)
        part = place.with_name(f".ddf-{secrets.token_hex(8)}.part")
        try:
            part.write_bytes(data)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
