"""The arrays that the kernel works on: fixed parameters, adaptive state, trace, and scratch memory."""

__all__ = ["Nets", "Scratch", "State", "Trace", "new_scratch"]

from typing import NamedTuple

import numpy as np

from ddf.labelmaps.context import CANDIDATES, FLAT_TABLES, PAD, RUNS
from ddf.shapes import Array

GAPS, NEXT_GAPS = 64, 6
"""Number of bins for the gap between a logit and the next smaller one, and for the gap after that."""
DECISIONS = 3  # separate counters for ranks 0, 1, and 2 or more
CONFIDENCE = 4
MIXED = 4  # number of inputs of a mixer
FLAT_BINS = 64
NO_CANDIDATE = 255
"""The index of symbols that are not candidates."""


class Nets(NamedTuple):
    """The fixed parameters of a model, in the form that the kernel expects.

    Arguments:
        pairs: First-layer weights for pairs of relative labels (pixels / 2, 49, hidden), int16.
        runs: First-layer weights for run lengths (6, bins, hidden), int16.
        classes: First-layer weights for the classes of the first candidates (candidates, classes + 1, hidden), int16.
        rows: First-layer weights for the vertical position (bins, hidden), int16; if empty, the position is not used.
        bias: First-layer bias (hidden,), int16.
        second, second_bias, third, third_bias: Weights (in, out) and biases of the other layers: integers, as float32.
        shifts: Number of bits by which sums are shifted right, for each layer.
        flat: Concatenated tables whose entries add up to the score of a flat pixel, int16.
        flat_classes: Table for class and vertical position (classes + 1, bins), int16.
    """

    pairs: Array
    runs: Array
    classes: Array
    rows: Array
    bias: Array
    second: Array
    second_bias: Array
    third: Array
    third_bias: Array
    shifts: Array
    flat: Array
    flat_classes: Array


class State(NamedTuple):
    """The adaptive state of the coder.

    Arguments:
        ranks: Counters for ranks, by decision and margins.
        flat: Counters for flat pixels, by score.
        local: Counters for ranks, by the nearest symbols; empty at the beginning of an array: (2, a power of two).
        weights: Weights of the mixers, by decision and confidence.
        escapes: Weights of escaped symbols, by the symbol to the left (symbols + 1, symbols), where the last row is for
            `outside`; (0, 0) to use `seen` instead.
        seen: Weight of each symbol as an escape; 0 if it has not occurred as one.
        fresh: Two counters: whether an escape is a new symbol, and whether it is the lowest new symbol.
    """

    ranks: Array
    flat: Array
    local: Array
    weights: Array
    escapes: Array
    seen: Array
    fresh: Array


class Trace(NamedTuple):
    """A record of how each pixel was coded; empty arrays are not written.

    Arguments:
        bits: Number of bits.
        ranks: Rank.
        margins: Margin between the best and the second-best option, in units of 1/256 nat.
    """

    bits: Array
    ranks: Array
    margins: Array


class Scratch(NamedTuple):
    """Preallocated work space, because compiled code does not allocate memory."""

    index: Array
    candidates: Array
    relative: Array
    places: Array
    runs: Array
    near: Array
    first: Array
    active: Array
    second: Array
    logits: Array
    order: Array
    ordered: Array
    inputs: Array
    escape: Array


def new_scratch(symbols: int, offsets: Array, width: int, hidden: tuple[int, int] = (0, 0)) -> Scratch:
    """Allocate the work space for maps with the given number of symbols and width."""
    return Scratch(
        np.full(symbols + 1, NO_CANDIDATE, np.uint8),
        np.zeros(CANDIDATES + 1, np.int64),
        np.zeros(len(offsets), np.uint8),
        np.zeros(FLAT_TABLES, np.int64),
        np.zeros(RUNS, np.int64),
        offsets[:, 0] * (width + 2 * PAD) + offsets[:, 1],
        np.zeros(hidden[0], np.int16),
        np.zeros(hidden[0] + 1, np.int64),
        np.zeros(hidden[1], np.float32),
        np.zeros(8, np.float32),
        np.zeros(CANDIDATES + 1, np.int64),
        np.zeros(CANDIDATES + 3, np.int64),
        np.zeros(MIXED, np.int64),
        np.zeros(symbols, np.int64),
    )
