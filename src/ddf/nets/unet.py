"""A residual U-net with attention, the larger part of a `LatticeNet`."""

__all__ = ["UNet"]

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.nets.convolution import Convolution
from ddf.nets.net import start_at_zero

HEAD = 64
"""The width of an attention head."""

SHARPNESS = 16.0
"""The largest possible attention logit."""

EPSILON = 1e-5
"""Added to mean squares before square roots are taken."""

EMBEDDING = 128
"""The width of the embedding of a level."""


def normalized(x: Tensor, groups: int = 1) -> Tensor:
    """Divide the planes of each pixel, or of each of several groups, by the root of their mean square."""
    rows = x.permute(0, 2, 3, 1).unflatten(-1, (groups, -1))
    with torch.autocast(x.device.type, enabled=False):  # autocast would switch to single precision
        return F.rms_norm(rows, rows.shape[-1:], None, EPSILON).flatten(-2).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A residual block of two 3 × 3 convolutions."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first = Convolution(width, width, kernel_size=3, bias=False)
        self.level = start_at_zero(nn.Linear(EMBEDDING, width, bias=False))
        self.second = start_at_zero(Convolution(width, width, kernel_size=3, bias=False))
        self.dropout = dropout

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.first(normalized(x)) + self.level(level)[:, :, None, None]
        h = F.dropout(F.hardswish(h), self.dropout, self.training)
        out: Tensor = x + self.second(h)
        return out


class Attention(nn.Module):
    """A residual block of self-attention between all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = start_at_zero(nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        rows = normalized(x).permute(0, 2, 3, 1).flatten(1, 2)
        parts = self.mix(rows).unflatten(-1, (3, self.heads, HEAD)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.contiguous()  # one copy instead of one in each product
        with torch.autocast(x.device.type, enabled=False):
            query, key = (F.rms_norm(part, (HEAD,), None, EPSILON) for part in (query, key))
            # Not `scaled_dot_product_attention`, whose gradients are not deterministic on a GPU.
            weights = (query @ key.transpose(-1, -2) * (SHARPNESS / HEAD)).softmax(-1)
            mixed = (weights @ value).transpose(1, 2).flatten(2)
        out: Tensor = x + self.out(mixed).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        return out


class UNet(nn.Module):
    """A residual U-net: one resolution; `next` holds the lower ones.

    Each resolution has half the height and width of the one before. The lowest one has attention as well. An embedding
    of the level of an ordered flow is added within each convolutional block.

    References:
        | U-Net: Convolutional Networks for Biomedical Image Segmentation (Ronneberger et al., 2015)
        | Denoising Diffusion Probabilistic Models (Ho et al., 2020), appendix B

    Arguments:
        planes: The number of planes of each resolution, multiples of 64.
        blocks: The number of residual blocks of each resolution. All but the lowest have this many on the way down
            and as many on the way up.
        dropout: The probability that a hidden value is set to 0 in training.
    """

    def __init__(self, planes: tuple[int, ...], blocks: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        (width, *others), (count, *_) = planes, blocks
        self.before = nn.ModuleList(Block(width, dropout) for _ in range(count))
        self.attention = nn.ModuleList(Attention(width) for _ in range(0 if others else count))
        self.after = nn.ModuleList(Block(width, dropout) for _ in range(count if others else 0))
        self.next: UNet | None = None
        if others:
            self.next = UNet(planes[1:], blocks[1:], dropout)
            self.down = Convolution(4 * width, others[0], kernel_size=1, bias=False)
            self.up = start_at_zero(Convolution(others[0], 4 * width, kernel_size=1, bias=False))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Apply the net.

        Arguments:
            x: (batch, planes, height, width). Height and width are multiples of 2^(resolutions − 1).
            level: The embedding of the level, (1, 128).
        """
        for i, block in enumerate(self.before):
            x = block(x, level)
            if self.next is None:
                x = self.attention[i](x)
        if self.next is not None:
            below = self.next(self.down(to_cells(x)), level)
            x = x + from_cells(self.up(below))
        for block in self.after:
            x = block(x, level)
        return x


def to_cells(x: Tensor) -> Tensor:
    """Join the planes of 2 × 2 pixels: (batch, planes, height, width) → (batch, 4 planes, height / 2, width / 2)."""
    rows = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
    return rows.flatten(3).permute(0, 3, 1, 2)


def from_cells(x: Tensor) -> Tensor:
    """Undo `to_cells`."""
    rows = x.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1)).transpose(2, 3)
    return rows.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
