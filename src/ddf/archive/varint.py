"""Integers in as few bytes as possible, with seven bits per byte, lowest bits first."""

__all__ = ["read_column", "read_varint", "write_column", "write_varint"]

from collections.abc import Iterable

import numpy as np

from ddf.shapes import Array

_MAX_BYTES = 9


def write_varint(number: int) -> bytes:
    """Return the bytes of a number.

    Examples:
        >>> write_varint(300)
        b'\\xac\\x02'
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number; return it and the position after it."""
    number = 0
    for i in range(_MAX_BYTES):
        if position + i >= len(data):
            raise ValueError("a number is truncated")
        byte = data[position + i]
        number |= (byte & 127) << 7 * i
        if byte < 128:
            if byte == 0 and i:
                raise ValueError("a number has a superfluous zero byte")
            return number, position + i + 1
    raise ValueError("a number is too long")


def write_column(numbers: Iterable[int]) -> bytes:
    """Return the bytes of several numbers."""
    return b"".join(map(write_varint, numbers))


def read_column(data: bytes, position: int, count: int) -> tuple[Array, int]:
    """Read several numbers at once; return them (int64) and the position after them.

    Examples:
        >>> read_column(write_column([5, 300, 0]), 0, 3)
        (array([  5, 300,   0]), 4)
    """
    if count > len(data) - position:
        raise ValueError("a list of numbers is truncated")
    window = np.frombuffer(data, np.uint8, offset=position)[: _MAX_BYTES * count]
    ends = np.flatnonzero(window < 128)[:count]
    if len(ends) < count:
        raise ValueError("a list of numbers is truncated")
    if not count:
        return np.zeros(0, np.int64), position
    starts = np.append(0, ends[:-1] + 1)
    sizes = ends - starts + 1
    if sizes.max() > _MAX_BYTES or ((window[ends] == 0) & (sizes > 1)).any():
        raise ValueError("a number is too long")
    numbers = np.zeros(count, np.int64)
    for i in range(int(sizes.max())):
        more = sizes > i
        numbers[more] |= (window[starts[more] + i].astype(np.int64) & 127) << 7 * i
    return numbers, position + int(ends[-1]) + 1
