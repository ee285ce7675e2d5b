"""Data with fresh randomness."""

__all__ = ["Redrawn"]

from collections.abc import Callable

import torch
from torch import Tensor


class Redrawn:
    """Data of which every look is another one: what is stored, and how symbols are drawn from it.

    Arguments:
        stored: What is stored, (samples, …): grey values, or maps that may be flipped.
        draw: Makes symbols of a batch of it: `draw(batch, generator)`.

    Example:
        >>> grey = torch.randint(256, (100, 1, 28, 28), dtype=torch.uint8)
        >>> def binarize(grey, generator):
        ...     return (torch.rand(grey.shape, generator=generator) < grey / 255).to(torch.uint8)
        >>> digits = Redrawn(grey, binarize)
        >>> digits.draw(grey[:10], torch.Generator().manual_seed(0)).shape
        torch.Size([10, 1, 28, 28])
    """

    def __init__(self, stored: Tensor, draw: Callable[[Tensor, torch.Generator], Tensor]) -> None:
        self.stored = stored
        self.draw = draw

    def __len__(self) -> int:
        return len(self.stored)
