"""Local training, layer by layer: the paper's algorithm 3."""

__all__ = ["train_locally"]

import itertools
import time
from typing import Any

import torch

from ddf.flow import Flow
from ddf.layers import NetLayer
from ddf.training.cache import Cache
from ddf.training.loop import Session, Task, optimize


def train_locally(flow: Flow, train: Cache, validation: Cache, session: Session) -> list[dict[str, Any]]:
    """Train every layer that has a net on the output of the layers before it, then fit the base.

    After a layer is trained, the data is passed through that layer once, so a step costs the same in every layer.
    """
    parts = []
    for number, layer in enumerate(flow.layer_list()):
        facts: dict[str, Any] | None = None
        new = False
        if isinstance(layer, NetLayer) and not layer.frozen:
            finished = session.run.finished(number)
            layer.check_data(itertools.chain(train.batches(), validation.batches()))
            if finished is None:
                label = f"{number} {type(layer).__name__}"
                task = Task(number, label, layer.net, layer.loss, layer.score)
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
