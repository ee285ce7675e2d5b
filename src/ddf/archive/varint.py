"""Integers in as few bytes as they need, seven bits in each, the lowest first."""

__all__ = ["read_varint", "write_varint"]

_MOST_BYTES = 9


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
    for i in range(_MOST_BYTES):
        if position + i >= len(data):
            raise ValueError("a number is cut off")
        byte = data[position + i]
        number |= (byte & 127) << 7 * i
        if byte < 128:
            if byte == 0 and i:
                raise ValueError("a number has a superfluous zero byte")
            return number, position + i + 1
    raise ValueError("a number is too long")
