"""A permutation of the channels."""

__all__ = ["Shuffle", "ShuffleSpec"]

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddf.layers.layer import LayerSpec, Rearrangement
from ddf.nets.net import channels_of
from ddf.shapes import Shape, check_size


class Shuffle(Rearrangement):
    """Permutes the channels, so that the next coupling partitions them differently.

    The permutation is a buffer: it is saved with the weights, and its inverse is derived from it.

    Arguments:
        channels: The number of channels.
        seed: The seed of a random permutation; 0 if neither a seed nor a permutation is given.
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
        """Raise an error unless the order, which may come from a file, is a permutation of the channels."""
        order = self.order.tolist()
        if sorted(order) != list(range(self.channels)):
            raise ValueError(f"Shuffle: {order} is not a permutation of {self.channels} channels")

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or shape[0] != self.channels:
            raise ValueError(f"Shuffle permutes {self.channels} channels, not symbols of shape {shape}")
        return shape

    def arrange(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.order)

    def restore(self, z: Tensor) -> Tensor:
        return z.index_select(1, self.order.argsort())

    def extra_repr(self) -> str:
        return f"seed={self.seed}" if self.permutation is None else f"permutation={self.permutation}"


@dataclass(frozen=True)
class ShuffleSpec(LayerSpec, builds=Shuffle):
    """See `Shuffle`. With neither a seed nor a permutation, `FlowSpec.build` derives the seed from that of the flow.

    Examples:
        >>> from ddf.spec import FlowSpec
        >>> spec = FlowSpec(num_classes=2, shape=(4,), layers=(ShuffleSpec(),))
        >>> [spec.build(seed).layers[0].order.tolist() for seed in (0, 1)]
        [[3, 1, 0, 2], [1, 3, 0, 2]]
    """

    seed: int | None = None
    permutation: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.permutation is not None:
            object.__setattr__(self, "permutation", tuple(self.permutation))

    def seeded(self, seed: int, shape: Shape) -> "ShuffleSpec":
        """Draw the seed of a permutation other than the identity, unless the spec has one already."""
        if self.seed is not None or self.permutation is not None:
            return self
        generator = torch.Generator().manual_seed(seed)
        while True:
            drawn = ShuffleSpec(seed=int(torch.randint(1 << 31, (), generator=generator)))
            order = drawn.build(0, shape).order.tolist()
            if len(order) == 1 or order != sorted(order):
                return drawn

    def build(self, num_classes: int, shape: Shape) -> Shuffle:
        return Shuffle(channels_of(shape), seed=self.seed, permutation=self.permutation)
