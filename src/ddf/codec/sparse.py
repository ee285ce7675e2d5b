"""Predictions of a `ContextNet`, computed where they are not known beforehand."""

__all__ = ["SparsePredictor"]

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddf.codec.coder import Prediction
from ddf.codec.edges import Edge
from ddf.codec.frequencies import PER_BIT, frequencies
from ddf.codec.integer import ExactAffine
from ddf.nets import ContextNet


class SparsePredictor:
    """Flat places from a table, the others by the perceptron.

    The first layer of the perceptron sees one-hot vectors, so its sums are sums of some of its weights. They are looked
    up for two pixels at a time: a table has a row for every two classes, that of no class included.

    Arguments:
        net: A net with exact layers, in evaluation mode.
    """

    def __init__(self, net: ContextNet) -> None:
        self.net = net
        self.device = next(net.parameters()).device
        k = self.num_classes = net.num_classes
        self.first, *self.others = [layer for layer in net.stack if isinstance(layer, ExactAffine)]
        assert self.first.fixed is not None
        weight, _ = self.first.fixed
        # (pixels, classes and none, hidden)
        rows = F.pad(weight.view(len(weight), -1, k).permute(1, 2, 0), [0, 0, 0, 1])
        rows = F.pad(rows, [0, 0, 0, 0, 0, len(rows) % 2])
        self.pairs = (rows[::2, :, None] + rows[1::2, None, :]).flatten(0, 2).contiguous()
        self.starts = torch.arange(len(rows) // 2, device=self.device, dtype=torch.int32) * (k + 1) ** 2
        head = net.flat[0]  # type: ignore[index]
        logits = head(torch.eye(k, device=self.device)) * PER_BIT
        self.table = frequencies(logits.to(torch.int32)).cpu().numpy()
        self.layout = lru_cache(maxsize=8)(self._layout)

    def _layout(self, batch: int, channels: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        places = self.net.places(batch, channels, height, width, self.device)
        steps = self.net.steps(height, width)
        if len(steps) % 2:
            steps = torch.cat([steps, steps[:1]])  # whatever it finds there, the table has zeros for it
        return places.to(torch.int32), steps.to(self.device, torch.int32)

    def predict(self, given: Tensor, edge: Edge) -> list[Prediction]:
        """A prediction for each sample.

        Arguments:
            given: Symbols (batch, channels, height, width), int16; K for no class.
            edge: Which pixels there are to predict.
        """
        net, reach = self.net, self.net.reach
        batch, channels, height, width = given.shape
        padded = F.pad(given, [reach] * 4, value=self.num_classes)
        flat = net.is_flat(padded)
        channel, row, column = net.offsets[0]
        nearest = padded[:, channel, reach + row : reach + row + height, reach + column : reach + column + width]
        asked = (~flat if edge.mask is None else ~flat & edge.mask[:, 0]).flatten().nonzero().squeeze(1)
        places, steps = self.layout(batch, channels, height, width)
        seen = padded.flatten()[places[asked].unsqueeze(1) + steps]
        rows = frequencies(self._logits(seen)).cpu().numpy()
        place = edge.chosen(torch.where(flat, nearest, -1).unsqueeze(1))
        found = place.cpu().numpy()
        ends = np.cumsum((found < 0).sum(axis=1))[:-1]
        return [Prediction(self.table, part, own) for part, own in zip(found, np.split(rows, ends), strict=True)]

    def _logits(self, seen: Tensor) -> Tensor:
        """Integer logits (places, K) of what is seen, (places, pixels)."""
        seen = seen.to(torch.int32)
        pairs = seen[:, ::2] * (self.num_classes + 1) + seen[:, 1::2] + self.starts
        x = self.first.settle_integers(F.embedding_bag(pairs, self.pairs, mode="sum"))
        for layer in self.others:
            x = layer.run(x)
        return x.to(torch.int32)
