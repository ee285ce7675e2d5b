"""The denoising split: ranks leave the flow, coded with the net's probabilities, corrected by counts."""

__all__ = ["DenoisingSplit", "DenoisingSplitSpec"]

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, LayerSpec, Movement
from ddf.layers.partition import ChannelSplit, Partition
from ddf.layers.rank_code import RankCode
from ddf.nets.net import NetSpec
from ddf.permutation import rank, unrank
from ddf.plain import later
from ddf.shapes import Shape


class DenoisingSplit(RankCode, Conditional):
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
        >>> import torch
        >>> from ddf.nets import MLP
        >>> split = DenoisingSplit(MLP(num_classes=5, in_channels=1, out_channels=1))
        >>> x = torch.tensor([[3, 4]])
        >>> emitted = []
        >>> split(x, emit=lambda ranks, logits: emitted.append(ranks))
        tensor([[3]])
        >>> split.inverse(torch.tensor([[3]]), draw=lambda logits: emitted.pop())
        tensor([[3, 4]])
    """

    def __init__(
        self,
        net: nn.Module,
        partition: Partition | None = None,
        num_classes: int | None = None,
        limits: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(net, partition, num_classes, limits)
        self.add_table()

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

    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        def predicted() -> Iterator[tuple[Tensor, Tensor]]:
            for x in symbols:
                kept, out = self.split(x)
                yield out, self.decide(kept)

        return self.count_ranks(predicted())


@dataclass(frozen=True)
class DenoisingSplitSpec(LayerSpec, builds=DenoisingSplit):
    """See `DenoisingSplit`."""

    net: NetSpec
    partition: Partition = ChannelSplit()
    limits: tuple[int, ...] | None = later(None)

    def build(self, num_classes: int, shape: Shape) -> DenoisingSplit:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingSplit(net, self.partition, num_classes, self.limits)
