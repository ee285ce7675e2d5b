"""Cityscapes label maps: 8 categories at 32 × 64."""

__all__ = ["CITYSCAPES_CLASSES", "cityscapes", "mirror", "mirror_and_shift", "varied", "warp"]

import zipfile
from collections.abc import Callable
from dataclasses import replace
from math import pi
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes
from ddf.data.dataset import DataSet
from ddf.data.resampled import Resampled
from ddf.errors import DataError
from ddf.label_files import read_image
from ddf.shapes import Array

# Category → its official label ids, and the color of one of them.
_CATEGORIES: dict[str, tuple[tuple[int, ...], tuple[int, int, int]]] = {
    "void": ((0, 1, 2, 3, 4, 5, 6), (0, 0, 0)),
    "flat": ((7, 8, 9, 10), (128, 64, 128)),
    "construction": ((11, 12, 13, 14, 15, 16), (70, 70, 70)),
    "object": ((17, 18, 19, 20), (220, 220, 0)),
    "nature": ((21, 22), (107, 142, 35)),
    "sky": ((23,), (70, 130, 180)),
    "human": ((24, 25), (220, 20, 60)),
    "vehicle": ((26, 27, 28, 29, 30, 31, 32, 33, 255), (0, 0, 142)),  # 255 is the license plate, whose id is −1
}
CITYSCAPES_CLASSES = Classes.plain(
    len(_CATEGORIES), names=tuple(_CATEGORIES), colors=tuple(color for _, color in _CATEGORIES.values())
)
_MOVED = 1 / 32  # how far `warp` moves parts of a map, relative to its height or width
_VOID = 0
_OFTEN = 0.2  # pixels that are void in more than this fraction of the maps are fixed to the camera
_TRAIN = 2500  # of the 2975 official training maps; the others are for validation
_HOW_TO = (
    "Cityscapes may not be redistributed. Download gtFine_trainvaltest.zip from https://www.cityscapes-dataset.com "
    "(free for research, after registration), unpack it, and pass the folder that contains gtFine"
)


def mirror(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each map horizontally with probability 1/2."""
    mirrored = torch.rand(len(maps), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), maps.flip(-1), maps)


def mirror_and_shift(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each map with probability 1/2, and shift it by up to 1 row and 2 columns, repeating pixels at the edge."""
    maps = mirror(maps, generator)
    count, _, height, width = maps.shape
    down = torch.randint(-1, 2, (count, 1), generator=generator)
    right = torch.randint(-2, 3, (count, 1), generator=generator)
    rows = (torch.arange(height) - down).clamp(0, height - 1)
    columns = (torch.arange(width) - right).clamp(0, width - 1)
    return maps[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None]].movedim(-1, 1)


def warp(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each map with probability 1/2, and keep every fourth row and column, roughly.

    The grid of rows and columns is distorted smoothly, which stretches and compresses parts of a map by about 10 %,
    and moves them by about 3 % of the map's size.

    Arguments:
        maps: Label maps (batch, 1, 4 · height, 4 · width).
        generator: The source of random numbers.

    Returns:
        (batch, 1, height, width).
    """
    maps = mirror(maps, generator)
    count, _, height, width = maps.shape
    rows = _distorted(count, height // 4, generator)
    columns = _distorted(count, width // 4, generator)
    return maps[torch.arange(count)[:, None, None], 0, rows[:, :, None], columns[:, None]].unsqueeze(1)


def _distorted(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return which of 4 · size rows or columns to keep, for each map: (count, size)."""
    places = torch.arange(size)
    waves = torch.sin(torch.arange(1, 4)[:, None] * pi * (places + 0.5) / size)
    heights = torch.randn(count, 3, generator=generator).clamp(-2, 2) * (4 * size * _MOVED) / torch.arange(1, 4)
    offset = 2 * torch.rand(count, 1, generator=generator)  # 4 i + 1 or 4 i + 2 without the distortion
    return (4 * places + 1 + offset + heights @ waves).floor().long().clamp(0, 4 * size - 1)


def varied(maps: DataSet, detailed: DataSet) -> DataSet:
    """Replace training maps with random variations, drawn from more detailed versions of the same maps; see `warp`.

    What is fixed to the camera does not vary: the hood of the car and the borders of the rectified images, which have
    the class void and the same shape in all maps taken from the same car.

    Arguments:
        maps: The data set, without augmentation.
        detailed: The same maps with four times the height and width.
    """
    coarse, fine = torch.as_tensor(maps["train"]), torch.as_tensor(detailed["train"])
    height, width = coarse.shape[2:]
    scenes = _without(fine, _fixed(fine))
    stored = torch.cat([_fixed(coarse).flatten(1).byte(), scenes.flatten(1)], dim=1)

    def draw(stored: Tensor, generator: torch.Generator) -> Tensor:
        fixed, scenes = stored.split([height * width, 16 * height * width], dim=1)
        drawn = warp(scenes.view(-1, 1, 4 * height, 4 * width), generator)
        return drawn.masked_fill(fixed.view(-1, 1, height, width).bool(), _VOID)

    return replace(maps, splits={**maps.splits, "train": Resampled(stored, draw, (1, height, width))})


def _fixed(maps: Tensor) -> Tensor:
    """Return which pixels are fixed to the camera: void ones, at places that are void in many maps."""
    void = maps == _VOID
    return void & (void.float().mean(dim=0) > _OFTEN)


def _without(maps: Tensor, fixed: Tensor) -> Tensor:
    """Replace each fixed pixel with the nearest other one above it, else below it.

    In columns that are entirely fixed, these are the nearest ones to the left, else to the right.
    """
    for dim in (2, 3):
        size = maps.shape[dim]
        places = torch.arange(size).view(-1, *[1] * (3 - dim)).expand(maps.shape)
        before = places.masked_fill(fixed, -1).cummax(dim).values
        after = places.masked_fill(fixed, size).flip(dim).cummin(dim).values.flip(dim)
        source = torch.where(before >= 0, before, after)
        fixed = (source == size).expand(maps.shape)
        maps = maps.gather(dim, source.clamp(max=size - 1))
    return maps


def cityscapes(
    source: str | PathLike[str] | None,
    size: tuple[int, int] = (32, 64),
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = mirror,
) -> DataSet:
    """Return Cityscapes as in published experiments with 8 classes: 2500 training, 475 validation and 500 test maps.

    The official training maps, sorted by path, are split into training and validation. The official validation maps are
    the test set, because the labels of the official test set are not public.

    Arguments:
        source: The folder that contains `gtFine`, or an npz file with arrays `train`, `val` and `test` of label ids.
        size: Height and width, by nearest-neighbor resampling. The maps of an npz file must already have this size.
        augment: The augmentation of training maps: `mirror`, or another function that `Resampled` takes; None for no
            augmentation. Validation and test maps are never augmented.
    """
    if source is None or not Path(source).exists():
        missing = "pass the location of the data" if source is None else f"{source} does not exist"
        raise FileNotFoundError(f"cityscapes: {missing}. {_HOW_TO}")
    ids = _from_npz(Path(source)) if Path(source).is_file() else _from_folder(Path(source), size)
    maps = {}
    for split, array in ids.items():
        if array.shape[1:] != (1, *size):
            raise DataError(f"{source}: {split} has shape {array.shape}, but (…, 1, {size[0]}, {size[1]}) is expected")
        maps[split] = torch.from_numpy(_categories(array, f"{source}: {split}"))
    train = maps["train"] if augment is None else Resampled(maps["train"], augment)
    return DataSet("Cityscapes", CITYSCAPES_CLASSES, {**maps, "train": train})


def _from_npz(path: Path) -> dict[str, Array]:
    names = (("train", "train"), ("validation", "val"), ("test", "test"))
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            arrays = {split: file[name] for split, name in names}
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an npz file with arrays train, val and test: {error}") from error
    for split, array in arrays.items():
        if array.dtype != np.uint8 or not len(array):
            raise DataError(f"{path}: {split} has {len(array)} maps of {array.dtype}, but label ids are uint8")
    return arrays


def _from_folder(folder: Path, size: tuple[int, int]) -> dict[str, Array]:
    root = folder / "gtFine" if (folder / "gtFine").is_dir() else folder
    arrays = {}
    for split in ("train", "val"):
        paths = sorted((root / split).glob("*/*_labelIds.png"))
        if not paths:
            raise DataError(f"{root}/{split}/*/*_labelIds.png does not exist. {_HOW_TO}")
        arrays[split] = np.stack([_read(path, size) for path in paths])[:, None]
    train = arrays["train"]
    if len(train) <= _TRAIN:
        raise DataError(f"{root}/train has {len(train)} maps, but more than {_TRAIN} are expected")
    return {"train": train[:_TRAIN], "validation": train[_TRAIN:], "test": arrays["val"]}


def _read(path: Path, size: tuple[int, int]) -> Array:
    from PIL import Image

    try:
        found = read_image(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if found.mode not in ("L", "P"):
        raise DataError(f"{path} has mode {found.mode}, but label ids are images with one channel of 8 bits")
    resized = Image.fromarray(found.array).resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(resized)


def _categories(ids: Array, name: str) -> Array:
    table = np.full(256, 255, dtype=np.uint8)
    for category, (labels, _) in enumerate(_CATEGORIES.values()):
        table[list(labels)] = category
    categories = table[ids]
    if (categories == 255).any():
        raise DataError(
            f"{name} contains the label id {ids[categories == 255].flat[0]}, which does not exist in Cityscapes"
        )
    return categories
