"""Convert integer logits to integer frequencies, in integer arithmetic only."""

__all__ = ["PER_BIT", "PRECISION", "frequencies"]

import torch
from torch import Tensor

PER_BIT = 256
"""Logits are integers in units of 1/256 bit."""

PRECISION = 16
"""Frequencies add up to 2^16."""

_TOP = 23
# 2^23 · 2^(−i/256), rounded: exact wherever a double has its 53 bits, since none of them is near a half.
_POWERS = tuple(round(2.0 ** (_TOP - i / PER_BIT)) for i in range(PER_BIT))


def frequencies(logits: Tensor) -> Tensor:
    """Return the frequency of every class: at least 1 each, and 2^16 in total.

    The weight of a class that is d/256 bits behind the likeliest one is 2^23 · 2^(−d/256), cut to an integer. Of the
    2^16, every class gets 1 and its share of the rest, rounded down; what is left over goes to the likeliest class (the
    first of them).

    Arguments:
        logits: Integers (rows, K).

    Returns:
        int32 (rows, K).

    Examples:
        >>> frequencies(torch.tensor([[256, 0, 0]]))
        tensor([[32768, 16384, 16384]], dtype=torch.int32)
    """
    classes = logits.shape[1]
    logits = logits.to(torch.int64)
    most = logits.amax(dim=1, keepdim=True)
    behind = (most - logits).clamp_(max=(_TOP + 1) * PER_BIT - 1)
    powers = torch.tensor(_POWERS, dtype=torch.int64, device=logits.device)
    weights = powers[behind % PER_BIT] >> (behind // PER_BIT)
    total = weights.sum(dim=1, keepdim=True)
    shares = 1 + torch.div(weights * ((1 << PRECISION) - classes), total, rounding_mode="floor")
    left = (1 << PRECISION) - shares.sum(dim=1)
    first = (logits == most).to(torch.uint8).argmax(dim=1)
    shares[torch.arange(len(shares), device=shares.device), first] += left
    return shares.to(torch.int32)
