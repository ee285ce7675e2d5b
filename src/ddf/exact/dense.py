"""Predictions of an exact `DenseNet`, in integers from end to end."""

__all__ = ["DensePredictor"]

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ddf.exact.integer import ACTIVATION_BITS, ONE, ExactAffine
from ddf.nets import DenseNet
from ddf.nets.densenet import DenseBlock

_PIXELS = {"cpu": 1 << 11, "cuda": 1 << 17}
"""Pixels that are processed together: what fits a CPU's cache, and enough to occupy a GPU."""


class DensePredictor:
    """Runs the blocks of a net on a table with a row for each pixel, to which every block appends columns.

    Arguments:
        net: A net with exact layers, in evaluation mode.
    """

    def __init__(self, net: DenseNet) -> None:
        self.net = net
        self.device = next(net.parameters()).device
        modules: list[Any] = list(net.stack)
        self.blocks = [block for block in modules if isinstance(block, DenseBlock)]
        (self.readout,) = (layer for layer in modules if isinstance(layer, ExactAffine))
        grown = (len(block.grow.weight) for block in self.blocks)
        self.widths = list(accumulate(grown, initial=net.in_planes))
        self.dtype = self.readout.dtype
        self.classes = torch.arange(net.num_classes, device=self.device, dtype=torch.int16).view(-1, 1)

    def logits(self, given: Tensor) -> Tensor:
        """Return integer logits (batch, height, width, K, channels to predict).

        Arguments:
            given: Symbols (batch, channels, height, width), int16.
        """
        _, _, height, width = given.shape
        together = max(1, _PIXELS.get(self.device.type, _PIXELS["cpu"]) // (height * width))
        return torch.cat([self._logits(part) for part in given.split(together)])

    def _logits(self, given: Tensor) -> Tensor:
        net = self.net
        batch, channels, height, width = given.shape
        planes = torch.zeros(batch, height, width, self.widths[-1], dtype=self.dtype, device=self.device)
        one = int(ONE * (1 << ACTIVATION_BITS))
        hot = (given.permute(0, 2, 3, 1).unsqueeze(3) == self.classes).flatten(3)
        planes[..., : net.num_classes * channels] = hot.to(self.dtype).mul_(one)
        for block, (wide, wider) in zip(self.blocks, pairwise(self.widths), strict=True):
            planes[..., wide:wider] = block.grow.run(block.mix.run(planes[..., :wide]))  # type: ignore[operator]
        found = self.readout.run(planes)[..., : net.num_classes * net.out_channels]
        return found.to(torch.int32).unflatten(-1, (net.num_classes, net.out_channels))
