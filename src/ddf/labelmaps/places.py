"""Training data: the contexts and targets of the pixels of label maps."""

__all__ = ["Places", "collect"]

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddf.labelmaps.context import FLAT_TABLES, NET_RUN_VALUES, RELATIVE, RUNS, new_ring, offsets, start_map
from ddf.labelmaps.kernel import collect_rows
from ddf.labelmaps.state import new_scratch
from ddf.shapes import Array

ROW_BINS = 32
_MOST_BUSY = 30_000_000  # maximum number of training examples
_MOST_FLAT = 4_000_000


class Places(NamedTuple):
    """Training examples from the busy and flat pixels of maps.

    Arguments:
        busy: Inputs of the net for each busy pixel (pixels, inputs), uint8.
        counts: Number of candidates of each busy pixel.
        targets: Index of the correct candidate of each busy pixel, or `OTHER`.
        changed: Flat pixels that differ from their neighbors: indices into the tables (pixels, 12), int16.
        kept: Flat pixels that equal their neighbors: a random sample of one in `every`, in the same form.
        every: The sampling interval of `kept`.
    """

    busy: Array
    counts: Array
    targets: Array
    changed: Array
    kept: Array
    every: int


def input_sizes(pixels: int, classes: int, shown: int) -> list[int]:
    """Return the number of possible values of each input of the net."""
    sizes = [RELATIVE] * pixels + [NET_RUN_VALUES] * RUNS
    return sizes + ([classes + 1] * shown + [ROW_BINS] if classes else [])


def collect(maps: Sequence[Array], pixels: int, classes: int, shown: int, seed: int = 0) -> Places:
    """Collect training examples from maps of symbols (uint16).

    Arguments:
        maps: The maps.
        pixels: Number of pixels in the context.
        classes: Number of known classes; 0 for a model that accepts any labels.
        shown: Number of candidates whose class is an input of the net.
        seed: Random seed for subsampling if there are too many examples.
    """
    shown = shown if classes else 0
    bins = ROW_BINS if classes else 1
    where = offsets(pixels)
    width = pixels + RUNS + shown + 3
    total = sum(one.size for one in maps)
    every = 1 + total // _MOST_FLAT
    busy, flat = [], []
    for one in maps:
        symbols = classes or int(one.max()) + 1
        known = np.arange(symbols + 1) if classes else np.zeros(symbols + 1, np.int64)
        rows = np.empty((one.size, width), np.uint8)
        entries = np.empty((one.size, FLAT_TABLES + 2), np.int16)
        ring = new_ring(one.shape[1])
        start_map(ring, symbols)
        n, m = collect_rows(
            one, one.shape[0], known, shown, classes, bins, ring, new_scratch(symbols, where, one.shape[1]),
            rows, entries, every,
        )  # fmt: skip
        busy.append(rows[:n].copy())
        flat.append(entries[:m].copy())
    count = sum(map(len, busy))
    if count > _MOST_BUSY:
        rng = np.random.default_rng(seed)
        busy = [rows[rng.random(len(rows)) < _MOST_BUSY / count] for rows in busy]
    rows, entries = np.concatenate(busy), np.concatenate(flat)
    unchanged = entries[:, -1] != 0
    inputs = rows[:, : width - 3 + bool(classes)]
    return Places(inputs, rows[:, -2], rows[:, -1], entries[~unchanged, :-1], entries[unchanged, :-1], every)
