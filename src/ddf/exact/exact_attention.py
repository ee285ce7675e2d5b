"""Self-attention whose result is the same on every machine."""

__all__ = ["ExactAttention"]

from functools import lru_cache, reduce

import torch
from torch import Tensor

from ddf.exact.exact_nets import BITS_PER_NAT
from ddf.exact.floats import nearest, normalized
from ddf.exact.integer_module import IntegerModule
from ddf.exact.wide_affine import WideAffine
from ddf.nets.unet import HEAD, SHARPNESS, Attention

_UNIT = 2.0**16
"""Queries and keys, which are at most 8, are multiples of 1/2^16. Sums of 64 of their products are below 2^45."""

_TOP = 23  # the largest weight is 2^23
_PER_BIT = 1024  # weights are 2^(23 − i / 1024), rounded
_PER_SCORE = SHARPNESS / HEAD * BITS_PER_NAT * _PER_BIT / (_UNIT * _UNIT)
_KEYS = 1 << 14
"""Keys whose values are summed exactly: 2^14 weights of up to 2^23 times values below 2^15 add up to less than 2^53."""

_PAIRS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Pairs of queries and keys that are processed together."""


class ExactAttention(IntegerModule):
    """The exact form of an `Attention` block.

    Arguments:
        attention: The original block.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.heads = attention.heads
        self.mix = WideAffine(attention.mix.weight.shape)
        self.out = WideAffine(attention.out.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to (batch, height, width, planes)."""
        parts = self.mix(normalized(x)).flatten(1, 2).unflatten(-1, (3, self.heads, HEAD)).permute(2, 0, 3, 1, 4)
        query, key = (nearest(normalized(part), _UNIT) for part in parts[:2])
        value = self.out.rounded(parts[2])  # in the units of `out`, whose inputs are means of values
        mixed = _attend(query.double(), key.double(), value.double()).float().mul_(self.out.unit)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2).unflatten(1, x.shape[1:3])).add_(x)
        return out

    def is_exact(self) -> bool:
        """Return whether products of this device agree with 64-bit integers on a few probes."""
        device = self.mix.weight.device
        generator = torch.Generator().manual_seed(0)
        for rows, inner, most in ((40, HEAD, 1 << 19), (HEAD, 200, 1 << 20)):
            a, b = (torch.randint(-most, most + 1, (2, side, inner), generator=generator) for side in (rows, 50))
            a[:, 0], b[:, 0] = most, -most
            got = a.double().to(device) @ b.double().to(device).transpose(1, 2)
            if not torch.equal(got.cpu().to(torch.int64), a @ b.transpose(1, 2)):
                return False
        return True


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the mean of the values for each query, weighted by 2^(score · constant), with a fixed rounding.

    Arguments:
        query: Integers (batch, heads, queries, width), in double precision.
        key: The same for keys.
        value: The same for values.
    """
    powers = _powers(query.device)
    batch, heads, count, _ = key.shape
    together = max(1, _PAIRS.get(query.device.type, _PAIRS["cpu"]) // (batch * heads * count))
    means = []
    for some in query.split(together, dim=2):
        scores = some @ key.transpose(2, 3)
        behind = (scores.amax(dim=-1, keepdim=True) - scores).mul_(_PER_SCORE).floor_().clamp_(max=len(powers) - 1)
        weights = powers[behind.to(torch.int64)]
        parts = zip(weights.split(_KEYS, dim=3), value.split(_KEYS, dim=2), strict=True)
        total = reduce(torch.add, [part @ values for part, values in parts])  # in a fixed order
        means.append(total / weights.sum(dim=-1, keepdim=True))
    return torch.cat(means, dim=2)


@lru_cache(maxsize=64)
def _powers(device: torch.device) -> Tensor:
    """Return the weight for each distance from the largest score, in units of 1/1024 bit."""
    # None of these numbers is so close to a half that the rounding could depend on the machine.
    powers = [round(2.0 ** (_TOP - i / _PER_BIT)) for i in range(_TOP * _PER_BIT + 1)]
    return torch.tensor([*powers, 0], dtype=torch.float64, device=device)
