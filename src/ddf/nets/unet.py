"""A residual U-net with attention, for ordered flows."""

__all__ = ["UNet", "UNetSpec"]

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.nets.convolution import Convolution
from ddf.nets.net import NetSpec, channels_of, pad_width, start_at_zero
from ddf.shapes import Shape, check_size
from ddf.symbols import one_hot

HEAD = 64
"""The width of an attention head."""

SHARPNESS = 16.0
"""The largest logit of the attention weights."""

EPSILON = 1e-5
"""Added to mean squares before square roots are taken."""

_MOST_UNIT = 256  # the largest unit to which the sizes of maps are padded


class UNet(nn.Module):
    """A residual U-net that predicts all pixels of a map from some of them, for the steps of an `OrderedSplit`.

    The map is cut into patches. Each level after the first halves the resolution; the last one has attention as well.
    An embedding of the step is added within each convolutional block.

    References:
        | U-Net: Convolutional Networks for Biomedical Image Segmentation (Ronneberger et al., 2015)
        | Denoising Diffusion Probabilistic Models (Ho et al., 2020), appendix B

    Arguments:
        num_classes: The number of classes K.
        channels: The number of channels of the symbols.
        steps: The number of steps that it distinguishes.
        size: Height and width of the maps; each position then has a learned embedding. None for maps of any size.
        planes: The number of planes of each level, multiples of 64.
        blocks: The number of residual blocks of each level. All levels but the last have this many before the next
            level, and as many after it.
        patch: The height and width of a patch.
        dropout: The share of hidden values that are set to 0 in training.

    Examples:
        >>> net = UNet(num_classes=8, channels=1, steps=52, size=(32, 64), planes=(64, 64), blocks=(1, 1))
        >>> x, known = torch.randint(8, (2, 1, 32, 64)), torch.rand(2, 32, 64) < 0.5
        >>> net(x, known, torch.tensor([3, 50])).shape
        torch.Size([2, 8, 1, 32, 64])
    """

    def __init__(
        self,
        num_classes: int,
        channels: int,
        steps: int,
        size: tuple[int, int] | None = None,
        planes: tuple[int, ...] = (256, 384),
        blocks: tuple[int, ...] = (3, 4),
        patch: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_size("UNet", num_classes=num_classes, channels=channels, steps=steps, patch=patch)
        if not planes or len(planes) != len(blocks) or min(blocks) < 1:
            raise ValueError(f"UNet: planes={planes} and blocks={blocks} must have a positive number for each level")
        if any(width < HEAD or width % HEAD for width in planes):
            raise ValueError(f"UNet: planes={planes} must be multiples of {HEAD}")
        if patch << (len(planes) - 1) > _MOST_UNIT:
            raise ValueError(
                f"UNet: patch={patch} and {len(planes)} levels would pad maps to multiples of more than {_MOST_UNIT}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"UNet: dropout={dropout} must be at least 0 and less than 1")
        self.num_classes, self.channels, self.steps = num_classes, channels, steps
        self.size = None if size is None else (int(size[0]), int(size[1]))
        self.positions = size is not None
        self.planes, self.blocks, self.patch, self.dropout = tuple(planes), tuple(blocks), patch, float(dropout)
        self.unit = patch << (len(planes) - 1)  # sizes are padded to multiples of this
        cells = patch * patch * channels
        self.embedding = nn.Embedding(steps, 128)
        self.enter = Convolution(pad_width((num_classes + 1) * cells), planes[0], kernel_size=3)
        self.position: nn.Parameter | None = None
        if self.size is not None:
            rows, columns = (-(-side // self.unit) * self.unit // patch for side in self.size)
            self.position = nn.Parameter(torch.randn(1, planes[0], rows, columns) * 0.02)
        self.level = Level(self.planes, self.blocks, self.dropout)
        self.leave = start_at_zero(Convolution(planes[0], pad_width(num_classes * cells), kernel_size=3))

    def forward(self, x: Tensor, known: Tensor, step: Tensor) -> Tensor:
        """Return the logits of all pixels; those of known pixels are meaningless.

        Arguments:
            x: Symbols (batch, channels, height, width).
            known: Which pixels are known (batch, height, width). The others have no effect.
            step: The number of the step of each sample (batch).

        Returns:
            Logits (batch, K, channels, height, width).
        """
        height, width = x.shape[2:]
        h = self.enter(self.encode(x, known))
        if self.position is not None:
            h = h + self.position.to(h.dtype)
        h = self.level(h, self.embedding(step))
        h = self.leave(F.hardswish(normalized(h)))
        cells = self.patch * self.patch * self.channels
        logits = F.pixel_shuffle(h[:, : self.num_classes * cells], self.patch)[..., :height, :width]
        return logits.unflatten(1, (self.num_classes, self.channels))

    def encode(self, x: Tensor, known: Tensor) -> Tensor:
        """Convert symbols to the planes of patches: one-hot vectors, in which class K marks unknown pixels."""
        height, width = x.shape[2:]
        if x.shape[1] != self.channels:
            raise ValueError(f"UNet was built for {self.channels} channels, not for symbols of shape {tuple(x.shape)}")
        if self.size not in (None, (height, width)):
            raise ValueError(f"UNet was built for maps of {self.size}, not of {(height, width)}")
        shown = x.long().masked_fill(~known.unsqueeze(1), self.num_classes)
        planes = one_hot(shown, self.num_classes + 1, self.enter.weight.dtype).flatten(1, 2)
        planes = F.pixel_unshuffle(F.pad(planes, [0, -width % self.unit, 0, -height % self.unit]), self.patch)
        padding = self.enter.in_channels - planes.shape[1]
        return F.pad(planes, [0, 0, 0, 0, 0, padding]) if padding else planes

    def __repr__(self) -> str:
        return f"UNet({self.extra_repr()})"

    def extra_repr(self) -> str:
        return f"planes={self.planes}, blocks={self.blocks}, patch={self.patch}"


def normalized(x: Tensor) -> Tensor:
    """Divide the planes of each pixel by the root of their mean square."""
    rows = x.permute(0, 2, 3, 1)
    with torch.autocast(x.device.type, enabled=False):  # autocast would switch to single precision
        return F.rms_norm(rows, rows.shape[-1:], None, EPSILON).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A residual block of two 3 × 3 convolutions."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first = Convolution(width, width, kernel_size=3, bias=False)
        self.step = start_at_zero(nn.Linear(128, width, bias=False))
        self.second = start_at_zero(Convolution(width, width, kernel_size=3, bias=False))
        self.dropout = dropout

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        h = self.first(normalized(x)) + self.step(step)[:, :, None, None]
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
        query, key, value = parts.contiguous()  # once, instead of in each product
        with torch.autocast(x.device.type, enabled=False):
            query, key = (F.rms_norm(part, (HEAD,), None, EPSILON) for part in (query, key))
            # Not `scaled_dot_product_attention`, whose gradients are not deterministic on a GPU.
            weights = (query @ key.transpose(-1, -2) * (SHARPNESS / HEAD)).softmax(-1)
            mixed = (weights @ value).transpose(1, 2).flatten(2)
        out: Tensor = x + self.out(mixed).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        return out


class Level(nn.Module):
    """One resolution of a U-net, and all lower ones."""

    def __init__(self, planes: tuple[int, ...], blocks: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        (width, *others), (count, *_) = planes, blocks
        self.before = nn.ModuleList(Block(width, dropout) for _ in range(count))
        self.attention = nn.ModuleList(Attention(width) for _ in range(0 if others else count))
        self.after = nn.ModuleList(Block(width, dropout) for _ in range(count if others else 0))
        self.next: Level | None = None
        if others:
            self.next = Level(planes[1:], blocks[1:], dropout)
            self.down = Convolution(4 * width, others[0], kernel_size=1, bias=False)
            self.up = start_at_zero(Convolution(others[0], 4 * width, kernel_size=1, bias=False))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        for i, block in enumerate(self.before):
            x = block(x, step)
            if self.next is None:
                x = self.attention[i](x)
        if self.next is not None:
            below = self.next(self.down(to_cells(x)), step)
            x = x + from_cells(self.up(below))
        for block in self.after:
            x = block(x, step)
        return x


def to_cells(x: Tensor) -> Tensor:
    """Join the planes of 2 × 2 pixels: (batch, planes, height, width) → (batch, 4 planes, height / 2, width / 2)."""
    rows = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
    return rows.flatten(3).permute(0, 3, 1, 2)


def from_cells(x: Tensor) -> Tensor:
    """Undo `to_cells`."""
    rows = x.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1)).transpose(2, 3)
    return rows.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class UNetSpec(NetSpec, builds=UNet):
    """See `UNet`.

    Arguments:
        positions: Whether each position has a learned embedding, in flows whose maps have one size.
    """

    steps: int = 52
    positions: bool = True
    planes: tuple[int, ...] = (256, 384)
    blocks: tuple[int, ...] = (3, 4)
    patch: int = 2
    dropout: float = 0.0

    @property
    def least_tensors(self) -> int:
        return 3 * sum(self.blocks)

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> UNet:
        channels, height, width = checked_map("UNet", given)
        size = None if height is None or width is None or not self.positions else (height, width)
        return UNet(num_classes, channels, self.steps, size, self.planes, self.blocks, self.patch, self.dropout)


def checked_map(name: str, shape: Shape) -> tuple[int, int | None, int | None]:
    """Return channels, height and width of a map; raise an error for other shapes."""
    if len(shape) != 3:
        raise ValueError(f"{name} takes maps (channels, height, width), not symbols of shape {shape}")
    return channels_of(shape), shape[1], shape[2]
