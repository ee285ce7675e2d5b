"""Data with fresh randomness."""

__all__ = ["Redrawn"]

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Redrawn:
    """Data of which every look is another one: what is stored, and how symbols are drawn from it.

    Arguments:
        stored: What is stored, (samples, …): grey values, or maps that may be flipped. A tensor, or an array, which may
            be mapped from disk.
        draw: Makes symbols of a batch of it, a tensor, sample by sample: `draw(batch, generator)`.
        shape: The shape of one sample that is drawn, where it is not that of a stored one.

    Examples:
        >>> grey = torch.randint(256, (100, 1, 28, 28), dtype=torch.uint8)
        >>> def binarize(grey, generator):
        ...     return (torch.rand(grey.shape, generator=generator) < grey / 255).to(torch.uint8)
        >>> digits = Redrawn(grey, binarize)
        >>> digits.draw(grey[:10], torch.Generator().manual_seed(0)).shape
        torch.Size([10, 1, 28, 28])
    """

    def __init__(
        self,
        stored: Tensor | np.ndarray[Any, Any],
        draw: Callable[[Tensor, torch.Generator], Tensor],
        shape: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(stored, Tensor | np.ndarray) or stored.ndim < 1:
            raise TypeError(
                f"Redrawn: stored must be a tensor or an array of samples, but is a {type(stored).__name__}"
            )
        self.stored = stored
        self.draw = draw
        self.shape = tuple(stored.shape[1:]) if shape is None else tuple(shape)

    def __len__(self) -> int:
        return len(self.stored)
