"""A convolution that keeps the size of its input."""

__all__ = ["Convolution", "add_taps", "as_products"]

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Conv2d):
    """A 2-D convolution with zero padding that is fast in double precision too.

    Library convolutions are optimized for single precision: in double precision they are up to four times slower than
    the same sums as matrix products.

    Arguments:
        in_channels: The number of input planes.
        out_channels: The number of output planes.
        kernel_size: 1, 3, or another odd number.
        bias: Whether a learned constant is added to each plane.

    Examples:
        >>> Convolution(8, 16, kernel_size=3)(torch.zeros(1, 8, 14, 14)).shape
        torch.Size([1, 16, 14, 14])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight)

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the convolution with these weights."""
        if x.dtype == torch.float64:
            out = as_products(x, weight)
            return out if self.bias is None else out + self.bias.view(-1, 1, 1)
        if self.kernel_size == (1, 1) and x.is_cuda and torch.is_autocast_enabled("cuda"):
            # The same sums as a matrix product: 10 % less time per training step. (Not in single precision, where
            # convolutions may use TF32 and products do not by default.)
            return F.linear(x.permute(0, 2, 3, 1), weight[:, :, 0, 0], self.bias).permute(0, 3, 1, 2)
        return F.conv2d(x, weight, self.bias, padding=self.padding)


def as_products(x: Tensor, weight: Tensor) -> Tensor:
    """Compute a convolution with zero padding as one product for all taps, whose results are shifted and summed.

    Arguments:
        x: (batch, channels, height, width)
        weight: (out channels, channels, rows, columns)
    """
    taps = weight.permute(2, 3, 0, 1).flatten(0, 2)
    return add_taps(F.linear(x.permute(0, 2, 3, 1), taps), weight.shape[2:], x.dtype).permute(0, 3, 1, 2)


def add_taps(products: Tensor, kernel: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Compute the sums of a convolution from the products of each pixel with each tap.

    Arguments:
        products: (batch, height, width, rows · columns · out channels)
        kernel: Rows and columns of the kernel; empty for a linear map, whose products are the sums already.
        dtype: The dtype of the sums.

    Returns:
        (batch, height, width, out channels)
    """
    if all(size == 1 for size in kernel):
        return products.to(dtype)
    moved = products.unflatten(-1, (*kernel, -1))
    batch, height, width, rows, columns, out_channels = moved.shape
    out = torch.zeros(batch, height, width, out_channels, dtype=dtype, device=products.device)
    for i in range(rows):
        rows_to, rows_from = _overlap(height, i - rows // 2)
        for j in range(columns):
            columns_to, columns_from = _overlap(width, j - columns // 2)
            out[:, rows_to, columns_to].add_(moved[:, rows_from, columns_from, i, j])
    return out


def _overlap(size: int, offset: int) -> tuple[slice, slice]:
    """Return where positions 0 … `size` − 1, shifted by `offset`, overlap themselves: target and source."""
    return slice(max(0, -offset), size - max(0, offset)), slice(max(0, offset), size + min(0, offset))
