"""Files and folders in archives: label maps as arrays, with what it takes to write them again."""

__all__ = ["FileReader", "FileWriter", "file_names", "files_in", "left_out"]

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ddf.archive.blocks import DamagedArchiveError
from ddf.archive.protocol import Array
from ddf.archive.reader import Archive
from ddf.archive.writer import ArchiveWriter
from ddf.files import atomic_write

FILES = ".ddf/files"
"""The prefix of the names of manifests: arrays of JSON in UTF-8 that describe the files before them."""

_SMALLEST_MANIFEST = 64  # files that one manifest describes, at least,
_SHARE = 16  # and this part of all files so far

_MODES = {"1": np.bool_, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I": np.int32}
_PNG_PIXELS = {"transparency", "interlace"}
_TIFF_PIXELS = {254, 255, 256, 257, 258, 259, 262, 263, 266, 273, 277, 278, 279, 282, 283, 284, 296, 317, 338, 339}
_TIFF_PIXELS |= {320, 322, 323, 324, 325}  # tags that describe the pixels and how they are stored
_UPRIGHT = (274, 1)
_IMAGES = {".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF"}


def files_in(sources: Sequence[str | PathLike[str]]) -> list[tuple[str, Path]]:
    """Return the files in files and folders, each with its name in an archive.

    Files keep their places in a folder. Hidden files and broken links are skipped.

    Arguments:
        sources: Files and folders.
    """
    found: list[tuple[str, Path]] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
            found += [(file.relative_to(path).as_posix(), file) for file in inside]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise FileNotFoundError(f"{path} does not exist")
    names: dict[str, Path] = {}
    for name, path in found:
        if name in names:
            raise ValueError(
                f"{names[name]} and {path} would both be named {name!r}; compress the folder that contains both"
            )
        names[name] = path
    return found


def left_out(sources: Sequence[str | PathLike[str]]) -> list[Path]:
    """Return what `files_in` skips in folders: hidden files, broken links, links to folders, empty folders.

    Arguments:
        sources: Files and folders.
    """
    found = []
    for source in sources:
        for folder, folders, files in os.walk(source):
            here = Path(folder)
            for name in (*folders, *files):
                path = here / name
                usual = path.is_file() or (path.is_dir() and not path.is_symlink())
                if name.startswith(".") or not usual:
                    found.append(path)
            if not folders and not files and here != Path(source):
                found.append(here)
            folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


class FileWriter:
    """Adds files to an archive: label maps as arrays, with what it takes to write them again, others byte by byte.

    PNG and TIFF images with one channel and npy files of integers are label maps.

    Arguments:
        archive: The archive to add to.

    Examples:
        >>> from PIL import Image
        >>> Image.fromarray(np.full((4, 6), 255, dtype=np.uint8)).save("mask.png")
        >>> with ArchiveWriter("masks.ddf", model=None) as archive:
        ...     files = FileWriter(archive)
        ...     files.add("mask.png", "mask.png")
        ...     files.finish()
        >>> FileReader(Archive("masks.ddf")).write("mask.png", "again.png")
        >>> int(np.array(Image.open("again.png")).max())
        255
    """

    def __init__(self, archive: ArchiveWriter) -> None:
        self.archive = archive
        self._kinds: list[dict[str, Any]] = []
        self._files: dict[str, int] = {}  # since the last manifest
        self._count = 0
        self.maps = 0  # the number of files that were label maps
        self.stripped: list[str] = []  # images with metadata that is not kept

    def add(self, path: str | PathLike[str], name: str) -> None:
        """Add a file under a name."""
        if name.startswith(FILES):
            raise ValueError(f"{name!r} is a reserved name")
        array, kind = _read(Path(path))
        if kind.pop("more", False):
            self.stripped.append(name)
        self.archive.add(array, name, copy=False)
        self.maps += kind["as"] != "file"
        if kind not in self._kinds:
            self._kinds.append(kind)
        self._files[name] = self._kinds.index(kind)
        self._count += 1
        blocks = -(-max(_SMALLEST_MANIFEST, self._count // _SHARE) // self.archive.maps_per_block)
        if len(self._files) >= blocks * self.archive.maps_per_block:
            self.finish()

    def finish(self) -> None:
        """Add a manifest of the files since the last one. Call it before the archive is closed."""
        if self._files:
            usual: dict[str, int] = {}  # the most frequent kind of each suffix
            for suffix in sorted({PurePosixPath(name).suffix for name in self._files}):
                kinds = [kind for name, kind in self._files.items() if PurePosixPath(name).suffix == suffix]
                usual[suffix] = max(sorted(set(kinds)), key=kinds.count)
            others = {name: kind for name, kind in self._files.items() if usual[PurePosixPath(name).suffix] != kind}
            number = sum(name.startswith(FILES) for name in self.archive.names)
            manifest: dict[str, Any] = {"kinds": self._kinds, "usual": usual, "files": others}
            if number:
                manifest["first"] = next(iter(self._files))
            plain = np.frombuffer(json.dumps(manifest, separators=(",", ":")).encode(), dtype=np.uint8)
            self.archive.add(plain, f"{FILES}-{number}.json")
            self._kinds, self._files = [], {}


def file_names(archive: Archive) -> list[str]:
    """Return the names of the files of an archive; arrays without a name have their number."""
    return [name or f"{number:06}" for number, name in enumerate(archive.names) if not name.startswith(FILES)]


class FileReader:
    """Writes the files of an archive to disk.

    Arguments:
        archive: The archive to read.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._kinds: dict[str, dict[str, Any]] = {}
        waiting: list[str] = []  # for their manifest, which comes after them
        manifests = 0
        for name in archive.names:
            if not name.startswith(FILES):
                waiting.append(name)
                continue
            try:
                number = int(name.removeprefix(f"{FILES}-").removesuffix(".json"))
                manifest = json.loads(archive[name].tobytes())
                kinds, usual, files = manifest["kinds"], manifest["usual"], manifest["files"]
                if number > manifests:  # the one before is lost, and some of these files were in it
                    first = manifest.get("first")
                    waiting = waiting[waiting.index(first) :] if first in waiting else []
                for file in waiting:
                    kind = files.get(file, usual.get(PurePosixPath(file).suffix))
                    if kind is not None:
                        self._kinds[file] = kinds[kind]
                waiting = []
                manifests = number + 1
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise DamagedArchiveError(f"{archive.name}: the manifest {name} is invalid") from error

    @property
    def names(self) -> list[str]:
        """The names of the files; arrays without a name have their number."""
        return file_names(self.archive)

    def file_name(self, name: str) -> str:
        """Return the name of the file of an array: arrays that were not files become npy files."""
        return name if name in self._kinds or name.endswith(".npy") else f"{name}.npy"

    def is_known(self, name: str) -> bool:
        """Return whether a manifest describes the file of an array."""
        return name in self._kinds

    def write(self, name: str, path: str | PathLike[str], array: Array | None = None) -> None:
        """Write the file of an array, atomically.

        Arguments:
            name: Its name in the archive.
            path: The file to write.
            array: The array, if it has been read already.
        """
        found = self.archive[name] if array is None else array
        data = _to_bytes(found, self._kinds.get(name, {"as": "npy"}))
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(data)

    def write_all(
        self, folder: str | PathLike[str], overwrite: bool = False, threads: int | None = None
    ) -> Iterator[Path]:
        """Write all files into a folder, one at a time, and yield their paths.

        Arguments:
            folder: The folder, which is created if needed.
            overwrite: Whether to replace existing files.
            threads: The number of threads that decode; None for one per core.
        """
        taken: dict[Path, str] = {}
        for name in self.names:
            place = self.place(name, folder)
            if place in taken:
                raise ValueError(f"the archive holds {taken[place]!r} and {name!r}, which are the same file, {place}")
            taken[place] = name
            if place.exists() and not overwrite:
                raise FileExistsError(f"{place} already exists; --force (in Python overwrite=True) replaces it")
        for number, (name, array) in enumerate(self.archive.items(threads)):
            if not name.startswith(FILES):
                place = self.place(name or f"{number:06}", folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                self.write(name, place, array)
                yield place

    def place(self, name: str, folder: str | PathLike[str]) -> Path:
        """Return the place of a file in a folder; refuse names that lead out of it."""
        relative = PurePosixPath(self.file_name(name))
        foreign = os.name == "nt" and re.search(r'[\\:<>"|?*]', str(relative))
        if relative.is_absolute() or ".." in relative.parts or not relative.name or foreign:
            raise ValueError(f"the archive holds a file {name!r}, which would be written outside of {folder}")
        return Path(folder) / relative


def _read(path: Path) -> tuple[Array, dict[str, Any]]:
    """Read a file as an array; return it and what it takes to write the file again."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        try:
            array = np.load(path)
            if array.dtype.kind in "iub":
                return array, {"as": "npy"}
        except (ValueError, OSError, EOFError):
            pass
    if suffix in _IMAGES:
        found = _read_image(path, _IMAGES[suffix])
        if found is not None:
            return found
    return np.frombuffer(path.read_bytes(), dtype=np.uint8), {"as": "file"}


def _read_image(path: Path, kind: str) -> tuple[Array, dict[str, Any]] | None:
    """Read an image with one channel; return None if the file holds anything else."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            mode = "I;16" if image.mode.startswith("I;16") else image.mode
            if image.format != kind or mode not in _MODES or getattr(image, "n_frames", 1) > 1:
                return None
            about: dict[str, Any] = {"as": kind, "mode": mode}
            if mode == "P":
                about["palette"] = image.getpalette("RGB")
            transparent = image.info.get("transparency")
            if transparent is not None:
                about["transparency"] = list(transparent) if isinstance(transparent, bytes) else transparent
            array: Array = np.asarray(image).astype(_MODES[mode])
            about["more"] = _holds_more(image)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError):
        return None
    again = _to_bytes(array, about, compress_level=1)  # an image that Pillow cannot reproduce is stored byte by byte
    with Image.open(io.BytesIO(again)) as image:
        same = np.array_equal(np.asarray(image), array) and image.mode.startswith(mode)
        same = same and (mode != "P" or image.getpalette("RGB") == about["palette"])
    return (array, about) if same else None


def _holds_more(image: Any) -> bool:
    """Return whether an image holds metadata that is not kept: text, color profiles, geographic coordinates."""
    if image.format == "TIFF":
        return any(tag not in _TIFF_PIXELS and (tag, value) != _UPRIGHT for tag, value in image.tag_v2.items())
    return bool(set(image.info) - _PNG_PIXELS or getattr(image, "text", None))


def _to_bytes(array: Array, kind: dict[str, Any], compress_level: int = 6) -> bytes:
    """Return the contents of the file of an array."""
    buffer = io.BytesIO()
    if kind["as"] == "file":
        return array.tobytes()
    if kind["as"] == "npy":
        np.save(buffer, array)
        return buffer.getvalue()
    from PIL import Image

    image = Image.fromarray(array)
    options: dict[str, Any] = {"compress_level": compress_level} if kind["as"] == "PNG" else {"compression": "tiff_lzw"}
    if kind["mode"] == "P":
        image = image.convert("L") if image.mode == "1" else image
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette(kind["palette"], "RGB")
    if "transparency" in kind:
        found = kind["transparency"]
        options["transparency"] = bytes(found) if isinstance(found, list) else found
    if kind["mode"] == "1" and kind["as"] == "TIFF":
        options["compression"] = "group4"
    image.save(buffer, kind["as"], **options)
    return buffer.getvalue()
