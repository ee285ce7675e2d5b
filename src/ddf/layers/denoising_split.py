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

_BINS = 32, 4  # of the margin between the first and the second logit, and between the second and the third
_WIDTHS = PER_BIT * 7 // 16, PER_BIT * 2  # in units of 1/256 bit
_BACKING = 16.0  # the weight of the prior of each table, in symbols


class DenoisingSplit(Conditional):
    """Factors out the ranks of one part under a prediction from the other part, which it keeps.

        z_b = rank(x_b | n(x_a)),    p(z_b | x_a) = table[margins of n(x_a)]

    A coupling followed by a split prior needs two nets for what one net knows: where the prediction of the coupling
    is likely to be wrong. This layer reads it off the logits. The margin between the two leading logits, and the margin
    between the second and the third, select a table of counts, which is the distribution of the rank. Counts correct
    the confidence of the net, and the exact form compares and adds integers only.

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

    def contexts(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bins of the two margins for the logits that `decide` returns."""
        leading = logits.topk(min(3, self.num_classes), dim=1).values
        margins = leading[:, :-1] - leading[:, 1:]
        if logits.is_floating_point():
            margins = (margins * (PER_BIT / (PER_NAT * log(2)))).floor()
        found = [
            torch.div(margin, width, rounding_mode="floor").clamp(max=bins - 1).long()
            for margin, width, bins in zip(margins.unbind(1), _WIDTHS, _BINS, strict=False)
        ]
        return found[0], found[-1] if len(found) > 1 else torch.zeros_like(found[0])

    @torch.no_grad()
    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        """Count each rank in each context, over batches of symbols: (32, 4, K), float64."""
        counts = torch.zeros(self.table.shape, dtype=torch.float64, device=self.table.device).flatten(0, 1)
        for x in symbols:
            kept, out = self.split(x)
            logits = self.decide(kept)
            first, second = self.contexts(logits)
            ranks = one_hot(rank(out, logits, self.num_classes, dim=1), self.num_classes, torch.float64)
            counts.index_add_(0, (first * _BINS[1] + second).flatten(), ranks.movedim(1, -1).flatten(0, -2))
        return counts.unflatten(0, _BINS)

    @torch.no_grad()
    def set_counts(self, counts: Tensor, smoothing: float = 0.5) -> "DenoisingSplit":
        """Set the tables to the frequencies of counts.

        Each table starts from that of all symbols with the same first margin, with the weight of a few symbols, and
        that one from the frequencies of all symbols, to whose counts `smoothing` is added.
        """
        shares = _shares(counts.sum((0, 1)), smoothing)
        by_first = _shares(counts.sum(1), _BACKING * shares)
        shares = _shares(counts, _BACKING * by_first.unsqueeze(1))
        self.table.copy_((shares.log2() * PER_BIT).round().clamp(min=torch.iinfo(torch.int16).min))
        return self


def _shares(counts: Tensor, prior: Tensor | float) -> Tensor:
    """Return the frequencies of counts along the last axis, after adding the prior."""
    counts = counts + prior
    return counts / counts.sum(-1, keepdim=True)


@dataclass(frozen=True)
class DenoisingSplitSpec(LayerSpec, builds=DenoisingSplit):
    """See `DenoisingSplit`."""

    net: NetSpec
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> DenoisingSplit:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingSplit(net, self.partition, num_classes)
