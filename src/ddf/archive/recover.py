"""Recover the intact arrays of a damaged archive."""

__all__ = ["Recovered", "needed_model", "recover"]

import io
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from ddf.archive.blocks import Block, DamagedArchiveError, Kind, Method, number_of
from ddf.archive.coding import decode_block
from ddf.archive.layout import (
    AGAIN,
    BLOCK,
    END,
    FOOTER_SIZE,
    HEAD,
    HEADER_SIZE,
    INDEX,
    KIND,
    MAGIC,
    MODEL,
    NO_MODEL,
    STRIDE,
    Index,
    Record,
    WrongModelError,
    check_model,
    matches,
)
from ddf.archive.protocol import Array, Codec
from ddf.archive.reader import Archive
from ddf.archive.varint import read_varint, write_varint

_MOST_LOST = 4096  # consecutive arrays that may be missing
_MOST_LOST_OTHERS = 16  # the same if other kinds are tried too: the more is tried, the weaker a checksum is
_MOST_TRIED = 1 << 28  # bytes of arrays to decode for one block, over all kinds that are tried
_LEAST_TRIED = 1 << 16  # bytes that each kind counts for at least
_MOST_KINDS = 1 << 14  # in an archive without an index
_FOREIGN, _BROKEN, _COMPLETE = -1, 0, 1 << 60  # how a chain of records ends; see `_Salvage._chain`


@dataclass
class Recovered:
    """The intact contents of a damaged archive.

    Arguments:
        arrays: The arrays with their names, in order; arrays without a name have their number, in six digits.
        lost: What is wrong, and where.
    """

    arrays: list[tuple[str, Array]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def recover(path: str | PathLike[str] | bytes, model: Codec | None = None) -> Recovered:
    """Read what is intact of a damaged archive; everything returned has been checked.

    Arguments:
        path: The file, or its bytes.
        model: The codec it was made with, if the archive does not contain it.
    """
    data = bytes(path) if isinstance(path, bytes | bytearray | memoryview) else Path(path).read_bytes()
    return _Salvage(data, model).run()


def needed_model(path: str | PathLike[str] | bytes) -> bytes | None:
    """Return the fingerprint of the model that an archive needs; None if it contains it or needs none."""
    if isinstance(path, bytes | bytearray | memoryview):
        header = bytes(path[:HEADER_SIZE])
    else:
        with Path(path).open("rb") as file:
            header = file.read(HEADER_SIZE)
    try:
        salvage = _Salvage(header, None)
    except DamagedArchiveError:
        return None
    given = salvage.embeds_model or salvage.fingerprint == NO_MODEL
    return None if given else salvage.fingerprint


class _Salvage(Archive):
    """An archive that is read from its first byte to its last, with or without its index."""

    def __init__(self, data: bytes, model: Codec | None) -> None:
        check_model(model)
        self.name = "the archive"
        self._file = io.BytesIO(data)
        self._data = data
        self.size = self.end = len(data)
        self.embeds_model = False
        self._model, self._embedded = model, None
        self.found = Recovered()
        self.number = 0  # of the next array
        try:
            self.index, self.end = self._read_end()
        except DamagedArchiveError as error:
            self.index = Index(0, -1, [], [], [])
            self.found.lost.append(str(error))
        self.sure: Kind | None = None  # the kind of the block before, unless a record has set one since
        self.chains: dict[int, int] = {}
        self.known = dict(self.index.kinds)
        self.points = {place: (kind_at, number) for place, kind_at, number in self.index.points}
        self.kinds_seen = [Kind.from_bytes(body) for _, body in self.index.kinds]
        self.places = sorted({*self.known, *self.points, self.end}) if self.index.maps >= 0 else []
        try:
            self.fingerprint, self.embeds_model = self._read_header()
        except DamagedArchiveError as error:
            if data[:4] != MAGIC and data[-4:] != END:
                raise
            no_archive = str(error).endswith("is not a ddf archive")
            self.found.lost.append("the header of the archive is missing" if no_archive else str(error))
            self.fingerprint, self.embeds_model = self._guess_model()

    def _guess_model(self) -> tuple[bytes, bool]:
        """Return the fingerprint of the model that an archive without a header needs, and whether it is embedded."""
        self.embeds_model = True
        with suppress(DamagedArchiveError):
            record = self._record(HEADER_SIZE)
            if record.type == MODEL and matches(record.body):
                self._embedded = self._load(record.body[4:])
                return self._embedded.fingerprint, True
        return (NO_MODEL if self._model is None else self._model.fingerprint), False

    def run(self) -> Recovered:
        position, kind = HEADER_SIZE, None
        while position < self.end:
            kind = self._kind_by_index(position, kind)
            try:
                record = self._record(position)
                if record.type in (KIND, AGAIN):
                    kind, self.sure = self._kind_in(record), None
                elif record.type == BLOCK:
                    kind = self.sure = self._keep(kind, record.body)
                elif not matches(record.body) or (record.type == INDEX and record.after < self.size - FOOTER_SIZE):
                    raise self._damaged("a record does not match its checksum")
                elif record.type == INDEX:
                    break
            except (DamagedArchiveError, WrongModelError) as error:
                self.found.lost.append(f"at byte {position}: {error}")
                self.sure = None
                position, kind = self._resume(position, kind)
            else:
                position = record.after
        missing = self.index.maps - len(self.found.arrays)
        if missing > 0:
            self.found.lost.append(f"{missing} of {self.index.maps} arrays are missing")
        return self.found

    def _kind_by_index(self, position: int, kind: Kind | None) -> Kind | None:
        """Return the kind at a place if the index knows it, and take over the number of arrays before it."""
        if position in self.known:
            return Kind.from_bytes(self.known[position])
        if position in self.points:
            kind_at, self.number = self.points[position]
            with suppress(DamagedArchiveError):
                return Kind.from_bytes(self.known[kind_at]) if kind_at in self.known else self._kind(kind_at)
        return kind

    def _kind_in(self, record: Record) -> Kind:
        if record.type == AGAIN:
            if record.number >= len(self.kinds_seen):
                raise self._damaged(f"it refers to a kind of array {record.number} that is missing")
            return self.kinds_seen[record.number]
        kind = super()._kind_in(record)
        if not self.index.kinds:
            self.kinds_seen.append(kind)
        return kind

    def _keep(self, kind: Kind | None, body: bytes) -> Kind:
        """Keep the arrays of a block and return their kind."""
        if kind is None:
            raise self._damaged("a block comes before its kind")
        block, arrays, self.number = self._decoded_block(kind, body, self.number, _MOST_LOST if self.found.lost else 0)
        if block.kind != kind:
            self.found.lost.append(
                f"{block.label} is of another kind than the record before it states; it was read nevertheless"
            )
        for name, array in zip(block.names, arrays, strict=True):
            self.found.arrays.append((name or f"{self.number:06}", array))
            self.number += 1
        return block.kind

    def _decoded_block(self, kind: Kind, body: bytes, number: int, slack: int) -> tuple[Block, list[Array], int]:
        """Return a block, its arrays and how many come before it, of this kind or else of any other."""
        first: ValueError | None = None
        work = 0
        others = [] if kind == self.sure else [other for other in reversed(self.kinds_seen) if other != kind]
        for other in [kind, *others]:
            work += other.size + _LEAST_TRIED
            if first is not None and work > _MOST_TRIED:
                break
            allowed = slack if other == kind else min(slack, _MOST_LOST_OTHERS)
            try:
                block = Block.from_bytes(other, body, number)
                model = self.model if other.method == Method.CODEC else None
                arrays = decode_block(model, block, allowed)
                found = number_of(block, arrays, allowed)
                assert found is not None
                self._check_names(block, found)
                return block, arrays, found
            except ValueError as error:
                first = first or error
        if isinstance(first, DamagedArchiveError | WrongModelError):
            raise first
        raise self._damaged(str(first)) from first

    def _check_names(self, block: Block, number: int) -> None:
        """Refuse a block whose names are not those in the index: it belongs to an archive within this one."""
        after = number + len(block.names)
        if self.places and (
            after > self.index.maps or (self.index.names and tuple(self.index.names[number:after]) != block.names)
        ):
            raise self._damaged(f"{block.label} is not what its index lists")

    def _resume(self, damaged: int, kind: Kind | None) -> tuple[int, Kind | None]:
        """Return the next place where a readable record begins, and the kind of arrays there.

        If the damage spared the length of the record, that is directly after it, and the block there has the next
        number. Otherwise it may be anywhere: a place counts if the records from there on lead to the end of the
        archive and the first of them is readable.
        """
        if damaged in self.known:
            body = self.known[damaged]
            return damaged + len(write_varint(len(body) + 4 << 2 | KIND)) + len(body) + 4, kind
        if self._leads_on(damaged + 1) and self._readable(damaged + 1, kind, self.number, 0):
            return damaged + 1, kind  # the damage was in the one byte that sets a kind again
        with suppress(ValueError):  # a damaged archive, or a number in it
            record = self._record(damaged)
            count = int(record.type == BLOCK)
            if count and kind is not None and kind.shared:
                count = read_varint(record.body, 0)[0]
            next_known = min((place for place in (*self.known, *self.points) if place > damaged), default=-1)
            if record.after == next_known or self._readable(record.after, kind, self.number + count, 0):
                return record.after, kind
        for position in range(damaged + 1, self.end):
            if position in self.known or position in self.points:
                return position, kind
            if self._leads_on(position) and self._readable(position, kind, self.number, _MOST_LOST):
                return position, kind
        return self.end, kind

    def _readable(self, position: int, kind: Kind | None, number: int, slack: int) -> bool:
        """Return whether an intact record begins here."""
        try:
            record = self._record(position)
            if record.type == KIND:
                return slack > 0 and matches(record.body)
            if record.type == AGAIN:
                follows = self._record(record.after)
                if follows.type != BLOCK or record.number >= len(self.kinds_seen):
                    return False
                self._decoded_block(self.kinds_seen[record.number], follows.body, number, slack)
                return True
            if record.type != BLOCK or kind is None:
                return record.type == INDEX and matches(record.body) and slack > 0
            self._decoded_block(kind, record.body, number, slack)
        except ValueError:  # a damaged archive, a wrong model, or an invalid number
            return False
        return True

    def _leads_on(self, position: int) -> bool:
        """Return whether records follow one another from here to a place in the index; without it, to the end.

        If bytes are missing or were inserted, the index is wrong about all places after them.
        """
        chain = self._chain(position)
        if not self.places or chain >= _COMPLETE:
            return chain >= STRIDE
        place = next((place for place in self.places if place >= position), -1)
        while position < place:
            after, _ = self._next(position)
            if after is None:
                return False
            position = after
        return position == place

    def _chain(self, position: int) -> int:
        """Return how many records follow one another from here until one is broken.

        `_COMPLETE` or more if they lead to the end of the archive, `_FOREIGN` if they lead to the index of another
        archive, which is stored in this one.
        """
        walked = []
        while position not in self.chains:
            after, is_index = self._next(position)
            if position == self.end or (is_index and after is not None and after >= self.size - FOOTER_SIZE):
                self.chains[position] = _COMPLETE
            elif after is None:
                self.chains[position] = _BROKEN
            elif is_index:
                self.chains[position] = _FOREIGN if matches(self._record(position).body) else _BROKEN
            else:
                walked.append(position)
                position = after
        length = self.chains[position]
        for place in reversed(walked):
            length = length if length == _FOREIGN else length + 1
            self.chains[place] = length
        return length

    def _next(self, position: int) -> tuple[int | None, bool]:
        """Return the place after what may be a record, or None, and whether it is an index."""
        try:
            number, used = read_varint(self._data[position : position + HEAD], 0)
        except ValueError:
            return None, False
        number, kind = divmod(number, 4)
        if kind == MODEL:  # a kind again; without the index, their number is unknown
            known = number < (len(self.kinds_seen) if self.places else _MOST_KINDS)
            return (position + used if known else None), False
        after = position + used + number
        if (kind == BLOCK and number < 4) or (kind == KIND and number < 7) or after > self.end:
            return None, False
        return after, kind == INDEX
