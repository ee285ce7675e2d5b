"""The net of ordered flows: it predicts all steps of a map in a single pass."""

__all__ = ["LatticeNet", "LatticeNetSpec"]

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.nets.convolution import Convolution
from ddf.nets.lattice import LatticeWalk, cell_offsets, pad_planes
from ddf.nets.net import NetSpec, channels_of, pad_width, start_at_zero
from ddf.nets.unet import EMBEDDING, HEAD, UNet, normalized
from ddf.shapes import Shape, check_size

_MOST_UNIT = 256  # the largest number to whose multiples the sizes of maps are padded
_MOST_LEVELS = 8
_MOST_CELL = 16
_INPUTS = 256
"""Logits are multiplied by this number / `width`, so that narrow causal nets learn as fast as one of this width."""


class LatticeNet(LatticeWalk, nn.Module):
    """The net of an `OrderedSplit` with a `LatticeOrder`: its logits of a pixel depend only on pixels of earlier steps.

    For each level of the order, a U-net computes features from the known pixels. A second, causal net combines them
    with the pixels that earlier steps of the level code: its convolutions are masked such that the features of each
    step see those of earlier steps only. A single pass therefore predicts all steps. Predicting step by step, as in
    sampling, applies the U-net once per level and the causal net once per step. All levels share the same weights.

    Arguments:
        num_classes: The number of classes K.
        channels: The number of channels of the symbols.
        levels: The number of levels of the order.
        cell: The height and width of the cells of the order.
        size: Height and width of the maps; each position then has a learned embedding. None for maps of any size.
        planes: The number of planes of each resolution of the U-net, multiples of 64.
        blocks: The number of its residual blocks at each resolution; see `UNet`.
        width: The number of planes of the causal net for each step of a level, a multiple of 8.
        depth: The number of residual blocks of the causal net.
        dropout: The probability that a hidden value is set to 0 in training.
        hints: Whether pixels can be given in advance.

    Examples:
        >>> net = LatticeNet(num_classes=8, channels=1, size=(32, 64), planes=(64, 64), blocks=(1, 1), width=16)
        >>> net(torch.randint(8, (2, 1, 32, 64))).shape
        torch.Size([2, 8, 1, 32, 64])
    """

    def __init__(
        self,
        num_classes: int,
        channels: int,
        levels: int = 5,
        cell: int = 4,
        size: tuple[int, int] | None = None,
        planes: tuple[int, ...] = (256, 384),
        blocks: tuple[int, ...] = (3, 4),
        width: int = 48,
        depth: int = 2,
        dropout: float = 0.0,
        hints: bool = False,
    ) -> None:
        super().__init__()
        check_size("LatticeNet", num_classes=num_classes, channels=channels, levels=levels, cell=cell, depth=depth)
        if levels > _MOST_LEVELS or not 2 <= cell <= min(_MOST_CELL, 1 << levels) or cell & (cell - 1):
            raise ValueError(
                f"LatticeNet: levels={levels} must be at most {_MOST_LEVELS}, and cell={cell} a power of two from 2 to "
                f"{_MOST_CELL} that does not exceed 2^levels"
            )
        if not planes or len(planes) != len(blocks) or min(blocks) < 1:
            raise ValueError(
                f"LatticeNet: planes={planes} and blocks={blocks} need one positive number for each resolution"
            )
        if any(count < HEAD or count % HEAD for count in planes):
            raise ValueError(f"LatticeNet: planes={planes} must be multiples of {HEAD}")
        if width < 8 or width % 8:
            raise ValueError(f"LatticeNet: width={width} must be a multiple of 8")
        if 2 << (len(planes) - 1) > _MOST_UNIT:
            raise ValueError(
                f"LatticeNet: {len(planes)} resolutions would pad maps to multiples of more than {_MOST_UNIT}; "
                "use at most 8"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"LatticeNet: dropout={dropout} must be at least 0 and less than 1")
        self.num_classes, self.channels, self.levels, self.cell = num_classes, channels, levels, cell
        self.size = None if size is None else (int(size[0]), int(size[1]))
        self.positions = size is not None
        self.planes, self.blocks, self.width, self.depth = tuple(planes), tuple(blocks), width, depth
        self.dropout, self.hints = float(dropout), bool(hints)
        self.unit = max(cell, 2 << (len(planes) - 1))  # sizes are padded to multiples of this
        self.groups = groups = len(cell_offsets(cell))
        self.scale = _INPUTS / width
        symbols, seen = num_classes * channels, (num_classes + 1) * channels
        self.embedding = nn.Embedding(levels + self.hints, EMBEDDING)
        self.enter = Convolution(pad_width(seen + 4 * symbols * self.hints), planes[0], kernel_size=3)
        self.position: nn.Parameter | None = None
        if self.size is not None:
            rows, columns = (-(-side // 2) for side in self.size)
            self.position = nn.Parameter(torch.randn(1, planes[0], rows, columns) * 0.02)
        self.start: nn.Conv2d | None = None
        if self.hints:
            self.start = start_at_zero(Convolution(planes[0], pad_width(symbols), kernel_size=1))
        self.unet = UNet(self.planes, self.blocks, self.dropout)
        self.mix = Convolution(planes[0], 3 * width, kernel_size=3, bias=False)
        self.seen = CausalConvolution(groups, seen, width, 3, "earlier")
        self.stack = nn.ModuleList(CausalBlock(groups, width, self.dropout) for _ in range(depth))
        self.leave = start_at_zero(CausalConvolution(groups, width, symbols, 1, "same", bias=True))

    def features(self, x: Tensor, given: Tensor | None, level: int) -> Tensor:
        planes = self.lattice(x, level, self.enter.weight.dtype)[:, :, ::2, ::2]
        out: Tensor = self.mix(self._trunk(planes, x, given, level, level))
        return out

    def group_logits(self, features: Tensor, x: Tensor, level: int) -> Tensor:
        own, seen = self.to_groups(features, self.lattice(x, level, self.enter.weight.dtype))
        h = own + self.seen(pad_planes(seen, self.seen.in_channels))
        for block in self.stack:
            h = block(h)
        h = self.leave(F.hardswish(normalized(h, self.groups)))[:, : self.groups * self.num_classes * self.channels]
        return (h * self.scale).unflatten(1, (self.groups, self.num_classes, self.channels))

    def start_logits(self, x: Tensor, given: Tensor) -> Tensor:
        if self.start is None:
            raise ValueError("LatticeNet: to take pixels that are given in advance, build the net with hints=True")
        planes = torch.zeros_like(self.lattice(x, 0, self.enter.weight.dtype)[:, :, ::2, ::2])
        h = self.start(self._trunk(planes, x, given, 0, self.levels))
        rows, columns = (-(-side >> self.levels) for side in x.shape[2:])
        h = h[:, : self.num_classes * self.channels, :rows, :columns]
        return h.unflatten(1, (self.num_classes, self.channels))

    def _trunk(self, planes: Tensor, x: Tensor, given: Tensor | None, level: int, embedding: int) -> Tensor:
        """Apply the U-net to the known pixels of a level."""
        if self.hints:
            planes = torch.cat([planes, self.hints_of(x, given, level, planes.dtype)], dim=1)
        h = self.enter(pad_planes(planes, self.enter.in_channels))
        if self.position is not None:
            spacing = 1 << (self.levels - 1 - level)
            position = self.position[:, :, ::spacing, ::spacing]
            rows, columns = h.shape[2] - position.shape[2], h.shape[3] - position.shape[3]
            h = h + F.pad(position, [0, columns, 0, rows]).to(h.dtype)
        return F.hardswish(normalized(self.unet(h, self.embedding.weight[embedding : embedding + 1])))

    def __repr__(self) -> str:
        return f"LatticeNet({self.extra_repr()})"

    def extra_repr(self) -> str:
        return f"planes={self.planes}, blocks={self.blocks}, width={self.width}, depth={self.depth}"


class CausalConvolution(Convolution):
    """A convolution whose planes form groups. Each group of outputs sees only certain groups of inputs.

    Arguments:
        groups: The number of groups.
        inputs: The number of input planes of each group.
        outputs: The number of output planes of each group.
        kernel_size: 1, 3, or another odd number.
        reach: The groups that each group sees: `"earlier"`, `"same or earlier"`, or `"same"`.
        bias: Whether a learned constant is added to each plane.
    """

    mask: Tensor

    hidden: bool
    """Whether Muon may train the weights: true except for the output layer."""

    def __init__(
        self, groups: int, inputs: int, outputs: int, kernel_size: int, reach: str, bias: bool = False
    ) -> None:
        super().__init__(pad_width(groups * inputs), pad_width(groups * outputs), kernel_size, bias)
        self._sizes, self._reach = (groups, inputs, outputs), reach
        self.hidden = reach != "same"
        self.register_buffer("mask", self.reached(self.weight.device)[:, :, None, None].float(), persistent=False)

    @property
    def reached_count(self) -> int:
        """How many weights have an effect, for each of the kernel's places."""
        groups, inputs, outputs = self._sizes
        pairs = {"earlier": groups * (groups - 1) // 2, "same or earlier": groups * (groups + 1) // 2, "same": groups}
        return pairs[self._reach] * inputs * outputs

    def reached(self, device: torch.device) -> Tensor:
        """Return which weights have an effect: (out, in)."""
        groups, inputs, outputs = self._sizes
        of = torch.arange(groups, device=device)
        to = of[:, None]
        sees = {"earlier": of < to, "same or earlier": of <= to, "same": of == to}[self._reach]
        mask = sees.repeat_interleave(outputs, 0).repeat_interleave(inputs, 1)
        return F.pad(mask, [0, self.in_channels - mask.shape[1], 0, self.out_channels - mask.shape[0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight * self.mask)


class CausalBlock(nn.Module):
    """A residual block of two causal convolutions."""

    def __init__(self, groups: int, width: int, dropout: float) -> None:
        super().__init__()
        self.groups = groups
        self.first = CausalConvolution(groups, width, width, 3, "same or earlier")
        self.second = start_at_zero(CausalConvolution(groups, width, width, 3, "same or earlier"))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(F.hardswish(self.first(normalized(x, self.groups))), self.dropout, self.training)
        out: Tensor = x + self.second(h)
        return out


@dataclass(frozen=True)
class LatticeNetSpec(NetSpec, builds=LatticeNet):
    """See `LatticeNet`.

    Arguments:
        positions: Whether each position has a learned embedding, in flows whose maps have one size.
    """

    levels: int = 5
    cell: int = 4
    positions: bool = True
    planes: tuple[int, ...] = (256, 384)
    blocks: tuple[int, ...] = (3, 4)
    width: int = 48
    depth: int = 2
    dropout: float = 0.0
    hints: bool = False

    @property
    def least_tensors(self) -> int:
        return 3 * sum(self.blocks) + 2 * self.depth

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> LatticeNet:
        if len(given) != 3:
            raise ValueError(f"LatticeNet takes maps (channels, height, width), not symbols of shape {given}")
        channels, (height, width) = channels_of(given), given[1:]
        size = None if height is None or width is None or not self.positions else (height, width)
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("levels", "cell", "planes", "blocks", "width", "depth", "dropout", "hints")
        }
        return LatticeNet(num_classes, channels, size=size, **options)
