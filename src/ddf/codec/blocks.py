"""What a block of an archive is: some arrays of one kind, coded, and a checksum of them."""

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
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from math import prod

import numpy as np

from ddf.codec.coder import Array
from ddf.codec.labels import LARGEST_LABEL, Labels
from ddf.codec.varint import read_varint, write_varint

DTYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "|b1")
"""The dtypes that an archive holds, by number."""

MOST_SHARED = 1 << 16
MOST_SHARED_BYTES = 1 << 26
"""So many arrays, and bytes of them, share a block at most: what is damaged can ask for no more memory than that."""

MOST_BYTES = 1 << 40
MOST_DIMENSIONS = 32
"""Of one array. NumPy has had no more dimensions than that for long."""


class DamagedArchiveError(ValueError):
    """Bytes that are not what was written."""


class Method(IntEnum):
    """How the arrays of a block are coded."""

    RAW = 0
    LZMA = 1
    MODEL = 2


@dataclass(frozen=True)
class Kind:
    """What the arrays of a block have in common.

    Arguments:
        method: How they are coded.
        dtype: The number of their dtype in `DTYPES`.
        shape: The shape of each.
        named: Whether they have names.
        shared: Whether a block holds any number of arrays, rather than one.
        labels: What classes of the model stand for, where that is not what they stand for in the model.
    """

    method: Method
    dtype: int
    shape: tuple[int, ...]
    named: bool = True
    shared: bool = False
    labels: Labels = ()

    def to_bytes(self) -> bytes:
        flags = self.method | self.named << 2 | self.shared << 3 | bool(self.labels) << 4
        numbers = [*self.shape]
        if self.labels:
            numbers.append(len(self.labels))
            for symbol, label in self.labels:
                numbers += [symbol, 2 * label if label >= 0 else -2 * label - 1]
        return bytes([flags, self.dtype, len(self.shape)]) + b"".join(map(write_varint, numbers))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Kind":
        try:
            flags, dtype, dimensions = data[:3]
            if dtype >= len(DTYPES) or dimensions > MOST_DIMENSIONS:
                raise ValueError("it says what cannot be")
            numbers = []
            position = 3
            while position < len(data):
                number, position = read_varint(data, position)
                numbers.append(number)
            shape, rest = numbers[:dimensions], numbers[dimensions:]
            labels = tuple(
                (symbol, -(number + 1) // 2 if number % 2 else number // 2)
                for symbol, number in zip(rest[1::2], rest[2::2], strict=False)
            )
            kind = cls(Method(flags & 3), dtype, tuple(shape), bool(flags & 4), bool(flags & 8), labels)
            if len(shape) != dimensions or kind.to_bytes() != data:
                raise ValueError("it says what cannot be")
            if labels:
                kind._check_labels()
            if replace(kind, shape=tuple(size or 1 for size in shape)).size > MOST_BYTES:
                raise ValueError(f"arrays of shape {kind.shape} are too large")
        except (ValueError, IndexError) as error:
            raise DamagedArchiveError(f"the archive is damaged: a kind of array is unreadable ({error})") from error
        return kind

    def _check_labels(self) -> None:
        if self.method != Method.MODEL or any(abs(label) > LARGEST_LABEL for _, label in self.labels):
            raise ValueError("it has labels that cannot be")
        if any(one >= other for (one, _), (other, _) in pairwise(self.labels)):
            raise ValueError("its labels are not in order")

    @property
    def unlabelled(self) -> "Kind":
        """The same with the labels of the model."""
        return replace(self, labels=()) if self.labels else self

    @property
    def size(self) -> int:
        """The size of one array in bytes."""
        return prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


@dataclass(frozen=True)
class Block:
    """Some arrays of one kind, coded.

    Arguments:
        kind: What they have in common.
        names: What they are called.
        checksum: CRC-32 of kind, names, arrays and the length of the code, as computed (when made) or with the number
            of arrays before the block added to it (when read).
        payload: The code.
        number: How many arrays come before it in the archive, where that is known.
        bits: What the model's frequencies say that it takes; only known where it was made.
    """

    kind: Kind
    names: tuple[str, ...]
    checksum: int
    payload: bytes
    number: int = 0
    bits: float = 0.0

    @property
    def label(self) -> str:
        """What to call it in an error."""
        return repr(self.names[0]) if self.names[0] else f"array {self.number}"

    def to_bytes(self, number: int) -> bytes:
        """What an archive holds of it, after so many arrays."""
        count = write_varint(len(self.names)) if self.kind.shared else b""
        return (
            count + _names(self.kind, self.names) + _placed(self.checksum, number).to_bytes(4, "little") + self.payload
        )

    @classmethod
    def from_bytes(cls, kind: Kind, data: bytes, number: int) -> "Block":
        try:
            count, position = read_varint(data, 0) if kind.shared else (1, 0)
            if count < 1 or (count > 1 and count * kind.size > MOST_SHARED_BYTES) or count > MOST_SHARED:
                raise ValueError(f"it says that it holds {count} arrays")
            names = []
            for _ in range(count if kind.named else 0):
                length, position = read_varint(data, position)
                if position + length > len(data):
                    raise ValueError("a name is cut off")
                names.append(data[position : position + length].decode())
                position += length
            if position + 4 > len(data):
                raise ValueError("it is cut off")
        except (ValueError, IndexError) as error:
            raise DamagedArchiveError(f"the archive is damaged: a block is unreadable ({error})") from error
        checksum = int.from_bytes(data[position : position + 4], "little")
        return cls(kind, tuple(names) if kind.named else ("",) * count, checksum, data[position + 4 :], number)


def checksum(kind: Kind, names: Sequence[str], arrays: Sequence[Array], payload: bytes) -> int:
    """Of everything that is to come out again, and of how long the code is: a decoder would not mind more of it."""
    crc = zlib.crc32(kind.to_bytes() + _names(kind, names) + write_varint(len(payload)))
    for array in arrays:
        crc = zlib.crc32(raw_bytes(kind, array), crc)
    return crc


def number_of(block: Block, arrays: Sequence[Array], slack: int = 0) -> int | None:
    """How many arrays come before a block that holds these: what it says, or up to `slack` more; None if neither."""
    content = checksum(block.kind, block.names, arrays, block.payload)
    numbers = range(block.number, block.number + slack + 1)
    return next((number for number in numbers if _placed(content, number) == block.checksum), None)


def raw_bytes(kind: Kind, array: Array) -> bytes:
    """An array as it is, little-endian, in C order."""
    return np.ascontiguousarray(array, dtype=DTYPES[kind.dtype]).tobytes()


def _names(kind: Kind, names: Sequence[str]) -> bytes:
    if not kind.named:
        return b""
    return b"".join(write_varint(len(name.encode())) + name.encode() for name in names)


def _placed(checksum: int, number: int) -> int:
    """A checksum that also says how many arrays come before: none is to pass for another."""
    return zlib.crc32(write_varint(number), checksum)
