"""Cityscapes label maps: 8 categories at 32 × 64."""

__all__ = ["CITYSCAPES_CLASSES", "cityscapes", "flip"]

import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes
from ddf.data.dataset import DataError, DataSet
from ddf.data.redrawn import Redrawn

# The official categories of the official label ids, and a colour of one of their labels.
_CATEGORIES: dict[str, tuple[tuple[int, ...], tuple[int, int, int]]] = {
    "void": ((0, 1, 2, 3, 4, 5, 6), (0, 0, 0)),
    "flat": ((7, 8, 9, 10), (128, 64, 128)),
    "construction": ((11, 12, 13, 14, 15, 16), (70, 70, 70)),
    "object": ((17, 18, 19, 20), (220, 220, 0)),
    "nature": ((21, 22), (107, 142, 35)),
    "sky": ((23,), (70, 130, 180)),
    "human": ((24, 25), (220, 20, 60)),
    "vehicle": ((26, 27, 28, 29, 30, 31, 32, 33, 255), (0, 0, 142)),  # 255 is the licence plate, whose id is −1
}
CITYSCAPES_CLASSES = Classes.plain(
    len(_CATEGORIES), names=tuple(_CATEGORIES), colors=tuple(color for _, color in _CATEGORIES.values())
)
_TRAIN = 2500  # of the 2975 official training maps; the others validate
_HOW_TO = (
    "Cityscapes may not be passed on. Get gtFine_trainvaltest.zip from https://www.cityscapes-dataset.com (free for "
    "research, after registration), unpack it, and name the folder that contains gtFine"
)


def cityscapes(source: str | PathLike[str] | None, size: tuple[int, int] = (32, 64), augment: bool = True) -> DataSet:
    """Cityscapes as in the published experiments with 8 classes: 2500 maps to train on, 475 to validate, 500 to test.

    The official training maps, sorted by path, are training and validation; the official validation maps are the test
    set, as nobody outside has labels of the official one.

    Arguments:
        source: The folder that contains `gtFine`, or an npz file with arrays `train`, `val` and `test` of label ids.
        size: Height and width, by nearest neighbour. An npz file must have that size already.
        augment: Whether training maps are mirrored at random. Validation and test never are.
    """
    if source is None or not Path(source).exists():
        missing = "no source is named" if source is None else f"there is no {source}"
        raise FileNotFoundError(f"cityscapes: {missing}. {_HOW_TO}")
    ids = _from_npz(Path(source)) if Path(source).is_file() else _from_folder(Path(source), size)
    maps = {}
    for split, array in ids.items():
        if array.shape[1:] != (1, *size):
            raise DataError(f"{source}: {split} has shape {array.shape}, but should be (…, 1, {size[0]}, {size[1]})")
        maps[split] = torch.from_numpy(_categories(array, f"{source}: {split}"))
    train = Redrawn(maps["train"], flip) if augment else maps["train"]
    return DataSet("Cityscapes", CITYSCAPES_CLASSES, {**maps, "train": train})


def flip(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors every other map, left and right."""
    mirrored = torch.rand(len(maps), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), maps.flip(-1), maps)


def _from_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    names = (("train", "train"), ("validation", "val"), ("test", "test"))
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            arrays = {split: file[name] for split, name in names}
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no npz file with arrays train, val and test: {error}") from error
    for split, array in arrays.items():
        if array.dtype != np.uint8 or not len(array):
            raise DataError(f"{path}: {split} has {len(array)} maps of {array.dtype}, but label ids are uint8")
    return arrays


def _from_folder(folder: Path, size: tuple[int, int]) -> dict[str, np.ndarray[Any, Any]]:
    root = folder / "gtFine" if (folder / "gtFine").is_dir() else folder
    arrays = {}
    for split in ("train", "val"):
        paths = sorted((root / split).glob("*/*_labelIds.png"))
        if not paths:
            raise DataError(f"there is no {root}/{split}/*/*_labelIds.png. {_HOW_TO}")
        arrays[split] = np.stack([_read(path, size) for path in paths])[:, None]
    train = arrays["train"]
    if len(train) <= _TRAIN:
        raise DataError(
            f"{root}/train has {len(train)} maps, but {_TRAIN} of them are for training and more to validate"
        )
    return {"train": train[:_TRAIN], "validation": train[_TRAIN:], "test": arrays["val"]}


def _read(path: Path, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode not in ("L", "P"):
                raise DataError(f"{path} is in mode {image.mode}, but label ids are in one channel of 8 bits")
            return np.asarray(image.resize((size[1], size[0]), Image.Resampling.NEAREST))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _categories(ids: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    table = np.full(256, 255, dtype=np.uint8)
    for category, (labels, _) in enumerate(_CATEGORIES.values()):
        table[list(labels)] = category
    categories = table[ids]
    if (categories == 255).any():
        raise DataError(
            f"{name} contains the label id {ids[categories == 255].flat[0]}, which Cityscapes does not have"
        )
    return categories
