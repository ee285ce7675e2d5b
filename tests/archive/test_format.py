"""The format matches docs/format.md and can be extended."""

import contextlib
import io
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ddf.archive import Archive, ArchiveWriter, Codec, DamagedArchiveError, FileFormat, recover, verify
from ddf.archive.blocks import Method
from ddf.archive.encoding import _BAND
from ddf.archive.records import HEADER_SIZE, MARKER, pack_record
from tests import reference_decoder
from tests.archive.conftest import PackingCodec

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def test_the_worked_example_matches_the_writer() -> None:
    block = re.search(r"## An example.*?```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    lines = [re.match(r"(?:[0-9a-f]{2} ?)+", line) for line in block[1].splitlines()]
    expected = bytes.fromhex("".join(line[0] for line in lines if line is not None))
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        archive.add(np.array([[1, 0], [0, 7]], np.uint8), "a/1")
    assert buffer.getvalue() == expected
    ((name, array),) = reference_decoder.decode(expected)
    assert name == "a/1"
    assert array.tolist() == [[1, 0], [0, 7]]


def with_record(type_: int, flags: int = 0) -> bytes:
    """Return an archive with a record of any type inserted before its index."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for i in range(3):
            archive.add(np.full(5, i), f"{i}")
    data = buffer.getvalue()
    index = data.rindex(MARKER)
    record = pack_record(type_, b"from the future", 3) + b"abc"
    header = bytearray(data[: HEADER_SIZE - 4])
    header[5] |= flags
    moved = (index + len(record)).to_bytes(8, "little")
    data = bytes(header) + zlib.crc32(header).to_bytes(4, "little") + data[HEADER_SIZE:]
    return data[:index] + record + data[index:-12] + moved + data[-4:]


def test_unknown_records_are_skipped() -> None:
    data = with_record(77)
    assert [array[0] for array in Archive(data).values()] == [0, 1, 2]
    assert verify(data) == []
    recovery = recover(data)
    assert [found.array[0] for found in recovery] == [0, 1, 2]
    assert recovery.lost == []


def test_unknown_required_records_are_rejected() -> None:
    assert "which a newer version of ddf may read" in verify(with_record(77 | 128))[0]
    with pytest.raises(DamagedArchiveError, match="install a newer one"):
        Archive(with_record(77 | 128, flags=2))


def test_unknown_records_survive_appending(tmp_path: Path) -> None:
    (tmp_path / "a.ddf").write_bytes(with_record(77))
    with ArchiveWriter(tmp_path / "a.ddf", None, append=True) as archive:
        archive.add(np.arange(3), "more")
    data = (tmp_path / "a.ddf").read_bytes()
    assert b"from the future" in data
    assert verify(data) == []
    assert len(Archive(data)) == 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(100, 90), (7, 30, 40)])
def test_large_arrays_are_coded_in_bands(
    model: Codec, shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _BAND == 1 << 24
    monkeypatch.setattr("ddf.archive.encoding._BAND", 1 << 11)
    array = np.random.default_rng(0).integers(0, 16, shape, dtype=np.uint8)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, threads=threads) as writer:
        writer.add(array, "large")
        writer.add(array[:2], "small")
    data = buffer.getvalue()
    archive = Archive(data, model, threads=threads)
    large, small = archive.blocks()
    assert large.kind.method == Method.CODEC
    assert large.kind.band
    assert len(large.kind.bands) == array.size // (1 << 11)
    assert not small.kind.band
    assert np.array_equal(archive["large"], array)
    assert all(np.array_equal(one, two) for one, two in zip(archive.values(), (array, array[:2]), strict=True))
    start, harmless = int(archive.contents.starts[0]), 0
    for place in range(start, start + 40):  # including the sizes of the bands
        damaged = bytearray(data)
        damaged[place] ^= 129
        with contextlib.suppress(DamagedArchiveError):
            assert np.array_equal(Archive(bytes(damaged), model)["large"], array)
            harmless += 1
    assert harmless < 4  # some bits of a compressed stream have no effect


ARRAYS = hnp.arrays(
    st.sampled_from(["u1", "u1", "i1", "<u2", ">i4", "i8", "?"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
)
NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=12)
FORMATS = st.sampled_from(
    [None, FileFormat("npy", fortran=True), FileFormat("PNG", "P", b"abc", 3), FileFormat("file")]
)


ITEMS = st.tuples(ARRAYS, st.one_of(st.just(""), NAMES), FORMATS)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ITEMS, max_size=12, unique_by=lambda item: item[1] or id(item)),
    st.sampled_from([1, 2, 5]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 12),
)
def test_any_archive_is_restored(
    items: list[tuple[np.ndarray, str, FileFormat | None]], per_block: int, coded: bool, sha256: bool, split: int
) -> None:
    """This includes appended parts, the reference decoder, and recovery without the index."""
    model = PackingCodec() if coded else None
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, maps_per_block=per_block, sha256=sha256, threads=1) as writer:
        for array, name, file in items:
            writer.add(array, name, file=file)
    data = buffer.getvalue()
    archive = Archive(data, model)
    keys = [name or number for number, (_, name, _) in enumerate(items)]
    assert list(archive) == keys
    assert verify(data, model) == [] or any(file for _, _, file in items) or any(name for _, name, _ in items)
    for key, (array, _, file) in zip(keys, items, strict=True):
        assert np.array_equal(archive[key], array)
        assert archive[key].dtype == array.dtype.newbyteorder("=")
        assert archive.format_of(key) == file
    if not coded:
        for (name, array), (expected, expected_name, _) in zip(reference_decoder.decode(data), items, strict=True):
            assert name == expected_name
            assert np.array_equal(array, expected)
    found = list(recover(data[:-5], model))
    assert [one.name for one in found] == [name for _, name, _ in items]
    assert [one.format for one in found] == [file for _, _, file in items]
    assert all(np.array_equal(one.array, array) for one, (array, _, _) in zip(found, items, strict=True))
