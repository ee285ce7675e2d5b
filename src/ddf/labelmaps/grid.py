"""Detect upsampled maps, so that they can be coded at their original size."""

__all__ = ["Grid", "find_grid"]

from dataclasses import dataclass
from math import gcd

import numpy as np

from ddf.lazy import lazy
from ddf.shapes import Array

_CHUNK = 1 << 17  # pixels compared at once


@dataclass(frozen=True)
class Grid:
    """A partition of a map into rectangular cells of equal pixels.

    Arguments:
        size: Height and width of the map.
        steps: Height and width of a cell.
        starts: Height and width of the first cell if it is smaller than the others, else 0.
    """

    size: tuple[int, int]
    steps: tuple[int, int] = (1, 1)
    starts: tuple[int, int] = (0, 0)

    @property
    def is_trivial(self) -> bool:
        """Whether every pixel is a cell."""
        return self.steps == (1, 1)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The grid as four integers; `from_numbers` needs these and the size."""
        return (self.steps[0] - 1, self.steps[1] - 1, *self.starts)

    @classmethod
    def from_numbers(cls, size: tuple[int, int], numbers: list[int]) -> "Grid":
        """Create a grid from `numbers`; clamp steps and starts to the size."""
        rows, columns, top, left = (min(n, max(size)) for n in numbers)
        return cls(size, (rows + 1, columns + 1), (min(top, rows), min(left, columns)))

    @lazy
    def _cells(self) -> tuple[Array, Array]:
        """The index of the cell of each row and of each column."""
        found = []
        for size, step, start in zip(self.size, self.steps, self.starts, strict=True):
            found.append((np.arange(size) - start + step * (start > 0)) // step)
        return found[0], found[1]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns of cells."""
        rows, columns = self._cells
        return int(rows[-1]) + 1, int(columns[-1]) + 1

    def reduce(self, one: Array) -> Array:
        """Return the map of cells: one pixel of each cell."""
        if self.is_trivial:
            return one
        rows, columns = (np.flatnonzero(np.diff(cells, prepend=-1)) for cells in self._cells)
        return one[np.ix_(rows, columns)]

    def expand(self, cells: Array) -> Array:
        """Return the full-size map for a map of cells."""
        return cells[np.ix_(*self._cells)]


def find_grid(array: Array) -> Grid:
    """Find the grid with the largest cells that fits all maps of an array (…, height, width).

    Examples:
        >>> find_grid(np.kron(np.eye(3, dtype=np.uint8), np.ones((2, 4), np.uint8)))
        Grid(size=(6, 12), steps=(2, 4), starts=(0, 0))
    """
    maps = array.reshape(-1, *array.shape[-2:])
    found = []
    for axis in (1, 2):
        size = array.shape[axis - 3]
        step, start = 0, -1
        changes = _changes(maps, axis)
        if len(changes):
            start = int(changes[0])
            for place in changes[1:]:
                step = gcd(step, int(place) - start)
                if step == 1:
                    break
            step = step or size
            found.append((min(step, size), start % step if step < size or start < step else start))
        else:
            found.append((size, 0))
    (rows, top), (columns, left) = found
    if rows == 1 or columns == 1:
        return Grid(_size(array))
    return Grid(_size(array), (rows, columns), (top, left))


def _size(array: Array) -> tuple[int, int]:
    return array.shape[-2], array.shape[-1]


def _changes(maps: Array, axis: int) -> Array:
    """Return the rows or columns that differ from the previous one in any map; stop at the first two in succession."""
    size = maps.shape[axis]
    step = max(1, _CHUNK * size // max(1, maps.size))  # rows or columns that are compared at once
    found: list[Array] = []
    for start in range(1, size, step):
        end = min(start + step, size)
        now, before = (
            (maps[:, start:end], maps[:, start - 1 : end - 1])
            if axis == 1
            else (maps[:, :, start:end], maps[:, :, start - 1 : end - 1])
        )
        places = np.flatnonzero((now != before).any(axis=(0, 3 - axis))) + start
        if found and len(places) and found[-1][-1] == places[0] - 1:
            return np.concatenate([*found, places])
        if (np.diff(places) == 1).any():
            return np.concatenate([*found, places])
        if len(places):
            found.append(places)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
