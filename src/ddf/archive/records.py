"""The records of an archive, its header and its footer; docs/format.md specifies them."""

__all__ = [
    "DIGEST",
    "END",
    "FOOTER_SIZE",
    "FORMAT",
    "GROUP",
    "HEADER_SIZE",
    "INDEX",
    "MAGIC",
    "MARKER",
    "MODEL",
    "NO_MODEL",
    "REQUIRED",
    "VERSION",
    "Group",
    "Header",
    "Index",
    "Record",
    "pack_footer",
    "pack_record",
    "read_record",
]

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ddf.archive.block_table import Table, squeeze, unsqueeze
from ddf.archive.limits import table_limit
from ddf.archive.varint import read_column, read_varint, write_varint
from ddf.errors import DamagedArchiveError

MAGIC = b"\x89DDF"
END = b"FDD\x89"
MARKER = b"\x8dDDR"
VERSION = 1
HEADER_SIZE = 26
FOOTER_SIZE = 12
NO_MODEL = bytes(16)
"""The fingerprint in an archive without a model."""

REQUIRED = 128
"""The bit in the type of a record that a reader must know to read the archive."""

MODEL, GROUP, INDEX, FORMAT = (REQUIRED | number for number in (1, 2, 3, 4))
DIGEST = 5

_EMBEDDED = 1  # the flag of an archive that contains its model
_SUM = 8  # bytes of the checksum of a record
_SMALLEST = len(MARKER) + 3 + _SUM  # bytes of a record
_LONGEST_START = len(MARKER) + 1 + 9 + 9 + _SUM


# ---- Header and footer -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """The first bytes of an archive.

    Arguments:
        fingerprint: The fingerprint of the model.
        embeds_model: Whether the model follows.
    """

    fingerprint: bytes = NO_MODEL
    embeds_model: bool = False

    def to_bytes(self) -> bytes:
        data = MAGIC + bytes([VERSION, _EMBEDDED * self.embeds_model]) + self.fingerprint
        return data + zlib.crc32(data).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> "Header":
        if data[:4] != MAGIC:
            raise DamagedArchiveError(f"{name} is not a ddf archive, or its header is damaged")
        if len(data) < HEADER_SIZE:
            raise DamagedArchiveError(f"{name} is damaged: it is truncated")
        if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise DamagedArchiveError(f"{name} is damaged: its header does not match its checksum")
        if data[4] != VERSION or data[5] > _EMBEDDED:
            raise DamagedArchiveError(
                f"{name} has version {data[4]} (flags {data[5]}), but this ddf reads version {VERSION}: "
                "install a newer one"
            )
        return cls(data[6:22], bool(data[5]))


def pack_footer(index: int) -> bytes:
    """Return the last bytes of an archive, given the position of its index."""
    return index.to_bytes(8, "little") + END


# ---- Records ---------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A record of an archive.

    Arguments:
        position: Where it begins.
        type: Its type.
        head: The part that its checksum covers.
        data: Where its data begins: the part that its checksum does not cover.
        after: The position after it.
    """

    position: int
    type: int
    head: bytes
    data: int
    after: int


def pack_record(type_: int, head: bytes, data_size: int = 0) -> bytes:
    """Return a record up to its data."""
    start = bytes([type_]) + write_varint(len(head)) + write_varint(data_size)
    return MARKER + start + _checksum(start + head) + head


def read_record(read: Callable[[int, int], bytes], position: int, end: int, cut: bool = False) -> Record | None:
    """Read the record at a position; return None if no valid record begins there and ends by `end`.

    Arguments:
        read: A function that returns a number of bytes from a position.
        position: The position.
        end: Where records end.
        cut: Whether its data may be truncated.
    """
    start = read(position, max(0, min(_LONGEST_START, end - position)))
    if start[: len(MARKER)] != MARKER or len(start) < _SMALLEST:
        return None
    try:
        size, used = read_varint(start, len(MARKER) + 1)
        more, used = read_varint(start, used)
    except ValueError:
        return None
    if used + _SUM > len(start) or position + used + _SUM + size + more * (not cut) > end:
        return None
    head = read(position + used + _SUM, size)
    if _checksum(start[len(MARKER) : used] + head) != start[used : used + _SUM]:
        return None
    data = position + used + _SUM + size
    return Record(position, start[len(MARKER)], head, data, data + more)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_SUM]


# ---- Groups and the index --------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The head of the record of a group of blocks.

    Arguments:
        table: What the blocks hold.
        archive: CRC-32 of the table of the first group, which distinguishes the records of an archive from those of
            another archive stored inside it.
        position: Where the record begins in the file.
        number: How many arrays come before it.
    """

    table: Table
    archive: int
    position: int
    number: int

    def to_bytes(self) -> bytes:
        return (
            self.archive.to_bytes(4, "little")
            + write_varint(self.position)
            + write_varint(self.number)
            + squeeze(self.table.to_bytes())
        )

    @classmethod
    def from_bytes(cls, data: bytes, size: int, limit: int | None = None) -> "Group":
        """Read the head of a group; raise a `ValueError` if it is invalid.

        Arguments:
            data: The bytes.
            size: The size of the archive.
            limit: The largest uncompressed table; by default, that for an archive of this size.
        """
        position, start = read_varint(data, 4)
        number, start = read_varint(data, start)
        table = Table.from_bytes(unsqueeze(data[start:], table_limit(size) if limit is None else limit), size)
        return cls(table, int.from_bytes(data[:4], "little"), position, number)


@dataclass
class Index:
    """The contents of an archive.

    Arguments:
        table: What all blocks hold.
        archive: As in `Group`.
        groups: For each group: where its blocks begin, and their number.
        formats: The file formats, as in their records.
    """

    table: Table = field(default_factory=Table)
    archive: int = 0
    groups: list[tuple[int, int]] = field(default_factory=list)
    formats: list[bytes] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        out = bytearray(write_varint(len(self.groups)))
        last = 0
        for start, count in self.groups:
            out += write_varint(start - last) + write_varint(count)
            last = start
        out += write_varint(len(self.formats))
        for data in self.formats:
            out += write_varint(len(data)) + data
        return self.archive.to_bytes(4, "little") + squeeze(bytes(out) + self.table.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "Index":
        """Read the index of an archive of `size` bytes; raise a `ValueError` if it is invalid."""
        plain = unsqueeze(data[4:], table_limit(size))
        count, position = read_varint(plain, 0)
        pairs, position = read_column(plain, position, 2 * count)
        starts = pairs[::2].cumsum()
        count, position = read_varint(plain, position)
        if count * _SMALLEST > size:
            raise ValueError(f"an archive of {size:,} bytes cannot hold {count:,} file formats")
        formats = []
        for _ in range(count):
            length, position = read_varint(plain, position)
            if position + length > len(plain):
                raise ValueError("a file format is truncated")
            formats.append(plain[position : position + length])
            position += length
        table = Table.from_bytes(plain[position:], size)
        groups = list(zip(starts.tolist(), pairs[1::2].tolist(), strict=True))
        if sum(count for _, count in groups) != len(table.sizes):
            raise ValueError("its groups do not add up to its blocks")
        if table.formats and max(table.formats) > len(formats):
            raise ValueError("an array refers to a missing file format")
        first, end = 0, HEADER_SIZE
        for start, count in groups:
            if start < end:
                raise ValueError("its groups overlap")
            end = start + sum(table.sizes[first : first + count])
            first += count
        if end > size:
            raise ValueError("it points outside the archive")
        return cls(table, int.from_bytes(data[:4], "little"), groups, formats)
