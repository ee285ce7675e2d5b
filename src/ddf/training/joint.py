"""Joint training, end to end: how Discrete Flows are trained."""

__all__ = ["Relaxed", "joint_loss", "train_jointly"]

from collections.abc import Iterator
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ddf.flow import Flow
from ddf.layers.net_layer import Loss
from ddf.training.cache import Cache
from ddf.training.loop import Session, Task, optimize
from ddf.training.relaxation import relaxed_log_prob


class Relaxed(nn.Module):
    """A flow as a module that returns the relaxed log-probability."""

    def __init__(self, flow: Flow, power: float) -> None:
        super().__init__()
        self.flow = flow
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        """Return the relaxed log-probability of each sample."""
        return relaxed_log_prob(self.flow, x, self.power)


def joint_loss(relaxed: nn.Module, x: Tensor) -> Loss:
    """Return the relaxed bits per dimension, which are both reported and minimized."""
    bits = joint_score(relaxed, x)
    return Loss(bits, bits)


def joint_score(relaxed: nn.Module, x: Tensor) -> Tensor:
    """Return the relaxed bits per dimension."""
    bits: Tensor = relaxed(x).mean() / (-log(2) * x[0].numel())
    return bits


def train_jointly(flow: Flow, train: Cache, validation: Cache, session: Session) -> list[dict[str, Any]]:
    """Train all layers and the base together, with straight-through gradients."""
    if all(part.frozen for part in flow.parts()):
        return []
    finished = session.run.finished(0)
    if finished is None:
        if not flow.base.logits.any():
            # Untrained couplings do nothing, so the best initial base is that of the data itself.
            counts = session.processes.sum(flow.base.count(_carried(flow, train)))
            flow.base.set_counts(counts, session.config.smoothing)
        task = Task(0, "all layers", Relaxed(flow, session.config.relaxation), joint_loss, joint_score)
        facts = optimize(task, train, validation, session)
        session.run.finish(0, flow.state_dict(), facts)
    else:
        tensors, facts = finished
        flow.load_state_dict(tensors)
        session.progress.end()
    flow.freeze()
    train.drop()
    validation.drop()
    return [facts]


@torch.no_grad()
def _carried(flow: Flow, train: Cache) -> Iterator[Tensor]:
    """Yield the output of the layers for the first draw of every sample."""
    left = len(train) // train.draws
    for batch in train.batches(512):
        z = batch[:left]
        if not len(z):
            return
        left -= len(z)
        for layer in flow.layer_list():
            z = layer.carry(z)
        yield z
