"""The two ways to cut a sample into the part that is given and the part that is transformed: x = [x_a, x_b]."""

__all__ = ["ChannelSplit", "Checkerboard", "Partition", "as_partition"]

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ddf.layers.layer import Shape
from ddf.layers.squeeze import channels_to_space, space_to_channels, squeezed_shape


class Partition(ABC):
    """Cuts symbols (batch, channels, *spatial) into two parts of the same kind, and joins them again."""

    @abstractmethod
    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Returns the shapes of the two parts of a sample of `shape`; refuses a shape that cannot be cut."""

    @abstractmethod
    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cuts."""

    @abstractmethod
    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        """Joins."""


@dataclass(frozen=True)
class ChannelSplit(Partition):
    """The first `index` channels, and the others: the paper's partition, `"channels"` by name.

    Arguments:
        index: The paper's d; half of the channels by default.

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
            raise ValueError(f"symbols of shape {shape} have too few channels: it takes two to split them")
        index = self._resolve(shape[0])
        if not 1 <= index < shape[0]:
            raise ValueError(
                f"the split index {index} leaves one part of symbols of shape {shape} empty: "
                f"it must be 1…{shape[0] - 1}"
            )
        return (index, *shape[1:]), (shape[0] - index, *shape[1:])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        index = self._resolve(x.shape[1])
        return x[:, :index], x[:, index:]

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], dim=1)


@dataclass(frozen=True)
class Checkerboard(Partition):
    """The black and the white squares of a map, `"checkerboard"` by name.

    Of every 2 × 2 cell, one diagonal is one part and the other diagonal the other: each a map of half the size with
    twice the channels, without holes, on which a convolutional net works as on any other.

    Arguments:
        parity: 0 if the pixels with even row + column are the part that is given, 1 if the odd ones are.

    Examples:
        >>> Checkerboard().shapes((1, 32, 64))
        ((2, 16, 32), (2, 16, 32))
    """

    parity: int = 0

    def __post_init__(self) -> None:
        if self.parity not in (0, 1):
            raise ValueError(f"Checkerboard: parity={self.parity!r}, but it must be 0 or 1")

    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        channels, *spatial = squeezed_shape(shape, "a checkerboard")
        assert channels is not None
        return (channels // 2, *spatial), (channels // 2, *spatial)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        corners = space_to_channels(x).unflatten(1, (-1, 4)).unbind(2)
        even = torch.stack([corners[0], corners[3]], dim=2).flatten(1, 2)
        odd = torch.stack([corners[1], corners[2]], dim=2).flatten(1, 2)
        return (odd, even) if self.parity else (even, odd)

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        even, odd = (part.unflatten(1, (-1, 2)) for part in ((b, a) if self.parity else (a, b)))
        corners = torch.stack([even[:, :, 0], odd[:, :, 0], odd[:, :, 1], even[:, :, 1]], dim=2)
        return channels_to_space(corners.flatten(1, 2))


_BY_NAME = {"channels": ChannelSplit(), "checkerboard": Checkerboard()}


def as_partition(partition: Partition | str) -> Partition:
    """Returns the partition of a name, or the partition itself."""
    if isinstance(partition, Partition):
        return partition
    if partition not in _BY_NAME:
        raise ValueError(f"partition={partition!r}, but it must be one of {', '.join(map(repr, _BY_NAME))}")
    return _BY_NAME[partition]
