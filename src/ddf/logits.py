"""Logits as probabilities: how to score symbols and sample them.

Floating-point logits, in nats, are read with a softmax. Integer logits, in units of 1/256 bit, are read as integer
frequencies, computed in integer arithmetic only, so that an entropy coder can use them on any machine.
"""

__all__ = [
    "PER_BIT",
    "PRECISION",
    "check_limits",
    "checked_limits",
    "draw_symbols",
    "frequencies",
    "impossible_classes",
    "log_probs",
    "mask_classes",
]

from collections.abc import Iterable
from math import log
from operator import index

import torch
import torch.nn.functional as F
from torch import Tensor

PER_BIT = 256
"""Integer logits are in units of 1/256 bit."""

PRECISION = 16
"""Frequencies add up to 2^16."""

_TOP = 23
_FAR = 1 << 20  # nats
# 2^23 · 2^(−i/256), rounded: exact in double precision, since none of these numbers is close to a half.
_POWERS = tuple(round(2.0 ** (_TOP - i / PER_BIT)) for i in range(PER_BIT))


def log_probs(symbols: Tensor, logits: Tensor) -> Tensor:
    """Return the natural logarithm of the probability of each symbol, in double precision.

    Arguments:
        symbols: Symbols (batch, channels, *spatial).
        logits: Logits (batch, K, channels, *spatial), in floating point or integers.

    Examples:
        >>> log_probs(torch.tensor([[0]]), torch.tensor([[[512], [256], [0]]])).exp()  # 4/7 in integer frequencies
        tensor([[0.5714]], dtype=torch.float64)
    """
    if logits.is_floating_point():
        _check_finite(logits)
        return -F.cross_entropy(logits.float(), symbols.long(), reduction="none").double()
    chosen = _rows(logits).gather(1, symbols.reshape(-1, 1).long()).view(symbols.shape)
    return chosen.double().log() - PRECISION * log(2)


def checked_limits(limits: Iterable[int] | None, num_classes: int) -> tuple[int, ...] | None:
    """Check the number of classes of each channel and return them as a tuple; None means no limits."""
    if limits is None:
        return None
    try:
        numbers = tuple(limit if isinstance(limit, bool) else index(limit) for limit in limits)
    except TypeError:
        raise TypeError(f"limits={limits!r} must be a sequence of numbers of classes") from None
    if not all(type(limit) is int and 1 <= limit <= num_classes for limit in numbers):
        raise ValueError(f"limits={numbers} must be numbers of classes 1…{num_classes}")
    return numbers


def impossible_classes(limits: tuple[int, ...] | None, num_classes: int) -> Tensor | None:
    """Return a mask (K, channels) of the classes that each channel lacks; None if there are no limits.

    Arguments:
        limits: The number of classes of each channel; None if all have K.
        num_classes: The number of classes K.
    """
    if limits is None:
        return None
    return torch.arange(num_classes).unsqueeze(1) >= torch.tensor(limits)


def check_limits(symbols: Tensor, limits: tuple[int, ...] | None) -> None:
    """Raise an error if symbols (samples, channels, *spatial) include one that its channel lacks."""
    for channel, limit in enumerate(limits or ()):
        most = int(symbols[:, channel].max()) if len(symbols) else 0
        if most >= limit:
            raise ValueError(f"the data contains the symbol {most} in channel {channel}, but limits={limits}")


def mask_classes(logits: Tensor, impossible: Tensor | None, units_per_nat: int = 1) -> Tensor:
    """Make classes impossible: set their logits about a million nats below all others.

    Arguments:
        logits: Logits (batch, K, channels, *spatial) in floating point.
        impossible: The mask that `impossible_classes` returns.
        units_per_nat: The unit of the logits.
    """
    if impossible is None:
        return logits
    mask = impossible.view(*impossible.shape, *[1] * (logits.ndim - 3))
    return logits.masked_fill(mask, -_FAR * units_per_nat)


def draw_symbols(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample symbols (batch, channels, *spatial), int64, from logits (batch, K, channels, *spatial)."""
    shape = logits.shape[:1] + logits.shape[2:]
    if logits.is_floating_point():
        _check_finite(logits)
        probabilities = logits.movedim(1, -1).float().softmax(-1).flatten(0, -2)
        return torch.multinomial(probabilities, 1, generator=generator).view(shape)
    points = torch.randint(1 << PRECISION, shape, generator=generator, device=logits.device).view(-1, 1)
    return (_rows(logits).cumsum(dim=1) <= points).sum(dim=1).view(shape)


def frequencies(logits: Tensor) -> Tensor:
    """Convert integer logits to frequencies: at least 1 for each class, and 2^16 in total.

    A class that is d/256 bits behind the most likely one has the weight 2^23 · 2^(−d/256), rounded down to an integer.
    Of the 2^16, each class gets 1 and its share of the rest, rounded down; what remains goes to the most likely class
    (the first one if there are several).

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
    remainder = (1 << PRECISION) - shares.sum(dim=1)
    first = (logits == most).to(torch.uint8).argmax(dim=1)
    shares[torch.arange(len(shares), device=shares.device), first] += remainder
    return shares.to(torch.int32)


def _rows(logits: Tensor) -> Tensor:
    """Return the frequencies of integer logits, a row (K,) for each symbol."""
    return frequencies(logits.movedim(1, -1).reshape(-1, logits.shape[1]))


def _check_finite(logits: Tensor) -> None:
    finite = logits.detach().isfinite()
    if not finite.all():
        raise ValueError(f"the logits contain {logits.detach()[~finite][0].item()}; are the weights finite?")
