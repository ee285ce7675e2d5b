"""What blocks hold: their kinds and sizes, and the names and file formats of their arrays, in columns.

Every group of blocks begins with such a table, and the index of an archive is the table of all of them.
"""

__all__ = ["CHECKSUM_SIZE", "Table", "squeeze", "unsqueeze"]

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ddf.archive.blocks import Kind
from ddf.archive.limits import MAX_ARRAYS, MAX_SHARED, MAX_SHARED_BYTES, table_limit
from ddf.archive.names import pack_names, unpack_names
from ddf.archive.varint import read_column, read_varint, write_column, write_varint
from ddf.lazy import lazy
from ddf.shapes import Array

CHECKSUM_SIZE = 4
"""The bytes of a block before its payload."""


@dataclass
class Table:
    """The contents of some consecutive blocks.

    Arguments:
        kinds: The kinds that occur.
        sizes: The size of each block in bytes, with its checksum.
        kind_of: For each block, the index of its kind in `kinds`.
        counts: The number of arrays in each block.
        names: The name of each array, "" for those without one; empty if none has one.
        formats: The number of the file format of each array, counted from 1 in the order of their records; 0 for arrays
            that were not files. Empty if no array was one.
        plain_size: The size of the bytes that the table was read from.
    """

    kinds: list[Kind] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    formats: list[int] = field(default_factory=list)
    plain_size: int = field(default=0, compare=False)

    @lazy
    def arrays(self) -> int:
        """The number of arrays; do not use it while blocks are added."""
        return sum(self.counts)

    @lazy
    def firsts(self) -> Array:
        """The number of the first array of each block."""
        return np.cumsum([0, *self.counts[:-1]]) if self.counts else np.zeros(0, np.int64)

    def identity(self) -> int:
        """Return the CRC-32 of the table, which identifies an archive whose first group it describes."""
        return zlib.crc32(self.to_bytes())

    def extend(self, other: "Table") -> None:
        """Append the blocks of another table."""
        mine, theirs = sum(self.counts), sum(other.counts)
        number = {kind: i for i, kind in enumerate(self.kinds)}
        for kind in other.kinds:
            if kind not in number:
                number[kind] = len(self.kinds)
                self.kinds.append(kind)
        self.kind_of += [number[other.kinds[i]] for i in other.kind_of]
        self.sizes += other.sizes
        self.counts += other.counts
        self.names = _joined(self.names, mine, other.names, theirs, "")
        self.formats = _joined(self.formats, mine, other.formats, theirs, 0)

    def part(self, first: int, last: int) -> "Table":
        """Return the table of the blocks `first` … `last` − 1, with the kinds that occur in them."""
        counts = self.counts[first:last]
        begin = int(self.firsts[first]) if first < len(self.counts) else self.arrays
        end = begin + sum(counts)
        used = {kind: i for i, kind in enumerate(dict.fromkeys(self.kind_of[first:last]))}
        return Table(
            [self.kinds[i] for i in used],
            self.sizes[first:last],
            [used[i] for i in self.kind_of[first:last]],
            counts,
            _trimmed(self.names[begin:end]),
            _trimmed(self.formats[begin:end]),
        )

    def blocks(self) -> Iterator[tuple[Kind, int, int, int]]:
        """Yield the kind of each block, its size, its number of arrays, and the number of arrays before it."""
        number = 0
        for kind, size, count in zip(self.kind_of, self.sizes, self.counts, strict=True):
            yield self.kinds[kind], size, count, number
            number += count

    def name(self, number: int) -> str:
        """Return the name of an array, or "" if it has none."""
        return self.names[number] if self.names else ""

    # ---- Bytes

    def to_bytes(self) -> bytes:
        shared = [count for kind, count in zip(self.kind_of, self.counts, strict=True) if self.kinds[kind].shared]
        out = bytearray(write_varint(len(self.sizes)) + write_varint(len(self.kinds)))
        for kind in self.kinds:
            data = kind.to_bytes()
            out += write_varint(len(data)) + data
        out += write_column(size - CHECKSUM_SIZE for size in self.sizes)
        if len(self.kinds) > 1:
            out += write_column(self.kind_of)
        out += write_column(shared)
        out += bytes([bool(self.names)]) + (pack_names(self.names) if self.names else b"")
        out += bytes([bool(self.formats)]) + write_column(self.formats)
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "Table":
        """Read what `to_bytes` returned; raise a `ValueError` for anything else.

        Arguments:
            data: The bytes.
            size: The size of the archive in bytes, which limits the number of its blocks.
        """
        blocks, position = read_varint(data, 0)
        count, position = read_varint(data, position)
        if blocks * CHECKSUM_SIZE > size or count > blocks:
            raise ValueError(f"an archive of {size:,} bytes cannot hold {blocks:,} blocks of {count:,} kinds")
        kinds = []
        for _ in range(count):
            length, position = read_varint(data, position)
            kinds.append(Kind.from_bytes(data[position : position + length]))
            position += length
        sizes, position = read_column(data, position, blocks)
        which, position = read_column(data, position, blocks) if count > 1 else (np.zeros(blocks, np.int64), position)
        if blocks and (not count or which.max() >= count or sizes.max() >= 1 << 60):
            raise ValueError("a block has an invalid kind or size")
        is_shared = np.array([kind.shared for kind in kinds], np.bool_)[which] if blocks else np.zeros(0, np.bool_)
        counts = np.ones(blocks, np.int64)
        counts[is_shared], position = read_column(data, position, int(is_shared.sum()))
        if blocks and (counts.min() < 1 or counts.max() > MAX_SHARED or counts.sum() > MAX_ARRAYS):
            raise ValueError(f"{int(counts.sum()):,} arrays in {blocks:,} blocks are too many")
        for kind, most in _largest(kinds, which, counts):
            if most > 1 and most * kind.size > MAX_SHARED_BYTES:
                raise ValueError(f"{most:,} arrays of shape {kind.shape} cannot share a block")
        arrays = int(counts.sum())
        named, position = _flag(data, position)
        names, position = unpack_names(data, position, arrays, table_limit(size)) if named else ([], position)
        filed, position = _flag(data, position)
        formats, position = read_column(data, position, arrays if filed else 0)
        if blocks and len(formats) and formats.max() > size:
            raise ValueError("an array refers to a missing file format")
        if position != len(data):
            raise ValueError(f"a table has {len(data) - position} superfluous bytes")
        sizes += CHECKSUM_SIZE
        return cls(kinds, sizes.tolist(), which.tolist(), counts.tolist(), names, formats.tolist(), len(data))


def squeeze(data: bytes) -> bytes:
    """Compress a table if that makes it smaller; the first byte indicates whether it is compressed."""
    small = zlib.compress(data, 9)
    return b"\1" + small if len(small) < len(data) else b"\0" + data


def unsqueeze(data: bytes, limit: int) -> bytes:
    """Return what `squeeze` compressed, of at most `limit` bytes."""
    if data[:1] == b"\0":
        return data[1:]
    if data[:1] != b"\1":
        raise ValueError("its first byte is invalid")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data[1:], limit)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"it has more than {limit:,} bytes, or is not a zlib stream")
    return plain


def _flag(data: bytes, position: int) -> tuple[bool, int]:
    if data[position : position + 1] not in (b"\0", b"\1"):
        raise ValueError("a flag is invalid")
    return data[position] == 1, position + 1


def _largest(kinds: list[Kind], which: Array, counts: Array) -> Iterator[tuple[Kind, int]]:
    """Yield each kind and the largest number of arrays of that kind in a block."""
    most = np.zeros(len(kinds), np.int64)
    np.maximum.at(most, which, counts)
    yield from zip(kinds, most.tolist(), strict=True)


def _joined(one: list, mine: int, two: list, theirs: int, nothing: object) -> list:  # type: ignore[type-arg]
    """Join two lists; an empty one stands for one that contains only `nothing`."""
    if not one and not two:
        return []
    one = one or [nothing] * mine
    one += two or [nothing] * theirs
    return one


def _trimmed(values: list) -> list:  # type: ignore[type-arg]
    return values if any(values) else []
