"""The denoising split: ranks leave the flow, coded with the net's probabilities, which counts correct."""

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
from ddf.plain import later
from ddf.shapes import Shape
from ddf.symbols import one_hot

_BINS = 40, 8, 4  # of the margins between the first and the second logit, the second and the third, and so on
_WIDTHS = PER_BIT // 2, PER_BIT, 2 * PER_BIT  # of these bins, in units of 1/256 bit
_UNIT = 1 << 24  # counts, which are fractions, are summed in units of 1 / _UNIT
_MOST = 32 * PER_BIT  # the largest correction
_CAUTION = 512.0  # the weight of the net's own probabilities: a pseudo-count, in symbols


class DenoisingSplit(Conditional):
    """Factors out the ranks of one part under a prediction from the other part, which it keeps.

        z_b = rank(x_b | n(x_a)),    p(z_b = r | x_a) ∝ p_r · c_r(margins)

    Here p_r is the r-th largest probability that the net predicts. The correction c_r is the ratio of the observed
    to the expected frequency of rank r among validation symbols with similar margins between the leading logits. The
    rank is thus coded according to the net's confidence, corrected where counts show that it was too high or too low.
    One net does the work of two: after a denoising coupling, a split prior needs a second net to predict where the
    first one is wrong.

    The corrections are fitted by counting once the net has been trained; until then, they are 1. With an exact net,
    the layer uses integer arithmetic only.

    Arguments:
        net: The classifier n; see `Conditional`.
        partition: How the symbols are split into x_a, which is kept, and x_b.
        num_classes: The number of classes K, for a net without an attribute of that name.
        limits: The number of classes of each channel of x_b; see `Conditional`.

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

    def __init__(
        self,
        net: nn.Module,
        partition: Partition | None = None,
        num_classes: int | None = None,
        limits: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(net, partition, num_classes, limits)
        # log2 of the correction of each rank in each context, in units of 1/256 bit.
        bins = _BINS[: max(1, self.num_classes - 1)]
        self.register_buffer("table", torch.zeros(*bins, self.num_classes, dtype=torch.int16))

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

    # ---- The corrections

    def rank_logits(self, logits: Tensor) -> Tensor:
        """Convert the logits that `decide` returns to logits of the ranks; integers stay integers."""
        ordered = logits.sort(dim=1, descending=True).values
        correction = self.table[self._contexts(ordered)].movedim(-1, 1)
        if logits.is_floating_point():
            return ordered / PER_NAT + correction * (log(2) / PER_BIT)
        return ordered + correction

    def _contexts(self, ordered: Tensor) -> tuple[Tensor, ...]:
        """Return the bin of each margin between ordered logits: indices into the table."""
        if self.num_classes == 1:
            return (torch.zeros_like(ordered[:, 0], dtype=torch.long),)
        leading = ordered[:, : self.table.ndim]
        margins = leading[:, :-1] - leading[:, 1:]
        if ordered.is_floating_point():
            margins = (margins * (PER_BIT / (PER_NAT * log(2)))).floor()
        return tuple(
            torch.div(margin, width, rounding_mode="floor").clamp(max=bins - 1).long()
            for margin, width, bins in zip(margins.unbind(1), _WIDTHS, self.table.shape[:-1], strict=False)
        )

    @torch.no_grad()
    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        """Return the observed and the expected count of each rank in each context: (2, *bins, K)."""
        # Integers, whose sum does not depend on the order of summation, which varies on a GPU.
        counts = torch.zeros(2, *self.table.shape, dtype=torch.int64, device=self.table.device)
        bins = self.table.shape[:-1]
        for x in symbols:
            kept, out = self.split(x)
            logits = self.decide(kept)
            ordered = logits.sort(dim=1, descending=True).values
            context = torch.zeros((), dtype=torch.long, device=x.device)
            for size, found in zip(bins, self._contexts(ordered), strict=True):
                context = context * size + found
            unit = 1 / PER_NAT if logits.is_floating_point() else log(2) / PER_BIT
            occurred = one_hot(rank(out, logits, self.num_classes, dim=1), self.num_classes, torch.float64)
            for kind, found in enumerate((occurred, (ordered.double() * unit).softmax(dim=1))):
                rows = (found * _UNIT).round().long().movedim(1, -1).flatten(0, -2)
                counts[kind].view(-1, self.num_classes).index_add_(0, context.flatten(), rows)
        return counts.double() / _UNIT

    @torch.no_grad()
    def set_counts(self, counts: Tensor) -> "DenoisingSplit":
        """Set the corrections from the result of `count`, shrunk toward 1 where there are few symbols."""
        occurred, expected = counts
        total = expected.sum(-1, keepdim=True)
        ratio = (occurred + _CAUTION / total * expected) / ((1 + _CAUTION / total) * expected)
        ratio = torch.where(expected > 0, ratio, torch.ones_like(ratio))
        self.table.copy_((ratio.log2() * PER_BIT).round().clamp(-_MOST, _MOST))
        return self


@dataclass(frozen=True)
class DenoisingSplitSpec(LayerSpec, builds=DenoisingSplit):
    """See `DenoisingSplit`."""

    net: NetSpec
    partition: Partition = ChannelSplit()
    limits: tuple[int, ...] | None = later(None)

    def build(self, num_classes: int, shape: Shape) -> DenoisingSplit:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingSplit(net, self.partition, num_classes, self.limits)
