"""How an archive is laid out: its header, its records, its index. docs/format.md says it in words."""

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
    "NOTHING",
    "STRIDE",
    "VERSION",
    "Index",
    "Record",
    "WrongModelError",
    "check_counts",
    "check_model",
    "matches",
    "wrong_model",
]

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddf.archive.blocks import MOST_SHARED, Kind
from ddf.archive.flow import IntegerFlow
from ddf.archive.varint import read_varint, write_varint

MAGIC = b"\x89DDF"
END = b"FDD\x89"
VERSION = 1
HEADER_SIZE = 26
FOOTER_SIZE = 8

BLOCK, KIND, MODEL, INDEX, AGAIN = range(5)  # the types of records; `AGAIN` has no number of its own, see `Record`
EMBEDDED = 1  # the flag of an archive with its model inside
STRIDE = 16  # the index knows where every 16th block begins
HEAD = 10  # the head of a record has fewer bytes than that
_LEAST_BLOCK = 5  # bytes in a file
NOTHING = bytes(16)  # the fingerprint where there is no model


class WrongModelError(ValueError):
    """An archive that needs another model than it was given."""


class Record(NamedTuple):
    """A record of an archive.

    Arguments:
        type: Its type. A record with the type of a model is one only right after the header of an archive that has its
            model inside; anywhere else it is `AGAIN`: no more than a head, that says that a kind applies once more.
        number: The length of its body; of `AGAIN`, the number of the kind.
        body: Its body.
        after: The place in the file after it.
    """

    type: int
    number: int
    body: bytes
    after: int


@dataclass(frozen=True)
class Index:
    """What the end of an archive says of it.

    Arguments:
        blocks: How many blocks there are.
        maps: How many arrays.
        points: For every 16th block: where it begins, where its kind is (or where it is said that it applies once
            more), and how many arrays come before it.
        kinds: Where kinds are and what they say, once more: no damage to one of them is to take its arrays along. (If
            there is but one block, none.)
        names: What the arrays are called, "" for those without a name; empty if none has one.
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
        """Reads an index of an archive of so many bytes, in which all that it says is said once more."""
        plain = data[1:]
        if data[:1] == b"\1":
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(plain, 4 * size + 1024)
            if not unpacker.eof or unpacker.unused_data:
                raise ValueError("it is longer than what it is about")
        elif data[:1] != b"\0":
            raise ValueError("it begins with what cannot be")
        blocks, position = read_varint(plain, 0)
        maps, position = read_varint(plain, position)
        if blocks * _LEAST_BLOCK > size or maps > blocks * MOST_SHARED:
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
            raise ValueError("it points to what is not there")
        if points and points[0][2]:
            raise ValueError("there are arrays before the first")
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
            raise ValueError("there are not as many names as arrays")
        return cls(blocks, maps, points, kinds, names)


def check_counts(**counts: int) -> None:
    """Refuses what is no positive integer, with its name."""
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}, but it must be a positive integer")


def check_model(model: IntegerFlow | None) -> None:
    """Refuses what is no model."""
    if model is not None and not isinstance(model, IntegerFlow):
        raise TypeError(f"the model must be an IntegerFlow, as IntegerFlow.load(path) reads it, but it is {model!r}")


def matches(body: bytes) -> bool:
    """Whether the body of a record is what its first four bytes, a CRC-32, say."""
    return len(body) >= 4 and zlib.crc32(body[4:]) == int.from_bytes(body[:4], "little")


def wrong_model(needed: bytes, given: IntegerFlow | None) -> str:
    """What to say where another model is needed."""
    have = "none was given" if given is None else f"the one given is {given.fingerprint.hex()}"
    return f"it needs the model {needed.hex()}, but {have}; give it that one (--model FILE, or model=…)"
