"""Every loader reads small files and rejects malformed ones."""

import gzip
import importlib
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import ddf
from ddf.data import (
    Classes,
    Columns,
    DataError,
    DataSet,
    EightGaussians,
    LabelMaps,
    Resampled,
    cityscapes,
    cop,
    crop,
    mnist,
    mushrooms,
    read_label_maps,
    read_table,
    static_mnist,
)
from ddf.data.binary_mnist import read_amat, read_idx
from ddf.data.cityscapes_maps import CITYSCAPES_CLASSES, mirror_and_shift, varied
from ddf.spec import DenoisingCouplingSpec, FlowSpec, MLPSpec

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


# ---- MNIST -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read(zipped: bool, tmp_path: Path) -> None:
    array = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    assert np.array_equal(read_idx(path), array)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "has 59 bytes of data, but its header declares 60"),
        (lambda raw: raw + b"x", "has 61 bytes of data"),
        (lambda raw: raw[:7], "is truncated in its header"),
        (lambda raw: b"\x00\x00\x0d" + raw[3:], "is not an idx file of bytes: it begins with 00 00 0d 03"),
        (lambda raw: b"", "it begins with nothing"),
        (lambda raw: gzip.compress(raw)[:-9], "is a damaged gzip file"),
    ],
)
def test_malformed_idx_files_are_rejected(damage: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(damage(idx(np.zeros((5, 4, 3), dtype=np.uint8))))
    with pytest.raises(DataError, match=rf"images.*{message}"):
        read_idx(tmp_path / "images")


def test_amat_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.amat").write_text("0 1 1\n1 0 0 \n")
    assert read_amat(tmp_path / "x.amat").tolist() == [[0, 1, 1], [1, 0, 0]]
    for text, message in (("", "empty"), ("0 1\n0 1 1\n", "line 2 does not have 2 values"), ("0 2\n", "contains '2'")):
        (tmp_path / "x.amat").write_text(text)
        with pytest.raises(DataError, match=message):
            read_amat(tmp_path / "x.amat")


def test_mnist_is_binarized_dynamically(tmp_path: Path) -> None:
    train = RNG.integers(0, 256, (10_020, 28, 28), dtype=np.uint8)
    train[:10] = 0
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(train))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(train[:30])))
    data, again, other = mnist(tmp_path), mnist(tmp_path), mnist(tmp_path, seed=1)
    assert (data.num_classes, data.shape) == (2, (1, 28, 28))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [20, 10_000, 30]
    assert torch.equal(data["test"], again["test"])
    assert not torch.equal(data["test"], other["test"])
    # The last 10,000 images are for validation, and a pixel is 1 with probability value / 255.
    gray = torch.from_numpy(train[20:]).float()
    drawn = data["validation"][:, 0].float()
    for low in range(0, 256, 32):
        some = (gray >= low) & (gray < low + 32)
        assert float(drawn[some].mean()) == pytest.approx(float(gray[some].mean()) / 255, abs=0.003)
    source = data["train"]
    assert isinstance(source, Resampled)
    first, second = (source.draw(source.stored, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert not torch.equal(first, second)
    assert not first[:10].any()


def test_static_mnist(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 2, (4, 784))
    for name in ("train", "valid", "test"):
        text = "\n".join(" ".join(map(str, row)) for row in pixels)
        (tmp_path / f"binarized_mnist_{name}.amat.gz").write_bytes(gzip.compress(text.encode()))
    data = static_mnist(tmp_path)
    assert np.array_equal(data["validation"].numpy().reshape(4, 784), pixels)
    with pytest.raises(FileNotFoundError, match=r"contains neither train-images-idx3-ubyte nor train-images-idx3-ub"):
        mnist(tmp_path)


# ---- Cityscapes ------------------------------------------------------------------------------------------------------


def test_cityscapes_from_folders_and_npz_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("ddf.data.cityscapes_maps"), "_TRAIN", 3)
    ids = {}
    for split, cities in (("train", ("aachen", "bochum")), ("val", ("frankfurt",))):
        for city in cities:
            for i in range(2):
                cells = RNG.integers(0, 34, (4, 8), dtype=np.uint8)
                folder = tmp_path / "gtFine" / split / city
                folder.mkdir(parents=True, exist_ok=True)
                # Each pixel repeated 4 × 4 times, so that nearest-neighbor resampling restores the cells.
                Image.fromarray(cells.repeat(4, 0).repeat(4, 1)).save(folder / f"{city}_{i}_gtFine_labelIds.png")
                Image.new("RGB", (4, 4)).save(folder / f"{city}_{i}_gtFine_color.png")
                ids[split, city, i] = cells
    data = cityscapes(tmp_path, size=(4, 8), augment=None)
    assert [len(data[split]) for split in ("train", "validation", "test")] == [3, 1, 2]
    assert data.classes.names[3] == "object"
    categories = data["train"][2, 0].numpy()
    cells = ids["train", "bochum", 0]  # the third by path
    assert (categories[cells == 7] == 1).all()
    assert (categories[(cells >= 17) & (cells <= 20)] == 3).all()
    assert (categories[cells >= 26] == 7).all()
    assert (categories[cells <= 6] == 0).all()
    np.savez(
        tmp_path / "prepared.npz",
        train=np.stack([ids["train", "aachen", i] for i in (0, 1)])[:, None],
        val=cells[None, None],
        test=cells[None, None],
    )
    prepared = cityscapes(tmp_path / "prepared.npz", size=(4, 8))
    assert torch.equal(prepared["train"].stored, data["train"][:2])
    flips = prepared["train"].draw(data["train"][:1].expand(50, -1, -1, -1), torch.Generator().manual_seed(0))
    straight = (flips == data["train"][:1]).flatten(1).all(1)
    mirrored = (flips == data["train"][:1].flip(-1)).flatten(1).all(1)
    assert 10 < int(straight.sum()) < 40
    assert bool((straight | mirrored).all())


def test_shifted_maps_are_moved_by_a_few_pixels() -> None:
    x = torch.arange(8 * 12, dtype=torch.uint8).view(1, 1, 8, 12).expand(200, -1, -1, -1)
    found = mirror_and_shift(x, torch.Generator().manual_seed(0))
    assert found.shape == x.shape
    padded = F.pad(x[:1].float(), (2, 2, 1, 1), mode="replicate").byte()
    windows = padded.unfold(2, 8, 1).unfold(3, 12, 1)[0, 0]  # (3, 5, 8, 12)
    moved = torch.cat([windows.flatten(0, 1), windows.flatten(0, 1).flip(-1)])
    kinds = [int((moved == one[0]).flatten(1).all(1).nonzero()[0]) for one in found]
    assert len(set(kinds)) == 30
    assert torch.equal(found, mirror_and_shift(x, torch.Generator().manual_seed(0)))


def test_variations_move_the_scene_but_not_the_hood_of_the_car() -> None:
    """The scene has a band of class 5 on class 1; the hood and the top of the left half are void in every map."""
    maps = {}
    for name, scale in (("train", 1), ("detailed", 4)):
        x = torch.full((40, 1, 16 * scale, 24 * scale), 1, dtype=torch.uint8)
        x[..., 8 * scale : 10 * scale] = 5
        x[::2, :, -3 * scale :, 4 * scale : -2 * scale] = 0
        x[1::2, :, -1 * scale :] = 0
        x[..., :scale, : 12 * scale] = 0
        x[0, :, 6 * scale : 8 * scale, 4 * scale : 6 * scale] = 0  # void that is not fixed
        maps[name] = x
    coarse = DataSet("maps", CITYSCAPES_CLASSES, {"train": maps["train"], "test": maps["train"]})
    train = varied(coarse, replace(coarse, splits={"train": maps["detailed"]}))["train"]
    assert isinstance(train, Resampled)
    assert train.shape == (1, 16, 24)
    drawn = train.draw(torch.as_tensor(train.stored).repeat(5, 1), torch.Generator().manual_seed(0))
    assert torch.equal(drawn[1:40] == 0, (maps["train"] == 0)[1:])
    bands = (drawn[:, 0, 5] == 5).float()
    columns = (bands * torch.arange(24)).sum(1) / bands.sum(1)
    assert bands.sum(1).min() >= 1
    assert bands.sum(1).max() <= 4
    assert columns.min() < 7  # moved, and mirrored from 8.5 to 14.5
    assert columns.max() > 16
    assert len(set(columns.tolist())) > 5
    assert (drawn[::40, 0, 6:8] == 0).sum() > 0


def test_the_error_for_missing_cityscapes_explains_how_to_get_it(tmp_path: Path) -> None:
    for source in (None, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"https://www.cityscapes-dataset.com .* pass the folder"):
            cityscapes(source)
    with pytest.raises(DataError, match=r"train/\*/\*_labelIds.png does not exist"):
        cityscapes(tmp_path)
    np.savez(tmp_path / "x.npz", train=np.zeros((2, 1, 32, 64), np.uint8))
    with pytest.raises(DataError, match="is not an npz file with arrays train, val and test"):
        cityscapes(tmp_path / "x.npz")
    wrong = np.full((2, 1, 32, 64), 99, np.uint8)
    np.savez(tmp_path / "x.npz", train=wrong, val=wrong, test=wrong)
    with pytest.raises(DataError, match="contains the label id 99"):
        cityscapes(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"has shape \(2, 1, 32, 64\), but \(…, 1, 16, 32\) is expected"):
        cityscapes(tmp_path / "x.npz", size=(16, 32))


# ---- Data of users ---------------------------------------------------------------------------------------------------


def palette_image(array: np.ndarray, shift: int = 0) -> Image.Image:
    image = Image.frombytes("P", array.shape[::-1], array.tobytes())
    image.putpalette([value for i in range(256) for value in (i, 255 - i, (i + shift) // 2)])
    return image


def test_a_folder_of_palette_images(tmp_path: Path) -> None:
    maps = [np.array([[0, 7], [255, 7]], np.uint8), np.array([[7, 7, 0]], np.uint8)]
    for i, array in enumerate(maps):
        palette_image(array).save(tmp_path / f"map {i} ü.png")
    found = read_label_maps(tmp_path)
    assert found.names == ["map 0 ü.png", "map 1 ü.png"]
    assert found.classes == Classes((0, 7, 255), colors=((0, 255, 0), (7, 248, 3), (255, 0, 127)))
    for symbols, array in zip(found.maps, maps, strict=True):
        assert np.array_equal(found.classes.to_values(symbols), array)


def test_palettes_that_disagree_are_listed(tmp_path: Path) -> None:
    array = np.array([[0, 8]], np.uint8)
    for i, shift in enumerate((0, 0, 4)):
        palette_image(array, shift).save(tmp_path / f"{i}.png")
    found = read_label_maps(tmp_path)
    assert found.names == ["0.png", "1.png"]
    assert found.skipped == ("2.png: its palette has the color (0, 255, 2) for 0, but 0.png has (0, 255, 0)",)


@pytest.mark.parametrize("suffix", ["png", "tif", "gif", "npy"])
def test_other_formats(suffix: str, tmp_path: Path) -> None:
    array = np.array([[0, 3, 3], [9, 9, 0]], np.uint8)
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / f"x.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    elif suffix == "gif":  # whose writer would otherwise renumber the colors
        palette_image(array).save(path, optimize=False)
    else:
        Image.fromarray(array).save(path)
    found = read_label_maps(tmp_path)
    assert found.names == [f"deep/x.{suffix}"]
    assert np.array_equal(found.classes.to_values(found.maps[0]), array)


def test_sixteen_bits(tmp_path: Path) -> None:
    array = np.array([[0, 300], [65535, 300]], np.uint16)
    Image.fromarray(array).save(tmp_path / "x.png")
    found = read_label_maps(tmp_path)
    assert found.classes.values == (0, 300, 65535)
    assert np.array_equal(found.classes.to_values(found.maps[0]), array)


def test_files_that_are_not_label_maps_are_skipped_and_listed(tmp_path: Path) -> None:
    good = RNG.integers(0, 5, (16, 16), dtype=np.uint8)
    for i in range(3):
        Image.fromarray(good).save(tmp_path / f"good-{i}.png")
    Image.fromarray(np.stack([good] * 3, axis=-1)).save(tmp_path / "gray-in-rgb.png")
    Image.fromarray(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "photo.png")
    palette_image(good).save(tmp_path / "palette.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "good-0.png").read_bytes()[:-30])
    (tmp_path / "broken.png").write_bytes(b"not an image")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".hidden").write_text("")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20)).save(tmp_path / "many.png")
    np.save(tmp_path / "floats.npy", np.zeros((3, 3)))
    frames = [Image.fromarray(good), Image.fromarray(good[::-1].copy())]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    found = read_label_maps(tmp_path)
    assert set(found.names) == {"good-0.png", "good-1.png", "good-2.png", "gray-in-rgb.png"}
    reasons = dict(line.split(": ", 1) for line in found.skipped)
    assert reasons.keys() == {
        *("photo.png", "palette.png", "cut.png", "broken.png", "notes.txt", "many.png", "floats.npy", "film.gif")
    }
    assert reasons["photo.png"] == "is an RGB image with 256 colors, but a label map has one channel"
    assert reasons["palette.png"] == "is of type palette, but most of the others are grayscale"
    assert reasons["cut.png"].startswith("cannot be read")
    assert "more than 256 different values" in reasons["many.png"]
    assert "2 frames" in reasons["film.gif"]


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"does not contain a readable label map .*\n  notes.txt: is not a PNG"):
        read_label_maps(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_label_maps(tmp_path / "nowhere")
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.arange(200).reshape(10, 20) + 200 * i)
    with pytest.raises(DataError, match=r"400 different values up to 1.npy, but at most 256 are supported"):
        read_label_maps(tmp_path)
    assert read_label_maps(tmp_path, most_classes=400).classes.num_classes == 400


def test_arrays(tmp_path: Path) -> None:
    array = RNG.choice([-5, 3, 1000], (10, 4, 6))
    np.save(tmp_path / "x.npy", array)
    found = read_label_maps(tmp_path / "x.npy")
    assert found.classes.values == (-5, 3, 1000)
    data = found.data_set(seed=1)
    assert data.shape == (1, 4, 6)
    assert {split: len(data[split]) for split in data.splits} == {"train": 8, "validation": 1, "test": 1}
    back = np.concatenate([found.classes.to_values(data[split]) for split in data.splits])[:, 0]
    assert sorted(map(bytes, back)) == sorted(map(bytes, array))  # each map is in one split, once
    np.savez(tmp_path / "x.npz", maps=array, weights=np.zeros(3))
    found = read_label_maps(tmp_path / "x.npz")
    assert len(found.maps) == 10
    assert found.skipped == ("weights: float64 of shape (3,) does not hold label maps",)
    np.save(tmp_path / "vectors.npy", array[:, 0])
    assert read_label_maps(tmp_path / "vectors.npy").data_set().shape == (6,)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"bad.npy cannot be read"):
        read_label_maps(tmp_path / "bad.npy")


def test_maps_of_several_sizes_are_cropped() -> None:
    maps = [np.arange(h * w, dtype=np.int32).reshape(h, w) % 251 for h, w in ((8, 30), (20, 8), (9, 9))]
    pieces = crop(maps, (8, 8))
    assert pieces.shape == (1, 8, 8)
    index = torch.arange(3).repeat(40)
    drawn = pieces.draw(index, torch.Generator().manual_seed(0))
    for i, piece in zip(index.tolist(), drawn, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(maps[i], (8, 8))
        assert (windows == piece[0].numpy()).all((2, 3)).any()
    assert len({piece.numpy().tobytes() for piece in drawn}) > 30
    with pytest.raises(DataError, match=r"a map of shape \(9, 9\) is smaller than the crop size 10 × 8"):
        crop(maps[2:], (10, 8))


def test_several_sizes_need_a_crop_size_and_train_with_one(tmp_path: Path) -> None:
    for i in range(12):
        Image.fromarray(RNG.integers(0, 3, (8 + i, 10), dtype=np.uint8) * 40).save(tmp_path / f"{i}.png")
    found = read_label_maps(tmp_path)
    with pytest.raises(DataError, match=r"12 different sizes \(8 × 10, .* pass crop_size"):
        found.data_set()
    data = found.data_set(crop_size=(8, 8))
    assert data["validation"].shape == (1, 1, 8, 8)
    flow = FlowSpec(num_classes=3, shape=(1, 8, 8), layers=()).build()
    ddf.fit(flow, data, config=ddf.TrainingConfig(max_epochs=1), device="cpu")
    flow.save(tmp_path / "flow.ddf")
    assert ddf.load(tmp_path / "flow.ddf").classes == Classes((0, 40, 80))


def test_tables(tmp_path: Path) -> None:
    rows = [("red;no", "square")] * 10 + [("blue", "")] * 10
    text = "color,shape\n" + "\n".join(f'"{a}",{b}' for a, b in rows)
    (tmp_path / "x.csv").write_text(text)
    data = read_table(tmp_path / "x.csv")
    assert data.classes == Columns(("color", "shape"), (("blue", "red;no"), ("", "square")))
    assert (data.num_classes, data.shape, len(data["train"])) == (2, (2,), 16)
    back = [tuple(row) for split in data.splits.values() for row in data.classes.to_values(split)]
    assert sorted(back) == sorted(rows)
    spec = FlowSpec(num_classes=2, shape=(2,), layers=(DenoisingCouplingSpec(MLPSpec(hidden=8), top=2),))
    flow = spec.build()
    ddf.fit(flow, data, config=ddf.TrainingConfig(max_epochs=1), device="cpu")
    flow.save(tmp_path / "flow.ddf")
    assert ddf.load(tmp_path / "flow.ddf").classes == data.classes
    for text, message in (
        ("a,b\n1,2\n3\n4,5\n", "line 3 has 1 columns, but the first line has 2"),
        ("", "is empty"),
        ("a\n1\n", "has 1 rows below its 1 column names; at least 3 are required"),
        ("id\n" + "\n".join(map(str, range(300))), "the column 'id' has 300 different texts"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            read_table(tmp_path / "bad.csv")


def test_eight_gaussians_have_disjoint_splits() -> None:
    data, other = EightGaussians.data_set(100, 50, 70, seed=0), EightGaussians.data_set(100, 50, 70, seed=1)
    assert torch.equal(data["test"], other["test"])
    assert not torch.equal(data["train"], other["train"])
    assert not torch.equal(data["train"][:50], data["validation"])
    with pytest.raises(KeyError, match="does not have a split 'extra'; it has train, validation, test"):
        data["extra"]


def test_values_without_a_class_are_named() -> None:
    classes = Classes((5, 1))
    assert classes.to_symbols(np.array([1, 5, 1])).tolist() == [1, 0, 1]
    for value in (0, 3, 9):
        with pytest.raises(ValueError, match=f"the value {value} is not one of the 2 known classes"):
            classes.to_symbols(np.array([1, value]))
    with pytest.raises(ValueError, match="1 names for 2 values"):
        Classes((1, 2), names=("one",))
    with pytest.raises(ValueError, match="distinct integers"):
        Classes((1, 1))
    for symbol in (-1, 2):
        with pytest.raises(ValueError, match="but there are 2 classes"):
            classes.to_values(np.array([0, symbol]))


def test_any_integers_may_be_classes(tmp_path: Path) -> None:
    values = np.array([[-7, 0, 2**40], [-(2**40), 5, 5]])
    np.save(tmp_path / "x.npy", values)
    Image.fromarray(np.array([[-3, 5]], np.int32)).save(tmp_path / "x.tif")
    for source in (tmp_path, [tmp_path / "x.npy", tmp_path / ".." / tmp_path.name / "x.npy"]):
        found = read_label_maps(source)
        assert len(found.maps) == 1  # duplicates are read once; the less common type is skipped
        assert found.classes.to_values(found.maps[0]).min() < 0
    np.save(tmp_path / "x.npy", np.array([[[2**63]]], np.uint64))
    with pytest.raises(DataError, match=r"x.npy: contains 9223372036854775808"):
        read_label_maps(tmp_path / "x.npy")


def test_splits_follow_the_names_of_folders_and_arrays(tmp_path: Path) -> None:
    arrays = {name: RNG.integers(0, 3, (count, 4, 4)) for name, count in (("train", 5), ("val", 3), ("test", 2))}
    np.savez(tmp_path / "x.npz", **arrays)
    data = read_label_maps(tmp_path / "x.npz").data_set()
    for name, array in arrays.items():
        assert np.array_equal(data["validation" if name == "val" else name][:, 0], array)
    np.savez(
        tmp_path / "x.npz", **arrays, more=arrays["test"]
    )  # not every name stands for a split, so all maps are split at random
    data = read_label_maps(tmp_path / "x.npz").data_set()
    assert sum(len(data[split]) for split in data.splits) == 12
    for name, array in arrays.items():
        (tmp_path / "maps" / f"{name}annot").mkdir(parents=True)
        for i, part in enumerate(array):
            np.save(tmp_path / "maps" / f"{name}annot" / f"{i}.npy", part)
    data = read_label_maps(tmp_path / "maps").data_set()
    assert "train" in data
    assert "0" not in data
    assert set(data) == set(data.splits)
    with pytest.raises(KeyError, match="does not have a split 'tests'; it has "):
        data["tests"]
    assert {split: len(data[split]) for split in data.splits} == {"train": 5, "validation": 3, "test": 2}


def test_invalid_fractions_and_crop_sizes_are_rejected() -> None:
    maps = [np.zeros((8, 8), np.uint8)] * 4
    found = LabelMaps("x", maps, list("abcd"), Classes((0,)))
    assert {split: len(share) for split, share in found.data_set().splits.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    for part in (-0.1, 1.0, 1.5):
        with pytest.raises(ValueError, match=f"validation={part} is out of range"):
            found.data_set(validation=part)
    with pytest.raises(DataError, match=r"4 samples are too few for validation=0.9, test=0.9"):
        found.data_set(validation=0.9, test=0.9)
    for size in ((0, 0), (-1, 4), (2.5, 2.5), (4,), 4):
        with pytest.raises(ValueError, match=r"must be \(height, width\), both positive integers"):
            crop(maps, size)


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ('x,y\n"a\nb",1\nab,2\nab,1\n', ("x", "y"), (("a\nb", "ab"), ("1", "2"))),
        ("x;y\n1,5;2\n1,5;3\n2;2\n\n\n", ("x", "y"), (("1,5", "2"), ("2", "3"))),
        ('"a,b";c\n1;2\n3;4\n1;4\n', ("a,b", "c"), (("1", "3"), ("2", "4"))),
        ("x\ty\t\n1\t2\t\n3\t2\t\n3\t2\t\n", ("x", "y"), (("1", "3"), ("2",))),
        ("\ufeffx\na\u2028b\nc\nc\n", ("x",), (("a\u2028b", "c"),)),
    ],
)
def test_tables_with_various_separators_and_quotes(text: str, names: object, values: object, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert read_table(tmp_path / "x.csv").classes == Columns(names, values)
    (tmp_path / "x.csv").write_text("a,a\n1,2\n1,2\n1,2\n")
    with pytest.raises(DataError, match="two columns have the same name, 'a'"):
        read_table(tmp_path / "x.csv")


def test_fitting_sets_the_classes_of_a_flow_once() -> None:
    maps = RNG.integers(0, 3, (20, 4, 4))
    flows = {k: FlowSpec(num_classes=k, shape=(1, 4, 4), layers=()).build() for k in (3, 5)}
    data = LabelMaps("x", list(maps), [""] * 20, Classes((0, 10, 20))).data_set()
    other = LabelMaps("x", list(maps), [""] * 20, Classes((7, 8, 9))).data_set()
    with pytest.raises(ValueError, match="the data has 3 classes, but the flow has 5"):
        ddf.fit(flows[5], data, device="cpu")
    assert flows[5].classes is None
    ddf.fit(flows[3], data, device="cpu")
    flows[3].base.thaw()
    with pytest.raises(ValueError, match="the classes of the flow differ from those of the data"):
        ddf.fit(flows[3], other, device="cpu")
    assert flows[3].classes == Classes((0, 10, 20))


def test_images_with_a_wrong_suffix_are_skipped(tmp_path: Path) -> None:
    gray = Image.fromarray(RNG.integers(0, 4, (16, 16), dtype=np.uint8))
    gray.save(tmp_path / "good.png")
    gray.save(tmp_path / "x.jpg")
    (tmp_path / "x.jpg").rename(tmp_path / "lossy.png")
    found = read_label_maps(tmp_path)
    assert found.skipped == ("lossy.png: is a JPEG file with the suffix .png",)
    np.savez(tmp_path / "x.npz", a=np.zeros((2, 2, 2), int))
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"x.npz cannot be read"):
        read_label_maps(tmp_path / "x.npz")
    with pytest.raises(DataError, match="is not an npz file"):
        cityscapes(tmp_path / "x.npz")


def test_a_large_map_is_read_in_little_memory(tmp_path: Path) -> None:
    """The values are never converted to 64 bits each."""
    for i in range(2):
        Image.fromarray(np.kron(np.eye(4, dtype=np.uint8) * (i + 1), np.ones((1000, 1000), np.uint8))).save(
            tmp_path / f"{i}.png"
        )
    script = """
import resource, sys
from ddf.data import read_label_maps
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
maps = read_label_maps(sys.argv[1])
assert maps.maps[1].max() == 2
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150


# ---- Tables from the literature --------------------------------------------------------------------------------------


def test_mushrooms_are_complete() -> None:
    columns, symbols = mushrooms()
    assert symbols.shape == (8124, 22)
    assert "stalk-root" not in columns.names
    assert [len(values) for values in columns.values][:3] == [2, 6, 4]
    assert np.bincount(symbols[:, 0]).tolist() == [4208, 3916]  # edible, poisonous
    assert columns.to_values(symbols[:1])[0][:4] == ["p", "x", "s", "n"]
    assert mushrooms(missing=True)[1].shape == (8124, 23)


def test_cop_tables_are_read_from_a_folder(tmp_path: Path) -> None:
    table = np.random.default_rng(0).integers(0, 2, (50, 4)).astype(float)
    np.save(tmp_path / "cop_h.npy", table)
    np.save(tmp_path / "coup_data_4_2_weak_corr.npy", table)
    np.save(tmp_path / "cop_m.npy", table * 2)
    for strength in "hw":
        columns, symbols = cop(tmp_path, strength)
        assert np.array_equal(symbols, table)
        assert columns.values == (("0", "1"),) * 4
    with pytest.raises(DataError, match=r"cop_m.npy is not a table of zeros and ones"):
        cop(tmp_path, "m")
    with pytest.raises(ValueError, match="strength='x' must be 'h', 'm' or 'w'"):
        cop(tmp_path, "x")
    with pytest.raises(DataError, match=r"contains neither coup_data_4_2.npy nor cop_h.npy"):
        cop(tmp_path / "nowhere", "h")
    (tmp_path / "cop_m.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cop_m.npy is not an npy file"):
        cop(tmp_path, "m")
