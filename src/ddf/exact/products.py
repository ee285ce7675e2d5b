"""Int8 matrix products: the fastest exact sums, on devices that support them."""

__all__ = ["byte_kernel", "byte_product", "bytes_are_exact", "integer_product"]

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_UNIT = 16  # sizes of int8 matrices are multiples of this
_LEAST_ROWS = 17  # GPUs do not support fewer rows


def byte_kernel(weight: Tensor) -> Tensor:
    """Convert weights (out, in), integers −128 … 127, to the layout for `byte_product`."""
    outs, ins = weight.shape
    return F.pad(weight.to(torch.int8), [0, -ins % _UNIT, 0, -outs % _UNIT])


def byte_product(x: Tensor, kernel: Tensor, outs: int) -> Tensor:
    """Multiply int8 matrices exactly.

    Arguments:
        x: (…, in), int8.
        kernel: The result of `byte_kernel` for weights (out, in).
        outs: The number of results: `out`.

    Returns:
        (…, out), int32.
    """
    rows = x.reshape(-1, x.shape[-1])
    count, ins = rows.shape
    missing = max(0, _LEAST_ROWS - count)
    if missing or ins < kernel.shape[1]:
        rows = F.pad(rows, [0, kernel.shape[1] - ins, 0, missing])
    return torch._int_mm(rows, kernel.T)[:count, :outs].unflatten(0, x.shape[:-1])


def integer_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows (…, in) by weights (out, in) in 64-bit integers; NumPy is much faster at this than PyTorch."""
    return torch.from_numpy(rows.numpy() @ weight.T.numpy())


@lru_cache(maxsize=64)
def bytes_are_exact(device: torch.device) -> bool:
    """Return whether a device has fast int8 products that are correct.

    CPUs without dedicated instructions add pairs of products in 16 bits, which overflow.
    """
    if not _has_bytes(device):
        return False
    generator = torch.Generator().manual_seed(0)
    for rows, ins, outs in ((3, 8, 8), (40, 64, 48), (65, 520, 576), (1, 1040, 16)):
        x = torch.randint(-128, 128, (rows, ins), generator=generator)
        weight = torch.randint(-128, 128, (outs, ins), generator=generator)
        x[-1], x[0] = -128, 127  # the largest possible sums
        weight[0], weight[1] = 127, -128
        try:
            got = byte_product(x.to(device, torch.int8), byte_kernel(weight.to(device)), outs)
        except RuntimeError:
            return False
        if not torch.equal(got.cpu(), (x.double() @ weight.double().T).to(torch.int32)):
            return False
    return True


def _has_bytes(device: torch.device) -> bool:
    """Return whether int8 products are known to be fast: on GPUs, and on CPUs with instructions for them."""
    if not hasattr(torch, "_int_mm"):
        return False
    known = getattr(torch.cpu, "_is_vnni_supported", None)
    return device.type == "cuda" or (device.type == "cpu" and known is not None and bool(known()))
