"""User-provided label maps: folders of images, and arrays."""

__all__ = ["MOST_CLASSES", "LabelMaps", "crop", "read_label_maps"]

import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes, Color
from ddf.data.dataset import Data, DataSet
from ddf.data.resampled import Resampled
from ddf.data.splits import named_split, split_samples
from ddf.errors import DataError, DdfError
from ddf.label_files import read_image, read_npy
from ddf.shapes import Array, format_shape

MOST_CLASSES = 256
_CHUNK = 1 << 20
_IMAGES = (".png", ".tif", ".tiff", ".gif")
_KINDS = {"1": "1-bit", "P": "palette", "L": "grayscale", "I": "32-bit grayscale", "I;16": "16-bit grayscale"}


@dataclass(frozen=True)
class LabelMaps:
    """Label maps as symbols.

    Arguments:
        name: The source of the maps.
        maps: The symbols of each map: (height, width), (channels, height, width) or (columns,). Sizes may differ.
        names: The name of each map.
        classes: The meaning of the symbols.
        skipped: What was skipped and why, a line for each.
        assigned: The split of each map, if the source has folders or arrays named train…, val… and test….
    """

    name: str
    maps: Sequence[Array]
    names: Sequence[str]
    classes: Classes
    skipped: tuple[str, ...] = ()
    assigned: Sequence[str] = ()

    @property
    def sizes(self) -> set[tuple[int, ...]]:
        """The shapes of the maps."""
        return {part.shape for part in self.maps}

    def splits(self, validation: float = 0.1, test: float = 0.1, seed: int = 0) -> dict[str, Array]:
        """Return the sorted indices of the maps of each split; see `split_samples`."""
        found = split_samples(len(self.maps), validation, test, seed, self.assigned, self.name)
        return {split: np.sort(index) for split, index in found.items()}

    def data_set(
        self, crop_size: tuple[int, int] | None = None, validation: float = 0.1, test: float = 0.1, seed: int = 0
    ) -> DataSet:
        """Split the maps into training, validation and test data: as their source prescribes, otherwise at random.

        Arguments:
            crop_size: The height and width of crops to train on: a fresh one of each map on each pass, and a fixed one
                of each map for validation and test. None for complete maps, which must then have the same size.
            validation: The fraction of the maps for validation.
            test: The fraction for testing.
            seed: The seed of the split and of the fixed crops.
        """
        if crop_size is None and len(self.sizes) > 1:
            some = ", ".join(map(format_shape, sorted(self.sizes)[:5]))
            raise DataError(
                f"{self.name}: {len(self.sizes)} different sizes ({some} …); pass crop_size=(height, width)"
            )
        indices = self.splits(validation, test, seed)
        splits: dict[str, Data] = {}
        for number, (split, index) in enumerate(indices.items()):
            maps = [self.maps[i] for i in index]
            if crop_size is None:
                stacked = np.stack(maps)
                splits[split] = stacked if stacked.ndim != 3 else stacked[:, None]
            else:
                crops = crop(maps, crop_size, name=self.name)
                generator = torch.Generator().manual_seed(len(indices) * seed + number)
                splits[split] = crops if split == "train" else crops.draw(torch.from_numpy(crops.stored), generator)
        return DataSet(self.name, self.classes, splits, self.skipped)


def crop(maps: Sequence[Array], size: tuple[int, int], name: str = "the data") -> Resampled:
    """Return random crops of maps of any size, a fresh one of each map on each pass.

    Arguments:
        maps: Symbols (height, width) or (channels, height, width) each.
        size: The height and width of the crops.
        name: The name of the data in error messages.

    Examples:
        >>> maps = [np.zeros((20, 30), dtype=np.uint8), np.ones((50, 16), dtype=np.uint8)]
        >>> crops = crop(maps, (16, 16))
        >>> crops.draw(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 16, 16])
    """
    if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise ValueError(f"the crop size {size!r} must be (height, width), both positive integers")
    for part in maps:
        if part.ndim not in (2, 3) or part.shape[-2] < size[0] or part.shape[-1] < size[1]:
            raise DataError(f"{name}: a map of shape {part.shape} is smaller than the crop size {format_shape(size)}")
    channels = {part.shape[0] if part.ndim == 3 else 1 for part in maps}
    if len(channels) > 1:
        raise DataError(f"{name}: the maps have different numbers of channels: {sorted(channels)}")
    tensors = [torch.from_numpy(np.ascontiguousarray(part)).view(-1, *part.shape[-2:]) for part in maps]

    def draw_crops(index: Tensor, generator: torch.Generator) -> Tensor:
        crops = []
        for i in index.tolist():
            row, column = (
                int(torch.randint(side - part + 1, (), generator=generator))
                for side, part in zip(tensors[i].shape[1:], size, strict=True)
            )
            crops.append(tensors[i][:, row : row + size[0], column : column + size[1]])
        return torch.stack(crops)

    return Resampled(np.arange(len(maps)), draw_crops, shape=(channels.pop(), *size), read=maps)


def read_label_maps(
    source: str | PathLike[str] | Sequence[str | PathLike[str]], most_classes: int = MOST_CLASSES
) -> LabelMaps:
    """Read label maps, find their classes, and convert them to symbols 0 … K − 1.

    Files that cannot be used are skipped and listed in `skipped`; it is an error if none is left.

    Arguments:
        source: A folder, which is searched with its subfolders for PNG, TIFF and GIF images with one channel and for
            npy files, one map each; or an npy or npz file with an array (samples, height, width), (samples, columns) or
            (samples, channels, height, width); or a list of files.
        most_classes: The largest number of classes to accept.
    """
    if isinstance(source, str | PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        if path.is_file() and path.suffix in (".npy", ".npz"):
            return _from_array_file(path, most_classes)
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        root, name = (path.parent if path.is_file() else path), str(path)
    else:
        files = list({Path(file).resolve(): Path(file) for file in source}.values())
        root, name = Path(), "the files"
    found: dict[str, _Map] = {}
    skipped: list[str] = []
    for file in files:
        label = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
        if file.name.startswith("."):
            continue
        try:
            found[label] = _read_map(file, most_classes)
        except DataError as error:
            skipped.append(f"{label}: {error}")
    kinds = Counter(one.kind for one in found.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        for label in [label for label, one in found.items() if one.kind != usual]:
            skipped.append(f"{label}: is of type {found.pop(label).kind}, but most of the others are {usual}")
    skipped += _remove_other_palettes(found)
    if not found:
        reasons = "".join(f"\n  {line}" for line in skipped[:10])
        raise DataError(f"{name} does not contain a readable label map (PNG, TIFF, GIF, npy){reasons}")
    arrays = [one.array for one in found.values()]
    palette = max((one.palette for one in found.values()), key=len)
    classes = _find_classes(arrays, list(found), name, palette, most_classes)
    folders = [parts[0] if len(parts := Path(label).parts) > 1 else "" for label in found]
    symbols = [classes.to_symbols(array) for array in arrays]
    return LabelMaps(name, symbols, list(found), classes, tuple(skipped), _assigned(folders))


def _from_array_file(path: Path, most_classes: int) -> LabelMaps:
    try:
        with path.open("rb") as file:  # which np.load leaves open if the file is damaged
            loaded = np.load(file)
            arrays = {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    skipped = []
    for name in list(arrays):
        array = arrays[name]
        if array.dtype.kind not in "iub" or not 2 <= array.ndim <= 4 or not array.size:
            skipped.append(f"{name or path.name}: {array.dtype} of shape {array.shape} does not hold label maps")
            del arrays[name]
    if not arrays:
        raise DataError(f"{path} does not contain label maps: " + "; ".join(skipped))
    names = [f"{name or path.stem}[{i}]" for name, array in arrays.items() for i in range(len(array))]
    try:
        maps = [part for array in arrays.values() for part in _signed(array)]
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    classes = _find_classes(list(arrays.values()), [name or path.name for name in arrays], str(path), b"", most_classes)
    assigned = _assigned([name for name, array in arrays.items() for _ in array])
    symbols = [classes.to_symbols(part) for part in maps]
    return LabelMaps(str(path), symbols, names, classes, tuple(skipped), assigned)


def _assigned(names: list[str]) -> Sequence[str]:
    """Return the splits that names of folders or arrays stand for, if all of them stand for one."""
    splits = [named_split(name) for name in names]
    return splits if "train" in splits and all(splits) else ()


class _Map(NamedTuple):
    kind: str
    array: Array
    palette: bytes = b""


def _read_map(path: Path, most_classes: int) -> _Map:
    suffix = path.suffix.lower()
    if suffix != ".npy" and suffix not in _IMAGES:
        raise DataError("is not a PNG, TIFF, GIF or npy file")
    try:
        if suffix == ".npy":
            found = _Map("array", read_npy(path).array)
        else:
            image = read_image(path, gray_from_rgb=True)
            found = _Map(_KINDS[image.mode], image.array, image.palette)
    except DdfError as error:
        raise DataError(str(error)) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"cannot be read ({error})") from error
    if found.array.ndim not in (2, 3) or not found.array.size:
        raise DataError(f"has shape {found.array.shape}, but a map has (height, width)")
    array = _signed(found.array)
    if len(distinct(array, most_classes)) > most_classes:
        raise DataError(f"has more than {most_classes} different values, but at most {most_classes} are supported")
    return found._replace(array=array)


def _signed(array: Array) -> Array:
    """Return an array of a dtype that int64 can hold."""
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"contains {array.max()}, but values must fit into signed 64-bit integers")
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return array.astype(np.int64) if array.dtype == np.uint64 else array


def distinct(array: Array, most: int | None = None) -> list[int]:
    """Return the sorted distinct values of an array, in little memory; stop when there are more than `most`."""
    flat = array.reshape(-1)
    found: set[int] = set()
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        if array.dtype == np.uint8:
            found.update(np.flatnonzero(np.bincount(part, minlength=1)).tolist())
        else:
            found.update(np.unique(part).tolist())
        if most is not None and len(found) > most:
            break
    return sorted(found)


def _remove_other_palettes(found: dict[str, _Map]) -> list[str]:
    """Remove the maps whose palettes give a class a color other than the maps before them; return a line for each."""
    seen: dict[int, tuple[Color, str]] = {}
    skipped = []
    for label, one in list(found.items()):
        colors = _colors(one.palette)
        used = {value: colors[value] for value in distinct(one.array) if 0 <= value < len(colors)}
        for value, color in used.items():
            other, first = seen.get(value, (color, label))
            if other != color:
                skipped.append(f"{label}: its palette has the color {color} for {value}, but {first} has {other}")
                del found[label]
                break
        else:
            seen |= {value: (color, label) for value, color in used.items() if value not in seen}
    return skipped


def _colors(palette: bytes) -> list[Color]:
    return [(r, g, b) for r, g, b in zip(*[iter(palette)] * 3, strict=True)]


def _find_classes(
    arrays: Sequence[Array], names: Sequence[str], source: str, palette: bytes, most_classes: int
) -> Classes:
    values: set[int] = set()
    for array, name in zip(arrays, names, strict=True):
        values.update(distinct(array, most_classes))
        if len(values) > most_classes:
            raise DataError(
                f"{source}: {len(values)} different values up to {name}, but at most {most_classes} are supported"
            )
    ordered = tuple(int(value) for value in sorted(values))
    colors = _colors(palette)
    if colors and ordered[0] >= 0 and ordered[-1] < len(colors):
        return Classes(ordered, colors=tuple(colors[value] for value in ordered))
    return Classes(ordered)
