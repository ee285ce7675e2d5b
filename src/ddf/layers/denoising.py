"""The denoising coupling: the layer of the paper."""

__all__ = ["DenoisingCoupling", "DenoisingCouplingSpec"]

from dataclasses import dataclass

from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, LayerSpec, Movement
from ddf.layers.partition import ChannelSplit, Partition
from ddf.nets.net import NetSpec
from ddf.permutation import rank, unrank
from ddf.plain import later
from ddf.shapes import Shape


class DenoisingCoupling(Conditional):
    """Replaces one part of the symbols with their ranks under a prediction from the other part.

        z_a = x_a
        z_b = rank(x_b | n(x_a))

    Where the net is right, z_b is 0. The better the prediction, the more predictable the symbols become on their own,
    and the less a factorized distribution loses on them. The net is trained separately, as a classifier.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.1

    Arguments:
        net: The classifier n; see `Conditional`.
        top: Number of classes that are sorted, 1 … K: the paper's h.
        partition: How the symbols are split into x_a and x_b.
        num_classes: The number of classes K, for a net without an attribute of that name.
        limits: The number of classes of each channel of x_b; see `Conditional`.

    Examples:
        >>> from ddf.nets import MLP
        >>> coupling = DenoisingCoupling(MLP(num_classes=91, in_channels=1, out_channels=1), top=91)
        >>> x = torch.tensor([[45, 7]])
        >>> z = coupling(x, emit=None)  # a coupling factors nothing out
        >>> torch.equal(coupling.inverse(z, draw=None), x)
        True
    """

    def __init__(
        self,
        net: nn.Module,
        top: int,
        partition: Partition | None = None,
        num_classes: int | None = None,
        limits: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(net, partition, num_classes, limits)
        if not isinstance(top, int) or not 1 <= top <= self.num_classes:
            raise ValueError(
                f"DenoisingCoupling: top={top} is out of range: the data has {self.num_classes} classes "
                f"(0…{self.num_classes - 1}), so pass 1…{self.num_classes}"
            )
        self.top = top

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = self.split(x)
        z_b = rank(x_b, self.decide(x_a), self.top, dim=1)
        return self.merge(x_a, z_b)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        x_a, z_b = self.split(z)
        x_b = unrank(z_b, self.decide(x_a), self.top, dim=1)
        return self.merge(x_a, x_b)

    def carry(self, x: Tensor) -> Tensor:
        x_a, x_b = self.split(x)
        return self.merge(x_a, rank(x_b, self.predict(x_a), self.top, dim=1))

    def follow(self, places: Tensor) -> Movement:
        return Movement(places, replaced=self.split(places)[1])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, top={self.top}"


@dataclass(frozen=True)
class DenoisingCouplingSpec(LayerSpec, builds=DenoisingCoupling):
    """See `DenoisingCoupling`."""

    net: NetSpec
    top: int
    partition: Partition = ChannelSplit()
    limits: tuple[int, ...] | None = later(None)

    def build(self, num_classes: int, shape: Shape) -> DenoisingCoupling:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingCoupling(net, self.top, self.partition, num_classes, self.limits)
