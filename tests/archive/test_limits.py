"""Archives that declare more than they contain are rejected before they use memory or time.

Their checksums are correct, as an attacker could make them.
"""

import contextlib
import io
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from ddf.archive import (
    Archive,
    ArchiveWriter,
    Codec,
    DamagedArchiveError,
    LimitError,
    compress,
    decompress,
    recover,
    sources,
)
from ddf.archive.block_table import Table, squeeze
from ddf.archive.blocks import DTYPES, Kind, Method
from ddf.archive.limits import MAX_ARRAYS, MAX_NAME
from ddf.archive.records import GROUP, INDEX, MARKER, Header, Index, pack_footer, pack_record
from ddf.archive.varint import write_column, write_varint

U8 = DTYPES.index("|u1")


def crafted(table: bytes, data: bytes = b"", groups: bytes | None = None, formats: bytes = b"\0") -> bytes:
    """Return an archive with this uncompressed table as its index and `data` as its blocks."""
    out = Header().to_bytes()
    group = bytes(4) + write_varint(len(out)) + b"\0" + squeeze(table)
    out += pack_record(GROUP, group, len(data))
    start = len(out)
    out += data
    blocks = table[:1]
    plain = (b"\1" + write_varint(start) + blocks if groups is None else groups) + formats + table
    footer = pack_footer(len(out))
    return out + pack_record(INDEX, bytes(4) + squeeze(plain)) + footer


def table_of(kind: bytes, sizes: list[int] | None = None, rest: bytes = b"\0\0") -> bytes:
    sizes = [0] if sizes is None else sizes
    return write_varint(len(sizes)) + b"\1" + write_varint(len(kind)) + kind + write_column(sizes) + rest


def kind_of(*shape: int, method: Method = Method.RAW, flags: int = 0) -> bytes:
    return bytes([method | flags, U8, len(shape)]) + write_column(shape)


SHARED = 4
HOSTILE = {
    "a huge shape": table_of(bytes([1, U8, 3, 0]) + 2 * write_varint(1 << 62)),
    "64 dimensions": table_of(bytes([1, U8, 64]) + bytes([1]) * 64),
    "an unknown dtype": table_of(bytes([1, 77, 1, 4])),
    "unknown flags": table_of(bytes([64, U8, 1, 4])),
    "an unknown method": table_of(bytes([3, U8, 1, 4])),
    "too many blocks": write_varint(1 << 40) + b"\1" + b"\4" + kind_of(4),
    "too many kinds": b"\1" + write_varint(1 << 40),
    "too many arrays in a shared block": table_of(kind_of(0, flags=SHARED), rest=write_varint(1 << 40) + b"\0\0"),
    "no array in a shared block": table_of(kind_of(0, flags=SHARED), rest=b"\0\0\0"),
    "arrays too large to share a block": table_of(kind_of(1 << 20, flags=SHARED), rest=write_varint(1 << 16) + b"\0\0"),
    "truncated names": table_of(kind_of(4), rest=b"\1\0\0\7abc\0"),
    "a name that repeats more than the previous name": table_of(kind_of(4), rest=b"\1\5\0\0\0"),
    "a name with a zero": table_of(kind_of(4), rest=b"\1\0\0\1\0\0"),
    "a name that is not UTF-8": table_of(kind_of(4), rest=b"\1\0\0\1\xff\0"),
    "the same name twice": table_of(kind_of(4), [0, 0], b"\1\0\1\0\0\1\0a\0"),
    "a missing format": table_of(kind_of(4), rest=b"\0\1\1"),
    "superfluous bytes": table_of(kind_of(4), rest=b"\0\0\0"),
    "bands of a flat array": table_of(bytes([2 | 8, U8, 1, 4, 4])),
}


@pytest.mark.parametrize("table", HOSTILE.values(), ids=HOSTILE.keys())
def test_impossible_tables_are_rejected(table: bytes) -> None:
    data = crafted(table, bytes(8))
    with pytest.raises(DamagedArchiveError, match="its index is invalid"):
        Archive(data)
    recovery = recover(data)
    assert list(recovery) == []
    assert recovery.lost


def test_impossible_groups_are_rejected() -> None:
    table = table_of(kind_of(4), [4, 4])
    for groups in (b"\1\x05\2", b"\1" + write_varint(10**9) + b"\2", b"\2\x40\1\1\1", b"\1\x40\3", b"\1\x40\1"):
        with pytest.raises(DamagedArchiveError, match="its index is invalid"):
            Archive(crafted(table, bytes(16), groups))
    with pytest.raises(DamagedArchiveError, match="its index is invalid"):
        Archive(crafted(table, bytes(16), formats=write_varint(1 << 50)))


def limited(script: str, *arguments: str) -> str:
    """Run a script in its own process; return the memory it used beyond its imports, in MiB."""
    start = """
import io, resource, sys
import numpy as np
from ddf.archive import *
def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = used()
"""
    end = "\nprint((used() - before) // 1024)\n"
    done = subprocess.run(
        [sys.executable, "-c", start + script + end, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


OPEN = """
data = open(sys.argv[1], "rb").read()
try:
    archive = Archive(data)
    for key in archive:
        try:
            archive[key]
        except DamagedArchiveError:
            pass
except (DamagedArchiveError, LimitError):
    pass
try:
    for found in recover(data): pass
except (DamagedArchiveError, LimitError):
    pass
"""


def bomb(name: str) -> bytes:
    """Return an archive that would take gigabytes or minutes without limits."""
    if name == "index":
        plain = zlib.compress(bytes(1 << 30), 9)
        out = Header().to_bytes()
        return out + pack_record(INDEX, bytes(4) + b"\1" + plain) + pack_footer(len(out))
    if name == "unnamed arrays":  # 12,000 blocks of 65,536 empty arrays each
        count = 12_000
        return crafted(
            table_of(kind_of(0, flags=SHARED), [0] * count, write_column([65536] * count) + b"\0\0"),
            bytes(4 * count),
            groups=b"\1" + write_varint(26 + 100) + write_varint(count),
        )
    if name == "names":  # each repeats 4,000 bytes of the previous one
        count = 1_000_000
        rest = b"\1" + write_column([0] + [4000] * (count - 1)) + bytes(count)
        rest += write_column([4000] + [3] * (count - 1)) + b"a" * 4000
        rest += b"".join(f"{i % 1000:03}".encode() for i in range(count - 1)) + b"\0"
        shared = table_of(kind_of(0, flags=SHARED), [0] * 16, write_column([count // 16] * 16) + rest)
        return crafted(shared, bytes(64), groups=b"\1" + write_varint(26 + 100) + b"\x10")
    assert name == "markers"  # where `recover` looks for records
    return Header().to_bytes() + (MARKER + b"\x82" + write_varint(1 << 16) + b"\0") * 10_000


@pytest.mark.parametrize("name", ["index", "unnamed arrays", "names", "markers"])
def test_a_small_archive_takes_little_memory(tmp_path: Path, name: str) -> None:
    data = bomb(name)
    assert len(data) < 1_500_000
    (tmp_path / "bomb.ddf").write_bytes(data)
    assert int(limited(OPEN, str(tmp_path / "bomb.ddf"))) < 400


def test_recovery_is_linear_in_the_size_of_the_archive() -> None:
    """An archive full of false markers that is ten times as large costs ten times as many reads."""
    effort = []
    for count in (1_000, 10_000):
        data = Header().to_bytes() + (MARKER + b"\x82" + write_varint(1 << 12) + b"\0") * count
        read = 0
        kept = sources._Memory._read

        def counted(self: sources._Memory, start: int, size: int, kept: object = kept) -> bytes:
            nonlocal read
            read += size
            return kept(self, start, size)  # type: ignore[operator,no-any-return]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources._Memory, "_read", counted)
            with contextlib.suppress(DamagedArchiveError):
                list(recover(data))
        effort.append(read)
    assert effort[1] < 20 * effort[0]


def test_groups_that_refer_to_the_same_blocks_are_rejected() -> None:
    """Each group is plausible on its own, but the same blocks would be decoded again and again."""
    kind = kind_of(100, method=Method.LZMA)
    data = Header().to_bytes()
    table = squeeze(table_of(kind, [0] * 20_000))
    for i in range(2_000):
        head = bytes(4) + write_varint(10**6 * (i + 1)) + write_varint(20_000 * i) + table
        data += pack_record(GROUP, head, 80_000)
    recovery = recover(data)
    assert list(recovery) == []
    assert any("declare more than the archive can hold" in line for line in recovery.lost)


def test_arrays_larger_than_the_limit_are_rejected(model: Codec) -> None:
    array = np.zeros((300, 300), np.uint8)
    with pytest.raises(LimitError, match="an array: 90,000 bytes, but the limit is 80,000; pass a larger one"):
        compress(array, model, max_bytes=80_000)
    data = compress(array, model)
    with pytest.raises(LimitError, match="array 0: 90,000 bytes"):
        decompress(data, model, max_bytes=80_000)
    assert np.array_equal(decompress(data, model, max_bytes=90_000), array)
    recovery = recover(data, model, max_bytes=80_000)
    assert list(recovery) == []
    assert "the limit is 80,000" in recovery.lost[0]
    with pytest.raises(ValueError, match="max_bytes=0 is out of range"):
        Archive(data, max_bytes=0)


def test_the_default_limit_is_a_gibibyte(model: Codec) -> None:
    """A small archive that declares a larger array is rejected before anything is decoded."""
    kind = Kind(Method.CODEC, U8, (1 << 15, (1 << 15) + 1))
    data = crafted(table_of(kind.to_bytes(), [4]), bytes(8))
    header = Header(model.fingerprint).to_bytes()
    with pytest.raises(LimitError, match="the limit is 1,073,741,824"):
        Archive(header + data[len(header) :], model)[0]


def test_a_map_that_does_not_fit_into_memory_is_reported(model: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    data = compress(np.zeros((9, 9), np.uint8), model)

    def decode(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(model), "decompress", decode)
    with pytest.raises(DamagedArchiveError, match="does not fit into memory"):
        Archive(data, model)[0]


def test_writers_enforce_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ArchiveWriter(io.BytesIO(), None) as writer, pytest.raises(ValueError, match=f"at most {MAX_NAME:,}"):
        writer.add(np.arange(3), "a" * (MAX_NAME + 1))
    monkeypatch.setattr("ddf.archive.writer.MAX_ARRAYS", 5)
    writer = ArchiveWriter(io.BytesIO(), None)
    for i in range(6):
        writer.add(np.full(3, i))
    with pytest.raises(LimitError, match="an archive holds at most 5 arrays"):
        writer.close()
    assert MAX_ARRAYS > 5


def test_unnamed_arrays_do_not_store_names() -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None, maps_per_block=1 << 16, verify=False) as writer:
        for _ in range(200_000):
            writer.add(np.zeros(0, np.uint8), copy=False)
    archive = Archive(buffer.getvalue())
    assert archive.size < 300
    assert len(archive) == 200_000
    assert archive.contents.index.table.names == []
    assert archive[199_999].shape == (0,)


def test_tables_survive_a_round_trip() -> None:
    kinds = [Kind(Method.LZMA, U8, (3, 4)), Kind(Method.RAW, 3, (), shared=True)]
    table = Table(kinds, [9, 200, 5], [0, 1, 0], [1, 3, 1], ["a", "", "ä/b", "ä/c", ""], [0, 0, 1, 2, 0])
    assert Table.from_bytes(table.to_bytes(), 1000) == table
    index = Index(table, 7, [(100, 2), (400, 1)], [b"x", b"yz"])
    assert Index.from_bytes(index.to_bytes(), 1000) == index
    assert table.part(1, 3) == Table(
        [kinds[1], kinds[0]], [200, 5], [0, 1], [3, 1], ["", "ä/b", "ä/c", ""], [0, 1, 2, 0]
    )
    merged = table.part(0, 1)
    merged.extend(table.part(1, 3))
    assert merged == table
