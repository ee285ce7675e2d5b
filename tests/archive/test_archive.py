"""Arrays survive a round trip through an archive."""

import io
import lzma
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ddf
from ddf.archive import Archive, ArchiveWriter, Codec, WrongModelError, compress, decompress
from ddf.archive.blocks import Method
from ddf.archive.parallel import Pool
from ddf.exact import IntegerFlow
from tests.zoo import VALUES, assorted_arrays, draw_maps, noise_maps, vector_flow, write_archive

FIXED = 75
"""The overhead of an archive with one array, in bytes."""


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}, {"threads": 3}])
def test_every_integer_array_is_restored(tmp_path: Path, model: Codec, options: dict[str, object]) -> None:
    arrays = assorted_arrays()
    write_archive(tmp_path / "a.ddf", model, arrays, **options)
    archive = Archive(tmp_path / "a.ddf", model)
    assert len(archive) == len(arrays)
    for (name, got), (i, expected) in zip(archive.items(), enumerate(arrays), strict=True):
        assert name == f"map {i}"
        assert got.dtype == expected.dtype.newbyteorder("=")
        assert got.shape == expected.shape
        assert np.array_equal(got, expected)
    for got, again in zip(archive.values(), Archive(tmp_path / "a.ddf", model, threads=1).values(), strict=True):
        assert np.array_equal(got, again)
    methods = {block.kind.method for block in archive.blocks()}
    assert methods == set(Method)


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(st.sampled_from(["u1", "i1", "u2", "<i4", ">i8", "?"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_any_array_is_restored(array: np.ndarray) -> None:
    data = compress(array, None)
    again = decompress(data)
    assert np.array_equal(again, array)
    assert again.shape == array.shape
    assert len(data) <= array.nbytes + 80


def test_arrays_of_floats_are_rejected(model: Codec) -> None:
    with pytest.raises(TypeError, match="archives hold arrays of integers, but this array has dtype float64"):
        compress(np.zeros((3, 3)), model)


def test_arrays_are_found_by_name_and_number(tmp_path: Path, model: Codec) -> None:
    arrays = draw_maps(50, (20, 20), 4)
    with ArchiveWriter(tmp_path / "a.ddf", model) as writer:
        for i, array in enumerate(arrays):
            writer.add(array[: 10 + i % 3], f"ordner {i % 4}/größe {i}.png" if i % 5 else "")
    archive = Archive(tmp_path / "a.ddf", model)
    for i in (49, 0, 17, 16, 15, 31, 33, 48):
        assert np.array_equal(archive[i], arrays[i][: 10 + i % 3])
        if i % 5:
            name = f"ordner {i % 4}/größe {i}.png"
            assert name in archive
            assert np.array_equal(archive[name], arrays[i][: 10 + i % 3])
    assert np.array_equal(archive[-1], arrays[-1][: 10 + 49 % 3])
    with pytest.raises(KeyError, match="does not contain an array named 'x'"):
        archive["x"]
    with pytest.raises(IndexError, match=r"number 50 is out of range: .* contains 50 arrays"):
        archive[50]


def test_an_archive_is_a_mapping(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3), 1: np.arange(4), "b/c": np.arange(5), 3: np.zeros((2, 2), bool)}
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        for key, array in arrays.items():
            writer.add(array, key if isinstance(key, str) else "")
    archive = Archive(tmp_path / "a.ddf")
    assert isinstance(archive, Mapping)
    assert list(archive) == list(archive.keys()) == list(arrays)
    assert len(archive) == len(archive.items()) == 4
    assert "a" in archive
    assert "x" not in archive
    assert 3 in archive
    assert 4 not in archive
    assert None not in archive
    for (key, array), value, (expected_key, expected) in zip(
        archive.items(), archive.values(), arrays.items(), strict=True
    ):
        assert key == expected_key
        assert np.array_equal(array, expected)
        assert np.array_equal(value, expected)
        assert np.array_equal(archive[key], expected)
    assert archive.get("x") is None
    assert archive.get(9) is None
    assert archive == archive
    assert archive != Archive(tmp_path / "a.ddf")


def test_random_access_reads_only_what_it_needs(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    write_archive(tmp_path / "a.ddf", model, maps * 1, embed_model=False)
    archive = Archive(tmp_path / "a.ddf", model)
    read: list[int] = []
    kept = archive.contents.source.read
    archive.contents.source.read = lambda start, count: (read.append(count), kept(start, count))[1]  # type: ignore[method-assign,func-returns-value]
    archive[18]
    assert read == [archive.contents.index.table.sizes[18]]


def test_names_are_unique(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="already contains an array named 'a'"):
            writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="contains a zero"):
            writer.add(np.arange(3), "a\0")
    assert list(Archive(tmp_path / "a.ddf")) == ["a"]


def code_size(model: Codec, array: np.ndarray) -> int:
    code = model.compress(array)
    assert code is not None
    return len(code)


@pytest.mark.parametrize("per_block", [1, 16, 64])
def test_a_block_has_little_overhead(model: Codec, per_block: int) -> None:
    maps = noise_maps(64, (43, 38))
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, maps_per_block=per_block) as writer:
        for array in maps:
            writer.add(array)
    blocks = [np.stack(maps[i : i + per_block]) for i in range(0, 64, per_block)]
    codes = sum(code_size(model, block if per_block > 1 else block[0]) for block in blocks)
    assert writer.coded == 64
    assert len(buffer.getvalue()) <= FIXED + 60 + codes + 9 * len(blocks)


def test_a_change_of_size_has_little_overhead(model: Codec) -> None:
    """Maps of several sizes in any order cost 9 bytes each, plus 20 per size."""
    generator = np.random.default_rng(0)
    sizes = [(41, 57), (57, 41), (48, 48), (60, 33)]
    chosen = [sizes[generator.integers(4)] for _ in range(48)]
    maps = [part[:height, :width] for part, (height, width) in zip(noise_maps(48, (60, 60)), chosen, strict=True)]
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model) as writer:
        for array in maps:
            writer.add(array)
    archive = Archive(buffer.getvalue(), model)
    assert writer.coded == 48
    codes = sum(code_size(model, array) for array in maps)
    assert archive.size <= FIXED + 60 + codes + 9 * len(maps) + 20 * (len(sizes) - 1)
    assert all(np.array_equal(archive[i], array) for i, array in enumerate(maps))


def test_arrays_can_be_appended(tmp_path: Path, flow: IntegerFlow) -> None:
    path = tmp_path / "a.ddf"
    maps = draw_maps(20, (8, 6), 3)
    for first in range(0, 20, 7):
        with ArchiveWriter(path, flow, append=True, embed_model=True) as writer:
            for i, array in enumerate(maps[first : first + 7], first):
                writer.add(array, f"{i}")
            with pytest.raises(ValueError, match="already contains an array named '0'"):
                writer.add(maps[0], "0")
    archive = Archive(path)
    assert list(archive) == [str(i) for i in range(20)]
    assert all(np.array_equal(archive[str(i)], array) for i, array in enumerate(maps))
    assert all(np.array_equal(got, expected) for got, expected in zip(archive.values(), maps, strict=True))
    with pytest.raises(WrongModelError, match=flow.fingerprint.hex()):
        ArchiveWriter(path, vector_flow(), append=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


def test_booleans_may_be_any_bytes(tmp_path: Path) -> None:
    truths = np.array([0, 255, 1, 7], dtype=np.uint8).view(np.bool_)  # as Pillow stores them
    write_archive(tmp_path / "a.ddf", None, [truths])
    assert Archive(tmp_path / "a.ddf")[0].tolist() == [False, True, True, True]


def test_existing_files_are_not_replaced_by_default(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.ddf", None, [np.arange(3)])
    with pytest.raises(FileExistsError, match="already exists; overwrite=True replaces it, append=True adds to it"):
        ArchiveWriter(tmp_path / "a.ddf", None)
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        ArchiveWriter(tmp_path / "no" / "a.ddf", None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}])
def test_threads_do_not_change_an_archive(
    tmp_path: Path, model: Codec, maps: list[np.ndarray], options: dict[str, int]
) -> None:
    arrays = [*maps, *assorted_arrays()]
    found = {write_archive(tmp_path / "a", model, arrays, threads=threads, **options) for threads in (1, 2, 5, None)}
    assert len(found) == 1
    data = found.pop()
    one_thread, many = (Archive(data, model, threads=threads).items() for threads in (1, 4))
    for (one_name, one), (two_name, two) in zip(one_thread, many, strict=True):
        assert one_name == two_name
        assert np.array_equal(one, two)
        assert one.dtype == two.dtype


def test_a_pool_keeps_the_order_and_bounds_the_number_of_jobs() -> None:
    pool: Pool[int] = Pool(2)
    gate = threading.Event()
    started = []

    def job(number: int) -> int:
        started.append(number)
        gate.wait()
        return number

    for number in range(4):
        pool.submit(job, number)
        assert list(pool.ready()) == []
    gate.set()
    pool.submit(job, 4)
    assert [*pool.ready(), *pool.rest()] == [0, 1, 2, 3, 4]
    pool.close()


def test_an_error_in_a_thread_is_raised_and_leaves_no_file(
    tmp_path: Path, model: Codec, maps: list[np.ndarray]
) -> None:
    class Broken(type(model)):  # type: ignore[misc]
        def compress(self, array: np.ndarray) -> bytes | None:
            raise ZeroDivisionError("a mistake")

    def write() -> None:
        with ArchiveWriter(tmp_path / "a.ddf", Broken(), threads=3) as writer:
            for array in maps:
                writer.add(array)

    with pytest.raises(ZeroDivisionError):
        write()
    assert not list(tmp_path.iterdir())


def test_neither_torch_nor_numba_is_imported() -> None:
    script = """
import sys
import numpy as np
import ddf
from ddf.archive import compress, decompress
array = np.arange(500).reshape(20, 25) % 7
assert np.array_equal(decompress(compress(array, None)), array)
assert np.array_equal(ddf.decompress(ddf.compress(array, None)), array)
loaded = {"torch", "numba"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_error_names_a_wrong_model(
    model: Codec, other_model: Codec, flow: IntegerFlow, maps: list[np.ndarray]
) -> None:
    data = compress(maps[0], model)
    with pytest.raises(WrongModelError, match=f"needs the model {model.fingerprint.hex()}, but none was passed"):
        decompress(data)
    with pytest.raises(WrongModelError, match=f"but the one passed is {other_model.fingerprint.hex()}"):
        decompress(data, other_model)
    small = draw_maps(1, (8, 6), 3)[0]
    assert np.array_equal(decompress(compress(small, flow, embed_model=True), model), small)


def test_an_embedded_model_must_be_able_to_decode(tmp_path: Path) -> None:
    """A float flow is a model file, but not a codec."""

    class Pretender:
        fingerprint = bytes(range(16))

        def compress(self, array: np.ndarray) -> bytes | None:
            return b""

        def decompress(self, data: bytes, shape: tuple[int, ...], dtype: object) -> np.ndarray:
            return np.zeros(shape, np.uint8)

        def to_bytes(self) -> bytes:
            path = tmp_path / "flow"
            ddf.architectures.vectors(3, 2, ddf.spec.MLPSpec(hidden=8)).build().save(path)
            return path.read_bytes()

    data = compress(np.zeros(4, np.uint8), Pretender(), embed_model=True)
    with pytest.raises(ddf.archive.DamagedArchiveError, match="the embedded model cannot decode"):
        decompress(data)


def test_encoding_is_verified(model: Codec, maps: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(model).decompress
    monkeypatch.setattr(type(model), "decompress", lambda *arguments: right(*arguments) ^ 1)
    with pytest.raises(RuntimeError, match="did not restore it; nothing was written"):
        compress(maps[0], model)
    compress(maps[0], model, verify=False)


def test_errors_name_bad_arguments(tmp_path: Path, model: Codec) -> None:
    array = np.zeros((4, 4), np.uint8)
    with pytest.raises(TypeError, match="is not a codec: pass a model"):
        compress(array, "model.safetensors")  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ArchiveWriter(tmp_path, None)
    with pytest.raises(ValueError, match="pass only one of them"):
        ArchiveWriter(tmp_path / "a", None, append=True, overwrite=True)
    with pytest.raises(TypeError, match="to a path or an open file"):
        ArchiveWriter(5, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads=0 is out of range: pass a positive integer"):
        ArchiveWriter(tmp_path / "a", None, threads=0)
    with ArchiveWriter(tmp_path / "a", None) as writer:
        writer.add(array, "x")
        with pytest.raises(TypeError, match="the name of an array must be a string, not 5"):
            writer.add(array, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot be encoded as UTF-8"):
            writer.add(array, "\udcff")
    archive = Archive(tmp_path / "a")
    with pytest.raises(TypeError, match="by its name or its number, not by None"):
        archive[None]  # type: ignore[index]
    archive.close()
    with pytest.raises(ValueError, match="is closed"):
        archive[0]


def test_a_killed_writer_leaves_the_old_archive_or_nothing(tmp_path: Path) -> None:
    script = """
import os, signal, sys
import numpy as np
from ddf.archive import ArchiveWriter
writer = ArchiveWriter(sys.argv[1], None, overwrite=True)
for i in range(50):
    writer.add(np.random.default_rng(i).integers(0, 200, 5000), str(i))
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
writer.close()
"""
    old = write_archive(tmp_path / "old.ddf", None, [np.arange(5)])
    for name in ("old.ddf", "new.ddf"):
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path / name), "kill"], check=False)
        assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "old.ddf").read_bytes() == old
    assert not (tmp_path / "new.ddf").exists()


def test_an_error_while_writing_leaves_no_file(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
            writer.add(np.arange(3))
            raise KeyError("a mistake")

    with pytest.raises(KeyError):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_replace_each_others_archives(tmp_path: Path) -> None:
    path, array = tmp_path / "a.ddf", np.zeros(3, np.uint8)
    first, second = ArchiveWriter(path, None), ArchiveWriter(path, None)
    first.add(array, "first")
    second.add(array, "second")
    first.close()
    with pytest.raises(FileExistsError, match="already exists"):
        second.close()
    assert list(Archive(path)) == ["first"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.ddf"]


def test_arrays_that_a_codec_compresses_poorly_are_coded_without_it(model: Codec) -> None:
    stripes = np.array(VALUES)[np.random.default_rng(0).integers(0, 4, (64, 64))]
    for array in (stripes.astype(np.uint8), np.tile(stripes, (1, 9)), stripes.astype(np.int64)):
        assert len(compress(array, model)) <= len(compress(array, None)) + 1
        assert np.array_equal(decompress(compress(array, model), model), array)


@pytest.mark.parametrize("size", [1, 10, 4096, 5000, 70_000])
def test_the_general_compressor_is_never_larger_than_xz(size: int) -> None:
    generator = np.random.default_rng(0)
    for array in (np.zeros(size, np.uint8), generator.integers(0, 3, size), generator.bytes(size)):
        plain = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else array
        data = compress(plain, None)
        raw = plain.tobytes()
        assert len(data) <= min(len(raw), len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))) + 80
        assert np.array_equal(decompress(data), plain)


def test_an_incompressible_map_does_not_affect_its_block(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    alone = len(write_archive(tmp_path / "a", model, maps, maps_per_block=20))
    strange = [part.copy() for part in maps]
    strange[7][0, 0] = 200
    data = write_archive(tmp_path / "b", model, strange, maps_per_block=20)
    assert len(data) < alone + len(compress(strange[7], None)) + 60
    assert all(np.array_equal(one, two) for one, two in zip(Archive(data, model).values(), strange, strict=True))


def test_appending_uses_the_embedded_model(tmp_path: Path, flow: IntegerFlow) -> None:
    write_archive(tmp_path / "a", flow, draw_maps(2, (8, 6), 3), embed_model=True)
    with ArchiveWriter(tmp_path / "a", None, append=True) as writer:
        assert writer.model is not None
        assert writer.model.fingerprint == flow.fingerprint


def test_archives_are_read_from_open_files(tmp_path: Path, model: Codec, maps: list[np.ndarray]) -> None:
    data = write_archive(tmp_path / "a", model, maps[:2])
    assert np.array_equal(Archive(io.BytesIO(data), model)[1], maps[1])
    with (tmp_path / "a").open("rb") as file:
        assert len(Archive(file, model)) == 2
        assert not file.closed
    with pytest.raises(TypeError, match="a path, a URL, bytes or an open file, not 5"):
        Archive(5)  # type: ignore[arg-type]


def test_too_many_dimensions_are_rejected() -> None:
    assert decompress(compress(np.zeros((1,) * 32, np.int16), None)).ndim == 32
    with pytest.raises(ValueError, match="up to 32 dimensions, but this array has 33"):
        compress(np.zeros((1,) * 33, np.int16), None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system does not have /dev/full")
def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "a.ddf", None)

    assert writer._part is not None
    handle = os.open("/dev/full", os.O_WRONLY)
    os.dup2(handle, writer._part.file.fileno())
    os.close(handle)
    writer.add(np.zeros(3, np.uint8))
    with pytest.raises(OSError, match=r"cannot write .*a.ddf: No space left"):
        writer.close()
    assert not list(tmp_path.iterdir())
