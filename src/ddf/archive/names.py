"""Lists of names, each stored as its difference from the previous one, which takes few bytes for similar names."""

__all__ = ["check_name", "names_weight", "pack_names", "unpack_names"]

from ddf.archive.limits import MAX_NAME
from ddf.archive.varint import read_column, write_column

_WEIGHT = 64  # bytes of memory for each name in addition to its text


def check_name(name: str) -> None:
    """Raise an error for an invalid name of an array."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an array must be a string, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the name {name!r} cannot be encoded as UTF-8") from error
    if "\0" in name:
        raise ValueError(f"the name {name!r} contains a zero character")
    if size > MAX_NAME:
        raise ValueError(f"the name {name[:40]!r}… has {size:,} bytes, but at most {MAX_NAME:,} are supported")


def names_weight(names: list[str]) -> int:
    """Return roughly how many bytes the names take in memory."""
    return sum(len(name.encode()) + _WEIGHT for name in names)


def pack_names(names: list[str]) -> bytes:
    """Return the bytes of a list of names.

    For each name: the length of the prefix and of the suffix that it shares with the previous name, and the length of
    the remainder; then all remainders.

    Examples:
        >>> pack_names(["a/01.png", "a/02.png"])
        b'\\x00\\x03\\x00\\x04\\x08\\x01a/01.png2'
    """
    prefixes, suffixes, rests = [], [], []
    last = b""
    for name in names:
        data = name.encode()
        prefix = _shared(last, data)
        most = min(len(last), len(data)) - prefix
        suffix = _shared(last[::-1][:most], data[::-1])
        prefixes.append(prefix)
        suffixes.append(suffix)
        rests.append(data[prefix : len(data) - suffix])
        last = data
    return b"".join(map(write_column, (prefixes, suffixes, map(len, rests)))) + b"".join(rests)


def _shared(one: bytes, two: bytes) -> int:
    """Return the length of the common prefix."""
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return i
    return min(len(one), len(two))


def unpack_names(data: bytes, position: int, count: int, limit: int) -> tuple[list[str], int]:
    """Return the names that `pack_names` packed, and the position after them.

    Arguments:
        data: The bytes.
        position: Where they begin.
        count: The number of names.
        limit: The largest number of bytes that they may take in memory.
    """
    prefixes, position = read_column(data, position, count)
    suffixes, position = read_column(data, position, count)
    rests, position = read_column(data, position, count)
    names = []
    seen = set()
    last = b""
    for prefix, suffix, length in zip(prefixes.tolist(), suffixes.tolist(), rests.tolist(), strict=True):
        if prefix + suffix > len(last) or position + length > len(data):
            raise ValueError("a name is truncated")
        size = prefix + suffix + length
        limit -= size + _WEIGHT
        if size > MAX_NAME or limit < 0:
            raise ValueError("names are too long")
        last = last[:prefix] + data[position : position + length] + last[len(last) - suffix :]
        position += length
        if b"\0" in last or (last and last in seen):
            raise ValueError(f"the name {last!r} is invalid or occurs twice")
        seen.add(last)
        names.append(last.decode())
    return names, position
