"""Floating-point operations whose results are the same on every machine.

IEEE 754 defines the result of each addition, multiplication, division and rounding. Only the order in which numbers
are summed, and whether operations are fused, depend on the machine. (Square roots are another matter; see `root`.)
These functions therefore consist of single operations on whole tensors, and sum numbers in a fixed order, which
PyTorch's own functions do not guarantee.
"""

__all__ = ["floats_are_exact", "hardswish6", "nearest", "normalized", "power_of_two", "root"]

from functools import lru_cache, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.nets.unet import EPSILON


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 2^exponent exactly; library functions may be off by one unit in the last place."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64).to(dtype)


def nearest(x: Tensor, scale: float) -> Tensor:
    """Return the integers nearest to x · scale; ties are rounded to even numbers."""
    return (x * scale).round_()


def normalized(x: Tensor) -> Tensor:
    """Divide numbers (…, width) by the root of their mean square."""
    # Not a division by the width, which GPUs replace with a multiplication.
    return x / root(_sum(x * x) * (1 / x.shape[-1]) + EPSILON)


def root(x: Tensor) -> Tensor:
    """Return square roots, correctly rounded to single precision.

    PyTorch's own are off by one unit in the last place for every sixth number on CPUs with MKL, and in double precision
    for every hundredth. A root is never so close to halfway between two numbers of single precision that this error in
    double precision could change how it is rounded.
    """
    return x.double().sqrt_().float()


def hardswish6(x: Tensor) -> Tensor:
    """Return x · clamp(x + 3, 0, 6), which is 6 times the hard swish."""
    return (x + 3).clamp_(0, 6).mul_(x)


def _sum(x: Tensor) -> Tensor:
    """Sum numbers (…, width) in a fixed order: (…, 1)."""
    while x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return reduce(torch.add, x.split(1, dim=-1))


@lru_cache(maxsize=64)
def floats_are_exact(device: torch.device) -> bool:
    """Return whether operations on a device agree with those of NumPy on a few thousand numbers."""
    return all(_is_exact(device, dtype) for dtype in (np.float32, np.float64))


def _is_exact(device: torch.device, dtype: Any) -> bool:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((2, 4096)) * np.exp2(generator.integers(-20, 20, (2, 4096)))).astype(dtype)
    a[:64] = np.arange(-32, 32) / 2  # ties
    x, y = (torch.from_numpy(part).to(device) for part in (a, b))
    results = [(x + y, a + b), (x * y, a * b), (x / y, a / b)]
    results += [(x * (1 / 384), a * dtype(1 / 384)), (x + EPSILON, a + dtype(EPSILON)), (x.round(), np.round(a))]
    results += [(x.float(), a.astype(np.float32))]
    if dtype is np.float32:
        results += [(root(x.abs()), np.sqrt(np.abs(a)))]
    return all(np.array_equal(got.cpu().numpy(), want) for got, want in results)
