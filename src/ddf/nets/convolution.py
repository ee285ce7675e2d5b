"""A convolution that keeps the size of its input."""

__all__ = ["Convolution"]

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Conv2d):
    """A 2-D convolution with zero padding, fast in double precision too.

    The libraries' convolutions are made for single precision and below: in double precision they are up to four times
    slower than the same sums as matrix products.

    Arguments:
        in_channels: The planes that come in.
        out_channels: The planes that go out.
        kernel_size: 1, 3, or another odd number.

    Example:
        >>> Convolution(8, 16, kernel_size=3)(torch.zeros(1, 8, 14, 14)).shape
        torch.Size([1, 16, 14, 14])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            return self._as_products(x)
        if self.kernel_size == (1, 1) and x.is_cuda and torch.is_autocast_enabled("cuda"):
            # The same sums as a matrix product: a tenth less time per training step. (In single precision, convolutions
            # may use TF32 where products by default do not.)
            return F.linear(x.permute(0, 2, 3, 1), self.weight[:, :, 0, 0], self.bias).permute(0, 3, 1, 2)
        return super().forward(x)

    def _as_products(self, x: Tensor) -> Tensor:
        """One product for all taps of the kernel, whose results are then moved into place and added up."""
        batch, _, height, width = x.shape
        taps = self.weight.permute(2, 3, 0, 1).flatten(0, 2)
        moved = F.linear(x.permute(0, 2, 3, 1), taps).unflatten(-1, (*self.kernel_size, self.out_channels))
        if self.kernel_size == (1, 1):
            out = moved[..., 0, 0, :]
        else:
            out = x.new_zeros(batch, height, width, self.out_channels)
            for i in range(self.kernel_size[0]):
                rows_to, rows_from = _overlap(height, i - self.kernel_size[0] // 2)
                for j in range(self.kernel_size[1]):
                    columns_to, columns_from = _overlap(width, j - self.kernel_size[1] // 2)
                    out[:, rows_to, columns_to].add_(moved[:, rows_from, columns_from, i, j])
        if self.bias is not None:
            out = out + self.bias
        return out.permute(0, 3, 1, 2)


def _overlap(size: int, offset: int) -> tuple[slice, slice]:
    """Where `size` positions meet the same positions moved by `offset`: there, and here."""
    return slice(max(0, -offset), size - max(0, offset)), slice(max(0, offset), size + min(0, offset))
