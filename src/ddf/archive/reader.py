"""Read archives, one array at a time or all of them."""

__all__ = ["Archive", "decompress"]

import io
import os
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ddf import modelfile
from ddf.archive.blocks import Block, DamagedArchiveError, Kind, Method
from ddf.archive.coding import decode_block
from ddf.archive.layout import (
    AGAIN,
    BLOCK,
    EMBEDDED,
    END,
    FOOTER_SIZE,
    HEAD,
    HEADER_SIZE,
    INDEX,
    KIND,
    MAGIC,
    MODEL,
    NO_MODEL,
    VERSION,
    Index,
    Record,
    WrongModelError,
    check_model,
    matches,
    thread_count,
    wrong_model,
)
from ddf.archive.parallel import Pool
from ddf.archive.protocol import Array, Codec
from ddf.archive.varint import read_varint


class Archive:
    """Reads an archive, one array at a time or all of them.

    Arguments:
        path: The file, its bytes, or an open file that can seek.
        model: The codec it was made with; not needed if the archive contains it or was made without one.
    """

    def __init__(self, path: str | PathLike[str] | bytes | BinaryIO, model: Codec | None = None) -> None:
        check_model(model)
        self._file: BinaryIO
        if isinstance(path, bytearray | memoryview):
            path = bytes(path)
        if isinstance(path, bytes):
            self._file, self.name = io.BytesIO(path), "the archive"
        elif isinstance(path, str | PathLike):
            self._file, self.name = Path(path).open("rb"), str(path)  # noqa: SIM115 (closed by close)
            weakref.finalize(self, self._file.close)
        elif hasattr(path, "read") and hasattr(path, "seek"):
            self._file, self.name = path, "the archive"
        else:
            raise TypeError(f"an archive is a path, bytes or an open file, not {path!r}")
        try:
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self.fingerprint, self.embeds_model = self._read_header()
            self.index, self.end = self._read_end()
            self._model = model
            self._embedded: Codec | None = None
        except BaseException:
            self._file.close()
            raise

    # ---- Contents ----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in order."""
        return self.index.names or [""] * len(self)

    def __len__(self) -> int:
        return self.index.maps

    def __repr__(self) -> str:
        model = "no model" if self.fingerprint == NO_MODEL else f"model {self.fingerprint.hex()}"
        inside = ", embedded" if self.embeds_model else ""
        return f"Archive({self.name!r}: {len(self)} arrays, {self.size} bytes; {model}{inside})"

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """Yield all arrays with their names, in order."""
        return self.items()

    def items(self, threads: int | None = None) -> Iterator[tuple[str, Array]]:
        """Yield all arrays with their names, in order.

        Arguments:
            threads: The number of threads that decode; None for one per core.
        """
        count = thread_count(threads)
        coded = any(Kind.from_bytes(body).method == Method.CODEC for _, body in self.kinds())
        return self._items(self.model if coded else None, count)

    def _items(self, model: Codec | None, threads: int) -> Iterator[tuple[str, Array]]:
        pool: Pool[tuple[Block, list[Array]]] = Pool(threads)
        found = 0
        try:
            for block in self.blocks():
                pool.submit(_decode, model, block)
                for done, arrays in pool.ready():
                    yield from zip(done.names, arrays, strict=True)
                found += len(block.names)
            for done, arrays in pool.rest():
                yield from zip(done.names, arrays, strict=True)
        finally:
            pool.close()
        if found != len(self):
            raise self._damaged(f"it holds {found} arrays, but its index lists {len(self)}")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, which: str | int) -> Array:
        """Return one array, by its name or its number."""
        if not isinstance(which, str | int | np.integer):
            raise TypeError(f"an array is selected by its name or its number, not by {which!r}")
        if isinstance(which, str):
            if which not in self._places:
                raise KeyError(f"{self.name} holds no array named {which!r}")
            which = self._places[which]
        number = which + len(self) if which < 0 else which
        if not 0 <= number < len(self):
            raise IndexError(f"number {which} is out of range: {self.name} holds {len(self)} arrays")
        point = bisect_right(self.index.points, number, key=lambda point: point[2]) - 1
        start, kind_at, before = self.index.points[point]
        for block in self.blocks(start, self._kind(kind_at), before):
            if number < before + len(block.names):
                return decode_block(self.model if block.kind.method == Method.CODEC else None, block)[number - before]
            before += len(block.names)
        raise self._damaged("its index lists an array that is missing")

    @property
    def _places(self) -> dict[str, int]:
        if not hasattr(self, "_found_places"):
            self._found_places = {name: i for i, name in enumerate(self.index.names) if name}
        return self._found_places

    @property
    def model(self) -> Codec | None:
        """The codec that the archive needs: the embedded one, or the one that was passed."""
        if self.fingerprint == NO_MODEL:
            return None
        if self._model is not None and self._model.fingerprint == self.fingerprint:
            return self._model
        if not self.embeds_model:
            raise WrongModelError(f"{self.name}: {wrong_model(self.fingerprint, self._model)}")
        if self._embedded is None:
            record = self._record(HEADER_SIZE)
            if record.type != MODEL or not matches(record.body):
                raise self._damaged("the embedded model does not match its checksum")
            self._embedded = self._load(record.body[4:])
            if self._embedded.fingerprint != self.fingerprint:
                raise self._damaged("the embedded model has another fingerprint than the header")
        return self._embedded

    def _load(self, data: bytes) -> Codec:
        try:
            model = modelfile.from_bytes(data, "the embedded model")
        except ValueError as error:
            raise self._damaged(f"the embedded model is unreadable ({error})") from error
        if not isinstance(model, Codec):
            raise self._damaged("the embedded model cannot decode")
        return model

    def blocks(self, start: int | None = None, kind: Kind | None = None, number: int = 0) -> Iterator[Block]:
        """Yield blocks in order.

        Arguments:
            start: Where in the file to start; None for the first block.
            kind: The kind that applies there.
            number: How many arrays come before.
        """
        position = HEADER_SIZE if start is None else start
        while position < self.end:
            begin = position
            record = self._record(position)
            position = record.after
            if record.type in (KIND, AGAIN):
                kind = self._kind_in(record)
            elif record.type == BLOCK:
                if kind is None:
                    raise self._damaged("a block comes before its kind")
                block = Block.from_bytes(kind, record.body, number)
                number += len(block.names)
                yield block
            elif record.type == INDEX:
                raise self._damaged("it has an index in the middle")
            if begin == HEADER_SIZE and self.embeds_model and record.type != MODEL:
                raise self._damaged("the embedded model is missing")

    def kinds(self) -> list[tuple[int, bytes]]:
        """Return the places of kinds in the file, and their bytes."""
        if self.index.blocks == 1:
            _, kind_at, _ = self.index.points[0]
            return [(kind_at, self._kind(kind_at).to_bytes())]
        return list(self.index.kinds)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Bytes -------------------------------------------------------------------------------------------------------

    def _read_header(self) -> tuple[bytes, bool]:
        header = self._bytes(0, min(self.size, HEADER_SIZE))
        if header[:4] != MAGIC:
            raise DamagedArchiveError(f"{self.name} is not a ddf archive")
        if len(header) < HEADER_SIZE:
            raise self._damaged("it is cut off")
        if zlib.crc32(header[:-4]) != int.from_bytes(header[-4:], "little"):
            raise self._damaged("its header does not match its checksum")
        if header[4] > VERSION:
            raise DamagedArchiveError(
                f"{self.name} has version {header[4]}, but this ddf reads up to {VERSION}: install a newer one"
            )
        if header[4] != VERSION or header[5] > EMBEDDED:
            raise self._damaged("its header is invalid")
        return header[6:22], bool(header[5])

    def _read_end(self) -> tuple[Index, int]:
        footer = self._bytes(self.size - FOOTER_SIZE, FOOTER_SIZE) if self.size >= HEADER_SIZE + FOOTER_SIZE else b""
        if footer[4:] != END:
            raise self._damaged("its end is missing; `recover` may save what is left")
        start = self.size - int.from_bytes(footer[:4], "little")
        if start < HEADER_SIZE:
            raise self._damaged("its footer is invalid; `recover` may save what is left")
        record = self._record(start, self.size - FOOTER_SIZE)
        if record.type != INDEX or record.after != self.size - FOOTER_SIZE or not matches(record.body):
            raise self._damaged("its index does not match its checksum; `recover` may save what is left")
        try:
            return Index.from_bytes(record.body[4:], self.size), start
        except (ValueError, zlib.error) as error:
            raise self._damaged(f"its index is unreadable ({error})") from error

    def _bytes(self, start: int, count: int) -> bytes:
        if self._file.closed:
            raise ValueError(f"{self.name} is closed")
        self._file.seek(start)
        return self._file.read(count)

    def _record(self, position: int, end: int | None = None) -> Record:
        """Read the record at a place."""
        end = self.end if end is None else end
        head = self._bytes(position, min(HEAD, end - position))
        try:
            number, used = read_varint(head, 0)
        except ValueError as error:
            raise self._damaged(f"a record is unreadable ({error})") from error
        number, kind = divmod(number, 4)
        position += used
        if kind == MODEL and not (position == HEADER_SIZE + used and self.embeds_model):
            return Record(AGAIN, number, b"", position)
        if position + number > end:
            raise self._damaged("a record is longer than the file")
        return Record(kind, number, self._bytes(position, number), position + number)

    def _kind(self, position: int) -> Kind:
        """Read the kind that a record sets, for the first time or again."""
        record = self._record(position)
        if record.type not in (KIND, AGAIN):
            raise self._damaged("its index does not point to a kind")
        return self._kind_in(record)

    def _kind_in(self, record: Record) -> Kind:
        if record.type == AGAIN:
            if record.number >= len(self.index.kinds):
                raise self._damaged(f"it refers to a kind of array {record.number} that is missing")
            return Kind.from_bytes(self.index.kinds[record.number][1])
        if not matches(record.body):
            raise self._damaged("a kind of array does not match its checksum")
        return Kind.from_bytes(record.body[4:])

    def _damaged(self, why: str) -> DamagedArchiveError:
        return DamagedArchiveError(f"{self.name} is damaged: {why}")


def _decode(model: Codec | None, block: Block) -> tuple[Block, list[Array]]:
    return block, decode_block(model, block)


def decompress(data: bytes, model: Codec | None = None) -> Array:
    """Return the array of an archive that holds one."""
    archive = Archive(data, model)
    if len(archive) != 1:
        raise ValueError(f"this archive holds {len(archive)} arrays, not one; open it as an Archive")
    return archive[0]
