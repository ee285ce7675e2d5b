"""A permutation of the channels."""

__all__ = ["Shuffle"]

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ddf.layers.layer import Rearrangement, Shape
from ddf.nets.net import check_size


class Shuffle(Rearrangement):
    """Permutes the channels, so that the next coupling partitions them differently.

    The permutation is a buffer: it is saved with the weights, and its inverse is derived from it.

    Arguments:
        channels: The number of channels.
        seed: Draws the permutation; 0 if no permutation is given either.
        permutation: The permutation itself: output channel i is input channel permutation[i].

    Examples:
        >>> swap = Shuffle(2, permutation=[1, 0])
        >>> swap.arrange(torch.tensor([[10, 20]]))
        tensor([[20, 10]])
    """

    order: Tensor

    def __init__(self, channels: int, seed: int | None = None, permutation: Sequence[int] | None = None) -> None:
        super().__init__()
        check_size("Shuffle", channels=channels)
        if permutation is None:
            seed = 0 if seed is None else seed
            order = torch.randperm(channels, generator=torch.Generator().manual_seed(seed))
        elif seed is not None:
            raise ValueError("Shuffle takes a seed or a permutation, not both")
        else:
            permutation = tuple(operator.index(channel) for channel in permutation)
            order = torch.tensor(permutation)
        self.channels = channels
        self.seed = seed
        self.permutation = permutation
        self.register_buffer("order", order)
        self.check()

    def check(self) -> None:
        """Refuse an order that is not a permutation of the channels, whether it was passed or loaded from a file."""
        order = self.order.tolist()
        if sorted(order) != list(range(self.channels)):
            raise ValueError(f"Shuffle: {order} is not a permutation of {self.channels} channels")

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or shape[0] != self.channels:
            raise ValueError(f"Shuffle permutes {self.channels} channels, but is given symbols of shape {shape}")
        return shape

    def arrange(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.order)

    def restore(self, z: Tensor) -> Tensor:
        return z.index_select(1, self.order.argsort())

    def extra_repr(self) -> str:
        return f"seed={self.seed}" if self.permutation is None else f"permutation={self.permutation}"
