"""What is left of a damaged archive."""

__all__ = ["Recovered", "recover"]

import io
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from ddf.codec.archive import Archive
from ddf.codec.blocks import Block, DamagedArchiveError, Kind, Method, number_of
from ddf.codec.coder import Array
from ddf.codec.coding import decode_blocks
from ddf.codec.flow import IntegerFlow, ModelError
from ddf.codec.layout import (
    BLOCK,
    END,
    FOOTER_SIZE,
    HEAD,
    HEADER_SIZE,
    INDEX,
    KIND,
    MAGIC,
    MODEL,
    NOTHING,
    STRIDE,
    Index,
    WrongModelError,
    check_model,
    matches,
)
from ddf.codec.varint import read_varint, write_varint

_MOST_LOST = 4096  # arrays that `recover` gets over at a time


@dataclass
class Recovered:
    """What could be read of a damaged archive.

    Arguments:
        arrays: The arrays with their names, in order; without a name, their number, in six digits.
        lost: What was wrong, and where.
    """

    arrays: list[tuple[str, Array]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def recover(path: str | PathLike[str] | bytes, model: IntegerFlow | None = None) -> Recovered:
    """Reads whatever can be read of a damaged archive; everything in it is checked.

    Arguments:
        path: The file, or its bytes.
        model: The integer flow it was made with, if the archive does not hold it.
    """
    data = bytes(path) if isinstance(path, bytes | bytearray | memoryview) else Path(path).read_bytes()
    return _Salvage(data, model).run()


class _Salvage(Archive):
    """An archive that is read from its first byte to its last, whatever its end says."""

    def __init__(self, data: bytes, model: IntegerFlow | None) -> None:
        check_model(model)
        self.name = "the archive"
        self._file = io.BytesIO(data)
        self._data = data
        self.size = self.end = len(data)
        self._model, self._embedded = model, None
        self.found = Recovered()
        self.number = 0  # of arrays that have come by
        try:
            self.index, self.end = self._read_end()
        except DamagedArchiveError as error:
            self.index = Index(0, -1, [], [], [])
            self.found.lost.append(str(error))
        self.known = dict(self.index.kinds)
        try:
            self.fingerprint, self.embeds_model = self._read_header()
        except DamagedArchiveError as error:
            if data[:4] != MAGIC and data[-4:] != END:
                raise
            self.found.lost.append(str(error))
            self.fingerprint, self.embeds_model = self._guess_model()

    def _guess_model(self) -> tuple[bytes, bool]:
        """The fingerprint of the model that an archive without a header needs, and whether it is inside."""
        with suppress(DamagedArchiveError, ModelError):
            record, body, _ = self._record(HEADER_SIZE)
            if record == MODEL and matches(body):
                self._embedded = IntegerFlow.from_bytes(body[4:])
                return self._embedded.fingerprint, True
        return (NOTHING if self._model is None else self._model.fingerprint), False

    def run(self) -> Recovered:
        position, kind = HEADER_SIZE, None
        while position < self.end:
            if position in self.known:
                kind = Kind.from_bytes(self.known[position])
            try:
                record, body, after = self._record(position)
                if record == KIND:
                    kind = self._checked_kind(body)
                elif record == BLOCK:
                    self._keep(kind, body)
                elif not matches(body) or (record == INDEX and after < self.size - FOOTER_SIZE):
                    raise self._damaged("a record does not match its checksum")
                elif record == INDEX:
                    break
            except (DamagedArchiveError, WrongModelError) as error:
                self.found.lost.append(f"at byte {position}: {error}")
                position, kind = self._resume(position, kind)
            else:
                position = after
        missing = self.index.maps - len(self.found.arrays)
        if missing > 0:
            self.found.lost.append(f"{missing} of {self.index.maps} arrays are missing")
        return self.found

    def _keep(self, kind: Kind | None, body: bytes) -> None:
        if kind is None:
            raise self._damaged("a block comes before its kind")
        block = Block.from_bytes(kind, body, self.number)
        model = self.model if kind.method == Method.MODEL else None
        slack = _MOST_LOST if self.found.lost else 0
        (arrays,) = decode_blocks(model, [block], slack)
        self.number = number_of(block, arrays, slack) or self.number
        for name, array in zip(block.names, arrays, strict=True):
            self.found.arrays.append((name or f"{self.number:06}", array))
            self.number += 1

    def _resume(self, damaged: int, kind: Kind | None) -> tuple[int, Kind | None]:
        """The next place where a record begins that can be read, and the kind of arrays there.

        Where the damage spared the length of the record, that is right after it: then the block there has the very
        next number. Otherwise it may be anywhere: a place counts if the records from there on lead to the end of the
        archive and the first of them can be read.
        """
        if damaged in self.known:
            body = self.known[damaged]
            return damaged + len(write_varint(len(body) + 4 << 2 | KIND)) + len(body) + 4, kind
        with suppress(ValueError):  # a damaged archive, or a number in it
            record, body, after = self._record(damaged)
            count = 1
            if record == BLOCK and kind is not None and kind.shared:
                count = read_varint(body, 0)[0]
            next_kind = min((place for place in self.known if place > damaged), default=-1)
            if after == next_kind or self._readable(after, kind, self.number + count, 0):
                return after, kind
        for position in range(damaged + 1, self.end):
            if position in self.known:
                return position, kind
            if self._leads_on(position) and self._readable(position, kind, self.number, _MOST_LOST):
                return position, kind
        return self.end, kind

    def _readable(self, position: int, kind: Kind | None, number: int, slack: int) -> bool:
        """Whether there is a record here that is what was written."""
        try:
            record, body, _ = self._record(position)
            if record == KIND:
                self._checked_kind(body)
                return slack > 0
            if record != BLOCK or kind is None:
                return record == INDEX and matches(body) and slack > 0
            model = self.model if kind.method == Method.MODEL else None
            decode_blocks(model, [Block.from_bytes(kind, body, number)], slack)
        except (DamagedArchiveError, WrongModelError, ValueError):
            return False
        return True

    def _leads_on(self, position: int) -> bool:
        """Whether records follow one another from here to the end, or for a while."""
        for _ in range(STRIDE):
            if position >= self.end:
                return position == self.end
            try:
                number, used = read_varint(self._data[position : position + HEAD], 0)
            except ValueError:
                return False
            after = position + used + (number >> 2)
            if after > self.end or number & 3 == MODEL:
                return False
            if number & 3 == INDEX:
                return after >= self.size - FOOTER_SIZE
            position = after
        return True
