"""Files in archives: what an array was on disk, so that it becomes that again."""

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

from ddf.archive.reader import Archive
from ddf.archive.blocks import DamagedArchiveError
from ddf.archive.protocol import Array
from ddf.archive.writer import ArchiveWriter
from ddf.files import atomic_write

FILES = ".ddf/files"
"""The arrays that say what the others were on disk have names that begin so. They hold JSON in UTF-8."""

_LEAST_SAID = 64  # files of which is said together what they were, at least,
_SAID_OF = 16  # and of all so far this part
_COPY = ".copy"  # of words in archives that an earlier version made

_MODES = {"1": np.bool_, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I": np.int32}
_PNG_PIXELS = {"transparency", "interlace"}
_TIFF_PIXELS = {254, 255, 256, 257, 258, 259, 262, 263, 266, 273, 277, 278, 279, 282, 283, 284, 296, 317, 338, 339}
_TIFF_PIXELS |= {320, 322, 323, 324, 325}  # tags of where its pixels are and how they are stored
_UPRIGHT = (274, 1)
_IMAGES = {".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF"}


def files_in(sources: Sequence[str | PathLike[str]]) -> list[tuple[str, Path]]:
    """The files of files and folders, each with the name it gets in an archive.

    Files of a folder keep their places in it. Hidden files, and files that lead out of a folder, are left out.

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
            raise FileNotFoundError(f"there is no {path}")
    names: dict[str, Path] = {}
    for name, path in found:
        if name in names:
            raise ValueError(f"{names[name]} and {path} would both be called {name!r}; compress their common folder")
        names[name] = path
    return found


def left_out(sources: Sequence[str | PathLike[str]]) -> list[Path]:
    """What `files_in` does not find in folders: what is hidden, links that lead nowhere or to folders, empty folders.

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
        archive: What to add to.

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
        self._files: dict[str, int] = {}  # of which is not yet said what they were
        self._count = 0
        self.maps = 0  # how many of the files were label maps
        self.stripped: list[str] = []  # images that hold more than what is kept of them

    def add(self, path: str | PathLike[str], name: str) -> None:
        """Adds a file under a name."""
        if name.startswith(FILES):
            raise ValueError(f"{name!r} is a name that archives keep for themselves")
        array, kind = _read(Path(path))
        if kind.pop("more", False):
            self.stripped.append(name)
        self.archive.add(array, name)
        self.maps += kind["as"] != "file"
        if kind not in self._kinds:
            self._kinds.append(kind)
        self._files[name] = self._kinds.index(kind)
        self._count += 1
        blocks = -(-max(_LEAST_SAID, self._count // _SAID_OF) // self.archive.maps_per_block)
        if len(self._files) >= blocks * self.archive.maps_per_block:
            self._say()

    def finish(self) -> None:
        """Adds what the files were. Call it once, before the archive is closed."""
        self._say()

    def _say(self) -> None:
        """Adds what the files since the last time were."""
        if self._files:
            usual: dict[str, int] = {}  # what most files of a suffix are is said once
            for suffix in sorted({PurePosixPath(name).suffix for name in self._files}):
                kinds = [kind for name, kind in self._files.items() if PurePosixPath(name).suffix == suffix]
                usual[suffix] = max(sorted(set(kinds)), key=kinds.count)
            others = {name: kind for name, kind in self._files.items() if usual[PurePosixPath(name).suffix] != kind}
            number = sum(name.startswith(FILES) and _COPY not in name for name in self.archive.names)
            word: dict[str, Any] = {"kinds": self._kinds, "usual": usual, "files": others}
            if number:
                word["first"] = next(iter(self._files))
            plain = np.frombuffer(json.dumps(word, separators=(",", ":")).encode(), dtype=np.uint8)
            self.archive.add(plain, f"{FILES}-{number}.json")
            self._kinds, self._files = [], {}


def file_names(archive: Archive) -> list[str]:
    """What the files of an archive are called; arrays without a name have their number."""
    return [name or f"{number:06}" for number, name in enumerate(archive.names) if not name.startswith(FILES)]


class FileReader:
    """Writes the files of an archive.

    Arguments:
        archive: What to read.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._kinds: dict[str, dict[str, Any]] = {}
        waiting: list[str] = []  # for the word on what they were, which comes after them
        words = 0
        for name in archive.names:
            if not name.startswith(FILES):
                waiting.append(name)
                continue
            try:
                said = re.fullmatch(rf"-(\d+)(?:{re.escape(_COPY)})?\.json", name[len(FILES) :])
                if said is None:
                    raise ValueError(name)
                number = int(said[1])
                if number < words:
                    continue  # a copy of what has been read
                word = json.loads(archive[name].tobytes())
                kinds, usual, files = word["kinds"], word["usual"], word["files"]
                if number > words:  # one before it is lost, and some of these are not its own
                    first = word.get("first")
                    waiting = waiting[waiting.index(first) :] if first in waiting else []
                for file in waiting:
                    kind = files.get(file, usual.get(PurePosixPath(file).suffix))
                    if kind is not None:
                        self._kinds[file] = kinds[kind]
                waiting = []
                words = number + 1
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise DamagedArchiveError(f"{archive.name}: {name} does not say what files were") from error

    @property
    def names(self) -> list[str]:
        """What the files are called; arrays without a name have their number."""
        return file_names(self.archive)

    def file_name(self, name: str) -> str:
        """What the file of an array is called: arrays that were no files become npy files."""
        return name if name in self._kinds or name.endswith(".npy") else f"{name}.npy"

    def is_known(self, name: str) -> bool:
        """Whether it is known what file an array was."""
        return name in self._kinds

    def array(self, name: str, array: Array) -> Array:
        """An array as it was in its file."""
        try:
            return _relabelled(array, self._kinds.get(name, {}))
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise DamagedArchiveError(
                f"{self.archive.name}: the labels of {name} are not what is said of them"
            ) from error

    def write(self, name: str, path: str | PathLike[str], array: Array | None = None) -> None:
        """Writes the file of an array, whole or not at all.

        Arguments:
            name: What it is called in the archive.
            path: Where to.
            array: The array, if it has been read already.
        """
        found = self.archive[name] if array is None else array
        data = _to_bytes(self.array(name, found), self._kinds.get(name, {"as": "npy"}))
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(data)

    def write_all(
        self, folder: str | PathLike[str], overwrite: bool = False, batch_size: int | None = None, processes: int = 1
    ) -> Iterator[Path]:
        """Writes all files into a folder, one at a time.

        Arguments:
            folder: It is made if it is not there.
            overwrite: Whether to replace files that are there.
            batch_size: How many are decoded together; see `Archive.items`.
            processes: How many processes decode at once.
        """
        taken: dict[Path, str] = {}
        for name in self.names:
            place = self.place(name, folder)
            if place in taken:
                raise ValueError(f"the archive holds {taken[place]!r} and {name!r}, which are one file, {place}")
            taken[place] = name
            if place.exists() and not overwrite:
                raise FileExistsError(f"{place} is there already; --force (in Python overwrite=True) replaces it")
        for number, (name, array) in enumerate(self.archive.items(batch_size, processes)):
            if not name.startswith(FILES):
                place = self.place(name or f"{number:06}", folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                self.write(name, place, array)
                yield place

    def place(self, name: str, folder: str | PathLike[str]) -> Path:
        """Where in a folder a file belongs; refuses names that lead out of it."""
        relative = PurePosixPath(self.file_name(name))
        foreign = os.name == "nt" and re.search(r'[\\:<>"|?*]', str(relative))
        if relative.is_absolute() or ".." in relative.parts or not relative.name or foreign:
            raise ValueError(f"the archive holds a file {name!r}, which would be written outside of {folder}")
        return Path(folder) / relative


def _read(path: Path) -> tuple[Array, dict[str, Any]]:
    """A file as an array, and what it takes to write it again."""
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
    """An image with one channel, or None if that is not what the file holds."""
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
    again = _to_bytes(array, about, compress_level=1)  # what cannot be written as it was is kept byte by byte
    with Image.open(io.BytesIO(again)) as image:
        same = np.array_equal(np.asarray(image), array) and image.mode.startswith(mode)
        same = same and (mode != "P" or image.getpalette("RGB") == about["palette"])
    return (array, about) if same else None


def _holds_more(image: Any) -> bool:
    """Whether an image that has been read holds what is not kept: texts, colour profiles, places on Earth."""
    if image.format == "TIFF":
        return any(tag not in _TIFF_PIXELS and (tag, value) != _UPRIGHT for tag, value in image.tag_v2.items())
    return bool(set(image.info) - _PNG_PIXELS or getattr(image, "text", None))


def _relabelled(array: Array, kind: dict[str, Any]) -> Array:
    """The labels of an array of an archive that an earlier version made: a word, not the kind, said which they were."""
    if "labels" not in kind:
        return array
    labels, values = zip(*sorted(kind["labels"]), strict=True)
    return np.array(values, dtype=kind["dtype"])[np.searchsorted(labels, array)]


def _to_bytes(array: Array, kind: dict[str, Any], compress_level: int = 6) -> bytes:
    """What was in the file of an array."""
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
