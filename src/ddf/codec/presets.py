"""Codecs for label maps of any size: from maps to an integer flow in one call."""

__all__ = ["PRESETS", "Preset", "maps_in_a_step", "train_codec"]

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.architectures import label_maps
from ddf.codec.export import export
from ddf.codec.flow import IntegerFlow
from ddf.data.classes import Classes
from ddf.data.label_maps import MOST_CLASSES, crop
from ddf.data.redrawn import Redrawn
from ddf.spec import FlowSpec
from ddf.training import TrainingConfig, fit

_LEVELS = 7
_LARGEST_PIECE = 512


@dataclass(frozen=True)
class Preset:
    """How large the nets of a codec are.

    Arguments:
        pixels: How many pixels a net looks at.
        near: How many of them must be of one class for it not to be asked.
        hidden: The widths of its hidden layers.
        fine: How many of the finest levels are coded in twelve steps rather than three.
    """

    pixels: int
    near: int
    hidden: tuple[int, ...]
    fine: int = 0

    def flow(self, num_classes: int, levels: int = _LEVELS) -> FlowSpec:
        """The flow for so many classes."""
        fine = max(0, min(self.fine, levels - 1))
        return label_maps(num_classes, levels, self.pixels, self.near, self.hidden, fine)


PRESETS = {
    "fast": Preset(pixels=24, near=16, hidden=(64, 48)),
    "best": Preset(pixels=48, near=24, hidden=(192, 96), fine=2),
}
"""The codecs for label maps, by name."""

_TRAINING = TrainingConfig(learning_rate=2e-3, cosine=True, ema=0.999, warmup_steps=50)
_FINE_TUNING = replace(_TRAINING, learning_rate=3e-4, ema=None)
_GPU_BATCH = 8  # maps, which take a GPU hardly longer than one


def train_codec(
    maps: Sequence[np.ndarray[Any, Any]],
    preset: str | Preset = "fast",
    validation: Sequence[np.ndarray[Any, Any]] | None = None,
    classes: Classes | None = None,
    mirrored: bool = False,
    steps: int = 4400,
    batch_size: int | None = None,
    run: str | PathLike[str] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> IntegerFlow:
    """Trains a codec for label maps such as these.

    Arguments:
        maps: Label maps (height, width) of any integers and any sizes.
        preset: The name of a preset, or one's own.
        validation: Maps to validate on; else a tenth of `maps` is held out.
        classes: What the integers are; found in the maps if None is said. Maps with others are still coded, but by a
            general compressor.
        mirrored: Whether a map mirrored left to right is as likely as the map itself: then both are trained on.
        steps: How many steps every net is trained for at least.
        batch_size: How many maps there are in a step; None for one, or eight on a GPU.
        run: A directory to keep everything in, in which an interrupted training goes on; see `fit`.
        device: Where to train.
        progress: Whether to show progress; None for: on a terminal.

    Examples:
        >>> maps = [np.kron(np.eye(8, dtype=np.uint8), np.full((8, 8), 7, np.uint8)) for _ in range(10)]
        >>> model = train_codec(maps, Preset(pixels=6, near=4, hidden=(8,)), steps=50)
        >>> from ddf.codec import compress, decompress
        >>> len(compress(maps[0], model)), maps[0].nbytes
        (..., 4096)
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r}, but it must be one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    elif not isinstance(preset, Preset):
        raise TypeError(f"preset={preset!r}, but it must be a Preset or one of {', '.join(PRESETS)}")
    batch_size = maps_in_a_step(device) if batch_size is None else batch_size
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}, but it must be a positive integer")
    maps = [np.asarray(part) for part in maps]
    held_out = [np.asarray(part) for part in (() if validation is None else validation)]
    for part in (*maps, *held_out):
        if part.ndim != 2 or 0 in part.shape or part.dtype.kind not in "iub":
            raise ValueError(
                f"a codec is trained on arrays (height, width) of integers, not on {part.dtype} of shape {part.shape}"
            )
    if len(maps) < 2:
        raise ValueError(f"a codec is trained on at least two label maps, not on {len(maps)}")
    if classes is None:
        values = sorted({int(value) for part in (*maps, *held_out) for value in np.unique(part)})
        if len(values) > MOST_CLASSES:
            raise ValueError(
                f"the maps hold {len(values)} different values, but a codec is for at most {MOST_CLASSES} classes; are "
                "these label maps?"
            )
        classes = Classes(tuple(values))
    if not held_out:
        every = max(2, min(10, len(maps)))
        held_out, maps = maps[every - 1 :: every], [part for i, part in enumerate(maps) if i % every != every - 1]
    height, width = (min(part.shape[axis] for part in (*maps, *held_out)) for axis in (0, 1))
    levels = max(1, min(_LEVELS, min(height, width).bit_length() - 1))
    cell = 1 << levels
    if min(height, width) < 2:
        raise ValueError(f"maps of {height} × {width} are too small to train a codec on")
    size = tuple(max(cell, min(side, _LARGEST_PIECE) // cell * cell) for side in (height, width))
    pieces = _pieces([classes.to_symbols(part) for part in maps], (size[0], size[1]), mirrored)
    middle = np.stack([_middle(classes.to_symbols(part), (size[0], size[1])) for part in held_out])[:, None]
    flow = preset.flow(classes.num_classes, levels).build(seed=0)
    flow.classes = classes
    batch_size = min(batch_size, len(maps))
    epochs = max(1, ceil(steps / (len(maps) // batch_size)))
    draws = min(8, epochs)
    folder = None if run is None else Path(run)
    config = replace(_for_batches(_TRAINING, batch_size), max_epochs=epochs, patience=epochs, draws=draws)
    where = None if folder is None else folder / "float"
    fit(flow, pieces, middle, config, run=where, device=device, progress=progress)
    epochs = max(1, epochs // 8)
    config = replace(_for_batches(_FINE_TUNING, batch_size), max_epochs=epochs, patience=epochs)
    config = replace(config, draws=min(draws, epochs))
    where = None if folder is None else folder / "integer"
    model = export(flow, pieces, middle, config, run=where, device=device, progress=progress)
    if folder is not None:
        model.save(folder / "model.safetensors")
    return model


def maps_in_a_step(device: torch.device | str | None = None) -> int:
    """How many maps a codec is trained on at a time if nobody says; on a GPU more, if that is the device."""
    on_gpu = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    return _GPU_BATCH if on_gpu else 1


def _for_batches(config: TrainingConfig, batch_size: int) -> TrainingConfig:
    """Settings for batches of one, for larger ones: less noise allows for longer steps."""
    return replace(config, batch_size=batch_size, learning_rate=config.learning_rate * batch_size**0.5)


def _pieces(maps: Sequence[np.ndarray[Any, Any]], size: tuple[int, int], mirrored: bool) -> Redrawn:
    plain = crop(maps, size)
    if not mirrored:
        return plain

    def draw_mirrored(index: Tensor, generator: torch.Generator) -> Tensor:
        pieces = plain.draw(index, generator)
        turned = torch.rand(len(pieces), generator=generator) < 0.5
        return torch.where(turned.view(-1, 1, 1, 1), pieces.flip(-1), pieces)

    return Redrawn(plain.stored, draw_mirrored, shape=plain.shape)


def _middle(part: np.ndarray[Any, Any], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    row, column = ((side - wanted) // 2 for side, wanted in zip(part.shape, size, strict=True))
    return part[row : row + size[0], column : column + size[1]]
