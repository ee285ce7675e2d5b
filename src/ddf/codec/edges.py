"""Maps end, and their cells need not: which pixels of a part there are."""

__all__ = ["Edge", "edges_of"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddf.layers import Conditional, Layer, SplitPrior
from ddf.layers.layer import Rearrangement


@dataclass(frozen=True)
class Edge:
    """Which pixels there are of one part of samples, on a device.

    Arguments:
        shape: Of the part, (channels, *spatial), with the pixels that are not there.
        mask: (1, *shape), where there are pixels; None for everywhere.
        index: The places of those pixels in the part, flattened; None for all.
    """

    shape: tuple[int, ...]
    mask: Tensor | None
    index: Tensor | None

    @classmethod
    def of(cls, inside: Tensor) -> "Edge":
        """From a mask (1, *shape)."""
        shape = tuple(inside.shape[1:])
        if bool(inside.all()):
            return cls(shape, None, None)
        return cls(shape, inside, inside.flatten().nonzero().squeeze(1))

    def chosen(self, x: Tensor, dimensions: int | None = None) -> Tensor:
        """The pixels that there are of (batch, *shape, …): (batch, count, …).

        Arguments:
            x: The part.
            dimensions: How many of its dimensions are those of `shape`; all but the first if None is said.
        """
        last = x.ndim - 1 if dimensions is None else dimensions
        rows = x.flatten(1, last)
        return rows if self.index is None else rows.index_select(1, self.index)


def edges_of(layers: Sequence[Layer], inside: Tensor, device: torch.device) -> tuple[list[Edge], Edge]:
    """Which pixels there are of what each layer predicts, and of what is left in the end.

    Arguments:
        layers: Of a flow. A rearrangement predicts nothing: what is said of it means nothing.
        inside: (1, *shape), where there are pixels in samples.
        device: Where the layers are, and the result is needed.
    """
    edges = []
    inside = inside.to(device)
    for layer in layers:
        target = inside
        if isinstance(layer, Rearrangement):
            inside = layer.arrange(inside)
        else:
            assert isinstance(layer, Conditional)
            given, target = layer.given_and_target(inside)
            inside = given if isinstance(layer, SplitPrior) else inside
        edges.append(Edge.of(target))
    return edges, Edge.of(inside)
