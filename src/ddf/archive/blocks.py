"""Blocks of an archive: arrays of one kind, encoded, with a checksum."""

__all__ = ["DTYPES", "Block", "Kind", "Method", "checksum", "placed", "raw_bytes"]

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from ddf.archive.limits import MAX_DIMENSIONS
from ddf.archive.varint import read_column, read_varint, write_column, write_varint
from ddf.lazy import lazy
from ddf.shapes import Array

DTYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "|b1")
"""The dtypes that an archive can hold, by number."""

_SHARED, _BANDED = 4, 8
_LARGEST = 1 << 62  # bytes, where dimensions of size 0 count as 1


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
        shared: Whether a block holds any number of arrays, rather than one.
        band: If not 0, the array is encoded in bands of this many rows (indices of the first axis).
    """

    method: Method
    dtype: int
    shape: tuple[int, ...]
    shared: bool = False
    band: int = 0

    def to_bytes(self) -> bytes:
        flags = self.method | _SHARED * self.shared | _BANDED * bool(self.band)
        return bytes([flags, self.dtype, len(self.shape)]) + write_column(
            (*self.shape, self.band) if self.band else self.shape
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Kind":
        if len(data) < 3 or data[1] >= len(DTYPES) or data[2] > MAX_DIMENSIONS:
            raise ValueError(f"invalid kind of array: {data[:8].hex()}")
        flags, dtype, dimensions = data[:3]
        shape, position = read_column(data, 3, dimensions)
        band, position = read_varint(data, position) if flags & _BANDED else (0, position)
        kind = cls(Method(flags & 3), dtype, tuple(shape.tolist()), bool(flags & _SHARED), band)
        if kind.to_bytes() != data:
            raise ValueError("a kind of array has unknown flags or superfluous bytes")
        if prod(size or 1 for size in kind.shape) * kind.itemsize > _LARGEST:
            raise ValueError(f"arrays of shape {kind.shape} are too large")
        if band and (kind.shared or kind.method != Method.CODEC or band >= (kind.shape or (0,))[0]):
            raise ValueError(f"arrays of shape {kind.shape} cannot have bands of {band} rows")
        return kind

    @lazy
    def itemsize(self) -> int:
        """The size of a value in bytes."""
        return np.dtype(DTYPES[self.dtype]).itemsize

    @lazy
    def size(self) -> int:
        """The size of one array in bytes."""
        return prod(self.shape) * self.itemsize

    @property
    def bands(self) -> list[slice]:
        """The rows of each band."""
        rows = self.shape[0]
        return [slice(first, min(first + self.band, rows)) for first in range(0, rows, self.band)]


@dataclass(frozen=True)
class Block:
    """Encoded arrays of one kind.

    Arguments:
        kind: What they have in common.
        count: Their number.
        checksum: CRC-32 of what the block decodes to (see `checksum`); in a block that was read, also of its position.
        payload: The code.
        number: How many arrays come before it in the archive, if known.
    """

    kind: Kind
    count: int
    checksum: int
    payload: bytes
    number: int = 0


def checksum(kind: Kind, arrays: Iterable[Array], payload: bytes) -> int:
    """Return the CRC-32 of the contents and the kind of a block, and of the length of its code.

    The length is included because decoders do not notice superfluous bytes.
    """
    crc = 0
    for array in arrays:
        crc = zlib.crc32(raw_bytes(kind, array), crc)
    return zlib.crc32(kind.to_bytes() + write_varint(len(payload)), crc)


def placed(checksum: int, number: int) -> int:
    """Extend a checksum by the number of arrays before a block, so that no block can be mistaken for another."""
    return zlib.crc32(write_varint(number), checksum)


def raw_bytes(kind: Kind, array: Array) -> memoryview:
    """Return the values of an array, little-endian, in C order."""
    return np.ascontiguousarray(array, dtype=DTYPES[kind.dtype]).reshape(-1).view(np.uint8).data
