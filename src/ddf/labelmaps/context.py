"""What a pixel is predicted from: the pixels before it in raster order, as relative labels, and run lengths.

Around a map, its outermost pixels are repeated. Above the first row there is nothing: every pixel there is `outside`.
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

from typing import NamedTuple

import numpy as np

from ddf.labelmaps.compiling import jit
from ddf.labelmaps.types import Array

CANDIDATES = 5
"""At most this many classes of the context are candidates for the pixel."""

OTHER, OUTSIDE = CANDIDATES, CANDIDATES + 1
RELATIVE = CANDIDATES + 2
"""How many relative labels there are: candidates, another class, outside."""

PAD = 16
"""Repeated pixels left and right of every row."""

HISTORY = 16
"""Rows above the present one that are kept."""

ROWS = 128  # rows of the ring; the last `HISTORY` move to its beginning when it is full
RUNS = 6
LONGEST = 255


def offsets(count: int) -> Array:
    """Return the `count` nearest pixels before a pixel, nearest first: (count, 2), rows down and columns right.

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
"""The bin of each run length for the net."""
NET_RUN_VALUES = int(RUN_BINS.max()) + 1

RUN_BINS_FINE = _bins([*range(2, 17), 20, 24, 32, 48, 64, 128, 255])
RUN_BINS_COARSE = _bins([3, 5, 8, 12, 20, 40, 255])
FAR = 4  # rows up, and twice that, where flat places look for a run that ends 8 columns to the right
FINE = int(RUN_BINS_FINE.max()) + 1
FLAT_TABLES = 11
"""How many tables add up to the score of a flat place."""
FLAT_ENTRIES = 4 * 512 + 64 + RUNS * FINE
"""The entries of all these tables."""


class Ring(NamedTuple):
    """The last rows of a map, padded, with the lengths of the runs that end in each of their pixels.

    Arguments:
        symbols: The symbols.
        left, right: Pixels of the same symbol to the left and right, the pixel included.
        up, up_left, up_right: The same upwards and along the diagonals.
        row: One number: the row that is being coded.
    """

    symbols: Array
    left: Array
    right: Array
    up: Array
    up_left: Array
    up_right: Array
    row: Array


def new_ring(width: int) -> Ring:
    """Make room for the rows of a map."""
    shape = (ROWS, width + 2 * PAD)
    return Ring(np.zeros(shape, np.uint16), *(np.zeros(shape, np.uint8) for _ in range(5)), np.zeros(1, np.int64))


@jit
def start_map(ring: Ring, outside: int) -> None:
    """Forget all rows."""
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
    """Return the row of the ring where the next row of the map goes, with its left edge repeated from above."""
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
    """Repeat the edges of a row that is coded and measure its runs; the first row is also repeated upwards."""
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
    """Whether the ten nearest pixels are of one class: two to the left, five above, three above those.

    Arguments:
        symbols, left: The ring's, flattened.
        at: The place of the pixel in them.
        stride: The length of a row.
        run: Pixels of the same symbol to the left.
        outside: The symbol of pixels above the first row.
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
