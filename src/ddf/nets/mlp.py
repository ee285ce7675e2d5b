"""A multi-layer perceptron, for vectors of symbols."""

__all__ = ["MLP", "MLPSpec"]

import itertools
from dataclasses import dataclass

from torch import Tensor, nn

from ddf.nets.net import Net, NetSpec, channels_of, pad_width, start_at_zero
from ddf.shapes import Shape, check_size

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(Net):
    """A multi-layer perceptron on vectors of symbols: the paper's net for the eight Gaussians.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), appendix C

    Arguments:
        num_classes: The number of classes K.
        in_channels: The number of given symbols.
        out_channels: The number of symbols to predict.
        hidden: The width of the hidden layers.
        layers: The number of linear layers, at least 2.
        activation: `"relu"`, as in the paper, or `"tanh"`, with which the features of an untrained net are centered, so
            that training distinguishes inputs before it learns what all of them have in common. Discrete Flows need
            that.

    Examples:
        >>> net = MLP(num_classes=91, in_channels=1, out_channels=1)
        >>> net(torch.tensor([[45], [90]])).shape
        torch.Size([2, 91, 1])
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        out_channels: int,
        hidden: int = 256,
        layers: int = 4,
        activation: str = "relu",
    ) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        check_size("MLP", hidden=hidden, layers=layers)
        if layers < 2:
            raise ValueError(f"MLP: layers={layers}, but at least 2 are needed")
        if activation not in _ACTIVATIONS:
            raise ValueError(f"MLP: activation={activation!r} must be one of {', '.join(_ACTIVATIONS)}")
        self.hidden = hidden
        self.layers = layers
        self.activation = activation
        widths = [self.in_planes] + [pad_width(hidden)] * (layers - 1)
        self.stack = nn.Sequential()
        for wide, next_wide in itertools.pairwise(widths):
            self.stack.extend([nn.Linear(wide, next_wide), _ACTIVATIONS[activation]()])
        if activation == "tanh":
            # One-hot vectors select one column per symbol, so the first layer adds up `in_channels` terms.
            linear = [layer for layer in self.stack if isinstance(layer, nn.Linear)]
            for terms, layer in zip([in_channels] + [pad_width(hidden)] * (layers - 2), linear, strict=True):
                nn.init.normal_(layer.weight, std=terms**-0.5)
                nn.init.zeros_(layer.bias)
        self.stack.append(start_at_zero(nn.Linear(widths[-1], self.out_planes)))

    def body(self, planes: Tensor) -> Tensor:
        out: Tensor = self.stack(planes)
        return out

    def output_shape(self, shape: Shape) -> Shape:
        if shape != (self.in_channels,):
            raise ValueError(f"MLP takes vectors ({self.in_channels},), not symbols of shape {shape}")
        return (self.out_channels,)

    def extra_repr(self) -> str:
        activation = "" if self.activation == "relu" else f", activation={self.activation!r}"
        return f"hidden={self.hidden}, layers={self.layers}{activation}"


@dataclass(frozen=True)
class MLPSpec(NetSpec, builds=MLP):
    """See `MLP`."""

    hidden: int = 256
    layers: int = 4
    activation: str = "relu"

    @property
    def least_tensors(self) -> int:
        return 2 * self.layers

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> MLP:
        return MLP(num_classes, channels_of(given), channels_of(predicted), self.hidden, self.layers, self.activation)
