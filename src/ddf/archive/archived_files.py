"""Files and folders in archives: label maps as arrays that can be restored to files, other files byte for byte."""

__all__ = ["FileReader", "FileWriter"]

import stat
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path

from ddf.archive.formats import FileFormat
from ddf.archive.images import Loaded, file_from_bytes, read_file, to_file
from ddf.archive.output_folder import OutputFolder
from ddf.archive.reader import Archive
from ddf.archive.writer import ArchiveWriter
from ddf.errors import DamagedArchiveError, LimitError
from ddf.remote import RemoteFile, is_url, local_path, read_ahead
from ddf.shapes import Array

_NPY = FileFormat("npy")
_SECONDS = 0.2  # to wait for the contents of a file at once


class FileWriter:
    """Adds files to an archive: label maps as arrays that can be restored to files, other files byte for byte.

    PNG and TIFF images with one channel and npy files of integers are label maps.

    Arguments:
        archive: The archive to add to.

    Examples:
        >>> import numpy as np
        >>> from PIL import Image
        >>> Image.fromarray(np.full((4, 6), 255, dtype=np.uint8)).save("mask.png")
        >>> with ArchiveWriter("masks.ddf", model=None) as archive:
        ...     FileWriter(archive).add("mask.png", "mask.png")
        >>> FileReader(Archive("masks.ddf")).write("mask.png", "again")
        PosixPath('again/mask.png')
    """

    def __init__(self, archive: ArchiveWriter) -> None:
        self.archive = archive
        self.files = 0  # the number of files that were archived
        self.maps = 0  # the number of files that were label maps
        self.bytes = 0  # the size of all files
        self.stripped: list[str] = []  # images with metadata that is not kept
        self.problems: list[tuple[str, str]] = []  # files not archived as their names suggest, and why

    def add(self, file: str | PathLike[str] | RemoteFile, name: str) -> None:
        """Add a file under a name. If it is unreadable or not what its name suggests, it is listed in `problems`.

        Arguments:
            file: Its path or its URL.
            name: Its name in the archive.
        """
        if isinstance(file, str) and is_url(file):
            file = local_path(file) or RemoteFile.at(file)
        self._add(next(self._opened([(name, file)])), name)

    def add_all(self, files: Sequence[tuple[str, Path | RemoteFile]]) -> Iterator[str]:
        """Add files, and yield the name of each; files at URLs are read ahead.

        Arguments:
            files: The files, each with its name, as `files_in` finds them.
        """
        for (name, _), load in zip(files, self._opened(files), strict=True):
            self._add(load, name)
            yield name

    def _opened(
        self, files: Sequence[tuple[str, str | PathLike[str] | RemoteFile]]
    ) -> Iterator[Callable[[], tuple[Loaded, int]]]:
        """Yield for each file a function that returns its array and its size."""
        limit = self.archive.max_bytes
        contents = read_ahead((file for _, file in files if isinstance(file, RemoteFile)), limit)
        for name, file in files:
            if isinstance(file, RemoteFile):
                yield partial(_from_url, next(contents), name, limit)
            else:
                yield partial(_from_path, Path(file), limit)

    def _add(self, load: Callable[[], tuple[Loaded, int]], name: str) -> None:
        stored = self._storable(name)
        if stored in self.archive.names:
            raise ValueError(f"the archive already contains a file named {stored!r}")
        try:
            loaded, size = load()
            self.archive.add(loaded.array, stored, copy=False, file=loaded.format)
        except (OSError, LimitError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problems.append((name, f"not archived: {why}"))
            return
        self.files += 1
        self.bytes += size
        self.maps += loaded.format.type != "file"
        if loaded.stripped:
            self.stripped.append(name)
        if loaded.problem:
            self.problems.append((name, f"archived byte for byte: {loaded.problem}"))
        if stored != name:
            self.problems.append((name, f"archived as {stored!r}: its name is not valid UTF-8"))

    def _storable(self, name: str) -> str:
        """Return a name that can be encoded as UTF-8."""
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _from_path(path: Path, max_bytes: int) -> tuple[Loaded, int]:
    """Return the array of a file, and its size."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not path.is_dir():  # reading a pipe may take forever
        raise OSError("it is not a regular file")
    return read_file(path, max_bytes), status.st_size


def _from_url(contents: "Future[bytes]", name: str, max_bytes: int) -> tuple[Loaded, int]:
    while not contents.done():
        wait([contents], _SECONDS)  # Python handles interruptions that were delayed only between two waits
    data = contents.result()
    return file_from_bytes(data, name, max_bytes), len(data)


class FileReader:
    """Writes the files of an archive to disk.

    Arguments:
        archive: The archive to read.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    @property
    def names(self) -> Iterator[str]:
        """The names of the files; see `name`."""
        return map(self.name, range(len(self.archive)))

    def name(self, number: int) -> str:
        """Return the name of a file; for an array without a name, its number with at least six digits."""
        name = self.archive.contents.index.table.name(number)
        return name or self._free(f"{number:06}")

    def _free(self, base: str, suffix: str = "") -> str:
        """Return a name that no array has."""
        while base + suffix in self.archive:
            base += "_"
        return base + suffix

    def format_of(self, number: int) -> FileFormat:
        """Return the format of a file: npy for arrays that were not files and for unknown formats."""
        try:
            return self.archive.format_of(number) or _NPY
        except ValueError:
            return _NPY

    def target(self, number: int) -> str:
        """Return the name of the file to write for an array: arrays that were not files become npy files."""
        name = self.name(number)
        formats = self.archive.contents.index.table.formats
        known = bool(formats) and formats[number] > 0 and self.format_of(number) is not _NPY
        return name if known or name.endswith(".npy") else self._free(name, ".npy")

    def key(self, name: str) -> int:
        """Return the number of the array of a file, given its name or what `ddf list` prints for it."""
        if name in self.archive:
            return self.archive.number_of(name)
        digits = name.rstrip("_")
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) >= 6 else len(self.archive)
        if number < len(self.archive) and self.name(number) == name:
            return number
        if name[:1] in ("'", '"'):
            with suppress(ValueError, SyntaxError, TypeError):
                return self.archive.number_of(str(literal_eval(name)))
        raise FileNotFoundError(
            f"{self.archive.name} does not contain {name!r}; `ddf list {self.archive.name}` prints the names"
        )

    def contents(self, name: str, number: int, array: Array) -> bytes:
        """Return the contents of the file of an array."""
        try:
            return to_file(array, self.format_of(number))
        except ValueError as error:
            raise DamagedArchiveError(f"{self.archive.name} is damaged: {name!r}: {error}") from error

    def write(self, name: str, folder: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write one file into a folder, and return its path.

        Arguments:
            name: Its name in the archive.
            folder: The folder, which is created if needed.
            overwrite: Whether to replace an existing file.
        """
        number = self.key(name)
        output = OutputFolder(folder, overwrite)
        target = self.target(number)
        output.check([target])
        return output.write(target, self.contents(name, number, self.archive[number]))

    def write_all(self, folder: str | PathLike[str], overwrite: bool = False) -> Iterator[Path]:
        """Write all files into a folder, one at a time, and yield their paths.

        Arguments:
            folder: The folder, which is created if needed.
            overwrite: Whether to replace existing files.
        """
        output = OutputFolder(folder, overwrite)
        output.check(map(self.target, range(len(self.archive))))
        for number, array in self.archive.arrays():
            yield output.write(self.target(number), self.contents(self.name(number), number, array))
