"""The geometry of lattices: how the steps of an ordered flow refine a map, and the base class of its nets."""

__all__ = ["LatticeWalk", "cell_offsets", "pad_planes"]

from abc import ABC, abstractmethod
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ddf.symbols import one_hot

TYPES = (1, 1), (0, 1), (1, 0)
"""Row and column, modulo 2, of the pixels that a level adds, in the order of coding: centers, midpoints of edges."""


@cache
def cell_offsets(cell: int) -> tuple[tuple[int, int], ...]:
    """Return the pixels (row, column) of a cell that are coded, in the order of their steps.

    Pixels whose row and column are both even are already known. Consecutive pixels are far apart.

    Arguments:
        cell: Height and width of the cell, a power of two and at least 2.
    """
    found: list[tuple[int, int]] = []
    for row, column in TYPES:
        offsets = [(y, x) for y in range(row, cell, 2) for x in range(column, cell, 2)]
        found += sorted(offsets, key=lambda at: _spread(at[0] // 2, at[1] // 2, cell // 2))
    return tuple(found)


def _spread(row: int, column: int, count: int) -> tuple[int, int, int]:
    """Return a sort key that keeps neighbors far apart: the color on a chessboard, then the reversed bits."""
    bits = (count - 1).bit_length()
    return (row + column) % 2, _reversed_bits(row, bits), _reversed_bits(column, bits)


def _reversed_bits(number: int, bits: int) -> int:
    return sum(1 << (bits - 1 - i) for i in range(bits) if number >> i & 1)


class LatticeWalk(ABC):
    """The base class of nets that predict all steps of a `LatticeOrder`, level by level.

    A level computes features from the known pixels, which form a coarse map, and predicts the pixels in between. The
    pixels of one step form a group, which is predicted from the features and all earlier groups. The map of the last
    level consists of all pixels, the map of the level before it of every other pixel in both directions, and so on.
    """

    num_classes: int
    channels: int
    levels: int
    cell: int
    unit: int
    size: tuple[int, int] | None

    @abstractmethod
    def features(self, x: Tensor, given: Tensor | None, level: int) -> Tensor:
        """Return the features of a level: (batch, …), computed from coarser pixels and those given in advance."""

    @abstractmethod
    def group_logits(self, features: Tensor, x: Tensor, level: int) -> Tensor:
        """Return the logits of a level's groups: (batch, groups, K, channels, rows of cells, columns of cells)."""

    @abstractmethod
    def start_logits(self, x: Tensor, given: Tensor) -> Tensor:
        """Return the logits of the pixels of step 0, computed from those given in advance."""

    def forward(
        self, x: Tensor, given: Tensor | None = None, step: int | None = None, memory: dict[str, Any] | None = None
    ) -> Tensor:
        """Return the logits of all pixels, each computed from the pixels of earlier steps and those given in advance.

        Arguments:
            x: Symbols (batch, channels, height, width).
            given: Which pixels are given in advance (batch, height, width); None for none. Their logits are
                meaningless. If this is None, so are the logits of the pixels of step 0.
            step: The number of the only step whose logits to compute; None for all steps.
            memory: A cache for calls with `step`: pass the same dictionary, initially empty, for all steps of a map.

        Returns:
            Logits (batch, K, channels, height, width), or (batch, K, channels, pixels of the step).
        """
        self.check_shape(x)
        if step is not None:
            return self._at_step(x, given, step, {} if memory is None else memory)
        logits = None if given is None else self.start_logits(x, given)
        for level in range(self.levels):
            groups = self.group_logits(self.features(x, given, level), x, level)
            logits = self._join(groups, logits, x.shape[2:], level)
        assert logits is not None
        return logits

    def check_shape(self, x: Tensor) -> None:
        """Raise an error for symbols of a shape that the net was not built for."""
        name = type(self).__name__
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"{name} was built for channels={self.channels}, not for symbols of shape {tuple(x.shape)}"
            )
        if self.size not in (None, tuple(x.shape[2:])):
            raise ValueError(f"{name} was built for maps of size {self.size}, not {tuple(x.shape[2:])}")

    def _at_step(self, x: Tensor, given: Tensor | None, step: int, memory: dict[str, Any]) -> Tensor:
        if step == 0:
            assert given is not None
            return self.start_logits(x, given).flatten(3)
        level, group = divmod(step - 1, len(cell_offsets(self.cell)))
        if memory.get("level") != level:
            memory.update(level=level, features=self.features(x, given, level))
        logits = self.group_logits(memory["features"], x, level)[:, group]
        (row, column), (height, width) = cell_offsets(self.cell)[group], self._sides(x.shape[2:], level)
        rows, columns = len(range(row, height, self.cell)), len(range(column, width, self.cell))
        return logits[..., :rows, :columns].flatten(3)

    def _join(self, groups: Tensor, known: Tensor | None, size: tuple[int, ...], level: int) -> Tensor:
        """Combine the logits of a level's groups with those of coarser pixels into a map."""
        half = self.cell // 2
        rows, columns = groups.shape[-2:]
        if known is None:
            known = groups.new_zeros(*groups.shape[:1], *groups.shape[2:4], rows * half, columns * half)
        known = F.pad(known, [0, columns * half - known.shape[4], 0, rows * half - known.shape[3]])
        order = {offset: group for group, offset in enumerate(cell_offsets(self.cell))}
        parts = [
            groups[:, order[row, column]]
            if (row, column) in order
            else known[..., row // 2 :: half, column // 2 :: half]
            for row in range(self.cell)
            for column in range(self.cell)
        ]
        height, width = self._sides(size, level)
        return F.pixel_shuffle(torch.stack(parts, dim=3), self.cell).squeeze(3)[..., :height, :width]

    # ---- What nets read

    def lattice(self, x: Tensor, level: int, dtype: torch.dtype) -> Tensor:
        """Return one-hot planes of a level's map, padded with an additional class K."""
        spacing = 1 << (self.levels - 1 - level)
        thin = x[:, :, ::spacing, ::spacing].long()
        height, width = thin.shape[2:]
        padded = F.pad(thin, [0, -width % self.unit, 0, -height % self.unit], value=self.num_classes)
        return one_hot(padded, self.num_classes + 1, dtype).flatten(1, 2)

    def hints_of(self, x: Tensor, given: Tensor | None, level: int, dtype: torch.dtype) -> Tensor:
        """Return the class frequencies of the pixels that are given in advance.

        Each pixel of a level's map stands for a block of pixels. The frequencies are those of the given pixels of this
        block, or all zero if none is given.

        Returns:
            Four planes for each class and channel: one for each of the 2 × 2 pixels that begin at a known one.
        """
        spacing = 1 << (self.levels - 1 - level)
        unit = spacing * self.unit
        if given is None:
            given = torch.zeros_like(x[:, 0], dtype=torch.bool)
        height, width = x.shape[2:]
        planes = one_hot(x.long(), self.num_classes, dtype) * given[:, None, None]
        planes = F.pad(planes.flatten(1, 2), [0, -width % unit, 0, -height % unit])
        counted = F.avg_pool2d(planes, spacing).unflatten(1, (self.num_classes, self.channels))
        frequencies = counted / counted.sum(1, keepdim=True).clamp(min=2.0**-20)
        return F.pixel_unshuffle(frequencies.flatten(1, 2), 2)

    def to_groups(self, features: Tensor, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the pixels of all groups, and their one-hot planes: (batch, planes, rows, columns).

        Arguments:
            features: Features for each of `TYPES` at each known pixel: (batch, 3 · width, height / 2, width / 2).
            planes: One-hot planes of a level's map.
        """
        half, parts = self.cell // 2, dict(zip(TYPES, features.chunk(3, dim=1), strict=True))
        offsets = cell_offsets(self.cell)
        own = [parts[row % 2, column % 2][:, :, row // 2 :: half, column // 2 :: half] for row, column in offsets]
        seen = [planes[:, :, row :: self.cell, column :: self.cell] for row, column in offsets]
        return torch.cat(own, dim=1), torch.cat(seen, dim=1)

    def _sides(self, size: tuple[int, ...], level: int) -> tuple[int, int]:
        """Return the height and width of a level's map."""
        spacing = 1 << (self.levels - 1 - level)
        height, width = (-(-side // spacing) for side in size)
        return height, width


def pad_planes(planes: Tensor, count: int) -> Tensor:
    """Append planes of zeros until there are `count`."""
    return F.pad(planes, [0, 0, 0, 0, 0, count - planes.shape[1]]) if planes.shape[1] < count else planes
