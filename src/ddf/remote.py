"""Files behind URLs, which fsspec opens: object stores, web servers, memory."""

__all__ = ["file_system", "is_url", "read_bytes"]

from collections.abc import Mapping
from typing import Any

from ddf.extras import needed_for


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
    with needed_for(url):
        from fsspec.core import url_to_fs

        return url_to_fs(url, **(options or {}))


def read_bytes(url: str, options: Mapping[str, Any] | None = None) -> bytes:
    """Return the contents of a file.

    Arguments:
        url: Its URL.
        options: Options of the file system.
    """
    files, path = file_system(url, options)
    return bytes(files.cat_file(path))
