"""The denoising coupling: the layer of the paper."""

__all__ = ["DenoisingCoupling"]

from torch import Tensor

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit
from ddf.layers.partition import Partition
from ddf.nets.net import Net
from ddf.permutation import rank, unrank


class DenoisingCoupling(Conditional):
    """Replaces one part of the symbols by their ranks under a prediction from the other part.

    z_a = x_a and z_b = rank(x_b | n(x_a)): where the net is right, z_b is 0. So the better the prediction, the more
    alike the symbols become, and the less a factorised distribution loses on them. The net is trained by itself, as a
    classifier.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.1

    Arguments:
        net: The classifier n.
        top: How many of the likeliest classes are sorted, 1 … K: the paper's h.
        partition: What x_a and x_b are: `"channels"`, `"checkerboard"`, or a `Partition`.

    Examples:
        >>> from ddf.nets import MLP
        >>> coupling = DenoisingCoupling(MLP(num_classes=91, in_channels=1, out_channels=1), top=91)
        >>> x = torch.tensor([[45, 7]])
        >>> z = coupling(x, emit=None)  # a coupling factors nothing out
        >>> torch.equal(coupling.inverse(z, draw=None), x)
        True
    """

    def __init__(self, net: Net, top: int, partition: Partition | str = "channels") -> None:
        super().__init__(net, partition)
        if not isinstance(top, int) or not 1 <= top <= net.num_classes:
            raise ValueError(
                f"DenoisingCoupling: top={top}, but the data has {net.num_classes} classes (0…{net.num_classes - 1})"
            )
        self.top = top

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = self.split(x)
        z_b = rank(x_b, self.decide(x_a), self.top, dim=1)
        return self.partition.merge(x_a, z_b)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        x_a, z_b = self.split(z)
        x_b = unrank(z_b, self.decide(x_a), self.top, dim=1)
        return self.partition.merge(x_a, x_b)

    def carry(self, x: Tensor) -> Tensor:
        x_a, x_b = self.partition.split(x)
        return self.partition.merge(x_a, rank(x_b, self.predict(x_a), self.top, dim=1))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, top={self.top}"
