"""Files at URLs, opened with fsspec: object stores, web servers, memory."""

__all__ = [
    "Listing",
    "RemoteFile",
    "check_writable",
    "file_sizes",
    "file_system",
    "folder_of",
    "is_url",
    "join_url",
    "list_files",
    "local_path",
    "make_folder",
    "read_ahead",
    "read_bytes",
    "remote_errors",
    "size_of_file",
    "type_of",
    "upload",
    "write_bytes",
]

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ddf.errors import DdfError, MissingExtraError
from ddf.extras import needed_for
from ddf.shapes import check_bytes

_WEB = ("http", "https")
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}

_IN_FLIGHT = 8  # files that are read at once
_AHEAD = 1 << 26  # bytes of files that are read ahead
_HEADER = 1 << 16  # bytes that a file may have in addition to its array
_ATTEMPTS = 9  # to list a folder that changes
_PAUSES = (0.5, 2.0)  # seconds before a failed read is repeated


def is_url(where: object) -> bool:
    """Return whether this is the URL of a file, rather than its path.

    Examples:
        >>> is_url("s3://bucket/masks.ddf"), is_url("masks.ddf")
        (True, False)
    """
    return isinstance(where, str) and "://" in where


def file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Arguments:
        url: The URL.
        options: Options of the file system.
    """
    with remote_errors(url):
        from fsspec.core import url_to_fs

        return url_to_fs(url, **(options or {}))


def read_bytes(url: str, options: Mapping[str, Any] | None = None) -> bytes:
    """Return the contents of a file.

    Arguments:
        url: Its URL.
        options: Options of the file system.
    """
    files, path = file_system(url, options)
    with remote_errors(url):
        return bytes(files.cat_file(path))


def size_of_file(files: Any, path: str) -> int | None:
    """Return the size of a file in bytes, or None if its file system does not report it.

    Arguments:
        files: The file system.
        path: The path in it.

    Raises:
        IsADirectoryError: The path is that of a folder.
    """
    info = files.info(path)
    if info["type"] == "directory":
        raise IsADirectoryError("it is a folder, not a file")
    if info.get("size") is None and hasattr(files, "fs"):  # a cache that looked only at a list of files
        info = files.fs.info(path)
    size = info.get("size")
    return None if size is None else int(size)


def type_of(url: str) -> str:
    """Return what a URL refers to: `"file"`, `"directory"` or another type, or `""` if nothing exists there."""
    files, path = file_system(url)
    try:
        with remote_errors(url):
            return str(files.info(path)["type"])
    except FileNotFoundError:
        return ""


def join_url(url: str, name: str) -> str:
    """Return the URL of a file in a folder.

    Arguments:
        url: The URL of the folder.
        name: The path of the file in the folder.

    Examples:
        >>> join_url("s3://bucket/masks/", "street/1.png"), join_url("simplecache::s3://bucket", "1.png")
        ('s3://bucket/masks/street/1.png', 'simplecache::s3://bucket/1.png')
        >>> join_url("zip://masks::s3://bucket/all.zip", "1.png"), join_url("https://example.org/masks", "a b.png")
        ('zip://masks/1.png::s3://bucket/all.zip', 'https://example.org/masks/a%20b.png')
    """
    links = url.split("::")
    place = next(i for i, link in enumerate(links) if "://" in link)
    folder = links[place]
    name = quote(name) if _is_web(folder) else name
    links[place] = f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"
    return "::".join(links)


def folder_of(url: str) -> str:
    """Return the URL of the folder of a file: with the name of the file, `join_url` returns the URL of the file.

    Examples:
        >>> folder_of("s3://bucket/masks/a.ddf"), folder_of("zip://masks/a.ddf::s3://bucket/all.zip")
        ('s3://bucket/masks/', 'zip://masks/::s3://bucket/all.zip')
    """
    links = url.split("::")
    place = next(i for i, link in enumerate(links) if "://" in link)
    links[place] = links[place][: links[place].rindex("/") + 1]
    return "::".join(links)


def local_path(url: str) -> Path | None:
    """Return the path of a `file://` URL, or None for other URLs.

    Examples:
        >>> local_path("file:///data/masks"), local_path("s3://data/masks")
        (PosixPath('/data/masks'), None)
    """
    if url.partition("://")[0] not in ("file", "local") or "::" in url:
        return None
    return Path(file_system(url)[1])


def _is_web(url: str) -> bool:
    return url.partition("://")[0] in _WEB


# ---- Errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn any exception of a file system into an error whose message names the URL.

    Arguments:
        url: The URL.
    """
    try:
        with needed_for(url):
            yield
    except DdfError:
        raise
    except Exception as error:  # each file system has its own kinds of errors
        raise _explained(url, error) from error


def _explained(url: str, error: Exception) -> Exception:
    if isinstance(error, ImportError):  # a package that fsspec needs for the protocol
        try:
            with needed_for(url):
                raise error.__cause__ or error
        except MissingExtraError as named:
            return named
        except BaseException:
            pass
        return MissingExtraError(f"{url}: {error or 'a package is missing'}")
    if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
        return ValueError(f"{url}: no installed package provides the protocol {url.partition('://')[0]!r}")
    # fsspec reports whatever a web server answers as a missing file; the cause is the actual answer.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    actual = cause if isinstance(cause, OSError) or hasattr(cause, "status") else error
    status = getattr(actual, "status", None)
    if status in (404, 410) or isinstance(actual, FileNotFoundError):
        return FileNotFoundError(f"{url} does not exist")
    if status in (401, 403) or isinstance(actual, PermissionError):
        return PermissionError(f"{url}: permission denied")
    if isinstance(status, int):
        return OSError(f"{url}: the server answered {status} {getattr(actual, 'message', '')}".rstrip())
    if isinstance(actual, TimeoutError) or type(actual).__name__.endswith("TimeoutError"):
        return TimeoutError(f"{url}: the server did not answer in time")
    if isinstance(actual, NotImplementedError):
        return OSError(f"{url}: this file system does not support the operation")
    reason = getattr(actual, "strerror", None) or str(actual).partition("\n")[0] or type(actual).__name__
    for kind in (FileExistsError, IsADirectoryError, NotADirectoryError, ConnectionError):
        if isinstance(actual, kind):
            return kind(f"{url}: {reason}")
    if isinstance(actual, OSError):
        return OSError(f"{url}: {reason}")
    return OSError(f"{url}: {type(actual).__name__}: {reason}")


# ---- Reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL.

    Arguments:
        url: The URL.
        files: The file system; None to look it up when the file is read.
        path: The path in the file system.
        size: The size in bytes; None if unknown.
    """

    url: str
    files: Any
    path: str
    size: int | None

    @classmethod
    def at(cls, url: str) -> "RemoteFile":
        """Return the file at a URL, without accessing it."""
        return cls(url, None, "", None)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return _name_of(self.url)

    def read(self, max_bytes: int) -> bytes:
        """Return the contents. Failed reads are retried twice.

        Arguments:
            max_bytes: The largest array that the file may hold, in bytes.
        """
        for pause in _PAUSES:
            try:
                return self._read(max_bytes)
            except (FileNotFoundError, PermissionError, IsADirectoryError):
                raise
            except OSError:
                time.sleep(pause)
        return self._read(max_bytes)

    def _read(self, max_bytes: int) -> bytes:
        files, path = file_system(self.url) if self.files is None else (self.files, self.path)
        with remote_errors(self.url):
            size = size_of_file(files, path) if self.size is None else self.size
            if size is not None:
                check_bytes(self.url, size if size > max_bytes + _HEADER else 0, max_bytes)
            return bytes(files.cat_file(path))


def read_ahead(files: Iterable[RemoteFile], max_bytes: int) -> Iterator["Future[bytes]"]:
    """Read files, several at a time, and yield their contents in order.

    Arguments:
        files: The files.
        max_bytes: The largest array that a file may hold, in bytes.
    """
    waiting: deque[tuple[Future[bytes], int]] = deque()
    total = 0
    for file in files:
        size = min(file.size or 0, max_bytes)
        while waiting and (len(waiting) >= _IN_FLIGHT or total + size > _AHEAD):
            future, freed = waiting.popleft()
            total -= freed
            yield future
        waiting.append((_in_thread(file.read, max_bytes), size))
        total += size
    while waiting:
        yield waiting.popleft()[0]


def _in_thread(read: Callable[[int], bytes], max_bytes: int) -> "Future[bytes]":
    """Read in a separate thread, which does not keep an interrupted process from exiting."""
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            future.set_result(read(max_bytes))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


# ---- Listing ---------------------------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """What a URL refers to.

    Arguments:
        is_folder: Whether the URL is that of a folder.
        entries: For each file, folder or other entry: its path in the folder, the file, and its type: `"file"`,
            `"directory"` or another one.
        problems: Folders that cannot be listed, and why.
    """

    is_folder: bool
    entries: list[tuple[str, RemoteFile, str]]
    problems: list[tuple[str, str]]


def list_files(url: str) -> Listing:
    """List everything below a URL, in the order of the paths.

    Arguments:
        url: The URL of a folder or a file. On a web server, the URL of a folder ends with a slash.
    """
    files, root = file_system(url)
    web_folder = _is_web(root) and (root.endswith("/") or not urlsplit(root).path)
    with remote_errors(url):
        files.invalidate_cache()
        info = files.info(root)
    if info["type"] != "directory" and not web_folder:
        return Listing(False, [(_name_of(url), RemoteFile(url, files, root, info.get("size")), "file")], [])
    problems: list[tuple[str, str]] = []
    with remote_errors(url):
        if files.async_impl and not _is_web(root):  # object stores list all folders at once
            infos = list(files.find(root, withdirs=True, detail=True).values())
        else:
            infos = list(_walk(files, root, url, problems))
    entries = []
    for info in infos:
        place = info["name"].strip("/").removeprefix(root.strip("/")).strip("/")
        if _is_web(root):
            if "?" in place or "#" in place:  # links that sort a listing
                continue
            place = unquote(place)
        if place:
            file = RemoteFile(join_url(url, place), files, info["name"], info.get("size"))
            entries.append((place, file, str(info["type"])))
    entries.sort(key=lambda entry: entry[0].split("/"))
    return Listing(True, entries, problems)


def _walk(files: Any, root: str, url: str, problems: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield what is below a folder; add other folders that cannot be listed to the problems."""
    folders = [root]
    for folder in folders:
        try:
            infos = files.ls(folder, detail=True)
        except OSError as error:
            if folder == root:
                raise
            problems.append((folder, f"not archived: {_explained(folder, error)}"))
            continue
        for info in infos:
            if info["name"].rstrip("/") != folder.rstrip("/"):
                yield info
                folders += [info["name"]] if info["type"] == "directory" else []


def _name_of(url: str) -> str:
    """Return the last part of the path of a URL."""
    link = next(link for link in url.split("::") if "://" in link)
    path = unquote(urlsplit(link).path) if _is_web(link) else link.partition("://")[2]
    return path.rstrip("/").rpartition("/")[2]


def file_sizes(url: str) -> dict[str, int]:
    """Return the names and sizes of the files in a folder; nothing if it does not exist.

    Arguments:
        url: The URL of the folder.
    """
    files, path = file_system(url)
    with remote_errors(url):
        files.invalidate_cache()
        if not files.exists(path):
            return {}
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # a temporary file of another process has disappeared
                infos = files.ls(path, detail=True)
                return {info["name"].rpartition("/")[2]: int(info["size"]) for info in infos if info["type"] == "file"}
        raise FileNotFoundError("it cannot be listed")


# ---- Writing ---------------------------------------------------------------------------------------------------------


def check_writable(url: str) -> None:
    """Raise an error for URLs that can never be written to, regardless of permissions."""
    if _is_web(url) or "::" in url:
        raise ValueError(f"{url}: files can be written neither to web servers nor to chained URLs")


def make_folder(url: str) -> None:
    """Create a folder, unless it exists or the file system has no folders."""
    check_writable(url)
    files, path = file_system(url)
    if not _appears_at_once(files):  # object stores have no folders, and would create a missing bucket
        with remote_errors(url):
            files.makedirs(path, exist_ok=True)


def write_bytes(url: str, data: bytes) -> None:
    """Write a file; an existing one is replaced. It appears at its URL only when it is complete.

    Arguments:
        url: Its URL.
        data: Its contents.
    """
    _place(url, len(data), lambda files, path: files.pipe_file(path, data))


def upload(path: str | PathLike[str], url: str) -> None:
    """Copy a file to a URL, where it appears only when it is complete; an existing file is replaced.

    Arguments:
        path: The file.
        url: The URL.
    """
    _place(url, Path(path).stat().st_size, lambda files, place: files.put_file(str(path), place))


def _place(url: str, size: int, write: Callable[[Any, str], object]) -> None:
    """Write a file: directly if it appears only when it is complete, otherwise under a temporary name next to it."""
    check_writable(url)
    files, path = file_system(url)
    folder = path[: path.rfind("/") + 1]
    part = path if _appears_at_once(files) else f"{folder}.ddf-{secrets.token_hex(8)}.part"
    with remote_errors(url):
        try:
            write(files, part)
            found = files.info(part)["size"]
            if found != size:
                raise OSError(f"only {found:,} of {size:,} bytes were written")
            if part != path:
                files.mv(part, path)
        except BaseException:
            if part != path:
                with suppress(Exception):
                    files.rm_file(part)
            raise


def _appears_at_once(files: Any) -> bool:
    """Return whether the file system shows a file only when it is complete."""
    return bool(_OBJECT_STORES & ({files.protocol} if isinstance(files.protocol, str) else set(files.protocol)))
