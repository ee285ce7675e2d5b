"""What goes into an archive comes out of it as it was."""

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ddf import architectures
from ddf.codec import (
    Archive,
    ArchiveWriter,
    IntegerFlow,
    WrongModelError,
    compress,
    decompress,
    pretrained,
)
from ddf.codec.blocks import Method
from ddf.codec.parallel import LostProcessError, Pool
from tests import reference_decoder
from tests.zoo import VALUES, assorted_arrays, draw_maps, exact, write_archive

FIXED = 58
"""What an archive of one array costs beside its block."""


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}, {"embed_model": True}, {"batch_size": 4}])
def test_every_array_of_integers_comes_back(tmp_path: Path, model: IntegerFlow, options: dict[str, object]) -> None:
    arrays = assorted_arrays()
    write_archive(tmp_path / "a.ddf", model, arrays, **options)
    archive = Archive(tmp_path / "a.ddf", None if "embed_model" in options else model)
    assert len(archive) == len(arrays)
    for (name, got), (i, want) in zip(archive, enumerate(arrays), strict=True):
        assert name == f"map {i}"
        assert got.dtype == want.dtype.newbyteorder("=")
        assert got.shape == want.shape
        assert np.array_equal(got, want)
    for (_, got), (_, again) in zip(archive, archive.items(batch_size=3), strict=True):
        assert np.array_equal(got, again)
    methods = {block.kind.method for block in archive.blocks()}
    assert methods == {Method.MODEL, Method.LZMA, Method.RAW}
    decoded = reference_decoder.decode((tmp_path / "a.ddf").read_bytes(), model.to_bytes())
    assert all(np.array_equal(got, want) for (_, got), want in zip(decoded, arrays, strict=True))


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(st.sampled_from(["u1", "i1", "u2", "<i4", ">i8", "?"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_any_array_comes_back(array: np.ndarray) -> None:
    data = compress(array, None)
    again = decompress(data)
    assert np.array_equal(again, array)
    assert again.shape == array.shape
    assert len(data) <= array.nbytes + 64


def test_no_array_of_integers(model: IntegerFlow) -> None:
    with pytest.raises(TypeError, match="an archive holds arrays of integers, but this one has the dtype float64"):
        compress(np.zeros((3, 3)), model)


def test_arrays_are_found_by_name_and_number(tmp_path: Path, model: IntegerFlow) -> None:
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
    with pytest.raises(KeyError, match="holds no array called 'x'"):
        archive["x"]
    with pytest.raises(IndexError, match="holds 50 arrays, but number 50 was asked for"):
        archive[50]


def test_random_access_reads_little(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    write_archive(tmp_path / "a.ddf", model, maps * 1, embed_model=False)
    archive = Archive(tmp_path / "a.ddf", model)
    read: list[int] = []
    kept = archive._bytes
    archive._bytes = lambda start, count: (read.append(count), kept(start, count))[1]  # type: ignore[method-assign,func-returns-value]
    archive[18]
    assert sum(read) < archive.size / 3


def test_names_are_unique(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="there is an array called 'a' already"):
            writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="contains a zero"):
            writer.add(np.arange(3), "a\0")
    assert Archive(tmp_path / "a.ddf").names == ["a"]


def test_what_a_map_costs_beyond_the_models_bits(tmp_path: Path, model: IntegerFlow) -> None:
    """8 bytes if it stands on its own; in blocks 0.2 % and 16 bytes for each block."""
    maps = draw_maps(64, (43, 38), 4, seed=11)
    for per_block in (1, 16, 64):
        buffer = io.BytesIO()
        writer = ArchiveWriter(buffer, model, maps_per_block=per_block)
        for array in maps:
            writer.add(array)
        writer.close()
        archive = Archive(buffer.getvalue(), model)
        assert {block.kind.method for block in archive.blocks()} == {Method.MODEL}
        blocks = -(-len(maps) // per_block)
        most = 8 * blocks if per_block == 1 else 0.002 * writer.bits / 8 + 16 * blocks
        assert archive.size <= FIXED + writer.bits / 8 + most


def test_what_a_change_of_size_costs(model: IntegerFlow) -> None:
    """Maps of some sizes in any order: 8 bytes each, and what it takes to say a size for the first time."""
    maps = draw_maps(48, (60, 60), 4, seed=11)
    generator = np.random.default_rng(0)
    sizes = [(41, 57), (57, 41), (48, 48), (60, 33)]
    buffer = io.BytesIO()
    writer = ArchiveWriter(buffer, model)
    for array in maps:
        height, width = sizes[generator.integers(4)]
        writer.add(array[:height, :width])
    writer.close()
    archive = Archive(buffer.getvalue(), model)
    assert {block.kind.method for block in archive.blocks()} == {Method.MODEL}
    assert archive.size <= FIXED + writer.bits / 8 + 8 * len(maps) + 20 * (len(sizes) - 1)
    assert [array.shape for _, array in archive] == [block.kind.shape for block in archive.blocks()]
    assert all(np.array_equal(archive[i], maps[i][: archive[i].shape[0], : archive[i].shape[1]]) for i in range(48))


def test_an_archive_of_one_is_small(model: IntegerFlow, maps: list[np.ndarray]) -> None:
    for array in maps:
        buffer = io.BytesIO()
        writer = ArchiveWriter(buffer, model)
        writer.add(array)
        writer.close()
        assert len(buffer.getvalue()) <= FIXED + writer.bits / 8 + 8


def test_archives_can_be_added_to(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    path = tmp_path / "a.ddf"
    for first in range(0, 20, 7):
        with ArchiveWriter(path, model, append=True, embed_model=True) as writer:
            for i, array in enumerate(maps[first : first + 7], first):
                writer.add(array, f"{i}")
            with pytest.raises(ValueError, match="there is an array called '0' already"):
                writer.add(maps[0], "0")
    archive = Archive(path)
    assert archive.names == [str(i) for i in range(20)]
    assert all(np.array_equal(archive[str(i)], array) for i, array in enumerate(maps))
    assert all(np.array_equal(got, want) for (_, got), want in zip(archive, maps, strict=True))
    other = exact(architectures.label_maps(4, levels=1).build())
    with pytest.raises(WrongModelError, match=model.fingerprint.hex()):
        ArchiveWriter(path, other, append=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


def test_truths_may_be_any_bytes(tmp_path: Path) -> None:
    truths = np.array([0, 255, 1, 7], dtype=np.uint8).view(np.bool_)  # as Pillow has them
    write_archive(tmp_path / "a.ddf", None, [truths])
    assert Archive(tmp_path / "a.ddf")[0].tolist() == [False, True, True, True]


def test_existing_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.ddf", None, [np.arange(3)])
    with pytest.raises(FileExistsError, match="overwrite=True replaces it, append=True adds to it"):
        ArchiveWriter(tmp_path / "a.ddf", None)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ArchiveWriter(tmp_path / "no" / "a.ddf", None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


@pytest.mark.parametrize("per_block", [1, 3])
def test_batches_have_no_say_in_what_is_written(
    tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray], per_block: int
) -> None:
    arrays = [array[: 20 + i // 9] for i, array in enumerate(maps)]
    found = {
        write_archive(tmp_path / f"{size}", model, arrays, maps_per_block=per_block, batch_size=size)
        for size in (1, 2, 7, None)
    }
    assert len(found) == 1


def test_one_map_and_64_at_a_time_in_one_thread_and_two(tmp_path: Path, model: IntegerFlow) -> None:
    """Written in each way, read in the other."""
    maps = draw_maps(70, (31, 40), 4, seed=3)
    threads = torch.get_num_threads()
    try:
        for writing, reading in (((1, 1), (64, 2)), ((64, 2), (1, 1))):
            torch.set_num_threads(writing[1])
            data = write_archive(tmp_path / "a", model, maps, batch_size=writing[0])
            torch.set_num_threads(reading[1])
            found = Archive(data, model).items(batch_size=reading[0])
            assert all(np.array_equal(array, right) for (_, array), right in zip(found, maps, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_a_second_decoder_reads_maps_smaller_than_the_squeezes_reach() -> None:
    model = pretrained()
    for shape in ((40, 40), (16, 33), (65, 3), (1, 1)):
        data = compress(np.zeros(shape, np.uint8), model)
        ((_, array),) = reference_decoder.decode(data, model.to_bytes())
        assert np.array_equal(array, np.zeros(shape))


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}])
def test_several_processes_make_and_read_the_same_archive(
    tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray], options: dict[str, int]
) -> None:
    arrays = [*maps, *assorted_arrays()]
    alone = write_archive(tmp_path / "one.ddf", model, arrays, **options)
    assert write_archive(tmp_path / "two.ddf", model, arrays, processes=2, **options) == alone
    archive = Archive(tmp_path / "one.ddf", model)
    for (one_name, one), (two_name, two) in zip(archive, archive.items(2, processes=2), strict=True):
        assert one_name == two_name
        assert np.array_equal(one, two)
        assert one.dtype == two.dtype


def test_processes_are_started_at_once_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: IntegerFlow
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = Pool(model, processes=2)
    try:
        assert isinstance(pool._executor, ProcessPoolExecutor)
        # What does not fit the buffer of a pipe (64 KiB) waits there until the process has imported PyTorch.
        assert len(pickle.dumps(pool._executor._initargs)) < 4096  # type: ignore[attr-defined]
        pool.submit(fingerprint_of)
        assert list(pool.rest()) == [model.fingerprint]
    finally:
        pool.close()
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_killed_is_an_error_in_words(model: IntegerFlow) -> None:
    pool = Pool(model, processes=2)
    try:
        pool.submit(end_at_once)
        with pytest.raises(LostProcessError, match="try fewer of them"):
            list(pool.rest())
    finally:
        pool.close(at_once=True)


def end_at_once(_: IntegerFlow) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fingerprint_of(model: IntegerFlow) -> bytes:
    return model.fingerprint


def test_a_wrong_model_is_named(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    data = compress(maps[0], model)
    with pytest.raises(WrongModelError, match=f"needs the model {model.fingerprint.hex()}, but none was given"):
        decompress(data)
    other = exact(architectures.label_maps(4, levels=1).build())
    with pytest.raises(WrongModelError, match=f"but the one given is {other.fingerprint.hex()}"):
        decompress(data, other)
    assert np.array_equal(decompress(compress(maps[0], model, embed_model=True), other), maps[0])


def test_encoding_is_verified(model: IntegerFlow, maps: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    right = IntegerFlow.inverse

    def wrong(self: IntegerFlow, *arguments: object) -> np.ndarray:
        x = right(self, *arguments)  # type: ignore[arg-type]
        x[0, 0, 0, 0] = (x[0, 0, 0, 0] + 1) % 4
        return x

    monkeypatch.setattr(IntegerFlow, "inverse", wrong)
    with pytest.raises(RuntimeError, match="did not decode to itself; nothing was written"):
        compress(maps[0], model)
    compress(maps[0], model, verify=False)


@pytest.mark.parametrize("shape", [(3000, 1, 1), (1, 300000), (40000, 2), (2, 2, 2, 3), (1, 70, 9)])
def test_thin_maps_cost_no_more_than_others(model: IntegerFlow, shape: tuple[int, ...]) -> None:
    """Padding must not make a thousand times as many pixels of them as there are."""
    array = np.zeros(shape, dtype=np.uint8)
    assert np.array_equal(decompress(compress(array, model), model), array)
    assert model.padded_pixels((1, 1, 300000)) == 8 * 300000


def test_large_maps_are_cut_into_tiles(model: IntegerFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddf.codec.coding.TILE", 32)
    array = draw_maps(1, (70, 50), 4)[0]
    seen = []
    right = IntegerFlow.forward
    monkeypatch.setattr(IntegerFlow, "forward", lambda self, x: (seen.append(x.shape), right(self, x))[1])
    assert np.array_equal(decompress(compress(array, model), model), array)
    assert seen == [(1, 1, 32, 32), (1, 1, 32, 18)] * 2 + [(1, 1, 6, 32), (1, 1, 6, 18)]


def test_bad_arguments_are_named(tmp_path: Path, model: IntegerFlow) -> None:
    array = np.zeros((4, 4), np.uint8)
    with pytest.raises(TypeError, match="the model must be an IntegerFlow, as"):
        compress(array, "model.safetensors")  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ArchiveWriter(tmp_path, None)
    with pytest.raises(ValueError, match="one or the other"):
        ArchiveWriter(tmp_path / "a", None, append=True, overwrite=True)
    with pytest.raises(TypeError, match="to a path or a file that is open"):
        ArchiveWriter(5, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="processes=0, but it must be a positive integer"):
        ArchiveWriter(tmp_path / "a", None, processes=0)
    with ArchiveWriter(tmp_path / "a", None) as writer:
        writer.add(array, "x")
        with pytest.raises(TypeError, match="the name of an array is a text, not 5"):
            writer.add(array, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no text that can be written as UTF-8"):
            writer.add(array, "\udcff")
    archive = Archive(tmp_path / "a")
    with pytest.raises(TypeError, match="by its name or its number, not by None"):
        archive[None]  # type: ignore[index]
    archive.close()
    with pytest.raises(ValueError, match="is closed"):
        archive[0]


def test_a_kill_leaves_the_old_archive_or_nothing(tmp_path: Path) -> None:
    script = """
import os, signal, sys
import numpy as np
from ddf.codec import ArchiveWriter
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


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def make_a_mistake() -> None:
        with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
            writer.add(np.arange(3))
            raise KeyError("a mistake")

    with pytest.raises(KeyError):
        make_a_mistake()
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_replace_each_others_archives(tmp_path: Path) -> None:
    path, array = tmp_path / "a.ddf", np.zeros(3, np.uint8)
    first, second = ArchiveWriter(path, None), ArchiveWriter(path, None)
    first.add(array, "first")
    second.add(array, "second")
    first.close()
    with pytest.raises(FileExistsError, match="made by someone else meanwhile"):
        second.close()
    assert Archive(path).names == ["first"]
    one, two = (ArchiveWriter(path, None, append=True) for _ in range(2))
    one.add(array, "one")
    two.add(array, "two")
    two.close()
    with pytest.raises(FileExistsError, match="changed by someone else meanwhile"):
        one.close()
    assert Archive(path).names == ["first", "two"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.ddf"]


def test_what_a_model_does_badly_is_coded_without_it(model: IntegerFlow) -> None:
    noise = np.random.default_rng(0).integers(0, 4, (1, 64))
    rows = np.array(VALUES)[np.tile(noise, (64, 1))]
    for array in (rows.astype(np.uint8), rows.astype(np.int64), np.zeros((500, 600), np.uint8)):
        assert len(compress(array, model)) <= len(compress(array, None)) + 1


def test_a_strange_map_does_not_spoil_its_block(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    alone = len(write_archive(tmp_path / "a", model, maps, maps_per_block=20))
    strange = [part.copy() for part in maps]
    strange[7][0, 0] = 200
    data = write_archive(tmp_path / "b", model, strange, maps_per_block=20)
    assert len(data) < alone + len(compress(strange[7], None)) + 60
    assert all(np.array_equal(one, two) for (_, one), two in zip(Archive(data, model), strange, strict=True))


def test_appending_takes_the_model_that_is_there(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    write_archive(tmp_path / "a", model, maps[:2], embed_model=True)
    before = (tmp_path / "a").stat().st_size
    with ArchiveWriter(tmp_path / "a", None, append=True) as writer:
        writer.add(maps[2], "another")
    assert (tmp_path / "a").stat().st_size - before < len(compress(maps[2], None)) - 50
    assert np.array_equal(Archive(tmp_path / "a")["another"], maps[2])


def test_archives_from_files_that_are_open(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    data = write_archive(tmp_path / "a", model, maps[:2])
    assert np.array_equal(Archive(io.BytesIO(data), model)[1], maps[1])
    with (tmp_path / "a").open("rb") as file:
        assert len(Archive(file, model)) == 2
        assert not file.closed
    with pytest.raises(TypeError, match="a path, bytes or a file that is open, not 5"):
        Archive(5)  # type: ignore[arg-type]


def test_too_many_dimensions() -> None:
    assert decompress(compress(np.zeros((1,) * 32, np.int16), None)).ndim == 32
    with pytest.raises(ValueError, match="up to 32 dimensions, not of 33"):
        compress(np.zeros((1,) * 33, np.int16), None)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ArchiveWriter(tmp_path / "a.ddf", None)

    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            file.close()
            raise OSError(28, "No space left on device")

    file = writer._file
    monkeypatch.setattr(writer, "_file", Full())
    writer.add(np.zeros(3, np.uint8))
    with pytest.raises(OSError, match=r"cannot write .*a.ddf: No space left"):
        writer.close()
    assert not list(tmp_path.iterdir())
