"""The layout of an archive: its header, its records, its index. docs/format.md specifies it."""

__all__ = [
    "AGAIN",
    "BLOCK",
    "EMBEDDED",
    "END",
    "FOOTER_SIZE",
    "HEAD",
    "HEADER_SIZE",
    "INDEX",
    "KIND",
    "MAGIC",
    "MODEL",
    "NO_MODEL",
    "STRIDE",
    "VERSION",
    "Index",
    "Record",
    "WrongModelError",
    "check_counts",
    "check_model",
    "matches",
    "thread_count",
    "wrong_model",
]

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddf.archive.blocks import MOST_SHARED, Kind
from ddf.archive.parallel import usable_cores
from ddf.archive.protocol import Codec
from ddf.archive.varint import read_varint, write_varint

MAGIC = b"\x89DDF"
END = b"FDD\x89"
VERSION = 1
HEADER_SIZE = 26
FOOTER_SIZE = 8

BLOCK, KIND, MODEL, INDEX, AGAIN = range(5)  # the types of records; `AGAIN` has no number of its own, see `Record`
EMBEDDED = 1  # the flag of an archive that contains its model
STRIDE = 16  # the index knows where every 16th block begins
HEAD = 10  # the head of a record is shorter than this
_SMALLEST_BLOCK = 5  # bytes of its record
NO_MODEL = bytes(16)  # the fingerprint in an archive without a model


class WrongModelError(ValueError):
    """An archive that needs another model than the one passed."""


class Record(NamedTuple):
    """A record of an archive.

    Arguments:
        type: Its type. Type `MODEL` means a model only directly after the header of an archive that contains its model.
            Anywhere else it is `AGAIN`: a head without a body that sets an earlier kind again.
        number: The length of its body; for `AGAIN`, the number of the kind.
        body: Its body.
        after: The place in the file after it.
    """

    type: int
    number: int
    body: bytes
    after: int


@dataclass(frozen=True)
class Index:
    """The index at the end of an archive.

    Arguments:
        blocks: The number of blocks.
        maps: The number of arrays.
        points: For every 16th block: where it begins, where the record that sets its kind begins, and how many arrays
            come before it.
        kinds: Where kinds are in the file, and a copy of each, so that a damaged kind does not take its arrays along;
            empty if there is only one block.
        names: The names of the arrays, "" for those without one; empty if none has one.
    """

    blocks: int
    maps: int
    points: list[tuple[int, int, int]]
    kinds: list[tuple[int, bytes]]
    names: list[str]

    def to_bytes(self) -> bytes:
        out = bytearray(write_varint(self.blocks) + write_varint(self.maps))
        last = (0, 0, 0)
        for point in self.points:
            out += b"".join(write_varint(new - old) for new, old in zip(point, last, strict=True))
            last = point
        if self.blocks > 1:
            out += write_varint(len(self.kinds))
            place = 0
            for position, body in self.kinds:
                out += write_varint(position - place) + write_varint(len(body)) + body
                place = position
        if any(self.names):
            out += "\0".join(self.names).encode()
        plain = bytes(out)
        squeezed = zlib.compress(plain, 9)
        return b"\1" + squeezed if len(squeezed) < len(plain) else b"\0" + plain

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "Index":
        """Read the index of an archive of `size` bytes, which bounds the size of the index."""
        plain = data[1:]
        if data[:1] == b"\1":
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(plain, 4 * size + 1024)
            if not unpacker.eof or unpacker.unused_data:
                raise ValueError("it is too long")
        elif data[:1] != b"\0":
            raise ValueError("its first byte is invalid")
        blocks, position = read_varint(plain, 0)
        maps, position = read_varint(plain, position)
        if blocks * _SMALLEST_BLOCK > size or maps > blocks * MOST_SHARED:
            raise ValueError(f"there cannot be {maps} arrays in {blocks} blocks of {size} bytes")
        points: list[tuple[int, int, int]] = []
        last = (0, 0, 0)
        for _ in range(-(-blocks // STRIDE)):
            steps = []
            for _ in range(3):
                step, position = read_varint(plain, position)
                steps.append(step)
            last = (last[0] + steps[0], last[1] + steps[1], last[2] + steps[2])
            points.append(last)
        if any(position >= size or kind_at >= position or number >= maps for position, kind_at, number in points):
            raise ValueError("it points outside of the archive")
        if points and points[0][2]:
            raise ValueError("it has arrays before the first")
        kinds: list[tuple[int, bytes]] = []
        count, position = read_varint(plain, position) if blocks > 1 else (0, position)
        place = 0
        for _ in range(count):
            step, position = read_varint(plain, position)
            length, position = read_varint(plain, position)
            place += step
            body = plain[position : position + length]
            Kind.from_bytes(body)
            kinds.append((place, body))
            position += length
        rest = plain[position:].decode()
        names = rest.split("\0") if rest else []
        if names and len(names) != maps:
            raise ValueError(f"it has {len(names)} names for {maps} arrays")
        return cls(blocks, maps, points, kinds, names)


def check_counts(**counts: int) -> None:
    """Refuse what is not a positive integer."""
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} is out of range: pass a positive integer")


def thread_count(threads: int | None) -> int:
    """Return the number of threads to use: the one passed, or one per core."""
    if threads is None:
        return usable_cores()
    check_counts(threads=threads)
    return threads


def check_model(model: Codec | None) -> None:
    """Refuse what is not a codec."""
    if model is not None and not isinstance(model, Codec):
        raise TypeError(f"{model!r} is not a codec: pass a model that ddf.load(path) returns, other than a float flow")


def matches(body: bytes) -> bool:
    """Return whether the body of a record matches the CRC-32 in its first four bytes."""
    return len(body) >= 4 and zlib.crc32(body[4:]) == int.from_bytes(body[:4], "little")


def wrong_model(needed: bytes, given: Codec | None) -> str:
    """Return the message for an archive that needs another model."""
    have = "none was passed" if given is None else f"the one passed is {given.fingerprint.hex()}"
    return f"it needs the model {needed.hex()}, but {have}; pass that one (--model FILE, in Python model=)"
