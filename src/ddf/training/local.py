"""Local training, layer by layer: the paper's algorithm 3."""

__all__ = ["classification_loss", "train_locally"]

import itertools
import time
from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ddf.flow import Flow
from ddf.layers.conditional import Conditional
from ddf.logits import check_limits
from ddf.symbols import one_hot
from ddf.training.cache import Cache
from ddf.training.loop import Session, Task, optimize


def classification_loss(layer: Conditional) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return the loss of a layer's net: the cross-entropy of the target, in bits per predicted symbol."""

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        given, target = layer.split(x)
        log_p = layer.masked(net(given).float()).log_softmax(dim=1)
        # With one-hot vectors, numbers are summed in the same order every time, on a GPU too.
        return (log_p * one_hot(target, layer.num_classes)).sum() / (-log(2) * target.numel())

    return loss


def train_locally(flow: Flow, train: Cache, validation: Cache, session: Session) -> list[dict[str, Any]]:
    """Train every layer that has a net on the output of the layers before it, then fit the base.

    After a layer is trained, the data is passed through that layer once, so a step costs the same in every layer.
    """
    parts = []
    for number, layer in enumerate(flow.layer_list()):
        facts: dict[str, Any] | None = None
        new = False
        if isinstance(layer, Conditional) and not layer.frozen:
            finished = session.run.finished(number)
            if layer.limits is not None:
                for batch in itertools.chain(train.batches(), validation.batches()):
                    check_limits(layer.split(batch)[1], layer.limits)
            if finished is None:
                label = f"{number} {type(layer).__name__}"
                task = Task(number, label, layer.net, classification_loss(layer))
                facts = optimize(task, train, validation, session)
                session.run.finish(number, layer.net.state_dict(), facts)
                new = True
            else:
                tensors, facts = finished
                layer.net.load_state_dict(tensors)
                session.progress.end()
            counts = layer.count(validation.batches(256))  # nets are overconfident on the data they were trained on
            if counts.numel():
                layer.set_counts(session.processes.sum(counts))
        layer.freeze()
        start = time.monotonic()
        shape = layer.output_shape(train.shape)
        with torch.no_grad():
            name = f"the output of layer {number}, {type(layer).__name__}"
            train = train.through(layer.carry, shape, name)
            validation = validation.through(layer.carry, shape, name)
        if facts is not None:
            facts["push_seconds"] = round(time.monotonic() - start, 3)
            parts.append(facts)
            if new:
                session.run.log(part=number, **facts)
    if not flow.base.frozen:
        counts = session.processes.sum(flow.base.count(train.batches()))
        flow.base.set_counts(counts, session.config.smoothing).freeze()
    train.drop()
    validation.drop()
    return parts
