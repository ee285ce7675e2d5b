"""The context of a pixel: the preceding pixels in raster order, as relative labels, and run lengths.

The outermost pixels of a map are repeated beyond its edges. While the first row is coded, all pixels above it have the
symbol `outside`.
"""

__all__ = [
    "CANDIDATES",
    "FAR",
    "FINE",
    "FLAT_ENTRIES",
    "FLAT_TABLES",
    "HISTORY",
    "LONGEST",
    "NET_RUN_VALUES",
    "OTHER",
    "OUTSIDE",
    "PAD",
    "RELATIVE",
    "ROWS",
    "RUNS",
    "RUN_BINS",
    "RUN_BINS_COARSE",
    "RUN_BINS_FINE",
    "Ring",
    "finish_row",
    "is_flat",
    "new_ring",
    "offsets",
    "start_map",
    "start_row",
]

from functools import cache
from typing import NamedTuple

import numpy as np

from ddf.labelmaps.compiling import jit
from ddf.shapes import Array

CANDIDATES = 5
"""Maximum number of candidates: distinct symbols of the context, one of which the pixel is likely to have."""

OTHER, OUTSIDE = CANDIDATES, CANDIDATES + 1
RELATIVE = CANDIDATES + 2
"""Number of relative labels: the candidates, `OTHER` and `OUTSIDE`."""

PAD = 16
"""Number of padding pixels to the left and right of every row."""

HISTORY = 16
"""Number of rows kept above the current one."""

ROWS = 128  # rows in the ring; when it is full, the last `HISTORY` rows move to the beginning
RUNS = 6
LONGEST = 255


@cache
def offsets(count: int) -> Array:
    """Return the offsets of the `count` nearest preceding pixels, nearest first: (count, 2), as (row, column).

    Examples:
        >>> offsets(4).tolist()
        [[-1, 0], [0, -1], [-1, -1], [-1, 1]]
    """
    near = [
        (y * y + x * x, y == 0, y, x) for y in range(-HISTORY + 1, 1) for x in range(-PAD + 1, PAD) if y < 0 or x < 0
    ]
    return np.array([(y, x) for _, _, y, x in sorted(near)[:count]], dtype=np.int64)


def _bins(edges: list[int]) -> Array:
    return np.digitize(np.arange(LONGEST + 1), edges).astype(np.uint8)


RUN_BINS = _bins([*range(2, 14), 16, 20, 28, 44, 76, 160, 255])
"""The bin of each run length, for the net."""
NET_RUN_VALUES = int(RUN_BINS.max()) + 1

RUN_BINS_FINE = _bins([*range(2, 17), 20, 24, 32, 48, 64, 128, 255])
RUN_BINS_COARSE = _bins([3, 5, 8, 12, 20, 40, 255])
FAR = 4  # for flat pixels, runs are also measured this many rows up, and twice as many, 8 columns to the right
FINE = int(RUN_BINS_FINE.max()) + 1
FLAT_TABLES = 11
"""Number of tables whose entries add up to the score of a flat pixel."""
FLAT_ENTRIES = 4 * 512 + 64 + RUNS * FINE
"""Total number of entries in these tables."""


class Ring(NamedTuple):
    """The most recent rows of a map, padded, with run lengths for each pixel.

    Arguments:
        symbols: The symbols.
        left, right: Lengths of the runs of equal symbols to the left and right, including the pixel itself.
        up, up_left, up_right: The same, upward and along the diagonals.
        row: The index of the row being coded, as an array of one element.
    """

    symbols: Array
    left: Array
    right: Array
    up: Array
    up_left: Array
    up_right: Array
    row: Array


def new_ring(width: int) -> Ring:
    """Allocate a ring for maps of the given width."""
    shape = (ROWS, width + 2 * PAD)
    return Ring(np.zeros(shape, np.uint16), *(np.zeros(shape, np.uint8) for _ in range(5)), np.zeros(1, np.int64))


@jit
def start_map(ring: Ring, outside: int) -> None:
    """Reset the ring for a new map."""
    for y in range(HISTORY):
        for x in range(ring.symbols.shape[1]):
            ring.symbols[y, x] = outside
            ring.left[y, x] = 1
            ring.right[y, x] = 1
            ring.up[y, x] = 1
            ring.up_left[y, x] = 1
            ring.up_right[y, x] = 1
    ring.row[0] = HISTORY


@jit
def start_row(ring: Ring) -> int:
    """Return the ring's index for the next row of the map, and pad its left edge from the row above."""
    y = ring.row[0]
    if y == ROWS:
        y = HISTORY
        for i in range(HISTORY):
            for x in range(ring.symbols.shape[1]):
                ring.symbols[i, x] = ring.symbols[ROWS - HISTORY + i, x]
                ring.left[i, x] = ring.left[ROWS - HISTORY + i, x]
        for x in range(ring.symbols.shape[1]):
            ring.right[y - 1, x] = ring.right[ROWS - 1, x]
            ring.up[y - 1, x] = ring.up[ROWS - 1, x]
            ring.up_left[y - 1, x] = ring.up_left[ROWS - 1, x]
            ring.up_right[y - 1, x] = ring.up_right[ROWS - 1, x]
        ring.row[0] = y
    for x in range(PAD):
        ring.symbols[y, x] = ring.symbols[y - 1, PAD]
    return y


@jit
def finish_row(ring: Ring, width: int, first: bool) -> None:
    """Pad the edges of a coded row and compute its run lengths; also repeat the first row upward."""
    y = ring.row[0]
    row, above = ring.symbols[y], ring.symbols[y - 1]
    end = width + 2 * PAD
    for x in range(PAD):
        row[x] = row[PAD]
        row[PAD + width + x] = row[PAD + width - 1]
    run = LONGEST
    left, right = ring.left[y], ring.right[y]
    left[0] = run
    for x in range(1, end):
        run = min(run + 1, LONGEST) if row[x] == row[x - 1] else 1
        left[x] = run
    run = LONGEST
    right[end - 1] = run
    for x in range(end - 2, -1, -1):
        run = min(run + 1, LONGEST) if row[x] == row[x + 1] else 1
        right[x] = run
    up, up_left, up_right = ring.up[y], ring.up_left[y], ring.up_right[y]
    if first:
        for x in range(end):
            up[x] = LONGEST
            up_left[x] = LONGEST
            up_right[x] = LONGEST
            for i in range(y):
                ring.symbols[i, x] = row[x]
                ring.left[i, x] = left[x]
    else:
        last_up, last_left, last_right = ring.up[y - 1], ring.up_left[y - 1], ring.up_right[y - 1]
        for x in range(1, end - 1):
            up[x] = min(np.int64(last_up[x]) + 1, LONGEST) if row[x] == above[x] else 1
            up_left[x] = min(np.int64(last_left[x - 1]) + 1, LONGEST) if row[x] == above[x - 1] else 1
            up_right[x] = min(np.int64(last_right[x + 1]) + 1, LONGEST) if row[x] == above[x + 1] else 1
        for x in (0, end - 1):
            up[x] = min(np.int64(last_up[x]) + 1, LONGEST) if row[x] == above[x] else 1
            up_left[x] = up[x]
            up_right[x] = up[x]
    ring.row[0] = y + 1


@jit
def is_flat(symbols: Array, left: Array, at: int, stride: int, run: int, outside: int) -> bool:
    """Return whether the ten nearest pixels agree: two to the left, five above, and three above those.

    Arguments:
        symbols, left: The ring's arrays, flattened.
        at: The index of the pixel in these arrays.
        stride: The length of a padded row.
        run: The length of the run that ends to the left of the pixel.
        outside: The symbol of pixels outside the map.
    """
    c = symbols[at - 1]
    above, second = at - stride + 2, at - 2 * stride + 1
    return (
        run >= 2
        and symbols[above] == c
        and left[above] >= 5
        and symbols[second] == c
        and left[second] >= 3
        and c != outside
    )
