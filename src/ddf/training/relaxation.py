"""The log-probability of a flow with straight-through gradients, with which Discrete Flows are trained."""

__all__ = ["relaxed_log_prob"]

import torch
from torch import Tensor

from ddf.flow import Flow
from ddf.layers.layer import in_layer
from ddf.symbols import one_hot

_MOST_GAIN = 5.0  # nats: rare symbols, which could gain more, must not dominate the gradient


def relaxed_log_prob(flow: Flow, x: Tensor, power: float = 0.5) -> Tensor:
    """Return the log-probability of each sample, (batch,), with gradients that reach all layers.

    The log-probability of a vector z that is not one-hot can be defined in several ways. With power 0, it is the usual
    sum of z · log p, which weighs what a shift would gain and what it would lose equally. Nets then first learn not to
    shift at all, which is best on average, until their softmax is saturated, and learn nothing more. With power r, it
    is log(sum of z · p^r) / r, which is the same for one-hot vectors but emphasizes what a shift would gain.

    Arguments:
        flow: A flow whose layers implement `relax`.
        x: Symbols (batch, *shape) on the flow's device. They are not checked.
        power: The r above, 0 to 1.
    """
    total = torch.zeros(len(x), device=flow.device)

    def emit(symbols: Tensor, logits: Tensor) -> None:
        nonlocal total
        log_p = logits.float().log_softmax(dim=1)
        hard = symbols.detach()
        taken = (hard * log_p).sum(dim=1, keepdim=True)
        # The gradient of log(sum of z · p^r) / r at a one-hot z, except for a constant, which has no effect.
        gain = (log_p - taken).detach()
        slope = torch.expm1(power * gain.clamp(max=_MOST_GAIN)) / power if power else gain
        total = total + (taken + ((symbols - hard) * slope).sum(dim=1, keepdim=True)).flatten(1).sum(1)

    vectors = one_hot(x, flow.num_classes, flow.base.logits.dtype)
    for i, layer in enumerate(flow.layer_list()):
        with in_layer(i):
            vectors = layer.relax(vectors, emit)
    flow.base.relax(vectors, emit)
    return total
