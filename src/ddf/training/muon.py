"""The Muon optimizer."""

__all__ = ["Muon"]

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the Newton–Schulz iteration of Jordan et al.
_ITERATIONS = 5
_RMS = 0.2  # of an update, relative to the learning rate: that of typical updates of Adam


class Muon(torch.optim.Optimizer):
    """Nesterov momentum with orthogonalized updates, for weight matrices and the kernels of convolutions.

    Updates are scaled so that the learning rates and weight decays of AdamW are suitable.

    References:
        | Muon: An optimizer for hidden layers in neural networks (Jordan et al., 2024)
        | Muon is Scalable for LLM Training (Liu et al., 2025)

    Arguments:
        parameters: Weights (out, in) or (out, in, rows, columns).
        lr: The learning rate, as a number or a tensor.
        momentum: The decay of the momentum.
        weight_decay: The decoupled weight decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all weights."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for weights in by_shape.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update weights of the same shape."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        gradients: list[Any] = [weight.grad for weight in weights]
        averages = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, averages, group["momentum"])
        updates = orthogonal(torch.stack([_channels_last(direction).flatten(1) for direction in directions]))
        rate = group["lr"] * (_RMS * max(updates.shape[1:]) ** 0.5)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for weight, update in zip(weights, updates * rate, strict=True):
            rows = _channels_last(weight)
            rows.sub_(update.view(rows.shape))


def _channels_last(weight: Tensor) -> Tensor:
    """Return a channels-last view of the kernel of a convolution, which is its layout in memory on a GPU."""
    return weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximate the nearest semi-orthogonal matrices by Newton–Schulz iterations: (count, rows, columns)."""
    low, medium, high = _COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(_ITERATIONS):
        product = x @ x.mT
        x = low * x + (medium * product + high * (product @ product)) @ x
    return (x.mT if tall else x).to(matrices.dtype)
