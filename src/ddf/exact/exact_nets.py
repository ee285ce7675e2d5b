"""Nets in integer arithmetic: fine-tuned with rounded numbers, then evaluated in integers from end to end."""

__all__ = ["BITS_PER_NAT", "Affine", "Convert", "ExactDenseNet", "ExactMLP", "ExactNet", "check_net", "exact_net"]

from abc import abstractmethod
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ddf.errors import ModelError
from ddf.exact.affine import ACTIVATION_BITS, ONE, ExactAffine
from ddf.nets import MLP, DenseNet, Net
from ddf.nets.densenet import DenseBlock
from ddf.plain import describe

BITS_PER_NAT = 1.4426950408889634

Affine = nn.Linear | nn.Conv2d

Convert = Callable[[Affine, int, bool, int | None], ExactAffine]
"""Converts a layer; the other arguments are `input_bits`, `reads_out` and `terms` of `ExactAffine`."""

_PIXELS = {"cpu": 1 << 11, "cuda": 1 << 17}
"""Pixels that are processed together: what fits a CPU's cache, and enough to occupy a GPU."""


class ExactNet(Net):
    """The integer form of a net.

    In training mode, it returns floating-point logits in nats, computed with rounded weights and activations, and
    passes gradients as if nothing were rounded. In evaluation mode, it returns integer logits (int32) in units of 1/256
    bit.

    Arguments:
        net: The original net.
    """

    trainable = True
    """Whether the net is to be fine-tuned."""

    stack: nn.Sequential

    def __init__(self, net: Net) -> None:
        super().__init__(net.num_classes, net.in_channels, net.out_channels)
        self.spec = describe(net)

    @property
    def exact(self) -> bool:
        """Whether `forward` returns integer logits."""
        return not self.training

    def body(self, planes: Tensor) -> Tensor:
        out: Tensor = self.stack(planes)
        return out

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        with torch.no_grad():
            return self.integer_logits(x)

    @abstractmethod
    def integer_logits(self, x: Tensor) -> Tensor:
        """Return integer logits (batch, K, out_channels, *spatial) for symbols (batch, in_channels, *spatial)."""


class ExactMLP(ExactNet):
    """An `MLP` in integer arithmetic."""

    output_shape = MLP.output_shape

    def __init__(self, net: MLP, convert: Convert) -> None:
        super().__init__(net)
        first, *others = (layer for layer in net.stack if isinstance(layer, nn.Linear))
        converted = [convert(first, 0, False, net.in_channels)]  # whose inputs are one-hot vectors
        converted += [convert(layer, ACTIVATION_BITS, layer is others[-1], None) for layer in others]
        self.stack = nn.Sequential(*converted, Scale(1 / BITS_PER_NAT))

    def integer_logits(self, x: Tensor) -> Tensor:
        integers = self.encode(x)
        for layer in list(self.stack)[:-1]:
            assert isinstance(layer, ExactAffine)
            integers = layer.run(integers)
        integers = integers[:, : self.num_classes * self.out_channels]
        return integers.to(torch.int32).unflatten(1, (self.num_classes, self.out_channels))


class ExactDenseNet(ExactNet):
    """A `DenseNet` in integer arithmetic.

    Integers are computed in a table with a row for each pixel, to which every block appends columns.
    """

    output_shape = DenseNet.output_shape

    def __init__(self, net: DenseNet, convert: Convert) -> None:
        super().__init__(net)
        *blocks, readout = net.stack
        for block in blocks:
            assert isinstance(block, DenseBlock)
            block.mix = convert(block.mix, ACTIVATION_BITS, False, None)  # type: ignore[assignment]
            block.grow = convert(block.grow, ACTIVATION_BITS, False, None)  # type: ignore[assignment]
        assert isinstance(readout, nn.Conv2d)
        last = convert(readout, ACTIVATION_BITS, True, None)
        self.stack = nn.Sequential(Scale(ONE), *blocks, last, Scale(1 / BITS_PER_NAT))

    def integer_logits(self, x: Tensor) -> Tensor:
        _, _, height, width = x.shape
        together = max(1, _PIXELS.get(x.device.type, _PIXELS["cpu"]) // (height * width))
        tables = torch.cat([self._table(part) for part in x.split(together)])
        return tables.to(torch.int32).unflatten(-1, (self.num_classes, self.out_channels)).permute(0, 3, 4, 1, 2)

    def _table(self, x: Tensor) -> Tensor:
        """Return integer logits (batch, height, width, K · out_channels), in some dtype."""
        modules: list[Any] = list(self.stack)
        _, *blocks, readout, _ = modules
        widths = list(accumulate((len(block.grow.weight) for block in blocks), initial=self.in_planes))
        batch, channels, height, width = x.shape
        planes = torch.zeros(batch, height, width, widths[-1], dtype=readout.dtype, device=x.device)
        classes = torch.arange(self.num_classes, device=x.device).view(-1, 1)
        hot = (x.permute(0, 2, 3, 1).unsqueeze(3) == classes).flatten(3)
        planes[..., : self.num_classes * channels] = hot.to(planes.dtype).mul_(int(ONE * (1 << ACTIVATION_BITS)))
        for block, (wide, wider) in zip(blocks, pairwise(widths), strict=True):
            planes[..., wide:wider] = block.grow.run(block.mix.run(planes[..., :wide]))
        found: Tensor = readout.run(planes)[..., : self.num_classes * self.out_channels]
        return found


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def check_net(net: nn.Module) -> None:
    """Raise a `ModelError` for a net that has no exact form."""
    if not (type(net) is DenseNet or (type(net) is MLP and net.activation == "relu")):
        text = " ".join(repr(net).split())  # on one line
        raise ModelError(f"{text} has no integer form: use a DenseNet, a UNet, or an MLP with ReLU")


def exact_net(net: nn.Module, convert: Convert) -> ExactNet:
    """Convert a net to its exact form; the net must not be used afterwards."""
    check_net(net)
    return ExactMLP(net, convert) if isinstance(net, MLP) else ExactDenseNet(net, convert)  # type: ignore[arg-type]
