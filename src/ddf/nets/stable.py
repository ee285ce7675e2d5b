"""Logits that a coupling can act on: the same for a sample in every batch."""

__all__ = ["PER_NAT", "evaluation_mode", "stable_logits"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

PER_NAT = 1024
"""The grid of stable logits: multiples of 1/1024 nat."""


@torch.no_grad()
def stable_logits(net: nn.Module, *given: Any) -> Tensor:
    """Return the logits of a net as whole numbers, for decisions that must not depend on the rest of the batch.

    A coupling acts on the order of the logits. In single precision they change by 1e-6 with the batch size, so that a
    near tie is sometimes decided differently and a sample cannot be decoded. In double precision that noise is a
    billion times smaller, and autocast and TF32 have no effect. It would still break exact ties (the logits of two
    classes that never occur in training are equal), so the logits are rounded to multiples of 1/1024, a grid far
    coarser than the noise, and `rank` breaks ties in favor of the lowest class.

    Nets whose attribute `exact` is true return integer logits, which are used as they are.
    """
    if getattr(net, "exact", False):
        logits: Tensor = net(*given)
        return logits
    weights = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in (*net.named_parameters(), *net.named_buffers())
    }
    with evaluation_mode(net):
        logits = functional_call(net, weights, given)
    if not logits.isfinite().all():
        raise ValueError(f"the logits contain {logits[~logits.isfinite()][0].item()}; are the weights finite?")
    # Not to the nearest multiple: nets do produce numbers such as 1/2048, halfway between two.
    return (logits * PER_NAT + 1 / 3).floor()


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Put a net in evaluation mode, and each of its modules back in its own mode afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
