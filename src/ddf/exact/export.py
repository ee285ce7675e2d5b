"""Export trained flows as integer flows."""

__all__ = ["FINE_TUNING", "export"]

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.data.dataset import Data, DataSet
from ddf.data.resampled import Resampled
from ddf.errors import ModelError
from ddf.exact.integer_flow import IntegerFlow
from ddf.exact.quantize import quantize_net
from ddf.flow import Flow
from ddf.layers import Conditional, OrderedSplit
from ddf.layers.layer import in_layer
from ddf.layers.net_layer import NetLayer
from ddf.layers.ordered_split import random_pixels
from ddf.training import TrainingConfig, fit

FINE_TUNING = TrainingConfig(learning_rate=3e-4, max_epochs=3, patience=3, cosine=True, warmup_steps=20)
"""The default fine-tuning of nets to rounded arithmetic."""

_CALIBRATION = 64  # samples
_TOGETHER = 8  # inputs of a net in each batch
_RESTORED = 8  # samples that the result must restore


def export(
    flow: Flow,
    data: Data | DataSet,
    validation: Data | None = None,
    config: TrainingConfig | None = FINE_TUNING,
    run: str | PathLike[str] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> IntegerFlow:
    """Convert a trained flow to an integer flow, which compresses to the same bytes on every machine.

    The range of each activation is calibrated on some of the data. Then the nets are fine-tuned with rounded weights
    and activations, each on the output of the integer layers before it. A `LatticeNet` is accurate enough as it is
    and is never fine-tuned.

    Arguments:
        flow: A trained flow. It is not modified.
        data: The data it was trained on.
        validation: Validation data; see `fit`.
        config: How to fine-tune; None for no fine-tuning.
        run: A run directory; see `fit`.
        device: The device to train on.
        progress: Whether to show progress; None to show it on a terminal.
    """
    exact = copy.deepcopy(flow)
    x = _some(data["train"] if isinstance(data, DataSet) else data).to(exact.device)
    with torch.no_grad():
        for i, layer in enumerate(exact.layer_list()):
            with in_layer(i):
                trained = copy.deepcopy(layer)
                if isinstance(layer, Conditional | OrderedSplit):
                    layer.net = quantize_net(layer.net, _given(layer, x))
                x = trained.carry(x)
    layers = [layer for layer in exact.layer_list() if isinstance(layer, NetLayer)]
    finished = [layer for layer in layers if not getattr(layer.net, "trainable", True)]
    if isinstance(data, DataSet) and config is not None:
        exact.classes = data.classes
    if config is not None and not (layers and len(finished) == len(layers)):
        exact.thaw().train()
        for layer in finished:
            layer.freeze()
        fit(exact, data, validation, config, run=run, device=device, progress=progress)
    integer = IntegerFlow(exact.cpu())
    x = _some(data["train"] if isinstance(data, DataSet) else data)[:_RESTORED]
    if not torch.equal(integer.decode(integer.encode(x)).cpu(), x.long().cpu()):
        raise ModelError("the flow does not restore its input: the `inverse` of a layer must undo its `forward`")
    return integer


def _given(layer: Conditional | OrderedSplit, x: Tensor) -> Iterable[Any]:
    """Return batches of typical inputs for the net of a layer, given symbols that reach the layer."""
    return layer.split(x)[0].split(_TOGETHER) if isinstance(layer, Conditional) else _inputs(layer, x)


def _inputs(split: OrderedSplit, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of symbols, and of the pixels given in advance: none or some, in turn."""
    generator = torch.Generator().manual_seed(0)
    for i, part in enumerate(x.split(_TOGETHER)):
        yield (part, random_pixels(part.cpu(), generator).to(x.device)) if split.given and i % 2 else (part,)


def _some(data: Data) -> Tensor:
    """Return some samples of data."""
    if isinstance(data, Resampled):
        stored: Any = data.stored[: min(len(data.stored), _CALIBRATION)]
        return data.draw(torch.as_tensor(stored), torch.Generator().manual_seed(0))
    some = list(islice(range(0, len(data), max(1, len(data) // _CALIBRATION)), _CALIBRATION))
    return torch.as_tensor(np.asarray(data[some])) if isinstance(data, np.ndarray) else data[some]
