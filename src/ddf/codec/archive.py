"""Reading archives: many arrays in one file, one by one or all of them."""

__all__ = ["Archive", "decompress"]

import io
import os
import weakref
import zlib
from collections.abc import Iterator, Sequence
from math import prod
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ddf.codec.blocks import Block, DamagedArchiveError, Kind, Method
from ddf.codec.coder import Array
from ddf.codec.coding import decode_blocks
from ddf.codec.flow import IntegerFlow, ModelError
from ddf.codec.layout import (
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
    NOTHING,
    VERSION,
    Index,
    Record,
    WrongModelError,
    check_counts,
    check_model,
    matches,
    wrong_model,
)
from ddf.codec.parallel import Pool, usual_batch
from ddf.codec.varint import read_varint


class Archive:
    """Reads an archive, one array at a time or all of them.

    Arguments:
        path: The file, or its bytes, or a file that is open and can be sought in.
        model: The integer flow it was made with; not needed if the archive holds it, or was made without.
    """

    def __init__(self, path: str | PathLike[str] | bytes | BinaryIO, model: IntegerFlow | None = None) -> None:
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
            raise TypeError(f"an archive is a path, bytes or a file that is open, not {path!r}")
        try:
            self._file.seek(0, os.SEEK_END)
            self.size = self._file.tell()
            self.fingerprint, self.embeds_model = self._read_header()
            self.index, self.end = self._read_end()
            self._model = model
            self._embedded: IntegerFlow | None = None
        except BaseException:
            self._file.close()
            raise

    # ---- What is in it

    @property
    def names(self) -> list[str]:
        """What the arrays are called, in order."""
        return self.index.names or [""] * len(self)

    def __len__(self) -> int:
        return self.index.maps

    def __repr__(self) -> str:
        model = "no model" if self.fingerprint == NOTHING else f"model {self.fingerprint.hex()}"
        inside = ", which it holds" if self.embeds_model else ""
        return f"Archive({self.name!r}: {len(self)} arrays, {self.size} bytes; {model}{inside})"

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """All arrays with their names, in order."""
        return self.items()

    def items(self, batch_size: int | None = None, processes: int = 1) -> Iterator[tuple[str, Array]]:
        """All arrays with their names, in order.

        Arguments:
            batch_size: How many blocks of one kind are decoded together; None for up to 16 arrays, fewer if they are
                large. It does not change the result.
            processes: How many processes decode at once. It does not change the result either.
        """
        modelled = any(Kind.from_bytes(body).method == Method.MODEL for _, body in self.kinds())
        model = self.model if modelled else None
        check_counts(processes=processes)
        if batch_size is not None:
            check_counts(batch_size=batch_size)
        count = 0
        for names, arrays in self._decoded(model, batch_size, processes):
            yield from zip(names, arrays, strict=True)
            count += len(arrays)
        if count != len(self):
            raise self._damaged(f"it holds {count} arrays, but its index says {len(self)}")

    def _decoded(
        self, model: IntegerFlow | None, batch_size: int | None, processes: int
    ) -> Iterator[tuple[Sequence[str], list[Array]]]:
        """The names and the arrays of each block."""
        pool = Pool(model, processes)
        whole = False
        try:
            for blocks in self._batches(model, batch_size):
                pool.submit(_decode_named, blocks)
                for results in pool.ready():
                    yield from results
            for results in pool.rest():
                yield from results
            whole = True
        finally:
            pool.close(at_once=not whole)

    def _batches(self, model: IntegerFlow | None, size: int | None) -> Iterator[list[Block]]:
        batch: list[Block] = []
        for block in self.blocks():
            most = size or usual_batch(model, prod(block.kind.shape) * len(block.names))
            if batch and (len(batch) >= most or block.kind.unlabelled != batch[0].kind.unlabelled):
                yield batch
                batch = []
            batch.append(block)
        if batch:
            yield batch

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, which: str | int) -> Array:
        """One array, by its name or its number."""
        if not isinstance(which, str | int | np.integer):
            raise TypeError(f"an array is asked for by its name or its number, not by {which!r}")
        if isinstance(which, str):
            if which not in self._places:
                raise KeyError(f"{self.name} holds no array called {which!r}")
            which = self._places[which]
        number = which + len(self) if which < 0 else which
        if not 0 <= number < len(self):
            raise IndexError(f"{self.name} holds {len(self)} arrays, but number {which} was asked for")
        point = max(i for i, (_, _, before) in enumerate(self.index.points) if before <= number)
        start, kind_at, before = self.index.points[point]
        for block in self.blocks(start, self._kind(kind_at), before):
            if number < before + len(block.names):
                return self.decode([block])[0][number - before]
            before += len(block.names)
        raise self._damaged("its index promises an array that is not there")

    @property
    def _places(self) -> dict[str, int]:
        if not hasattr(self, "_found_places"):
            self._found_places = {name: i for i, name in enumerate(self.index.names) if name}
        return self._found_places

    @property
    def model(self) -> IntegerFlow | None:
        """The model that the archive needs: the one it holds, or the one given."""
        if self.fingerprint == NOTHING:
            return None
        if self._model is not None and self._model.fingerprint == self.fingerprint:
            return self._model
        if not self.embeds_model:
            raise WrongModelError(f"{self.name}: {wrong_model(self.fingerprint, self._model)}")
        if self._embedded is None:
            record = self._record(HEADER_SIZE)
            if record.type != MODEL or not matches(record.body):
                raise self._damaged("the model in it does not match its checksum")
            try:
                self._embedded = IntegerFlow.from_bytes(record.body[4:])
            except ModelError as error:
                raise self._damaged(f"the model in it is unreadable ({error})") from error
            if self._embedded.fingerprint != self.fingerprint:
                raise self._damaged("the model in it is another one than it says")
        return self._embedded

    def decode(self, blocks: Sequence[Block]) -> list[list[Array]]:
        """The arrays of blocks of one kind."""
        model = self.model if any(block.kind.method == Method.MODEL for block in blocks) else None
        return decode_blocks(model, blocks)

    def blocks(self, start: int | None = None, kind: Kind | None = None, number: int = 0) -> Iterator[Block]:
        """All blocks in order, from a place in the file on, before which there are so many arrays."""
        position = HEADER_SIZE if start is None else start
        while position < self.end:
            begin = position
            record = self._record(position)
            position = record.after
            if record.type in (KIND, AGAIN):
                kind = self._said(record)
            elif record.type == BLOCK:
                if kind is None:
                    raise self._damaged("a block comes before its kind")
                block = Block.from_bytes(kind, record.body, number)
                number += len(block.names)
                yield block
            elif record.type == INDEX:
                raise self._damaged("it has an index in the middle")
            if begin == HEADER_SIZE and self.embeds_model and record.type != MODEL:
                raise self._damaged("the model that it should hold is not there")

    def kinds(self) -> list[tuple[int, bytes]]:
        """Where kinds are in the file, and what they say."""
        if self.index.blocks == 1:
            _, kind_at, _ = self.index.points[0]
            return [(kind_at, self._kind(kind_at).to_bytes())]
        return list(self.index.kinds)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- The bytes

    def _read_header(self) -> tuple[bytes, bool]:
        header = self._bytes(0, min(self.size, HEADER_SIZE))
        if not MAGIC.startswith(header[:4]) or len(header) < 4:
            raise DamagedArchiveError(f"{self.name} is no ddf archive")
        if len(header) < HEADER_SIZE:
            raise self._damaged("it is cut off")
        if zlib.crc32(header[:-4]) != int.from_bytes(header[-4:], "little"):
            raise self._damaged("its header does not match its checksum")
        if header[4] > VERSION:
            raise DamagedArchiveError(
                f"{self.name} has version {header[4]}, but this ddf reads up to {VERSION}: install a newer one"
            )
        if header[4] != VERSION or header[5] > EMBEDDED:
            raise self._damaged("its header says what cannot be")
        return header[6:22], bool(header[5])

    def _read_end(self) -> tuple[Index, int]:
        footer = self._bytes(self.size - FOOTER_SIZE, FOOTER_SIZE) if self.size >= HEADER_SIZE + FOOTER_SIZE else b""
        if footer[4:] != END:
            raise self._damaged("it does not end as an archive does; `recover` may save what is left")
        start = self.size - int.from_bytes(footer[:4], "little")
        if start < HEADER_SIZE:
            raise self._damaged("its end says what cannot be; `recover` may save what is left")
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
        """The record at a place."""
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
        """The kind that is said, once more or for the first time, at a place."""
        record = self._record(position)
        if record.type not in (KIND, AGAIN):
            raise self._damaged("its index does not point to a kind")
        return self._said(record)

    def _said(self, record: Record) -> Kind:
        if record.type == AGAIN:
            if record.number >= len(self.index.kinds):
                raise self._damaged(f"it speaks of a kind of array {record.number} that there is not")
            return Kind.from_bytes(self.index.kinds[record.number][1])
        if not matches(record.body):
            raise self._damaged("a kind of array does not match its checksum")
        return Kind.from_bytes(record.body[4:])

    def _damaged(self, why: str) -> DamagedArchiveError:
        return DamagedArchiveError(f"{self.name} is damaged: {why}")


def _decode_named(model: IntegerFlow | None, blocks: Sequence[Block]) -> list[tuple[Sequence[str], list[Array]]]:
    return list(zip((block.names for block in blocks), decode_blocks(model, blocks), strict=True))


def decompress(data: bytes, model: IntegerFlow | None = None) -> Array:
    """The array of an archive of one."""
    archive = Archive(data, model)
    if len(archive) != 1:
        raise ValueError(f"this archive holds {len(archive)} arrays, not one; open it as an Archive")
    return archive[0]
