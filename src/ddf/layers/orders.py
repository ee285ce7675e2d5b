"""Orders: which pixel of a map is coded in which step."""

__all__ = ["LatticeOrder", "Order"]

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ddf.nets.lattice import cell_offsets
from ddf.plain import register

_MOST = 256  # the largest stride


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

    Each level halves the distance between known pixels: first come the centers of the squares between them, then the
    midpoints of the edges of these squares. A level takes several steps, so that the pixels of a step are far apart and
    carry little information about one another: the finer lattice is cut into cells of `cell` × `cell` pixels, and each
    step codes one pixel of each cell.

    Arguments:
        stride: The distance between the pixels of step 0, a power of two.
        cell: The height and width of the cells, a power of two.

    Examples:
        >>> LatticeOrder().count
        61
        >>> LatticeOrder(stride=4).steps(4, 8)
        tensor([[ 0, 17,  5, 19,  0, 17,  7, 19],
                [21, 13, 23, 15, 21, 13, 23, 15],
                [ 9, 20,  1, 18, 11, 20,  3, 18],
                [24, 16, 22, 14, 24, 16, 22, 14]])
    """

    stride: int = 32
    cell: int = 4

    def __post_init__(self) -> None:
        for name in ("stride", "cell"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 2 <= value <= _MOST or value & (value - 1):
                raise ValueError(f"LatticeOrder: {name}={value!r} must be a power of two from 2 to {_MOST}")
        if self.cell > self.stride:
            raise ValueError(f"LatticeOrder: cell={self.cell} must not exceed stride={self.stride}")

    @property
    def levels(self) -> int:
        """The number of times that the distance between known pixels is halved."""
        return self.stride.bit_length() - 1

    @property
    def count(self) -> int:
        return 1 + self.levels * len(cell_offsets(self.cell))

    def steps(self, height: int, width: int) -> Tensor:
        steps = torch.zeros(height, width, dtype=torch.int64)
        offsets = cell_offsets(self.cell)
        for level in range(self.levels):
            lattice = steps[:: self.stride >> (level + 1), :: self.stride >> (level + 1)]
            for i, (row, column) in enumerate(offsets):
                lattice[row :: self.cell, column :: self.cell] = 1 + level * len(offsets) + i
        return steps
