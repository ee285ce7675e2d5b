"""A multi-layer perceptron, for vectors of symbols."""

__all__ = ["MLP"]

import itertools

from torch import Tensor, nn

from ddf.nets.net import Net, Shape, check_size, pad_width, start_at_zero


class MLP(Net):
    """A multi-layer perceptron on vectors of symbols: the paper's net for the eight Gaussians.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), appendix C

    Arguments:
        num_classes: The number of classes K.
        in_channels: How many symbols are given.
        out_channels: How many symbols to predict.
        hidden: The width of the hidden layers.
        layers: The number of linear layers, 2 at least.

    Example:
        >>> net = MLP(num_classes=91, in_channels=1, out_channels=1)
        >>> net(torch.tensor([[45], [90]])).shape
        torch.Size([2, 91, 1])
    """

    def __init__(
        self, num_classes: int, in_channels: int, out_channels: int, hidden: int = 256, layers: int = 4
    ) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        check_size("MLP", hidden=hidden, layers=layers)
        if layers < 2:
            raise ValueError(f"MLP: layers={layers}, but it takes at least 2")
        self.hidden = hidden
        self.layers = layers
        widths = [self.in_planes] + [pad_width(hidden)] * (layers - 1)
        self.stack = nn.Sequential()
        for wide, next_wide in itertools.pairwise(widths):
            self.stack.extend([nn.Linear(wide, next_wide), nn.ReLU()])
        self.stack.append(start_at_zero(nn.Linear(widths[-1], self.out_planes)))

    def body(self, planes: Tensor) -> Tensor:
        out: Tensor = self.stack(planes)
        return out

    def output_shape(self, shape: Shape) -> Shape:
        if shape != (self.in_channels,):
            raise ValueError(f"MLP takes vectors ({self.in_channels},), but is given symbols of shape {shape}")
        return (self.out_channels,)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, layers={self.layers}"
