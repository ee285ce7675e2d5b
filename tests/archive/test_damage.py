"""Damaged archives: the right data or a clear error, and intact arrays are recovered."""

import contextlib
import io
import resource
import zlib
from pathlib import Path

import numpy as np
import pytest

from ddf.archive import Archive, ArchiveWriter, Codec, DamagedArchiveError, WrongModelError, recover
from ddf.archive.blocks import Method
from ddf.archive.layout import BLOCK, END, INDEX, KIND, MAGIC, MODEL
from ddf.archive.varint import write_varint
from ddf.exact import IntegerFlow
from tests.zoo import assorted_arrays, draw_maps, noise_maps, write_archive


def check_damaged(data: bytes, model: Codec, want: dict[str, np.ndarray]) -> None:
    """Right data or a clear error, and never anything else."""
    try:
        archive = Archive(data, model)
        for name, array in archive:
            assert np.array_equal(array, want[name])
    except (DamagedArchiveError, WrongModelError):
        pass


def test_every_changed_byte_and_every_cut_is_noticed(tmp_path: Path, model: Codec) -> None:
    arrays = [*noise_maps(3, (12, 11)), np.arange(4), np.zeros((3, 50), np.int16)]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
    data = write_archive(tmp_path / "a.ddf", model, arrays)
    assert {block.kind.method for block in Archive(data, model).blocks()} >= {Method.CODEC, Method.LZMA}
    generator = np.random.default_rng(0)
    for i in range(len(data)):
        for change in (1, 128, int(generator.integers(1, 256))):
            damaged = bytearray(data)
            damaged[i] ^= change
            check_damaged(bytes(damaged), model, want)
        with pytest.raises(DamagedArchiveError):
            Archive(data[:i], model)


def test_no_array_passes_for_another() -> None:
    """Every byte of a small archive changed to many others: by name and number there is the right array or none."""
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
            found = recover(bytes(damaged))
            assert len(found.arrays) >= 5
            assert (len(found.arrays) == 6) or found.lost


def test_recovery_without_header_or_model(
    tmp_path: Path, model: Codec, flow: IntegerFlow, maps: list[np.ndarray]
) -> None:
    arrays = [*draw_maps(3, (8, 6), 3), np.arange(4)]
    data = bytearray(write_archive(tmp_path / "a.ddf", flow, arrays, embed_model=True))
    data[8] ^= 1
    found = recover(bytes(data))
    assert len(found.arrays) == 4
    assert found.lost
    data = bytearray(write_archive(tmp_path / "a.ddf", model, [*maps[:3], np.arange(4)]))
    found = recover(bytes(data))
    assert [name for name, _ in found.arrays] == ["map 3"]
    assert model.fingerprint.hex() in found.lost[0]


def test_a_shared_block_without_contents_is_no_obstacle(tmp_path: Path) -> None:
    arrays = [np.full(40, i) for i in range(9)]
    data = write_archive(tmp_path / "a.ddf", None, arrays, maps_per_block=3)
    blocks = list(Archive(data).blocks())
    end = data.index(blocks[1].payload) + len(blocks[1].payload)
    length = 1 + 3 * len(b"\5map 0") + 4 + len(blocks[1].payload)  # how many, their names, the checksum, the code
    head = write_varint(length << 2)
    start = end - length - len(head)
    assert data[start:].startswith(head)
    damaged = data[:start] + write_varint(0) + data[end:]
    found = recover(damaged)
    assert [int(array[0]) for _, array in found.arrays] == [0, 1, 2, 6, 7, 8]
    assert found.lost


def test_random_damage(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    arrays = [*maps, *assorted_arrays()]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
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
            check_damaged(bytes(damaged), model, want)


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 2}])
def test_one_damaged_map_does_not_take_the_others_along(
    tmp_path: Path, model: Codec, maps: list[np.ndarray], options: dict[str, int]
) -> None:
    arrays = [array[: 20 + i // 2 % 3] for i, array in enumerate(maps)]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
    data = write_archive(tmp_path / "a.ddf", model, arrays, **options)
    intact = recover(data, model)
    assert not intact.lost
    assert len(intact.arrays) == len(arrays)
    generator = np.random.default_rng(2)
    for i in generator.choice(len(data), 40, replace=False):
        damaged = bytearray(data)
        damaged[i] ^= int(generator.integers(1, 256))
        found = recover(bytes(damaged), model)
        assert found.lost or len(found.arrays) == len(arrays)
        assert len(found.arrays) >= len(arrays) - options.get("maps_per_block", 1)
        for name, array in found.arrays:
            assert np.array_equal(array, want[name])


def test_a_damaged_kind_byte_costs_nothing(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    """One byte sets an earlier kind again: if it is damaged, all arrays are recovered nevertheless."""
    arrays = [array[: 20 + i % 2] for i, array in enumerate(maps)]
    data = write_archive(tmp_path / "a.ddf", model, arrays)
    _, again, _ = Archive(data, model).index.points[1]
    assert data[again] in (0 << 2 | MODEL, 1 << 2 | MODEL)
    for value in range(0, 256, 41):
        for index in (0, 1):  # as it is, and damaged as well
            damaged = bytearray(data)
            damaged[again] = value
            damaged[-20] ^= index
            found = recover(bytes(damaged), model)
            assert len(found.arrays) == len(arrays)
            assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.arrays)


def test_a_damaged_kind_byte_among_many(tmp_path: Path) -> None:
    arrays = [np.full((1 + i % 20, 1 + i // 20), i % 7, np.uint8) for i in range(300)]
    arrays += [np.full((1, 1), i, np.uint8) for i in range(12)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    again = data.index(b"\x07map 300") - 2  # before the head of its block
    assert data[again] == 0 << 2 | MODEL
    for change in (4, 16, 1, 0x82):
        damaged = bytearray(data)
        damaged[again] ^= change
        found = recover(bytes(damaged))
        assert len(found.arrays) == len(arrays)
        assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.arrays)


@pytest.mark.parametrize("index", [0, 1])
def test_an_archive_within_an_archive_is_not_taken_for_it(tmp_path: Path, index: int) -> None:
    generator = np.random.default_rng(0)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as writer:
        for i in range(30):
            writer.add(generator.integers(0, 256, 400, dtype=np.uint8), "" if i else "first")
    arrays = [np.frombuffer(buffer.getvalue(), np.uint8)]
    arrays += [generator.integers(0, 256, 50, dtype=np.uint8) for _ in range(20)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    start, _, _ = Archive(data).index.points[0]
    for place, change in ((0, 4), (0, 64), (0, 128), (1, 1), (40, 255)):
        damaged = bytearray(data)
        damaged[start + place] ^= change
        damaged[-20] ^= index  # and without an index
        found = recover(bytes(damaged))
        assert [name for name, _ in found.arrays] == [f"map {i}" for i in range(1, 21)]
        assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.arrays)


def test_missing_bytes_and_additional_ones(tmp_path: Path) -> None:
    """Then an index is wrong about all places after them."""
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 256, (10 + i % 4, 9), dtype=np.uint8) for i in range(60)]
    data = write_archive(tmp_path / "a.ddf", None, arrays)
    for place in range(60, 60 * 90, 700):
        for damaged in (data[:place] + data[place + 7 :], data[:place] + generator.bytes(9) + data[place:]):
            found = recover(damaged)
            assert len(found.arrays) >= len(arrays) - 2
            assert all(np.array_equal(array, arrays[int(name.split()[1])]) for name, array in found.arrays)


def test_intact_arrays_of_a_cut_archive_are_recovered(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    data = write_archive(tmp_path / "a.ddf", model, maps)
    found = recover(data[: len(data) // 2], model)
    assert 5 < len(found.arrays) < 15
    for name, array in found.arrays:
        assert np.array_equal(array, maps[int(name.split()[1])])


def test_no_archive_at_all(tmp_path: Path) -> None:
    for data in (b"", b"PK", b"\x89PNG\r\n\x1a\n" + bytes(100)):
        with pytest.raises(DamagedArchiveError, match="is not a ddf archive"):
            Archive(data)
        with pytest.raises(DamagedArchiveError):
            recover(data)


def crafted(
    kind: bytes, body: bytes = b"", index: bytes | None = None, flags: int = 0, model: bytes = bytes(16)
) -> bytes:
    """An archive with the right checksums around what cannot be."""

    def record(number: int, content: bytes) -> bytes:
        return write_varint(len(content) << 2 | number) + content

    def checked(content: bytes) -> bytes:
        return zlib.crc32(content).to_bytes(4, "little") + content

    header = MAGIC + bytes([1, flags]) + model
    data = header + zlib.crc32(header).to_bytes(4, "little")
    data += record(KIND, checked(kind))
    plain = b"\0" + write_varint(1) + write_varint(1) + write_varint(len(data)) + write_varint(26) + write_varint(0)
    data += record(BLOCK, bytes(4) + body)
    end = record(INDEX, checked(plain if index is None else index))
    return data + end + (len(end) + 8).to_bytes(4, "little") + END


U8, LARGE = 0, write_varint(1 << 62)


@pytest.mark.parametrize(
    "data",
    [
        crafted(bytes([1, U8, 3, 0]) + LARGE + LARGE),
        crafted(bytes([1, U8, 64]) + bytes([1]) * 64),
        crafted(bytes([1, U8, 1, 4]), index=b"\0" + write_varint(1) + write_varint(1 << 40)),
        crafted(bytes([1, U8, 1, 4]), index=b"\0" + write_varint(1 << 40) + write_varint(1 << 40)),
        crafted(bytes([1, U8, 1, 4]), index=b"\1" + zlib.compress(bytes(1 << 26), 9)),
        crafted(bytes([1, U8, 1, 4]), index=b"\7" + write_varint(1) + write_varint(1)),
        crafted(bytes([1, U8, 1, 4]), flags=1),
        crafted(bytes([1, U8, 1]) + write_varint(1 << 39)),
        crafted(bytes([1, U8, 1, 4]), index=bytes([0, 1, 9, 35, 26, 5])),
        crafted(bytes([1, U8, 1, 4]), index=bytes([0, 1, 1]) + LARGE + bytes([26, 0])),
        crafted(bytes([1, U8, 1, 4]), index=bytes([0, 2, 2, 35, 26, 0, 1, 26, 3, 1, 99, 0])),
    ],
    ids=["shape", "dimensions", "arrays", "blocks", "bomb", "byte", "flag", "length", "number", "point", "kind"],
)
def test_right_checksums_around_what_cannot_be(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedArchiveError):
        list(Archive(data))
    assert recover(data).lost
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_map_that_does_not_fit_into_memory(model: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    side = write_varint(1 << 19)
    data = crafted(bytes([2, U8, 2]) + side + side, model=model.fingerprint)

    def decode(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(model), "decode", decode)
    with pytest.raises(DamagedArchiveError, match="does not fit into memory"):
        Archive(data, model)[0]
