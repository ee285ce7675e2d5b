"""A user's own label maps: folders of images, and arrays."""

__all__ = ["MOST_CLASSES", "LabelMaps", "crop", "read_label_maps", "shares_of"]

import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes, Color
from ddf.data.dataset import Data, DataError, DataSet
from ddf.data.redrawn import Redrawn

Array = np.ndarray[Any, Any]

MOST_CLASSES = 256
_CHUNK = 1 << 20
_IMAGES = (".png", ".tif", ".tiff", ".gif")
_ONE_CHANNEL = {"1": "one bit", "P": "palette", "L": "grey", "I": "grey, 32 bits", "I;16": "grey, 16 bits"}


@dataclass(frozen=True)
class LabelMaps:
    """Label maps as they were found, in symbols.

    Arguments:
        name: Where they come from.
        maps: Symbols (height, width), or (channels, height, width), or (columns,), of each. Sizes may differ.
        names: The name of each.
        classes: What the symbols stand for.
        skipped: What was left out, and why, a line for each.
        splits: The split that each belongs to, where the files say so: folders or arrays called train…, val… and test….
    """

    name: str
    maps: Sequence[Array]
    names: Sequence[str]
    classes: Classes
    skipped: tuple[str, ...] = ()
    splits: Sequence[str] = ()

    @property
    def sizes(self) -> set[tuple[int, ...]]:
        """The shapes that occur."""
        return {part.shape for part in self.maps}

    def data_set(
        self, crop_size: tuple[int, int] | None = None, validation: float = 0.1, test: float = 0.1, seed: int = 0
    ) -> DataSet:
        """Shares the maps out into training, validation and test: as the files say (`splits`), or else by chance.

        Arguments:
            crop_size: Height and width of the pieces to train on: a fresh one of each map at every look, and one drawn
                once of each map to validate or test on. None for whole maps, which must then be of one size.
            validation: The part of the maps to validate on.
            test: The part to test on.
            seed: Draws who goes where, and the pieces to validate and test on.
        """
        if crop_size is None and len(self.sizes) > 1:
            some = ", ".join(" × ".join(map(str, size)) for size in sorted(self.sizes)[:5])
            raise DataError(
                f"{self.name}: the maps have {len(self.sizes)} sizes ({some} …); say crop_size=(height, width)"
            )
        shares = shares_of(len(self.maps), validation, test, seed, self.name)
        if self.splits:
            shares = {
                split: np.flatnonzero(np.array(self.splits) == split) for split in ("train", "validation", "test")
            }
            shares = {split: share for split, share in shares.items() if len(share)}
        splits: dict[str, Data] = {}
        for number, (split, share) in enumerate(shares.items()):
            maps = [self.maps[i] for i in sorted(share)]
            if crop_size is None:
                whole = np.stack(maps)
                splits[split] = whole if whole.ndim != 3 else whole[:, None]
            else:
                pieces = crop(maps, crop_size, name=self.name)
                generator = torch.Generator().manual_seed(len(shares) * seed + number)
                splits[split] = pieces if split == "train" else pieces.draw(torch.from_numpy(pieces.stored), generator)
        return DataSet(self.name, self.classes, splits, self.skipped)


def shares_of(count: int, validation: float, test: float, seed: int, name: str) -> dict[str, Array]:
    """Who is in which split, by chance. A split that is asked for has one sample at least."""
    for what, part in (("validation", validation), ("test", test)):
        if not 0 <= part < 1:
            raise ValueError(f"{what}={part}, but a part of the data is between 0 and 1")
    sizes = {"validation": validation, "test": test}
    counts = {split: max(1, round(part * count)) for split, part in sizes.items() if part}
    left = count - sum(counts.values())
    if left < 1:
        raise DataError(f"{name}: {count} samples are too few for validation={validation} and test={test}")
    order = np.random.default_rng(seed).permutation(count)
    shares = {"train": order[:left]}
    for split, size in counts.items():
        shares[split], left = order[left : left + size], left + size
    return shares


def crop(maps: Sequence[Array], size: tuple[int, int], name: str = "the data") -> Redrawn:
    """Pieces of maps of any size, another one of each map at every look.

    Examples:
        >>> maps = [np.zeros((20, 30), dtype=np.uint8), np.ones((50, 16), dtype=np.uint8)]
        >>> pieces = crop(maps, (16, 16))
        >>> pieces.draw(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 16, 16])
    """
    if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise ValueError(f"a crop of {size!r}, but it must be (height, width), both positive integers")
    for part in maps:
        if part.ndim not in (2, 3) or part.shape[-2] < size[0] or part.shape[-1] < size[1]:
            raise DataError(f"{name}: a map of shape {part.shape} has no piece of {size[0]} × {size[1]}")
    channels = {part.shape[0] if part.ndim == 3 else 1 for part in maps}
    if len(channels) > 1:
        raise DataError(f"{name}: the maps have different numbers of channels: {sorted(channels)}")
    tensors = [torch.from_numpy(np.ascontiguousarray(part)).view(-1, *part.shape[-2:]) for part in maps]

    def draw_pieces(index: Tensor, generator: torch.Generator) -> Tensor:
        pieces = []
        for i in index.tolist():
            whole = tensors[i]
            row, column = (
                int(torch.randint(side - part + 1, (), generator=generator))
                for side, part in zip(whole.shape[1:], size, strict=True)
            )
            pieces.append(whole[:, row : row + size[0], column : column + size[1]])
        return torch.stack(pieces)

    return Redrawn(np.arange(len(maps)), draw_pieces, shape=(channels.pop(), *size))


def read_label_maps(
    source: str | PathLike[str] | Sequence[str | PathLike[str]], most_classes: int = MOST_CLASSES
) -> LabelMaps:
    """Reads label maps, discovers their classes and maps them to 0 … K − 1.

    Arguments:
        source: A folder, searched with its subfolders for PNG, TIFF and GIF images with one channel and for npy files,
            each a map; or one npy or npz file with an array (samples, height, width), (samples, columns) or
            (samples, channels, height, width); or a list of files.
        most_classes: Refuse maps with more classes than this.

    What cannot be used is left out and named in `skipped`; if nothing is left, that is an error.
    """
    if isinstance(source, str | PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}")
        if path.is_file() and path.suffix in (".npy", ".npz"):
            return _from_array_file(path, most_classes)
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        root, name = (path.parent if path.is_file() else path), str(path)
    else:
        files = list({Path(file).resolve(): Path(file) for file in source}.values())
        root, name = Path(), "the files"
    found: dict[str, tuple[str, Array, list[Color]]] = {}
    skipped: list[str] = []
    for file in files:
        label = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
        if file.name.startswith("."):
            continue
        try:
            found[label] = _read_map(file, most_classes)
        except DataError as error:
            skipped.append(f"{label}: {error}")
    kinds = Counter(kind for kind, _, _ in found.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        for label in [label for label, (kind, _, _) in found.items() if kind != usual]:
            skipped.append(f"{label}: is {found.pop(label)[0]}, but most others are {usual}")
    skipped += _other_palettes(found)
    if not found:
        reasons = "".join(f"\n  {line}" for line in skipped[:10])
        raise DataError(f"{name} holds no label map that could be read (PNG, TIFF, GIF, npy){reasons}")
    arrays = [array for _, array, _ in found.values()]
    longest = max((colors for _, _, colors in found.values()), key=len)
    classes = _discover(arrays, list(found), name, longest, most_classes)
    groups = [_split_of(Path(label).parts[0]) if len(Path(label).parts) > 1 else "" for label in found]
    named = groups if "train" in groups and all(groups) else ()
    symbols = [classes.to_symbols(array) for array in arrays]
    return LabelMaps(name, symbols, list(found), classes, tuple(skipped), named)


def _split_of(name: str) -> str:
    """The split that a folder or an array of that name is: `trainannot` is training."""
    for start, split in (("train", "train"), ("val", "validation"), ("test", "test")):
        if name.lower().startswith(start):
            return split
    return ""


def _from_array_file(path: Path, most_classes: int) -> LabelMaps:
    try:
        with path.open("rb") as file:  # which np.load leaves open if the file is damaged
            loaded = np.load(file)
            arrays = {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    skipped = []
    for name in list(arrays):
        if arrays[name].dtype.kind not in "iub" or not 2 <= arrays[name].ndim <= 4 or not arrays[name].size:
            skipped.append(f"{name or path.name}: {arrays[name].dtype} of shape {arrays[name].shape} are no label maps")
            del arrays[name]
    if not arrays:
        raise DataError(f"{path} holds no label maps: " + "; ".join(skipped))
    names = [f"{name or path.stem}[{i}]" for name, array in arrays.items() for i in range(len(array))]
    try:
        maps = [part for array in arrays.values() for part in _integers(array)]
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    classes = _discover(list(arrays.values()), [name or path.name for name in arrays], str(path), [], most_classes)
    groups = [_split_of(name) for name, array in arrays.items() for _ in array]
    named = groups if "train" in groups and all(groups) else ()
    symbols = [classes.to_symbols(part) for part in maps]
    return LabelMaps(str(path), symbols, names, classes, tuple(skipped), named)


def _read_map(path: Path, most_classes: int) -> tuple[str, Array, list[Color]]:
    """The kind of a file, the integers in it, and its palette."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        try:
            array = np.load(path)
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"cannot be read ({error})") from error
        if array.dtype.kind not in "iub" or array.ndim not in (2, 3) or not array.size:
            raise DataError(f"is {array.dtype} of shape {array.shape}, but a map has integers (height, width)")
        return "array", _few_classes(_integers(array), most_classes), []
    if suffix not in _IMAGES:
        raise DataError("is neither PNG, TIFF, GIF nor npy")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.format not in ("PNG", "TIFF", "GIF"):
                raise DataError(f"is a {image.format} file under another name")
            if getattr(image, "n_frames", 1) > 1:
                raise DataError(f"has {image.n_frames} frames, but a map is one")
            mode = "I;16" if image.mode.startswith("I;16") else image.mode
            array = np.asarray(image)
            palette = image.getpalette("RGB") if mode == "P" else None
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read ({error})") from error
    if mode == "RGB" and (array[..., :1] == array).all():
        mode, array = "L", array[..., 0]  # grey, in three equal channels
    if mode not in _ONE_CHANNEL:
        colors = len(np.unique(array.reshape(-1, array.shape[-1]), axis=0)) if array.ndim == 3 else 0
        hint = f" with {colors} colours; label maps have one channel" if colors else ""
        raise DataError(f"is a picture in mode {mode}{hint}")
    colors_of = [(r, g, b) for r, g, b in zip(*[iter(palette or [])] * 3, strict=True)]
    return _ONE_CHANNEL[mode], _few_classes(_integers(array), most_classes), colors_of


def _integers(array: Array) -> Array:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"contains {array.max()}, but values of 63 bits are the largest")
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


def _other_palettes(found: dict[str, tuple[str, Array, list[Color]]]) -> list[str]:
    """Takes out the maps whose palettes give a class another colour than the maps before them do."""
    seen: dict[int, tuple[Color, str]] = {}
    skipped = []
    for label, (_, array, palette) in list(found.items()):
        used = {value: palette[value] for value in distinct(array) if 0 <= value < len(palette)}
        for value, color in used.items():
            other, first = seen.get(value, (color, label))
            if other != color:
                skipped.append(f"{label}: its palette paints {value} as {color}, but {first} paints it as {other}")
                del found[label]
                break
        else:
            seen |= {value: (color, label) for value, color in used.items() if value not in seen}
    return skipped


def _few_classes(array: Array, most_classes: int) -> Array:
    if len(distinct(array, most_classes)) > most_classes:
        raise DataError(f"has more than {most_classes} different values, which is the largest number of classes")
    return array


def _discover(
    arrays: Sequence[Array], names: Sequence[str], source: str, palette: Sequence[Color], most_classes: int
) -> Classes:
    values: set[int] = set()
    for array, name in zip(arrays, names, strict=True):
        values.update(distinct(array, most_classes))
        if len(values) > most_classes:
            raise DataError(
                f"{source}: {name} brings the values to {len(values)}, but at most {most_classes} are supported"
            )
    ordered = tuple(int(value) for value in sorted(values))
    if palette and ordered[0] >= 0 and ordered[-1] < len(palette):
        return Classes(ordered, colors=tuple(palette[value] for value in ordered))
    return Classes(ordered)
