"""Damaged archives yield correct data or a clear error, and intact arrays are recovered."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from ddf.archive import (
    Archive,
    ArchiveWriter,
    Codec,
    DamagedArchiveError,
    Recovery,
    WrongModelError,
    recover,
    verify,
)
from ddf.archive.blocks import Method
from ddf.archive.records import DIGEST, FOOTER_SIZE, GROUP, HEADER_SIZE, MARKER, pack_record, read_record
from ddf.exact import IntegerFlow
from ddf.labelmaps import pretrained
from tests.zoo import assorted_arrays, coupling_flow, draw_maps, noise_maps, write_archive


def recovered(data: bytes, model: Codec | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return what `recover` finds, by name or number, and what it reports as lost."""
    recovery = recover(data, model)
    found = {one.name or f"{one.number:06}": one.array for one in recovery}
    return found, recovery.lost


def check_damaged(data: bytes, model: Codec, expected: dict[str, np.ndarray]) -> None:
    """Check that reading yields correct data or a clear error, and nothing else."""
    try:
        for name, array in Archive(data, model).items():
            assert np.array_equal(array, expected[name])
    except (DamagedArchiveError, WrongModelError):
        pass


def small_archive(model: Codec, **options: object) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return an archive with named arrays that cover all methods."""
    arrays = [*noise_maps(3, (12, 11)), np.arange(4), np.repeat([300, 5], 30)]
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, **options) as writer:  # type: ignore[arg-type]
        for i, array in enumerate(arrays):
            writer.add(array, f"map {i}")
    return buffer.getvalue(), {f"map {i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 2}, {"sha256": True}], ids=["plain", "shared", "sha256"])
def test_every_changed_byte_is_detected_and_loses_at_most_one_block(model: Codec, options: dict[str, int]) -> None:
    data, expected = small_archive(model, **options)
    assert {block.kind.method for block in Archive(data, model).blocks()} >= {Method.CODEC, Method.LZMA}
    generator = np.random.default_rng(0)
    for i in range(len(data)):
        for change in (1, 128, int(generator.integers(1, 256))):
            damaged = bytearray(data)
            damaged[i] ^= change
            check_damaged(bytes(damaged), model, expected)
            try:
                found, lost = recovered(bytes(damaged), model)
            except DamagedArchiveError as error:
                assert i < 4 and "is not a ddf archive" in str(error)  # noqa: PT017, PT018
                continue
            assert len(found) >= len(expected) - options.get("maps_per_block", 1)
            assert lost or len(found) == len(expected)
            assert all(np.array_equal(array, expected[name]) for name, array in found.items())
        with contextlib.suppress(DamagedArchiveError, WrongModelError):
            harmless = all(
                np.array_equal(array, expected[name]) for name, array in Archive(bytes(damaged), model).items()
            )
            assert verify(bytes(damaged), model) or harmless  # some bits of a compressed stream have no effect


def test_every_truncation_is_detected_and_loses_only_what_is_missing(model: Codec) -> None:
    data, expected = small_archive(model)
    contents = Archive(data, model).contents
    ends = contents.starts + np.array(contents.index.table.sizes)
    for cut in range(len(data)):
        with pytest.raises(DamagedArchiveError):
            Archive(data[:cut], model)
        if cut < 4:
            continue
        found, lost = recovered(data[:cut], model)
        assert list(found) == list(expected)[: int((ends <= cut).sum())]
        assert lost
        assert all(np.array_equal(array, expected[name]) for name, array in found.items())


def test_errors_name_damaged_arrays(model: Codec, maps: list[np.ndarray]) -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model) as writer:
        for i, array in enumerate(maps):
            writer.add(array, f"map {i}")
    data = bytearray(buffer.getvalue())
    contents = Archive(bytes(data), model).contents
    for number in (3, 17):
        data[int(contents.starts[number]) + 9] ^= 64
    problems = verify(bytes(data), model)
    assert len(problems) == 2
    assert all(f"'map {number}': " in problem for number, problem in zip((3, 17), problems, strict=True))
    _, lost = recovered(bytes(data), model)
    assert [line.split(":")[0] for line in lost] == ["'map 3'", "'map 17'"]


def test_no_array_is_mistaken_for_another() -> None:
    """Change every byte of a small archive: access by name or number returns the right array or raises an error."""
    buffer = io.BytesIO()
    arrays = [np.full(4, i, np.uint8) for i in range(6)]
    with ArchiveWriter(buffer, None) as writer:
        for i, array in enumerate(arrays):
            writer.add(array, f"m{i}" if i % 2 else "")
    data = buffer.getvalue()
    for i in range(len(data)):
        for value in {*range(0, 256, 9), data[i] ^ 1, data[i] ^ 2, data[i] ^ 3}:
            damaged = bytearray(data)
            damaged[i] = value
            try:
                archive = Archive(bytes(damaged))
            except (DamagedArchiveError, WrongModelError):
                continue
            for number, array in enumerate(arrays):
                for which in (number, f"m{number}"):
                    with contextlib.suppress(DamagedArchiveError, KeyError, IndexError):
                        assert np.array_equal(archive[which], array)


def test_recovery_works_without_header_or_model(
    tmp_path: Path, model: Codec, flow: IntegerFlow, maps: list[np.ndarray]
) -> None:
    arrays = [*draw_maps(3, (8, 6), 3), np.arange(4)]
    data = bytearray(write_archive(tmp_path / "a.ddf", flow, arrays, embed_model=True))
    data[8] ^= 1
    found, lost = recovered(bytes(data))
    assert len(found) == 4
    assert lost
    data = bytearray(write_archive(tmp_path / "a.ddf", model, [*maps[:3], np.arange(4)]))
    recovery = recover(bytes(data))
    assert recovery.needs_model
    assert [one.name for one in recovery] == ["map 3"]
    assert model.fingerprint.hex() in recovery.lost[0]


def test_a_damaged_embedded_model_costs_only_its_maps(tmp_path: Path, flow: IntegerFlow) -> None:
    arrays = [*draw_maps(3, (8, 6), 3), np.arange(4)]
    data = bytearray(write_archive(tmp_path / "a.ddf", flow, arrays, embed_model=True))
    data[HEADER_SIZE + 200] ^= 1
    recovery = recover(bytes(data))
    assert not recovery.needs_model  # passing another one would not help
    found, lost = recovered(bytes(data))
    assert np.array_equal(found["map 3"], arrays[3])
    assert any("the embedded model is damaged" in line for line in lost)
    found, _ = recovered(bytes(data), flow)
    assert len(found) == 4


def test_the_pretrained_model_is_found(tmp_path: Path) -> None:
    maps = [np.kron(part, np.ones((4, 4), np.uint8)) for part in draw_maps(2, (8, 6), 3)]
    data = write_archive(tmp_path / "a.ddf", pretrained(), maps)
    assert np.array_equal(Archive(data)["map 1"], maps[1])
    assert not recover(data).needs_model
    assert len(recovered(data)[0]) == 2
    damaged = bytearray(data)
    damaged[8] ^= 1  # in the header, which names the model
    assert len(recovered(bytes(damaged))[0]) == 2
    with pytest.raises(WrongModelError):
        Archive(data, coupling_flow())["map 1"]


def test_random_damage_is_handled(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    arrays = [*maps, *assorted_arrays()]
    expected = {f"map {i}": array for i, array in enumerate(arrays)}
    for options in ({}, {"maps_per_block": 5}):
        data = write_archive(tmp_path / "a.ddf", model, arrays, **options)
        generator = np.random.default_rng(1)
        for _ in range(60):
            damaged = bytearray(data)
            kind = generator.integers(4)
            first, length = generator.integers(len(data)), generator.integers(1, 40)
            if kind == 0:
                damaged[first : first + length] = generator.bytes(length)
            elif kind == 1:
                del damaged[first : first + length]
            elif kind == 2:
                damaged[first:first] = generator.bytes(length)
            else:
                other = generator.integers(len(data))
                damaged[first : first + length] = data[other : other + length]
            check_damaged(bytes(damaged), model, expected)
            with contextlib.suppress(DamagedArchiveError):
                for name, array in recovered(bytes(damaged), model)[0].items():
                    assert name not in expected or np.array_equal(array, expected[name])


@pytest.mark.parametrize("index", [0, 1])
def test_a_nested_archive_is_not_mistaken_for_the_outer_one(tmp_path: Path, index: int) -> None:
    generator = np.random.default_rng(0)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as writer:
        for i in range(30):
            writer.add(generator.integers(0, 256, 400, dtype=np.uint8), "" if i else "first")
    arrays = [np.frombuffer(buffer.getvalue(), np.uint8)]
    arrays += [generator.integers(0, 256, 50, dtype=np.uint8) for _ in range(20)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    start = int(Archive(data).contents.starts[0])
    for place, change in ((0, 4), (0, 64), (0, 128), (1, 1), (40, 255)):
        damaged = bytearray(data)
        damaged[start + place] ^= change
        damaged[-20] ^= index  # so that there is no index either
        found, _ = recovered(bytes(damaged))
        assert list(found) == [f"map {i}" for i in range(1, 21)]
        assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.items())


@pytest.mark.parametrize("index", [0, 1])
def test_recovery_handles_missing_and_inserted_bytes(tmp_path: Path, index: int) -> None:
    """Missing or inserted bytes shift everything after them."""
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 256, (10 + i % 4, 9), dtype=np.uint8) for i in range(600)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    for place in range(300, 600 * 90, 4300):
        for damaged in (data[:place] + data[place + 7 :], data[:place] + generator.bytes(9) + data[place:]):
            spoilt = bytearray(damaged)
            spoilt[-20] ^= index
            found, lost = recovered(bytes(spoilt))
            assert lost or len(found) == len(arrays)
            assert len(found) >= len(arrays) - 2 - 256 * index  # this many arrays share a table
            assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.items())


def groups_of(data: bytes) -> list[tuple[int, int]]:
    """Return the offsets of group records and of their blocks."""
    found = []
    position = data.find(MARKER)
    while position >= 0:
        record = read_record(lambda start, count: data[start : start + count], position, len(data))
        if record is not None and record.type == GROUP:
            found.append((record.position, record.data))
        position = data.find(MARKER, position + 1)
    return found


def test_a_group_with_a_damaged_table_is_read_using_the_index(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 256, (10 + i % 4, 9), dtype=np.uint8) for i in range(800)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    groups = groups_of(data)
    assert len(groups) == 4
    damaged = bytearray(data)
    damaged[groups[1][0] + 30] ^= 1
    found, lost = recovered(bytes(damaged))
    assert len(found) == 800
    assert not lost
    assert any(str(groups[1][0]) in problem for problem in verify(bytes(damaged)))
    damaged[-20] ^= 1  # the index as well: the arrays of that group are lost
    found, lost = recovered(bytes(damaged))
    assert list(found) == [f"map {i}" for i in range(800) if not 256 <= i < 512]
    assert any("arrays 256 to 511 and their table are missing" in line for line in lost)


def test_intact_arrays_of_a_truncated_archive_are_recovered(
    tmp_path: Path, model: Codec, maps: list[np.ndarray]
) -> None:
    data = write_archive(tmp_path / "a.ddf", model, maps)
    found, _ = recovered(data[: len(data) // 2], model)
    assert 5 < len(found) < 15
    assert all(np.array_equal(array, maps[int(name.split()[1])]) for name, array in found.items())


def test_files_that_are_not_archives_are_rejected() -> None:
    for data in (b"", b"PK", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(HEADER_SIZE)):
        with pytest.raises(DamagedArchiveError, match="is not a ddf archive"):
            Archive(data)
        with pytest.raises(DamagedArchiveError):
            Recovery(data)


def test_the_sha256_of_an_archive_is_checked() -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None, sha256=True) as writer:
        writer.add(np.arange(50), "a")
        writer.add(np.arange(60), "b")
    data = buffer.getvalue()
    assert verify(data) == []
    forged = data[: data.rindex(MARKER)] + pack_record(DIGEST, bytes(32)) + data[-FOOTER_SIZE:]
    assert verify(forged) == ["the archive does not match its SHA-256"]
    assert len(Archive(forged)) == 2
