"""What all classifiers have in common: symbols in, logits out."""

__all__ = ["Net", "Shape", "check_size", "pad_width", "start_at_zero"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from ddf.symbols import check_symbols, one_hot

Shape = tuple[int | None, ...]
"""(channels, *spatial) of one sample. A spatial size may be None: any size."""

Affine = TypeVar("Affine", nn.Linear, nn.Conv2d)


def pad_width(width: int) -> int:
    """Rounds a number of channels up to a multiple of 8, which is what matrix hardware likes."""
    return -(-width // 8) * 8


def check_size(owner: str, **sizes: int) -> None:
    """Refuses sizes that are not positive integers, with the name of what they belong to."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{owner}: {name}={size!r}, but it must be a positive integer")


def start_at_zero(layer: Affine) -> Affine:
    """Zeroes a last layer, so that an untrained classifier prefers nothing and its coupling is the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Net(nn.Module, ABC):
    """A classifier n(x_a) → logits: from the symbols of one part it predicts those of another.

    A subclass says how planes become planes (`body`) and which shapes it takes (`output_shape`); the one-hot encoding
    before that and the read-out after it are here, and nowhere else. A body computes in the dtype of its parameters and
    treats every sample on its own: batch statistics would make a coupling depend on the company a sample keeps. What it
    does at random (dropout) it does in training mode only: `log_prob` follows the mode, as everywhere in PyTorch.

    Arguments:
        num_classes: The number of classes K.
        in_channels: The channels of symbols that are given.
        out_channels: The channels of symbols to predict.
    """

    __call__: Callable[..., Tensor]

    def __init__(self, num_classes: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        check_size(type(self).__name__, num_classes=num_classes, in_channels=in_channels, out_channels=out_channels)
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.in_planes = pad_width(num_classes * in_channels)
        self.out_planes = pad_width(num_classes * out_channels)

    @abstractmethod
    def body(self, planes: Tensor) -> Tensor:
        """Maps (batch, in_planes, *spatial) to (batch, out_planes, *spatial)."""

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Returns the shape of the symbols that are predicted from symbols of `shape`; refuses what cannot work."""

    def forward(self, x: Tensor) -> Tensor:
        """Predicts.

        Arguments:
            x: Symbols (batch, in_channels, *spatial), or one-hot vectors (batch, K, in_channels, *spatial), through
                which gradients flow.

        Returns:
            Logits (batch, K, out_channels, *spatial), the layout of `torch.nn.functional.cross_entropy`.
        """
        dtype = next(self.parameters()).dtype
        if isinstance(x, Tensor) and x.is_floating_point():
            vectors = x.to(dtype)
        else:
            vectors = one_hot(check_symbols(x, self.num_classes), self.num_classes, dtype)
        if vectors.ndim < 3 or vectors.shape[1:3] != (self.num_classes, self.in_channels):
            raise ValueError(
                f"{type(self).__name__} takes symbols (batch, {self.in_channels}, …) or one-hot vectors "
                f"(batch, {self.num_classes}, {self.in_channels}, …), but is given {tuple(x.shape)}"
            )
        planes = vectors.flatten(1, 2)
        padding = self.in_planes - planes.shape[1]
        if padding:
            planes = F.pad(planes, [0, 0] * (planes.ndim - 2) + [0, padding])
        out = self.body(planes)[:, : self.num_classes * self.out_channels]
        return out.unflatten(1, (self.num_classes, self.out_channels))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
