"""Limits on the sizes and counts in an archive, which are checked before memory or time is spent."""

__all__ = [
    "DEFAULT_MAX_BYTES",
    "MAX_ARRAYS",
    "MAX_DIMENSIONS",
    "MAX_NAME",
    "MAX_SHARED",
    "MAX_SHARED_BYTES",
    "MAX_TABLE",
    "table_limit",
]

DEFAULT_MAX_BYTES = 1 << 30
"""The default limit on the size of one array in bytes."""

MAX_DIMENSIONS = 32
"""The largest number of dimensions of an array: older versions of NumPy support no more."""

MAX_ARRAYS = 1 << 24
"""The largest number of arrays in an archive."""

MAX_SHARED = 1 << 16
MAX_SHARED_BYTES = 1 << 26
"""The largest number of arrays that share a block, and their largest total size in bytes."""

MAX_NAME = 4096
"""The largest length of a name in bytes."""

MAX_TABLE = 1 << 28
"""The largest size of an uncompressed table in bytes."""

_SLACK, _RATIO = 1 << 22, 512


def table_limit(size: int) -> int:
    """Return the limit on the uncompressed tables, and on the names, of an archive of this size in bytes."""
    return min(MAX_TABLE, _SLACK + _RATIO * size)
