"""Recover the intact arrays of a damaged archive."""

__all__ = ["Recovery", "recover"]

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

from ddf.archive.block_table import CHECKSUM_SIZE, Table
from ddf.archive.blocks import Block, Kind, Method
from ddf.archive.encoding import decode_block
from ddf.archive.formats import FileFormat
from ddf.archive.limits import DEFAULT_MAX_BYTES, table_limit
from ddf.archive.reader import folder_at, load_embedded, wrong_model
from ddf.archive.records import (
    END,
    FOOTER_SIZE,
    FORMAT,
    GROUP,
    HEADER_SIZE,
    INDEX,
    MAGIC,
    MARKER,
    MODEL,
    NO_MODEL,
    Group,
    Header,
    Index,
    Record,
    read_record,
)
from ddf.archive.sources import Source, open_source
from ddf.archive.varint import read_varint
from ddf.errors import DamagedArchiveError, DdfError, InvalidCodeError, WrongModelError
from ddf.protocol import Codec, check_model
from ddf.registry import find_model
from ddf.shapes import Array, check_bytes

_PIECE = 1 << 20  # bytes that are searched at once
_TRIED = 4  # positions at which a block is looked for
_COST = 16  # for each record or block, in addition to its bytes
# Recovery stops after reading this many times the size of the archive, plus some bytes, which only attacks require.
_EFFORT, _SLACK = 32, 1 << 24


class Recovered(NamedTuple):
    """An intact array of a damaged archive.

    Arguments:
        number: Its number in the archive.
        name: Its name; "" if it has none, or if the name is lost.
        array: Its values.
        format: The format of the file that it came from; None if it was not a file, or if that is lost.
    """

    number: int
    name: str
    array: Array
    format: FileFormat | None


@dataclass
class _Section:
    """A group of blocks.

    Arguments:
        table: What they hold.
        number: How many arrays come before.
        begin: Where they began when the archive was written.
        found: Where they may begin now.
    """

    table: Table
    number: int
    begin: int
    found: list[int]


class Recovery:
    """Reads the intact arrays of a damaged archive. Iterating yields arrays that match their checksums.

    Arguments:
        path: The file, its bytes, or a URL.
        model: The codec it was made with, if the archive does not contain it.
        max_bytes: The largest array to decode, in bytes.

    After the iteration, `lost` lists what is damaged, and where.
    """

    def __init__(
        self, path: str | PathLike[str] | bytes, model: Codec | None = None, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        check_model(model)
        self.source: Source = open_source(path)
        self.max_bytes = max_bytes
        self.lost: list[str] = []
        self._given = model
        self._folder = folder_at(path)
        self.unusable: list[str] = []  # why models in places that were searched cannot be used
        self._formats: dict[int, bytes] = {}
        self._index: Index | None = None
        self._index_at = 0
        self._piece = (0, b"")  # what was read last to search for records, and where it begins
        self._embedded: Codec | None = None
        self._effort = _EFFORT * self.source.size + _SLACK
        self.fingerprint = NO_MODEL if model is None else model.fingerprint
        try:
            self._survey()
        except BaseException:
            self.source.close()
            raise

    @property
    def needs_model(self) -> bool:
        """Whether the archive needs a model that it does not embed, and that was not passed."""
        return self.fingerprint != NO_MODEL and not self._embeds_model and self._fitting() is None

    def __iter__(self) -> Iterator[Recovered]:
        return self._arrays()

    def close(self) -> None:
        """Close the file."""
        self.source.close()

    def __enter__(self) -> "Recovery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- The records

    def _survey(self) -> None:
        """Find all intact records."""
        size = self.source.size
        begin = self.source.read(0, min(HEADER_SIZE, size))
        end = self.source.read(max(0, size - len(END)), min(len(END), size))
        header = None
        try:
            header = Header.from_bytes(begin, self.source.name)
            self.fingerprint = header.fingerprint
        except DamagedArchiveError as error:
            if begin[:4] != MAGIC and end != END:
                raise
            self.lost.append(str(error))
        if end != END:
            self.lost.append("the end of the archive is missing")
        groups = []
        for record in self._records():
            if record.type == MODEL and record.position == HEADER_SIZE:
                self._load_model(record, header)
            elif record.type == FORMAT:
                self._keep_format(record)
            elif record.type == GROUP:
                groups.append(record)
            elif record.type == INDEX:
                self._keep_index(record)
        self._embeds_model = self._embedded is not None or (header is not None and header.embeds_model)
        if self._embeds_model and self._embedded is None:
            self.lost.append("the embedded model is damaged")
        if header is None and self.fingerprint == NO_MODEL:
            from ddf.labelmaps import pretrained

            self.fingerprint = pretrained().fingerprint  # the most likely one
        self._sections = self._arranged(groups)

    def _records(self) -> Iterator[Record]:
        """Yield the intact records, in order.

        The data of a record is skipped if another record follows it; otherwise it is searched as well.
        """
        size, position = self.source.size, HEADER_SIZE
        while (position := self._next_marker(position)) >= 0:
            record = read_record(self.source.read, position, size, cut=True)
            self._spend(_COST + (self._claimed(position) if record is None else len(record.head)))
            if record is None:
                position += 1
                continue
            yield record
            follows = self.source.read(record.after, min(len(MARKER), max(0, size - record.after)))
            skips = follows == MARKER or record.after + FOOTER_SIZE == size
            position = record.after if skips else record.data

    def _spend(self, effort: int) -> None:
        self._effort -= effort
        if self._effort < 0:
            raise DamagedArchiveError(f"{self.source.name} is too damaged to recover all of it")

    def _claimed(self, position: int) -> int:
        """Return the size of the head that a damaged record declares, which was read to compute its checksum."""
        start = self.source.read(position, min(16, self.source.size - position))
        try:
            size, _ = read_varint(start, len(MARKER) + 1)
        except ValueError:
            return 0
        return size if size < self.source.size - position else 0

    def _next_marker(self, position: int) -> int:
        """Return the position of the next marker, or −1 if there is none."""
        size = self.source.size
        while position < size:
            start, piece = self._piece
            if not start <= position < start + len(piece):
                start, piece = self._piece = position, self.source.read(position, min(_PIECE, size - position))
            found = piece.find(MARKER, position - start)
            if found >= 0:
                return start + found
            if start + len(piece) == size:
                return -1
            position = max(position + 1, start + len(piece) - len(MARKER) + 1)
            self._piece = (0, b"")
        return -1

    def _load_model(self, record: Record, header: Header | None) -> None:
        try:
            self._embedded = load_embedded(record.head, self.source.name)
        except DamagedArchiveError as error:
            self.lost.append(str(error))
            return
        if header is None:
            self.fingerprint = self._embedded.fingerprint
        elif self._embedded.fingerprint != self.fingerprint:
            self.lost.append("the embedded model has a different fingerprint from the header")
            self._embedded = None

    def _keep_format(self, record: Record) -> None:
        try:
            number, used = read_varint(record.head, 0)
        except ValueError:
            return
        self._formats.setdefault(number, record.head[used:])

    def _keep_index(self, record: Record) -> None:
        """Keep the last index; earlier ones belong to archives stored inside this one."""
        try:
            index = Index.from_bytes(record.head, self.source.size)
        except ValueError:
            return
        if self._index is None or record.position > self._index_at:
            self._index, self._index_at = index, record.position

    def _arranged(self, records: list[Record]) -> list[_Section]:
        """Return the groups of the archive in order, from its index and from their own records."""
        groups = self._parsed(records)
        archive = self._identity(groups)
        if self._index is not None and self._index.archive != archive:
            self._index = None
        sections: dict[int, _Section] = {}
        if self._index is not None:
            self._formats |= dict(enumerate(self._index.formats, 1))
            first = 0
            for begin, count in self._index.groups:
                table = self._index.table.part(first, first + count)
                sections[begin] = _Section(table, int(self._index.table.firsts[first]) if count else 0, begin, [])
                first += count
        for record, group in groups:
            begin = group.position + record.data - record.position
            if self._index is None and group.archive == archive:
                sections.setdefault(begin, _Section(group.table, group.number, begin, []))
            if begin in sections and group.archive == archive:
                sections[begin].found.append(record.data)
        stated = self._stated_index()
        if self._index is None and stated >= 0 and not (len(groups) == 1 and groups[0][0].position == stated):
            self.lost.append("the index is damaged")
        return [sections[begin] for begin in sorted(sections)]

    def _parsed(self, records: list[Record]) -> list[tuple[Record, Group]]:
        """Return the heads of groups."""
        groups = []
        limit, blocks = table_limit(self.source.size), 0
        for record in records:
            try:
                group = Group.from_bytes(record.head, self.source.size, limit)
            except ValueError:
                limit -= _COST * len(record.head)
            else:
                blocks += len(group.table.sizes)
                limit -= group.table.plain_size
                groups.append((record, group))
            if limit < 0 or blocks * CHECKSUM_SIZE > 2 * self.source.size:
                self.lost.append(
                    f"the tables from byte {record.position} onward declare more than the archive can hold"
                )
                break
        return groups

    def _identity(self, groups: list[tuple[Record, Group]]) -> int | None:
        """Return the identifier of this archive, which archives stored inside it do not have."""
        in_place = [group.archive for record, group in groups if group.position == record.position]
        if in_place:
            return in_place[0]
        if self._index is not None:
            return self._index.archive
        return groups[0][1].archive if groups else None

    def _stated_index(self) -> int:
        """Return the position of the index according to the footer, or −1 if there is no footer."""
        size = self.source.size
        footer = self.source.read(size - FOOTER_SIZE, FOOTER_SIZE) if size >= FOOTER_SIZE else b""
        return int.from_bytes(footer[:8], "little") if footer[8:] == END else -1

    # ---- The arrays

    def _arrays(self) -> Iterator[Recovered]:
        expected = 0  # the number of the next array
        stated = self._stated_index()
        moved = [self._index_at - stated] if self._index is not None and stated >= 0 else []
        shifts = [0]  # by how many bytes the preceding blocks have moved
        for i, section in enumerate(self._sections):
            later = self._sections[i + 1] if i + 1 < len(self._sections) else None
            if section.number > expected:
                self.lost.append(f"arrays {expected} to {section.number - 1} and their table are missing")
            here = [place - section.begin for place in section.found]
            after = moved if later is None else [place - later.begin for place in later.found]
            shifts = list(dict.fromkeys([*here, *after, *shifts]))[:_TRIED]
            yield from self._section(section, shifts)
            shifts = shifts[:1]
            expected = max(expected, section.number + section.table.arrays)

    def _section(self, section: _Section, shifts: list[int]) -> Iterator[Recovered]:
        place, table = section.begin, section.table
        for kind, size, count, before in table.blocks():
            numbers = range(section.number + before, section.number + before + count)
            names = [table.name(before + i) for i in range(count)]
            try:
                arrays = self._block(kind, size, count, numbers[0], place, shifts)
            except DdfError as error:
                for number, name in zip(numbers, names, strict=True):
                    self.lost.append(f"{repr(name) if name else f'array {number}'}: {error}")
            else:
                for i, (number, name, array) in enumerate(zip(numbers, names, arrays, strict=True)):
                    format_ = table.formats[before + i] if table.formats else 0
                    yield Recovered(number, name, array, self._format(format_, name or f"array {number}"))
            place += size

    def _block(self, kind: Kind, size: int, count: int, number: int, place: int, shifts: list[int]) -> list[Array]:
        """Return the arrays of a block, which may be at any of several positions."""
        check_bytes("its block", kind.size * count, self.max_bytes)
        model = self._model() if kind.method == Method.CODEC else None
        first: DdfError | None = None
        for shift in shifts:
            if not 0 <= place + shift <= self.source.size - size:
                continue
            self._spend(_COST + size)
            data = self.source.read(place + shift, size)
            block = Block(kind, count, int.from_bytes(data[:CHECKSUM_SIZE], "little"), data[CHECKSUM_SIZE:], number)
            try:
                arrays = decode_block(model, block)
            except InvalidCodeError as error:
                first = first or error
                continue
            shifts.insert(0, shifts.pop(shifts.index(shift)))  # try the same place first for the next block
            return arrays
        raise first or DamagedArchiveError("it is truncated")

    def _model(self) -> Codec | None:
        if self.fingerprint == NO_MODEL:
            return None
        model = self._fitting()
        if model is None:
            raise WrongModelError(wrong_model(self.fingerprint, self._given, self.unusable))
        return model

    def _fitting(self) -> Codec | None:
        """Return the model that the archive needs, if there is one."""
        for model in (self._given, self._embedded):
            if model is not None and model.fingerprint == self.fingerprint:
                return model
        if self._given is not None:
            return None
        self.unusable = []
        return find_model(self.fingerprint, *self._folder, unusable=self.unusable)

    def _format(self, number: int, label: str) -> FileFormat | None:
        if not number:
            return None
        try:
            return FileFormat.from_bytes(self._formats[number])
        except (KeyError, ValueError):
            self.lost.append(f"{label}: the array was recovered, but its file format is damaged")
            return None


def recover(
    path: str | PathLike[str] | bytes, model: Codec | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> Recovery:
    """Read the intact arrays of a damaged archive, one at a time; all of them match their checksums.

    Arguments:
        path: The file, its bytes, or a URL.
        model: The codec it was made with, if the archive does not contain it.
        max_bytes: The largest array to decode, in bytes.

    Examples:
        >>> import numpy as np
        >>> from ddf.archive import compress
        >>> data = compress(np.arange(5), model=None)
        >>> recovery = recover(data[:-3])
        >>> [found.array.tolist() for found in recovery]
        [[0, 1, 2, 3, 4]]
        >>> recovery.lost
        ['the end of the archive is missing']
    """
    return Recovery(path, model, max_bytes)
