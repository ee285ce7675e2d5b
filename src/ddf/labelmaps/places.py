"""Training data: what every pixel of some maps is predicted from."""

__all__ = ["Places", "collect"]

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddf.labelmaps.context import FLAT_TABLES, NET_RUN_VALUES, RELATIVE, RUNS, new_ring, offsets, start_map
from ddf.labelmaps.kernel import collect_rows, new_scratch
from ddf.labelmaps.types import Array

ROW_BINS = 32
_MOST_BUSY = 30_000_000  # places of training
_MOST_FLAT = 4_000_000


class Places(NamedTuple):
    """Busy and flat places of some maps.

    Arguments:
        busy: Rows of values of the net's inputs (places, inputs), uint8.
        counts: How many candidates each busy place has.
        targets: Which candidate it is, or `OTHER`.
        changed: Flat places that are of another class than their neighbors: rows of entries of the tables (places, 12),
            int16.
        kept: One in `every` of those that are not, at random.
        every: See `kept`.
    """

    busy: Array
    counts: Array
    targets: Array
    changed: Array
    kept: Array
    every: int


def input_sizes(pixels: int, classes: int, shown: int) -> list[int]:
    """Return how many values each input of the net has."""
    sizes = [RELATIVE] * pixels + [NET_RUN_VALUES] * RUNS
    return sizes + ([classes + 1] * shown + [ROW_BINS] if classes else [])


def collect(maps: Sequence[Array], pixels: int, classes: int, shown: int, seed: int = 0) -> Places:
    """Collect the places of maps of symbols, uint16.

    Arguments:
        maps: The maps.
        pixels: Pixels of the context.
        classes: How many classes the model knows; 0 if it takes labels as they come.
        shown: How many candidates show their class.
        seed: Chooses the places that are used if there are too many.
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
