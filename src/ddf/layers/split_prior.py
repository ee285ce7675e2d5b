"""The split prior: part of the symbols leaves the flow, coded given the rest."""

__all__ = ["SplitPrior"]

from torch import Tensor

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, Shape
from ddf.layers.partition import Partition
from ddf.nets.net import Net
from ddf.symbols import check_symbols


class SplitPrior(Conditional):
    """Factors out one part of the symbols under a prediction from the other part, and lets that one go on.

    After a coupling that has turned x_b into z_b, `factor_out="b"` codes z_b given z_a and goes on with z_a: the order
    of the paper's published figures. `factor_out="a"` codes z_a given z_b and goes on with z_b: the order of its
    appendix C.

    References:
        | Density Estimation Using Real NVP (Dinh et al., 2017)
        | Discrete Denoising Flows (Lindt & Hoogeboom, 2021), section 3.2 and appendix C

    Arguments:
        net: Predicts the part that is factored out from the part that goes on.
        factor_out: Which part that is, `"a"` or `"b"`.
        partition: What the parts a and b are: `"channels"`, `"checkerboard"`, or a `Partition`.

    Examples:
        >>> from ddf.layers import ChannelSplit
        >>> from ddf.nets import DenseNet
        >>> net = DenseNet(num_classes=2, in_channels=1, out_channels=3, hidden=64)
        >>> prior = SplitPrior(net, partition=ChannelSplit(1))
        >>> prior.output_shape((4, 14, 14))
        (1, 14, 14)
    """

    def __init__(self, net: Net, factor_out: str = "b", partition: Partition | str = "channels") -> None:
        super().__init__(net, partition)
        if factor_out not in ("a", "b"):
            raise ValueError(f"SplitPrior: factor_out={factor_out!r}, but it must be 'a' or 'b'")
        self.factor_out = factor_out

    def part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        a, b = self.partition.shapes(shape)
        return (a, b) if self.factor_out == "b" else (b, a)

    def output_shape(self, shape: Shape) -> Shape:
        kept, _ = self.checked_part_shapes(shape)
        return kept

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        kept, out = self._kept_and_out(*self.split(x))
        emit(out, self.predict(kept))
        return kept

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        kept = check_symbols(z, self.num_classes, name="z")
        out = draw(self.predict(kept)).to(kept.dtype)
        return self.partition.merge(*((kept, out) if self.factor_out == "b" else (out, kept)))

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        kept, out = self._kept_and_out(*self.split_vectors(x))
        emit(out, self.classify(kept))
        return kept

    def carry(self, x: Tensor) -> Tensor:
        kept, _ = self.given_and_target(x)
        return kept

    def given_and_target(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._kept_and_out(*self.partition.split(x))

    def _kept_and_out(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (a, b) if self.factor_out == "b" else (b, a)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, factor_out={self.factor_out!r}"
