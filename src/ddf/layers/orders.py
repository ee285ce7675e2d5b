"""Orders: which pixel of a map is coded in which step."""

__all__ = ["LatticeOrder", "Order"]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ddf.plain import register

_MOST = 256  # the largest distance


class Order(ABC):
    """Assigns a step to every pixel of a map of any size."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of steps, including step 0; small maps may have no pixels in some of them."""

    @property
    @abstractmethod
    def stride(self) -> int:
        """The pixels of step 0 are those whose row and column are multiples of this number."""

    @abstractmethod
    def steps(self, height: int, width: int) -> Tensor:
        """Return the step of every pixel: (height, width), int64."""


@register
@dataclass(frozen=True)
class LatticeOrder(Order):
    """Refines a lattice of known pixels, from coarse to fine, until it is complete.

    Each level halves the distance d between known pixels: first come the centers of the squares between them, then the
    midpoints of the edges of these squares. A level takes several steps, so that the pixels of a step are far apart and
    carry little information about one another: they are 2 d or `cell` apart, whichever is larger, but at most `stride`.

    Arguments:
        stride: The distance between the pixels of step 0, a power of two.
        cell: The minimum distance between the pixels of a step, a power of two.

    Examples:
        >>> LatticeOrder().count
        52
        >>> LatticeOrder(stride=4).steps(4, 4)
        tensor([[ 0,  8,  2, 10],
                [12,  4, 14,  6],
                [ 3, 11,  1,  9],
                [15,  7, 13,  5]])
    """

    stride: int = 32
    cell: int = 4

    def __post_init__(self) -> None:
        for name in ("stride", "cell"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= _MOST or value & (value - 1):
                raise ValueError(f"LatticeOrder: {name}={value!r} must be a power of two from 1 to {_MOST}")
        if self.cell > self.stride:
            raise ValueError(f"LatticeOrder: cell={self.cell} must not exceed stride={self.stride}")

    @property
    def count(self) -> int:
        return int(_table(self.stride, self.cell).max()) + 1

    def steps(self, height: int, width: int) -> Tensor:
        table = _table(self.stride, self.cell)
        rows, columns = torch.arange(height) % self.stride, torch.arange(width) % self.stride
        return table[rows[:, None], columns[None]]


@cache
def _table(stride: int, cell: int) -> Tensor:
    """Return the steps of a square of `stride` × `stride` pixels."""
    table = torch.zeros(stride, stride, dtype=torch.int64)
    step = 1
    distance = stride
    while distance > 1:
        half = distance // 2
        period = min(stride, max(2 * distance, cell))
        for row, column in ((half, half), (0, half), (half, 0)):
            offsets = [(y, x) for y in range(row, period, distance) for x in range(column, period, distance)]
            count = period // distance
            for y, x in sorted(offsets, key=lambda at: _spread(at[0] // distance, at[1] // distance, count)):
                table[y::period, x::period] = step
                step += 1
        distance = half
    return table


def _spread(row: int, column: int, count: int) -> tuple[int, int, int]:
    """Return a sort key that keeps neighbors far apart: the color on a chessboard, then the reversed bits."""
    bits = max(0, (count - 1).bit_length())
    return (row + column) % 2, _reversed_bits(row, bits), _reversed_bits(column, bits)


def _reversed_bits(number: int, bits: int) -> int:
    return sum(1 << (bits - 1 - i) for i in range(bits) if number >> i & 1)
