"""Data with fresh randomness on each pass."""

__all__ = ["Resampled"]

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ddf.shapes import Array


class Resampled:
    """Data that is resampled on each pass: stored values, and a function that draws symbols from them.

    Arguments:
        stored: The stored values (samples, …), such as gray values, or maps that may be mirrored: a tensor, or an
            array, which may be memory-mapped.
        draw: Draws the symbols of a batch of stored values, sample by sample: `draw(batch, generator)`.
        shape: The shape of one drawn sample, if it is not the shape of a stored one.
        read: Arrays that `draw` reads besides `stored`. They identify the data when a run is resumed.

    Examples:
        >>> gray = torch.randint(256, (100, 1, 28, 28), dtype=torch.uint8)
        >>> def binarize(gray, generator):
        ...     return (torch.rand(gray.shape, generator=generator) < gray / 255).to(torch.uint8)
        >>> digits = Resampled(gray, binarize)
        >>> digits.draw(gray[:10], torch.Generator().manual_seed(0)).shape
        torch.Size([10, 1, 28, 28])
    """

    def __init__(
        self,
        stored: Tensor | Array,
        draw: Callable[[Tensor, torch.Generator], Tensor],
        shape: Sequence[int] | None = None,
        read: Sequence[Array] = (),
    ) -> None:
        if not isinstance(stored, Tensor | np.ndarray) or stored.ndim < 1:
            raise TypeError(f"Resampled: stored must be a tensor or an array of samples, not a {type(stored).__name__}")
        self.stored = stored
        self.draw = draw
        self.shape = tuple(stored.shape[1:]) if shape is None else tuple(shape)
        self.read = tuple(read)

    def __len__(self) -> int:
        return len(self.stored)
