"""Blocks of an archive: arrays of one kind, encoded, with a checksum."""

__all__ = [
    "Block",
    "DamagedArchiveError",
    "Kind",
    "Method",
    "checksum",
    "number_of",
    "raw_bytes",
]

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from ddf.archive.protocol import Array
from ddf.archive.varint import read_varint, write_varint

DTYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "|b1")
"""The dtypes that an archive holds, by number."""

MOST_SHARED = 1 << 16
MOST_SHARED_BYTES = 1 << 26
"""Limits on the arrays that share a block, and on their bytes: a damaged archive cannot make a reader allocate more."""

MOST_BYTES = 1 << 40
MOST_DIMENSIONS = 32
"""Limits on one array. Older versions of NumPy have no more dimensions."""


class DamagedArchiveError(ValueError):
    """Bytes that are not what was written."""


class Method(IntEnum):
    """How the arrays of a block are encoded."""

    RAW = 0
    LZMA = 1
    CODEC = 2


@dataclass(frozen=True)
class Kind:
    """What the arrays of a block have in common.

    Arguments:
        method: How they are encoded.
        dtype: The number of their dtype in `DTYPES`.
        shape: The shape of each.
        named: Whether they have names.
        shared: Whether a block holds any number of arrays, rather than one.
    """

    method: Method
    dtype: int
    shape: tuple[int, ...]
    named: bool = True
    shared: bool = False

    def to_bytes(self) -> bytes:
        flags = self.method | self.named << 2 | self.shared << 3
        return bytes([flags, self.dtype, len(self.shape)]) + b"".join(map(write_varint, self.shape))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Kind":
        try:
            flags, dtype, dimensions = data[:3]
            if dtype >= len(DTYPES) or dimensions > MOST_DIMENSIONS:
                raise ValueError(f"it has dtype {dtype} and {dimensions} dimensions")
            shape = []
            position = 3
            for _ in range(dimensions):
                size, position = read_varint(data, position)
                shape.append(size)
            kind = cls(Method(flags & 3), dtype, tuple(shape), bool(flags & 4), bool(flags & 8))
            if kind.to_bytes() != data:
                raise ValueError("it has unknown flags or superfluous bytes")
            if prod(size or 1 for size in shape) * np.dtype(DTYPES[dtype]).itemsize > MOST_BYTES:
                raise ValueError(f"arrays of shape {kind.shape} are too large")
        except ValueError as error:
            raise DamagedArchiveError(f"the archive is damaged: a kind of array is unreadable ({error})") from error
        return kind

    @property
    def size(self) -> int:
        """The size of one array in bytes."""
        return prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


@dataclass(frozen=True)
class Block:
    """Encoded arrays of one kind.

    Arguments:
        kind: What they have in common.
        names: Their names.
        checksum: CRC-32 of the kind, the names, the arrays and the length of the code; in a block that was read, also
            of the number of arrays before it.
        payload: The code.
        number: How many arrays come before it in the archive, where that is known.
    """

    kind: Kind
    names: tuple[str, ...]
    checksum: int
    payload: bytes
    number: int = 0

    @property
    def label(self) -> str:
        """The name of the block in errors."""
        return repr(self.names[0]) if self.names[0] else f"array {self.number}"

    def to_bytes(self, number: int) -> bytes:
        """Return the body of its record, after `number` arrays."""
        count = write_varint(len(self.names)) if self.kind.shared else b""
        return (
            count + _names(self.kind, self.names) + _placed(self.checksum, number).to_bytes(4, "little") + self.payload
        )

    @classmethod
    def from_bytes(cls, kind: Kind, data: bytes, number: int) -> "Block":
        try:
            count, position = read_varint(data, 0) if kind.shared else (1, 0)
            if count < 1 or (count > 1 and count * kind.size > MOST_SHARED_BYTES) or count > MOST_SHARED:
                raise ValueError(f"it claims to hold {count} arrays")
            names = []
            for _ in range(count if kind.named else 0):
                length, position = read_varint(data, position)
                if position + length > len(data):
                    raise ValueError("a name is cut off")
                names.append(data[position : position + length].decode())
                position += length
            if position + 4 > len(data):
                raise ValueError("it is cut off")
        except ValueError as error:
            raise DamagedArchiveError(f"the archive is damaged: a block is unreadable ({error})") from error
        checksum = int.from_bytes(data[position : position + 4], "little")
        return cls(kind, tuple(names) if kind.named else ("",) * count, checksum, data[position + 4 :], number)


def checksum(kind: Kind, names: Sequence[str], arrays: Sequence[Array], payload: bytes) -> int:
    """Return the checksum of what a block decodes to, and of the length of its code.

    The length is part of it because a decoder does not notice superfluous bytes.
    """
    crc = zlib.crc32(kind.to_bytes() + _names(kind, names) + write_varint(len(payload)))
    for array in arrays:
        crc = zlib.crc32(raw_bytes(kind, array), crc)
    return crc


def number_of(block: Block, arrays: Sequence[Array], slack: int = 0) -> int | None:
    """Return how many arrays come before a block that holds these: its number, or up to `slack` more, or None."""
    content = checksum(block.kind, block.names, arrays, block.payload)
    numbers = range(block.number, block.number + slack + 1)
    return next((number for number in numbers if _placed(content, number) == block.checksum), None)


def raw_bytes(kind: Kind, array: Array) -> memoryview:
    """Return the values of an array, little-endian, in C order."""
    return np.ascontiguousarray(array, dtype=DTYPES[kind.dtype]).reshape(-1).view(np.uint8).data


def _names(kind: Kind, names: Sequence[str]) -> bytes:
    if not kind.named:
        return b""
    return b"".join(write_varint(len(name.encode())) + name.encode() for name in names)


def _placed(checksum: int, number: int) -> int:
    """Add the number of arrays before a block to its checksum, so that no block passes for another."""
    return zlib.crc32(write_varint(number), checksum)
