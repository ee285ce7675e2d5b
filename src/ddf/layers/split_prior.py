"""The split prior: some of the symbols leave the flow, coded given the rest."""

__all__ = ["SplitPrior", "SplitPriorSpec"]

from dataclasses import dataclass

from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, LayerSpec, Movement, over_classes
from ddf.layers.partition import ChannelSplit, Partition
from ddf.nets.net import NetSpec
from ddf.plain import later
from ddf.shapes import Shape


class SplitPrior(Conditional):
    """Factors out one part of the symbols under a prediction from the other part, which it keeps.

    After a coupling that replaced x_b by z_b, `factor_out="b"` codes z_b given z_a and keeps z_a: the order of the
    paper's published results. `factor_out="a"` codes z_a given z_b and keeps z_b: the order of its appendix C.

    References:
        | Density Estimation Using Real NVP (Dinh et al., 2017)
        | Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.2 and appendix C

    Arguments:
        net: Predicts the part that is factored out from the part that is kept; see `Conditional`.
        factor_out: The part that is factored out, `"a"` or `"b"`.
        partition: How the symbols are split into the parts a and b.
        num_classes: The number of classes K, for a net without an attribute of that name.
        limits: The number of classes of each channel that is factored out; see `Conditional`.

    Examples:
        >>> from ddf.layers import ChannelSplit
        >>> from ddf.nets import DenseNet
        >>> net = DenseNet(num_classes=2, in_channels=1, out_channels=3, hidden=64)
        >>> prior = SplitPrior(net, partition=ChannelSplit(1))
        >>> prior.output_shape((4, 14, 14))
        (1, 14, 14)
    """

    def __init__(
        self,
        net: nn.Module,
        factor_out: str = "b",
        partition: Partition | None = None,
        num_classes: int | None = None,
        limits: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(net, partition, num_classes, limits)
        if factor_out not in ("a", "b"):
            raise ValueError(f"SplitPrior: factor_out={factor_out!r} must be 'a' or 'b'")
        self.factor_out = factor_out

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        kept, out = self.split(x)
        emit(out, self.predict(kept))
        return kept

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        out = draw(self.predict(z)).to(z.dtype)
        return self.merge(z, out)

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        kept, out = over_classes(self.split, x)
        emit(out, self.predict(kept))
        kept_vectors: Tensor = kept
        return kept_vectors

    def carry(self, x: Tensor) -> Tensor:
        return self.split(x)[0]

    def follow(self, places: Tensor) -> Movement:
        return Movement(*self.split(places))

    # ---- The given part is the one that is kept

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.partition.split(x)
        return (a, b) if self.factor_out == "b" else (b, a)

    def merge(self, given: Tensor, target: Tensor) -> Tensor:
        return self.partition.merge(*((given, target) if self.factor_out == "b" else (target, given)))

    def part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        a, b = self.partition.shapes(shape)
        return (a, b) if self.factor_out == "b" else (b, a)

    def output_shape(self, shape: Shape) -> Shape:
        kept, _ = self.checked_part_shapes(shape)
        return kept

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, factor_out={self.factor_out!r}"


@dataclass(frozen=True)
class SplitPriorSpec(LayerSpec, builds=SplitPrior):
    """See `SplitPrior`."""

    net: NetSpec
    factor_out: str = "b"
    partition: Partition = ChannelSplit()
    limits: tuple[int, ...] | None = later(None)

    def build(self, num_classes: int, shape: Shape) -> SplitPrior:
        a, b = self.partition.shapes(shape)
        net = self.net.build(num_classes, *((a, b) if self.factor_out == "b" else (b, a)))
        return SplitPrior(net, self.factor_out, self.partition, num_classes, self.limits)
