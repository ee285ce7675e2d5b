"""The contents of an archive, according to its header and its index."""

__all__ = ["Contents"]

import hashlib
from bisect import bisect_right

import numpy as np

from ddf.archive.block_table import CHECKSUM_SIZE
from ddf.archive.blocks import Block
from ddf.archive.records import (
    DIGEST,
    END,
    FOOTER_SIZE,
    GROUP,
    HEADER_SIZE,
    INDEX,
    Group,
    Header,
    Index,
    Record,
    read_record,
)
from ddf.archive.sources import Source
from ddf.errors import DamagedArchiveError
from ddf.lazy import lazy
from ddf.shapes import Array

# Bytes read from the end at once, which usually hold the whole index: at least, at most, and a share of the archive.
_LEAST_TAIL, _MOST_TAIL, _SHARE = 1 << 16, 1 << 20, 128
_MOST_INDEX = 1 << 24  # the largest index to read at once before its size is known


class Contents:
    """The header and the index of an archive, and the position of every block.

    Arguments:
        source: The archive.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._tail_start = max(0, source.size - min(max(_LEAST_TAIL, source.size // _SHARE), _MOST_TAIL))
        self._tail = source.read(self._tail_start, source.size - self._tail_start)
        self.header = Header.from_bytes(self._read(0, min(HEADER_SIZE, source.size)), source.name)
        self.index, self.end = self._read_index()
        self.identity = hashlib.sha256(source.size.to_bytes(8, "little") + self._tail).digest()
        """A hash of the size and the end of the archive, to notice that another one has taken its place."""
        self._tail = b""

    def _read(self, start: int, count: int) -> bytes:
        if start >= self._tail_start and self._tail:
            offset = start - self._tail_start
            return self._tail[offset : offset + count]
        return self.source.read(start, count)

    def _read_index(self) -> tuple[Index, Record]:
        """Return the index and its record."""
        size = self.source.size
        footer = self._read(size - FOOTER_SIZE, FOOTER_SIZE) if size >= HEADER_SIZE + FOOTER_SIZE else b""
        if footer[8:] != END:
            raise self.damaged("its end is missing")
        start = int.from_bytes(footer[:8], "little")
        if not HEADER_SIZE <= start < size - FOOTER_SIZE:
            raise self.damaged("its footer is invalid")
        if start < self._tail_start <= start + _MOST_INDEX:
            self._tail = self.source.read(start, self._tail_start - start) + self._tail
            self._tail_start = start
        record = read_record(self._read, start, size - FOOTER_SIZE)
        if record is None or record.type not in (GROUP, INDEX):
            raise self.damaged("its index does not match its checksum")
        try:
            if record.type == INDEX:
                return Index.from_bytes(record.head, size), record
            group = Group.from_bytes(record.head, size)
            if group.number or len(group.table.sizes) != 1 or group.table.formats:
                raise ValueError("the group that serves as the index is not the only block")
            return Index(group.table, group.archive, [(record.data, 1)]), record
        except ValueError as error:
            raise self.damaged(f"its index is invalid ({error})") from error

    def damaged(self, why: str) -> DamagedArchiveError:
        """Return the error for a damaged archive."""
        return DamagedArchiveError(f"{self.source.name} is damaged: {why}")

    # ---- Blocks

    @lazy
    def starts(self) -> Array:
        """Where each block begins."""
        sizes = np.array(self.index.table.sizes, np.int64)
        starts = np.zeros(len(sizes), np.int64)
        first = 0
        for start, count in self.index.groups:
            starts[first : first + count] = start + np.append(0, sizes[first : first + count - 1].cumsum())[:count]
            first += count
        return starts

    def block_of(self, number: int) -> int:
        """Return the number of the block that holds an array."""
        return bisect_right(self.index.table.firsts, number) - 1

    def read_block(self, number: int) -> Block:
        """Read a block by its number."""
        table = self.index.table
        data = self.source.read(int(self.starts[number]), table.sizes[number])
        kind = table.kinds[table.kind_of[number]]
        checksum = int.from_bytes(data[:CHECKSUM_SIZE], "little")
        return Block(kind, table.counts[number], checksum, data[CHECKSUM_SIZE:], int(table.firsts[number]))

    def label(self, block: Block) -> str:
        """Return the name of a block for error messages: that of its first array."""
        name = self.index.table.name(block.number)
        return repr(name) if name else f"array {block.number}"

    @property
    def digest(self) -> Record | None:
        """The record of the SHA-256 of the archive, if it has one."""
        record = read_record(self.source.read, self.end.after, self.source.size - FOOTER_SIZE)
        return record if record is not None and record.type == DIGEST else None
