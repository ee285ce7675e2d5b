"""The base class of the built-in classifiers: symbols in, logits out."""

__all__ = ["Net", "NetSpec", "channels_of", "pad_width", "start_at_zero"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from ddf.plain import Spec
from ddf.shapes import Shape, check_size
from ddf.symbols import one_hot

Affine = TypeVar("Affine", nn.Linear, nn.Conv2d)


class Net(nn.Module, ABC):
    """A classifier n(x_a) → logits: predicts the symbols of one part from those of another.

    A subclass implements `body`, which maps planes to planes, and `output_shape`. This class encodes symbols as one-hot
    planes and reads logits from the planes that `body` returns. A body computes in the dtype of its parameters and
    treats each sample independently: with batch statistics, a coupling would depend on the rest of the batch. Anything
    random (dropout) happens in training mode only.

    Arguments:
        num_classes: The number of classes K.
        in_channels: The number of channels of the given symbols.
        out_channels: The number of channels of the predicted symbols.
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
        """Map (batch, in_planes, *spatial) to (batch, out_planes, *spatial)."""

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of the symbols predicted from symbols of `shape`; raise an error if that is impossible."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the predicted symbols.

        Arguments:
            x: Symbols (batch, in_channels, *spatial), or one-hot vectors (batch, K, in_channels, *spatial) in floating
                point, through which gradients flow.

        Returns:
            Logits (batch, K, out_channels, *spatial), the layout of `torch.nn.functional.cross_entropy`.
        """
        out = self.body(self.encode(x))[:, : self.num_classes * self.out_channels]
        return out.unflatten(1, (self.num_classes, self.out_channels))

    def encode(self, x: Tensor) -> Tensor:
        """Convert symbols or one-hot vectors to the planes that `body` takes, a multiple of 8 of them."""
        dtype = next(self.parameters()).dtype
        vectors = x.to(dtype) if x.is_floating_point() else one_hot(x, self.num_classes, dtype)
        if vectors.ndim < 3 or vectors.shape[1:3] != (self.num_classes, self.in_channels):
            raise ValueError(
                f"{type(self).__name__} takes symbols (batch, {self.in_channels}, …) or one-hot vectors "
                f"(batch, {self.num_classes}, {self.in_channels}, …), not {tuple(x.shape)}"
            )
        planes = vectors.flatten(1, 2)
        padding = self.in_planes - planes.shape[1]
        return F.pad(planes, [0, 0] * (planes.ndim - 2) + [0, padding]) if padding else planes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class NetSpec(Spec, ABC):
    """A net without its shapes, which follow from its place in a flow."""

    @property
    def least_tensors(self) -> int:
        """A lower bound on the number of tensors of the net. It is not built if a file has fewer for it."""
        return 0

    @abstractmethod
    def build(self, num_classes: int, given: Shape, predicted: Shape) -> nn.Module:
        """Build the net that predicts symbols of one shape from those of another."""


def channels_of(shape: Shape) -> int:
    """Return the number of channels of a shape."""
    if not shape or shape[0] is None:
        raise ValueError(f"symbols of shape {shape} do not include a number of channels")
    return shape[0]


def pad_width(width: int) -> int:
    """Round a number of channels up to a multiple of 8, which suits matrix hardware."""
    return -(-width // 8) * 8


def start_at_zero(layer: Affine) -> Affine:
    """Set a last layer to zero, so that an untrained classifier prefers no class and its coupling is the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
