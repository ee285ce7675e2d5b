"""The denoising split: ranks leave the flow, coded by how sure the net was."""

__all__ = ["DenoisingSplit", "DenoisingSplitSpec"]

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, LayerSpec, Movement
from ddf.layers.partition import ChannelSplit, Partition
from ddf.logits import PER_BIT
from ddf.nets.net import NetSpec
from ddf.nets.stable import PER_NAT
from ddf.permutation import rank, unrank
from ddf.shapes import Shape
from ddf.symbols import one_hot

_BINS = 40, 8, 4  # of the margins between the first and the second logit, the second and the third, and so on
_WIDTHS = PER_BIT // 2, PER_BIT, 2 * PER_BIT  # of these bins, in units of 1/256 bit
_BACKING = 128.0  # the weight of the less specific table from which a table starts, in symbols
_TRAINING = 256.0  # the weight of the table counted on training data, in symbols


class DenoisingSplit(Conditional):
    """Factors out the ranks of one part under a prediction from the other part, which it keeps.

        z_b = rank(x_b | n(x_a)),    p(z_b | x_a) = table[margins of n(x_a)]

    After a denoising coupling, a split prior needs a second net to predict where the first one is wrong. This layer
    reads it off the logits: the margins between the leading ones, in bins, select a table of counts, which is the
    distribution of the rank. Where the net is sure, rank 0 is almost certain. Because the tables are counted after
    training, they correct a net that is too confident or not confident enough.

    Arguments:
        net: The classifier n; see `Conditional`.
        partition: How the symbols are split into x_a, which is kept, and x_b.
        num_classes: The number of classes K, for a net without an attribute of that name.

    Examples:
        >>> from ddf.nets import MLP
        >>> split = DenoisingSplit(MLP(num_classes=5, in_channels=1, out_channels=1))
        >>> x = torch.tensor([[3, 4]])
        >>> emitted = []
        >>> split(x, emit=lambda ranks, logits: emitted.append(ranks))
        tensor([[3]])
        >>> split.inverse(torch.tensor([[3]]), draw=lambda logits: emitted.pop())
        tensor([[3, 4]])
    """

    table: Tensor

    def __init__(self, net: nn.Module, partition: Partition | None = None, num_classes: int | None = None) -> None:
        super().__init__(net, partition, num_classes)
        # log2 of the probability of each rank, in units of 1/256 bit.
        self.register_buffer("table", torch.zeros(*_BINS, self.num_classes, dtype=torch.int16))

    def output_shape(self, shape: Shape) -> Shape:
        kept, _ = self.checked_part_shapes(shape)
        return kept

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        kept, out = self.split(x)
        logits = self.decide(kept)
        emit(rank(out, logits, self.num_classes, dim=1), self.rank_logits(logits))
        return kept

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        logits = self.decide(z)
        ranks = draw(self.rank_logits(logits))
        return self.merge(z, unrank(ranks, logits, self.num_classes, dim=1).to(z.dtype))

    def carry(self, x: Tensor) -> Tensor:
        return self.split(x)[0]

    def follow(self, places: Tensor) -> Movement:
        return Movement(*self.split(places))

    # ---- The tables

    def rank_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of the ranks for the logits of the classes: integers for integers."""
        found = self.table[self.contexts(logits)].movedim(-1, 1)
        return found * (log(2) / PER_BIT) if logits.is_floating_point() else found

    def contexts(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return the bins of the margins for the logits that `decide` returns."""
        leading = logits.topk(min(len(_BINS) + 1, self.num_classes), dim=1).values
        margins = leading[:, :-1] - leading[:, 1:]
        if logits.is_floating_point():
            margins = (margins * (PER_BIT / (PER_NAT * log(2)))).floor()
        found = [
            torch.div(margin, width, rounding_mode="floor").clamp(max=bins - 1).long()
            for margin, width, bins in zip(margins.unbind(1), _WIDTHS, _BINS, strict=False)
        ]
        return (*found, *[torch.zeros_like(found[0])] * (len(_BINS) - len(found)))

    @torch.no_grad()
    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        """Count each rank in each context, over batches of symbols: (40, 8, 4, K), float64."""
        counts = torch.zeros(self.table.shape, dtype=torch.float64, device=self.table.device)
        flat = counts.view(-1, self.num_classes)
        for x in symbols:
            kept, out = self.split(x)
            logits = self.decide(kept)
            context = torch.zeros((), dtype=torch.long, device=x.device)
            for bins, found in zip(_BINS, self.contexts(logits), strict=True):
                context = context * bins + found
            ranks = one_hot(rank(out, logits, self.num_classes, dim=1), self.num_classes, torch.float64)
            flat.index_add_(0, context.flatten(), ranks.movedim(1, -1).flatten(0, -2))
        return counts

    @torch.no_grad()
    def set_counts(self, counts: Tensor, training: Tensor | None = None, smoothing: float = 0.5) -> "DenoisingSplit":
        """Set the tables to the frequencies of counts.

        Arguments:
            counts: Counts of data that the net was not trained on.
            training: Counts of training data, on which nets are overconfident; they matter only in rare contexts.
            smoothing: Added to the count of every rank.
        """
        shares = _shares(counts, smoothing)
        if training is not None:
            shares = _add(counts, _TRAINING, _shares(training, smoothing))
        self.table.copy_((shares.log2() * PER_BIT).round().clamp(min=torch.iinfo(torch.int16).min))
        return self


def _shares(counts: Tensor, smoothing: float) -> Tensor:
    """Return the frequencies of counts, each table starting from the one that disregards the last margin."""
    shares = torch.full_like(counts[0, 0, 0], 1 / counts.shape[-1])
    shares = _add(counts.sum((0, 1, 2)), smoothing * counts.shape[-1], shares)
    for axis in range(1, counts.ndim):
        table = counts.sum(tuple(range(axis, counts.ndim - 1))) if axis < counts.ndim - 1 else counts
        shares = _add(table, _BACKING, shares if axis == 1 else shares.unsqueeze(-2))
    return shares


def _add(counts: Tensor, weight: float, shares: Tensor) -> Tensor:
    """Return the frequencies of counts after adding other frequencies with a weight."""
    counts = counts + weight * shares
    return counts / counts.sum(-1, keepdim=True)


@dataclass(frozen=True)
class DenoisingSplitSpec(LayerSpec, builds=DenoisingSplit):
    """See `DenoisingSplit`."""

    net: NetSpec
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> DenoisingSplit:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingSplit(net, self.partition, num_classes)
