"""A densely connected convolutional net, for maps of symbols."""

__all__ = ["DenseBlock", "DenseNet", "DenseNetSpec"]

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.nets.convolution import Convolution
from ddf.nets.dense_blocks import dense_blocks
from ddf.nets.net import Net, NetSpec, channels_of, pad_width, start_at_zero
from ddf.shapes import Shape, check_size


class DenseBlock(nn.Module):
    """A 1 × 1 convolution followed by a 3 × 3 convolution, whose output is concatenated to the input of the block."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.mix = Convolution(width, width, kernel_size=1)
        self.grow = Convolution(width, growth, kernel_size=3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, F.relu(self.grow(F.relu(self.mix(x))))], dim=1)


class DenseNet(Net):
    """A densely connected convolutional net on maps of any size: the paper's net for images.

    Each block sees the input and the outputs of all previous blocks. A final 3 × 3 convolution computes the logits.

    References:
        | Densely Connected Convolutional Networks (Huang et al., 2017)
        | Discrete Denoising Flows (Lindt & Hoogeboom, 2021), appendix C: 8 blocks for MNIST, 15 for Cityscapes

    Arguments:
        num_classes: The number of classes K.
        in_channels: The number of channels of the given symbols.
        out_channels: The number of channels of the predicted symbols.
        blocks: The number of dense blocks.
        hidden: The total number of planes that the blocks append.

    Examples:
        >>> net = DenseNet(num_classes=8, in_channels=2, out_channels=2, blocks=3, hidden=32)
        >>> net(torch.randint(8, (1, 2, 16, 32))).shape
        torch.Size([1, 8, 2, 16, 32])
    """

    def __init__(
        self, num_classes: int, in_channels: int, out_channels: int, blocks: int = 8, hidden: int = 512
    ) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        check_size("DenseNet", blocks=blocks, hidden=hidden)
        self.blocks = blocks
        self.hidden = hidden
        width = self.in_planes
        self.stack = nn.Sequential()
        for growth in _share(hidden, blocks):
            self.stack.append(DenseBlock(width, growth))
            width += growth
        self.stack.append(start_at_zero(Convolution(width, self.out_planes, kernel_size=3)))

    def body(self, planes: Tensor) -> Tensor:
        device = planes.device.type
        if torch.is_autocast_enabled(device) and torch.is_grad_enabled():
            planes = dense_blocks(planes, list(self.stack[:-1].parameters()), torch.get_autocast_dtype(device))
            out: Tensor = self.stack[-1](planes)
        else:
            out = self.stack(planes)
        return out

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] != self.in_channels:
            raise ValueError(f"DenseNet takes maps ({self.in_channels}, height, width), not symbols of shape {shape}")
        return (self.out_channels, *shape[1:])

    def extra_repr(self) -> str:
        return f"blocks={self.blocks}, hidden={self.hidden}"


def _share(hidden: int, blocks: int) -> list[int]:
    """Distribute `hidden` over the blocks as evenly as multiples of 8 allow."""
    units = max(pad_width(hidden) // 8, blocks)
    return [8 * (units * (i + 1) // blocks - units * i // blocks) for i in range(blocks)]


@dataclass(frozen=True)
class DenseNetSpec(NetSpec, builds=DenseNet):
    """See `DenseNet`."""

    blocks: int = 8
    hidden: int = 512

    @property
    def least_tensors(self) -> int:
        return 4 * self.blocks

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> DenseNet:
        return DenseNet(num_classes, channels_of(given), channels_of(predicted), blocks=self.blocks, hidden=self.hidden)
