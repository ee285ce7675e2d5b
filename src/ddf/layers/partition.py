"""How a sample is split into the part that is given and the part that is transformed: x = [x_a, x_b]."""

__all__ = ["ChannelSplit", "Partition"]

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ddf.plain import register
from ddf.shapes import Shape


class Partition(ABC):
    """Splits symbols (batch, channels, *spatial) into two parts of the same form, and merges them again."""

    @abstractmethod
    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return the shapes of the two parts of a sample of `shape`; raise an error if it cannot be split."""

    @abstractmethod
    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split symbols into x_a and x_b."""

    @abstractmethod
    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        """Undo `split`."""


@register
@dataclass(frozen=True)
class ChannelSplit(Partition):
    """The first `index` channels, and the others: the paper's partition.

    Arguments:
        index: The paper's d; half of the channels if None.

    Examples:
        >>> ChannelSplit().shapes((4, 14, 14))
        ((2, 14, 14), (2, 14, 14))
        >>> ChannelSplit(index=1).shapes((4, 14, 14))
        ((1, 14, 14), (3, 14, 14))
    """

    index: int | None = None

    def _resolve(self, channels: int) -> int:
        return channels // 2 if self.index is None else self.index

    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        if not shape or shape[0] is None or shape[0] < 2:
            raise ValueError(f"symbols of shape {shape} have too few channels to split: at least 2 are needed")
        index = self._resolve(shape[0])
        if not 1 <= index < shape[0]:
            raise ValueError(
                f"the split index {index} leaves one part of symbols of shape {shape} empty: pass 1…{shape[0] - 1}"
            )
        return (index, *shape[1:]), (shape[0] - index, *shape[1:])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        index = self._resolve(x.shape[1])
        return x[:, :index], x[:, index:]

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], dim=1)
