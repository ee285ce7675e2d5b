"""Download files, with checksums and mirrors."""

__all__ = ["fetch"]

import sys
from collections.abc import Sequence
from pathlib import Path

from ddf.errors import DownloadError
from ddf.files import cache_folder


def fetch(urls: Sequence[str], name: str, md5: str, tries: int = 3, timeout: float = 30.0) -> Path:
    """Return the path of a file in the cache, after downloading it if necessary.

    Arguments:
        urls: The mirrors of the file, in order of preference.
        name: The name of the file in the cache.
        md5: Its checksum.
        tries: How often to try each mirror.
        timeout: Seconds to wait for the next byte.
    """
    import pooch

    path = cache_folder() / name
    problems = []
    for url in urls:
        mirror = pooch.create(path.parent, "", None, registry={path.name: f"md5:{md5}"}, urls={path.name: url})
        mirror.retry_if_failed = tries - 1
        try:
            mirror.fetch(path.name, downloader=pooch.HTTPDownloader(sys.stderr.isatty(), timeout=timeout))
        except (OSError, ValueError) as error:
            problems.append(f"{url}: {error}")
        else:
            return path
    raise DownloadError(
        f"cannot download {path.name}; try again later, pass the folder of your own copy, or put the file at {path} "
        f"({'; '.join(problems)})"
    )
