"""Archives as data sets of PyTorch: order, names, worker processes, the cache of decoded maps."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddf.archive import Archive, ArchiveWriter, MissingArrayError
from ddf.errors import ChangedArchiveError
from ddf.labelmaps import pretrained
from ddf.shapes import Array
from ddf.torch import ArchiveDataset

MAPS = [np.kron(np.eye(4, dtype=np.uint8) * (i + 1), np.ones((9, 11), np.uint8)) for i in range(24)]


def written(path: Path, maps: list[Array], **options: int) -> Path:
    with ArchiveWriter(path, pretrained(), **options) as archive:  # type: ignore[arg-type]
        for i, one in enumerate(maps):
            archive.add(one, f"{path.stem}/{i}.png")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "maps.ddf", MAPS)


@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 30])
@pytest.mark.parametrize("per_block", [1, 5])
def test_maps_are_returned_by_number_and_by_name(cache_bytes: int, per_block: int, tmp_path: Path) -> None:
    dataset = ArchiveDataset(written(tmp_path / "a.ddf", MAPS, maps_per_block=per_block), cache_bytes=cache_bytes)
    assert len(dataset) == len(MAPS)
    for _ in range(2):
        for i in np.random.default_rng(0).permutation(len(MAPS)):
            assert torch.equal(dataset[int(i)], torch.from_numpy(MAPS[i]))
            assert torch.equal(dataset[f"a/{i}.png"], torch.from_numpy(MAPS[i]))
    assert torch.equal(dataset[-1], torch.from_numpy(MAPS[-1]))
    assert dataset.names == [f"a/{i}.png" for i in range(len(MAPS))]
    for key in (len(MAPS), -len(MAPS) - 1, "b"):
        with pytest.raises(MissingArrayError):
            dataset[key]
    assert len(list(dataset)) == len(MAPS)  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_dtypes_are_kept(dtype: str, cache_bytes: int, tmp_path: Path) -> None:
    maps = [MAPS[1].astype(dtype), np.zeros((0, 4), dtype), np.ones((2, 3, 4), dtype)]
    dataset = ArchiveDataset(written(tmp_path / "a.ddf", maps), cache_bytes=cache_bytes)
    for _ in range(2):
        for i, one in enumerate(maps):
            assert dataset[i].numpy().dtype == one.dtype
            assert np.array_equal(dataset[i].numpy(), one)


def test_several_archives_are_one_data_set(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.ddf", MAPS[start : start + 7]) for i, start in enumerate((0, 7, 14))]
    written(tmp_path / "empty.ddf", [])
    dataset = ArchiveDataset([*paths[:1], tmp_path / "empty.ddf", *paths[1:]])
    for _ in range(2):
        assert all(torch.equal(dataset[i], torch.from_numpy(MAPS[i])) for i in range(21))
    assert torch.equal(dataset["2/6.png"], torch.from_numpy(MAPS[20]))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_the_cache(start: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ArchiveDataset(path)
    loader = DataLoader(
        dataset, batch_size=6, shuffle=True, num_workers=2, multiprocessing_context=start, persistent_workers=True
    )
    for _ in range(2):
        found = sorted(int(one.max()) for batch in loader for one in batch)
        assert found == list(range(1, len(MAPS) + 1))
    monkeypatch.setattr(Archive, "__getitem__", decodes_nothing)
    assert torch.equal(dataset[5], torch.from_numpy(MAPS[5]))  # decoded by a worker


def decodes_nothing(*_: object) -> Array:
    raise AssertionError("decoded again")


def test_maps_beyond_the_limit_are_decoded_every_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ArchiveDataset(path, cache_bytes=8 * len(MAPS) + MAPS[0].nbytes * 2 + 7)
    for i in range(len(MAPS)):
        assert torch.equal(dataset[i], torch.from_numpy(MAPS[i]))
    monkeypatch.setattr(Archive, "__getitem__", decodes_nothing)
    assert torch.equal(dataset[1], torch.from_numpy(MAPS[1]))
    with pytest.raises(AssertionError, match="decoded again"):
        dataset[2]


def test_the_cache_is_deleted_with_the_data_set(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    dataset = ArchiveDataset(path, cache_folder=folder)
    copy = pickle.loads(pickle.dumps(dataset))
    _ = dataset[0], copy[0]
    assert len(list(folder.iterdir())) == 1
    del dataset
    assert not list(folder.iterdir())
    assert torch.equal(copy[3], torch.from_numpy(MAPS[3]))  # whose file is still open
    assert torch.equal(pickle.loads(pickle.dumps(copy))[3], torch.from_numpy(MAPS[3]))


def test_a_cache_that_is_kept_serves_later_processes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    script = (
        "import sys; from ddf.torch import ArchiveDataset\n"
        "list(ArchiveDataset(sys.argv[1], cache_folder=sys.argv[2], keep_cache=True))"
    )
    subprocess.run([sys.executable, "-c", script, path, folder], check=True)
    (kept,) = folder.iterdir()
    data = bytearray(kept.read_bytes())
    data[-5] ^= 1  # the last map
    data[8 * len(MAPS) + 3] ^= 1  # the first one
    data[8 * 2] = 7  # the checksum of the third one
    kept.write_bytes(data)
    dataset = ArchiveDataset(path, cache_folder=folder, keep_cache=True)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "__getitem__", decodes_nothing)
        for i in (0, 2, len(MAPS) - 1):
            with pytest.raises(AssertionError, match="decoded again"):
                dataset[i]
        assert torch.equal(dataset[1], torch.from_numpy(MAPS[1]))
    assert all(torch.equal(dataset[i], torch.from_numpy(one)) for i, one in enumerate(MAPS))
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "__getitem__", decodes_nothing)
        again = ArchiveDataset(path, cache_folder=folder, keep_cache=True)
        assert all(torch.equal(again[i], torch.from_numpy(one)) for i, one in enumerate(MAPS))
    os.utime(path, ns=(1, 1))  # written at another time: another archive
    assert torch.equal(ArchiveDataset(path, cache_folder=folder, keep_cache=True)[1], torch.from_numpy(MAPS[1]))
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(ValueError, match="requires a folder"):
        ArchiveDataset(path, keep_cache=True)
    with pytest.raises(ValueError, match="only for local archives"):
        ArchiveDataset(path.read_bytes(), cache_folder=folder, keep_cache=True)


def test_a_killed_process_leaves_no_cache(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    script = (
        "import os, signal, sys; from ddf.torch import ArchiveDataset\n"
        "data = ArchiveDataset(sys.argv[1], cache_folder=sys.argv[2]); data[0]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, path, folder], check=False)
    assert len(list(folder.iterdir())) == 1
    dataset = ArchiveDataset(path, cache_folder=folder)
    assert len(list(folder.iterdir())) == 1
    del dataset
    assert not list(folder.iterdir())


@pytest.mark.parametrize("shape", [(36, 44), (44, 36), (20, 30), (90, 90)])
def test_an_archive_that_is_replaced_is_noticed(shape: tuple[int, int], tmp_path: Path) -> None:
    path = written(tmp_path / "a.ddf", MAPS)
    dataset = ArchiveDataset(path)
    copy = pickle.dumps(dataset)
    maps = [np.full(shape, i, np.uint8) for i in range(len(MAPS))]
    with ArchiveWriter(path, pretrained(), overwrite=True) as archive:
        for i, one in enumerate(maps):
            archive.add(one, f"a/{i}.png")
    other = pickle.loads(copy)
    with pytest.raises(ChangedArchiveError, match=r"a.ddf has changed since it was opened: open it again"):
        other[0]
    assert all(torch.equal(dataset[i], torch.from_numpy(one)) for i, one in enumerate(MAPS))  # its file is still open
    assert all(torch.equal(ArchiveDataset(path)[i], torch.from_numpy(one)) for i, one in enumerate(maps))


def test_bad_arguments_are_errors(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"cannot write to the folder {tmp_path}/none"):
        ArchiveDataset(path, cache_folder=tmp_path / "none")
    for size in ("1", -1):
        with pytest.raises(ValueError, match="cache_bytes="):
            ArchiveDataset(path, cache_bytes=size)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by its number or its name, not by slice"):
        ArchiveDataset(path)[0:2]  # type: ignore[index]
    pretrained().save(tmp_path / "model.safetensors")
    assert torch.equal(ArchiveDataset(path, model=tmp_path / "model.safetensors")[3], torch.from_numpy(MAPS[3]))


def test_a_full_disk_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    dataset = ArchiveDataset(path)
    for _ in range(2):
        assert all(torch.equal(dataset[i], torch.from_numpy(one)) for i, one in enumerate(MAPS))


@pytest.mark.parametrize("transform", [lambda array: array.astype(np.int64), None])
def test_transforms(transform: Callable[[Array], Array] | None, path: Path) -> None:
    dataset = ArchiveDataset(path, transform)
    for _ in range(2):
        one = dataset[2]
        assert isinstance(one, torch.Tensor if transform is None else np.ndarray)
        assert (np.asarray(one) == MAPS[2]).all()
        one += 1  # changing a map does not change the cache
