"""Files from their homes on the network: whole, checked, and resumed where they broke off."""

__all__ = ["DownloadError", "cache_folder", "fetch"]

import contextlib
import gzip
import hashlib
import os
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ddf.files import exclusive

_BLOCK = 1 << 16


class DownloadError(OSError):
    """A file that could not be had."""


def cache_folder() -> Path:
    """Where downloads are kept: $DDF_CACHE, or `ddf` in the user's cache directory."""
    named = os.environ.get("DDF_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddf"


def fetch(urls: Sequence[str], path: Path, md5: str, tries: int = 3, timeout: float = 30.0) -> Path:
    """Makes sure that a file is there: downloads it if it is not.

    What has arrived of it waits in a `.part` file, and the next try, or the next call, goes on from there. It gets its
    name only when it is whole and its checksum is right: half a download never counts as one.

    Arguments:
        urls: Where the file may be had, the first first.
        path: Where to keep it.
        md5: The checksum of the file, or of what is in it if it is gzipped.
        tries: How often to try each address.
        timeout: Seconds to wait for the next byte.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path):  # several processes may want the same file at the same time
        return path if path.exists() else _fetch(urls, path, md5, tries, timeout)


def _fetch(urls: Sequence[str], path: Path, md5: str, tries: int, timeout: float) -> Path:
    part = path.with_name(f"{path.name}.part")
    problems = []
    for url in urls:
        for _ in range(tries):
            resumed = part.exists()
            try:
                _download(url, part, timeout)
            except (OSError, HTTPException) as error:
                problems.append(f"{url}: {error}")
                if isinstance(error, urllib.error.HTTPError) and error.code == 416:  # the part is longer than the file
                    part.unlink(missing_ok=True)
                continue
            found = _md5(part)
            if found == md5:
                part.replace(path)
                return path
            part.unlink()
            problems.append(f"{url}: its MD5 is {found}, but should be {md5}")
            if not resumed:  # a whole download with wrong contents will not get better
                break
    listed = "\n  ".join(dict.fromkeys(problems))
    raise DownloadError(
        f"cannot download {path.name}; try again later, or put the file there yourself: {path}\n  {listed}"
    )


def _download(url: str, part: Path, timeout: float) -> None:
    """Appends to a part what is missing of it."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if answer.status != 206:  # this server starts from the beginning
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with part.open("ab" if have else "wb") as file, _bar(part.stem, have, total) as bar:
            while block := answer.read(_BLOCK):
                file.write(block)
                have += len(block)
                bar.update(len(block))
    if total is not None and have != total:
        raise OSError(f"it broke off after {have:,} of {total:,} bytes")


@contextlib.contextmanager
def _bar(name: str, have: int, total: int | None) -> Iterator[Any]:
    from tqdm import tqdm

    shown = sys.stderr.isatty()
    with tqdm(desc=name, initial=have, total=total, unit="B", unit_scale=True, disable=not shown, leave=False) as bar:
        yield bar


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except (EOFError, OSError, zlib.error) as error:
        return f"none ({error})"
    return digest.hexdigest()
