"""Train a causal flow on label maps. Needs torch."""

__all__ = ["train"]

import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddf.classes import Classes
from ddf.labelmaps.arithmetic import COUNT_BITS, PROBABILITY_BITS
from ddf.labelmaps.busy_net import quantize, train_net
from ddf.labelmaps.context import FLAT_ENTRIES, FLAT_TABLES
from ddf.labelmaps.labels import MOST_LABELS
from ddf.labelmaps.model import CausalFlow
from ddf.labelmaps.places import ROW_BINS, Places, collect, input_sizes
from ddf.labelmaps.presets import PRESETS, Preset
from ddf.labelmaps.state import CONFIDENCE, DECISIONS, FLAT_BINS, GAPS, MIXED, NEXT_GAPS
from ddf.shapes import Array

SETTINGS = np.array([1023, 127, 1023, 12, 32], dtype=np.int64)
SETTINGS_ANY = np.array([1023, 127, 1023, 40, 32], dtype=np.int64)  # mixers learn faster: maps differ more
_UNIT = 256  # tables are in units of 1/256 nat
_FLAT_RATE = 2e-2
MOST_KNOWN = 254
"""Maximum number of known classes of a model; the maps that it codes may have more labels."""


def fit_flat(places: Places, classes: int, seed: int, steps: int = 3000, batch: int = 8192) -> tuple[Array, Array]:
    """Fit the tables for flat pixels by logistic regression: the log-odds of a change, in units of 1/256 nat."""
    bins = ROW_BINS if classes else 1
    own = (classes + 1) * bins
    tables = torch.zeros(FLAT_ENTRIES + own)
    generator = torch.Generator().manual_seed(seed)
    changed, kept = (torch.from_numpy(part.astype(np.int64)) for part in (places.changed, places.kept))
    if len(changed) and len(kept):
        total = len(changed) + len(kept) * places.every
        tables[FLAT_ENTRIES:] = float(np.log(len(changed) / (total - len(changed))))
        parameters = nn.Parameter(tables)
        optimizer = torch.optim.Adam([parameters], _FLAT_RATE, fused=True)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _FLAT_RATE * (0.5 + 0.5 * np.cos(np.pi * step / steps)) + 1e-5
            losses = []
            for part, sign, times, size in ((changed, -1, 1, batch // 4), (kept, 1, places.every, batch)):
                drawn = part[torch.randint(len(part), (size,), generator=generator)]
                drawn[:, FLAT_TABLES] += FLAT_ENTRIES
                odds = parameters[drawn].sum(1)
                losses.append(F.softplus(sign * odds).mean() * (len(part) * times / total))
            optimizer.zero_grad()
            (20 * (losses[0] + losses[1])).backward()
            optimizer.step()
        tables = parameters.detach()
    scaled = (tables * _UNIT).round().clamp(-32000, 32000).to(torch.int16).numpy()
    return scaled[:FLAT_ENTRIES], scaled[FLAT_ENTRIES:].reshape(classes + 1, bins)


def untrained_tables(classes: int) -> dict[str, Array]:
    """Return the counters and weights before priming."""
    half = 1 << (PROBABILITY_BITS - 1 + COUNT_BITS)
    weights = np.full((DECISIONS * CONFIDENCE * CONFIDENCE, MIXED), 20000, np.int32)
    weights[:, MIXED - 1] = 0
    bins = np.arange(FLAT_BINS)
    odds = 1 / (1 + np.exp(-(48 - bins - 0.5) / 4))
    flat = (odds * (1 << PROBABILITY_BITS)).astype(np.int64).clip(64, (1 << PROBABILITY_BITS) - 64)
    return {
        "ranks": np.full(DECISIONS * GAPS * NEXT_GAPS, half, np.uint32),
        "flat_counters": (flat << COUNT_BITS | 2).astype(np.uint32),
        "weights": weights,
        "escapes": np.ones((classes + 1, classes), np.uint16),
        "settings": SETTINGS if classes else SETTINGS_ANY,
    }


def prime(model: CausalFlow, maps: Sequence[Array]) -> CausalFlow:
    """Return the model with its counters and mixers as they are after coding the given maps."""
    arrays = dict(model.arrays)
    for one in maps:
        state = CausalFlow(arrays, model.classes).learn(one)
        arrays["ranks"], arrays["flat_counters"] = state.ranks, state.flat
        arrays["weights"] = state.weights.astype(np.int32)
        if model.num_classes:
            arrays["escapes"] = state.escapes.astype(np.uint16)
    return CausalFlow(arrays, model.classes, model.about)


def train(
    maps: Sequence[Array],
    preset: str | Preset = "fast",
    classes: Classes | None = None,
    mirrored: bool = False,
    steps: int | None = None,
    seed: int = 0,
    run: str | PathLike[str] | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> CausalFlow:
    """Train a causal flow on label maps.

    Arguments:
        maps: Maps of labels (height, width), of any size.
        preset: A name in `PRESETS`, or a `Preset`.
        classes: The classes of the labels, which lets the model learn the characteristics of each class. None for a
            model that accepts any labels.
        mirrored: Whether to also train on mirrored maps. Use this if a mirrored map is as likely as the original.
        steps: Number of training steps (default: that of the preset).
        seed: Random seed.
        run: A directory for checkpoints, from which interrupted training resumes; None for no checkpoints.
        device: The device to train the net on.
        progress: Whether to show progress; None for the default, True.

    Returns:
        The trained model.

    Examples:
        >>> stripes = [np.where(np.add.outer(range(40 + i), range(64)) % 16 < 8, 3, 255) for i in range(8)]
        >>> model = train(stripes, steps=20, progress=False)  # far too few, but this is an example
        >>> np.array_equal(model.decompress(model.compress(stripes[0]), stripes[0].shape, stripes[0].dtype), stripes[0])
        True
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r} does not exist; choose one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    preset = preset if steps is None else replace(preset, steps=steps)
    if not len(maps) or any(one.ndim != 2 or not one.size or one.dtype.kind not in "iub" for one in maps):
        raise ValueError("training needs at least one map; every map must be a nonempty integer array (height, width)")
    if classes is not None and classes.num_classes > MOST_KNOWN:
        raise ValueError(f"{classes.num_classes} classes, but at most {MOST_KNOWN} are supported; pass classes=None")
    shown = progress is not False
    known = 0 if classes is None else classes.num_classes
    symbols = [_symbols(one, classes) for one in maps]
    both = [*symbols, *(np.ascontiguousarray(one[:, ::-1]) for one in symbols)] if mirrored else symbols
    places = collect(both, preset.pixels, known, preset.shown, seed)
    if not len(places.busy):
        raise ValueError("the maps have no borders, so there is nothing to learn")
    pixels = sum(one.size for one in symbols)
    if shown:
        busy = f"{len(places.busy):,} busy pixels to learn from"
        print(f"{len(maps):,} maps, {pixels:,} pixels; {busy}", file=sys.stderr, flush=True)
    keep = None
    if run is not None:
        Path(run).mkdir(parents=True, exist_ok=True)
        made_of = (preset, known, mirrored, seed, zlib.crc32(places.busy.tobytes()))
        keep = Path(run) / f"state-{zlib.crc32(repr(made_of).encode()):08x}.safetensors"
    sizes = input_sizes(preset.pixels, known, preset.shown)
    net = train_net(places, sizes, preset, seed, device, shown, keep)
    arrays = quantize(net, places, preset, known)
    if shown:
        print("fitting the tables", file=sys.stderr, flush=True)
    arrays["flat"], arrays["flat_classes"] = fit_flat(places, known, seed)
    model = CausalFlow(arrays | untrained_tables(known), classes)
    model = prime(model, [one if classes is None else classes.to_values(one) for one in symbols])
    if keep is not None:
        keep.unlink(missing_ok=True)
    return model


def _symbols(one: Array, classes: Classes | None) -> Array:
    if classes is not None:
        return classes.to_symbols(one).astype(np.uint16)
    labels, symbols = np.unique(one, return_inverse=True)
    if len(labels) > MOST_LABELS:
        raise ValueError(f"a map has {len(labels):,} labels, but at most {MOST_LABELS:,} are supported")
    return symbols.reshape(one.shape).astype(np.uint16)
