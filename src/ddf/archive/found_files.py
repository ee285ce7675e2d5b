"""Find files to archive in folders and at URLs, and name them."""

__all__ = ["FoundFiles", "files_in", "relative_names"]

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ddf.remote import RemoteFile, is_url, join_url, list_files, local_path, type_of

_WILDCARDS = re.compile(r"[*\[]")


class FoundFiles(NamedTuple):
    """What some files and folders contain.

    Arguments:
        files: The files, each with its name in an archive.
        left_out: What is not archived: hidden files, empty folders, broken links, links to folders and links that lead
            out of a folder.
        problems: Folders that cannot be read, and why.
    """

    files: list[tuple[str, Path | RemoteFile]]
    left_out: list[Path | str]
    problems: list[tuple[str, str]]


def files_in(sources: Sequence[str | PathLike[str]]) -> FoundFiles:
    """Find all files in the given files and folders. Names are relative to the folder that was given.

    Arguments:
        sources: Files, folders, and patterns such as `masks/*/*.png`, as paths or URLs. The names of files that match
            a pattern are relative to the folder before its first wildcard; `**` stands for any number of folders.
    """
    found = FoundFiles([], [], [])
    for source in [os.fspath(source) for source in sources]:
        pattern = None if _exists(source) else _Pattern.parse(source)
        if pattern is None:
            _add(source, found)
            continue
        below = FoundFiles([], [], [])
        _add(pattern.folder, below)
        found.files.extend((name, file) for name, file in below.files if pattern.matches(name))
        found.left_out.extend(place for place in below.left_out if pattern.matches(pattern.name_of(place)))
        found.problems.extend(below.problems)
    names: dict[str, Path | RemoteFile] = {}
    for name, file in found.files:
        if name in names:
            raise ValueError(
                f"{names[name]} and {file} would both be named {name!r}; compress the folder that contains both"
            )
        names[name] = file
    return found


def relative_names(places: Sequence[str]) -> list[tuple[str, str]]:
    """Return files with their names: their paths relative to the folder that contains all of them.

    Arguments:
        places: The paths or the URLs of the files.

    Examples:
        >>> relative_names(["/data/a/1.png", "/data/b/1.png"])
        [('a/1.png', '/data/a/1.png'), ('b/1.png', '/data/b/1.png')]
        >>> relative_names(["s3://bucket/1.png"])
        [('1.png', 's3://bucket/1.png')]
    """
    paths = [_parts(place) for place in places]
    common = paths[0][:-1] if paths else []
    for parts in paths:
        while common and parts[: len(common)] != common:
            common.pop()
    if paths and not common:
        raise ValueError("the files have no common folder: pass either paths only, or URLs with the same protocol")
    found: dict[str, str] = {}
    for parts, place in zip(paths, places, strict=True):
        name = "/".join(parts[len(common) :])
        if name in found:
            raise ValueError(f"{found[name]} and {place} would both be named {name!r}")
        found[name] = place
    return list(found.items())


def _parts(place: str) -> list[str]:
    """Return the parts of a path or a URL."""
    if not is_url(place):
        return place.replace(os.sep, "/").split("/")
    link = next(link for link in place.split("::") if "://" in link)
    if link.startswith(("http://", "https://")):
        url = urlsplit(link)
        link = f"{url.scheme}://{url.netloc}{unquote(url.path)}"
    return link.rstrip("/").split("/")


# ---- Patterns --------------------------------------------------------------------------------------------------------


class _Pattern(NamedTuple):
    """A path or a URL with wildcards.

    Arguments:
        folder: The folder before the first wildcard.
        parts: The parts of the rest, between slashes.
    """

    folder: str
    parts: list[str]

    @classmethod
    def parse(cls, text: str) -> "_Pattern | None":
        """Return a pattern, or None for a text without wildcards."""
        parts = text.split("/")
        first = next((i for i, part in enumerate(parts) if _WILDCARDS.search(part)), None)
        if first is None:
            return None
        return cls("/".join(parts[:first]) or ("/" if first else "."), parts[first:])

    def matches(self, name: str) -> bool:
        """Return whether the path of a file below the folder, or that of one of its parent folders, matches."""
        return _match(self.parts, name.split("/"))

    def name_of(self, place: Path | str) -> str:
        """Return the path of a place below the folder."""
        if isinstance(place, Path):
            return place.relative_to(local_path(self.folder) or self.folder).as_posix()
        return place.removeprefix(self.folder.rstrip("/")).lstrip("/")


def _match(parts: list[str], names: list[str]) -> bool:
    if not parts:
        return True
    if not names:
        return False
    if parts[0] == "**":
        return _match(parts[1:], names) or _match(parts, names[1:])
    return fnmatchcase(names[0], parts[0]) and _match(parts[1:], names[1:])


def _exists(place: str) -> bool:
    """Return whether a place with wildcard characters exists, in which case these stand for themselves."""
    if not _WILDCARDS.search(place):
        return True
    return bool(type_of(place)) if is_url(place) else os.path.lexists(place)


# ---- Folders ---------------------------------------------------------------------------------------------------------


def _add(source: str, found: FoundFiles) -> None:
    """Add a file, or the files of a folder."""
    path = local_path(source) if is_url(source) else Path(source)
    if path is None:
        _search_url(source, found)
    elif path.is_dir():
        _search(path, found)
    elif path.is_file():
        found.files.append((path.name, path))
    elif path.exists():
        raise FileNotFoundError(f"{path} is neither a regular file nor a folder")
    else:
        raise FileNotFoundError(f"{path} does not exist")


def _search(root: Path, found: FoundFiles, folder: str = "") -> None:
    """Find the files in a folder, in the order of their paths."""
    try:
        with os.scandir(root / folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.problems.append((folder or str(root), f"not archived: {error.strerror}"))
        return
    if not ordered and folder:
        found.left_out.append(root / folder)
    inside = os.path.realpath(root) + os.sep
    for entry in ordered:
        name = f"{folder}/{entry.name}" if folder else entry.name
        leads_out = entry.is_symlink() and not os.path.realpath(entry.path).startswith(inside)
        if entry.name.startswith(".") or leads_out:
            found.left_out.append(root / name)
        elif entry.is_dir(follow_symlinks=False):
            _search(root, found, name)
        elif Path(entry.path).is_file():
            found.files.append((name, root / name))
        else:  # links to folders, broken links, pipes
            found.left_out.append(root / name)


def _search_url(url: str, found: FoundFiles) -> None:
    """Find the files at a URL, by the same rules as in a local folder."""
    listing = list_files(url)
    found.problems.extend(listing.problems)
    parents = {name.rpartition("/")[0] for name, _, _ in listing.entries}
    hidden = ""
    for name, file, type_ in listing.entries:
        if hidden and name.startswith(hidden + "/"):
            continue
        parts = name.split("/")
        first = next((i for i, part in enumerate(parts, 1) if part.startswith(".")), 0)
        if first and listing.is_folder:
            hidden = "/".join(parts[:first])
            found.left_out.append(join_url(url, hidden))
        elif type_ == "file":
            found.files.append((name, file))
        elif type_ != "directory" or name not in parents:  # links, empty folders
            found.left_out.append(file.url)
