"""The probabilities of ranks: those that a net predicts, corrected by counts."""

__all__ = ["RankCode"]

from collections.abc import Iterable
from math import log

import torch
from torch import Tensor

from ddf.layers.layer import Layer
from ddf.logits import PER_BIT
from ddf.nets.stable import PER_NAT
from ddf.permutation import rank
from ddf.symbols import one_hot

_BINS = 40, 8, 4  # of the margins between the first and the second logit, the second and the third, and so on
_WIDTHS = PER_BIT // 2, PER_BIT, 2 * PER_BIT  # of these bins, in units of 1/256 bit
_UNIT = 1 << 24  # counts, which are fractions, are summed in units of 1 / _UNIT
_MOST = 32 * PER_BIT  # the largest correction
_CAUTION = 512.0  # the weight of the net's own probabilities: a pseudo-count, in symbols


class RankCode(Layer):
    """The base class of layers that code ranks with the net's probabilities, corrected by counts.

        p(z = r) ∝ p_r · c_r(margins)

    Here p_r is the r-th largest probability that the net predicts. The correction c_r is the ratio of the observed to
    the expected frequency of rank r among validation symbols with similar margins between the leading logits.
    """

    num_classes: int
    table: Tensor

    def add_table(self) -> None:
        """Add corrections, which are 1 until they are fitted."""
        # log2 of the correction of each rank in each context, in units of 1/256 bit.
        bins = _BINS[: max(1, self.num_classes - 1)]
        self.register_buffer("table", torch.zeros(*bins, self.num_classes, dtype=torch.int16))

    def rank_logits(self, logits: Tensor) -> Tensor:
        """Convert the result of `stable_logits` to logits of the ranks; integers stay integers."""
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
    def count_ranks(self, predicted: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the observed and the expected count of each rank in each context: (2, *bins, K).

        Arguments:
            predicted: Batches of symbols, and the result of `stable_logits` for them.
        """
        # Integers, whose sum does not depend on the order of summation, which varies on a GPU.
        counts = torch.zeros(2, *self.table.shape, dtype=torch.int64, device=self.table.device)
        bins = self.table.shape[:-1]
        for symbols, logits in predicted:
            ordered = logits.sort(dim=1, descending=True).values
            context = torch.zeros((), dtype=torch.long, device=logits.device)
            for size, found in zip(bins, self._contexts(ordered), strict=True):
                context = context * size + found
            unit = 1 / PER_NAT if logits.is_floating_point() else log(2) / PER_BIT
            occurred = one_hot(rank(symbols, logits, self.num_classes, dim=1), self.num_classes, torch.float64)
            for kind, found in enumerate((occurred, (ordered.double() * unit).softmax(dim=1))):
                rows = (found * _UNIT).round().long().movedim(1, -1).flatten(0, -2)
                counts[kind].view(-1, self.num_classes).index_add_(0, context.flatten(), rows)
        return counts.double() / _UNIT

    @torch.no_grad()
    def set_counts(self, counts: Tensor) -> "RankCode":
        """Set the corrections from the result of `count`, shrunk toward 1 where there are few symbols."""
        occurred, expected = counts
        total = expected.sum(-1, keepdim=True)
        ratio = (occurred + _CAUTION / total * expected) / ((1 + _CAUTION / total) * expected)
        ratio = torch.where(expected > 0, ratio, torch.ones_like(ratio))
        self.table.copy_((ratio.log2() * PER_BIT).round().clamp(-_MOST, _MOST))
        return self
