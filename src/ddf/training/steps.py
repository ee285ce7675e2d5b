"""Optimizer steps, as fast as the device allows."""

__all__ = ["LossOf", "Stepper", "make_stepper"]

import contextlib
import warnings
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ddf.base import FactorizedCategorical
from ddf.layers.net_layer import Loss
from ddf.training.cache import Cache
from ddf.training.config import TrainingConfig
from ddf.training.muon import Muon
from ddf.training.processes import Processes

_HIDDEN = 64  # layers with fewer inputs or outputs are not counted as hidden layers
_PIXELS_FOR_CHANNELS_LAST = 128  # on a CPU, where it makes smaller maps slower (benchmarks/README.md)

LossOf = Callable[[nn.Module, Tensor], Loss]


class Stepper:
    """Takes optimizer steps: gathers a batch, computes the loss and its gradients, and updates the weights.

    Arguments:
        loss: `loss(module, batch)`: the mean bits of a batch, and the objective to minimize.
        module: The module to train.
        train: The training data.
        config: How to train.
        processes: The processes that train together.
    """

    def __init__(
        self, loss: LossOf, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes
    ) -> None:
        self.bits = torch.zeros((), dtype=torch.float32, device=processes.device)
        self.updating = False  # set before the weights change, and reset by the caller when it has noted the step
        self.loss = loss
        self.wrapped = processes.wrap(module)
        self.train = train
        self.cuda = processes.device.type == "cuda"
        bfloat16 = config.precision == "bfloat16" or (config.precision == "auto" and self.cuda)
        self.autocast: Callable[[], Any] = contextlib.nullcontext
        if bfloat16:
            # Without the cache of converted weights, which a captured graph would keep using.
            self.autocast = lambda: torch.autocast(processes.device.type, torch.bfloat16, cache_enabled=False)
        self.weights = list(module.parameters())
        if self.cuda or prod(train.shape[1:]) >= _PIXELS_FOR_CHANNELS_LAST:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        base = config.base_learning_rate or config.learning_rate
        groups: dict[float, list[nn.Parameter]] = {}  # by the factor on the learning rate
        hidden = []
        for part in module.modules():
            factor = base / config.learning_rate if isinstance(part, FactorizedCategorical) else 1.0
            for weight in part.parameters(recurse=False):
                if config.optimizer == "muon" and _is_hidden(part, weight):
                    hidden.append(weight)
                else:
                    groups.setdefault(factor, []).append(weight)
        options = [
            {"params": group, "lr": self._tensor(config.learning_rate), "factor": factor}
            for factor, group in groups.items()
        ]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "adam": torch.optim.AdamW(options, fused=True, capturable=self.cuda, weight_decay=config.weight_decay)
        }
        if hidden:
            self.optimizers["muon"] = Muon(hidden, self._tensor(config.learning_rate), weight_decay=config.weight_decay)
        self._rate = -1.0
        self.clip = config.clip

    def step(self, index: Tensor) -> None:
        """Take a step on these rows, and add their mean bits to `bits`."""
        self._step(self.train.gather(index))

    def _step(self, batch: Tensor) -> None:
        for weight in self.weights:
            weight.grad = None
        with self.autocast():
            bits, objective = self.loss(self.wrapped, batch)
        objective.backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.weights, self.clip)
        self.updating = True
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.bits += bits.detach()

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        if rate == self._rate:
            return
        self._rate = rate
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                changed = rate * group.get("factor", 1.0)
                if self.cuda:
                    group["lr"].fill_(changed)
                else:
                    group["lr"] = changed

    def moments(self) -> dict[str, Tensor]:
        """Return the moments of the optimizers, by name."""
        return {
            f"{kind}.{i}.{name}": torch.as_tensor(value)
            for kind, optimizer in self.optimizers.items()
            for i, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Restore the moments of the optimizers; other tensors are ignored."""
        for kind, optimizer in self.optimizers.items():
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if not key.startswith(f"{kind}."):
                    continue
                _, i, name = key.split(".")
                parameter = parameters[int(i)]
                if value.shape == parameter.shape:  # fused steps on a GPU need the memory format of the parameter
                    value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
                state.setdefault(int(i), {})[name] = value
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})

    def _tensor(self, rate: float) -> Any:
        """Return a learning rate in the form that the device needs."""
        return torch.tensor(rate, device=self.bits.device) if self.cuda else rate


class GraphStepper(Stepper):
    """A stepper that records one step as a CUDA graph and replays it, so that no time is lost between kernels."""

    _EAGER_STEPS = 3  # so that everything is allocated and selected before the recording

    def __init__(
        self, loss: LossOf, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes
    ) -> None:
        super().__init__(loss, module, train, config, processes)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recordable = True
        self.steps = 0
        self.side = torch.cuda.Stream()

    def step(self, index: Tensor) -> None:
        if self.steps < self._EAGER_STEPS:
            self.steps += 1
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                super().step(index)
            torch.cuda.current_stream().wait_stream(self.side)
            return
        if self.graph is None and self.recordable:
            self._record(index)
        if self.graph is None:
            super().step(index)
        else:
            self.index.copy_(index)
            self.updating = True
            self.graph.replay()

    def _record(self, index: Tensor) -> None:
        self.index = index.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step(self.train.symbols.index_select(0, self.index))
            self.graph = graph
        except RuntimeError as error:  # a custom net may use operations that cannot be recorded
            self.recordable = False
            warnings.warn(
                f"training is slower because a step cannot be recorded as a CUDA graph: {error}", stacklevel=2
            )


def _is_hidden(part: nn.Module, weight: nn.Parameter) -> bool:
    """Return whether a weight belongs to a hidden layer, judging by its numbers of inputs and outputs."""
    affine = isinstance(part, nn.Linear | nn.Conv2d) and getattr(part, "hidden", True)
    return affine and weight.ndim > 1 and min(weight.shape[:2]) >= _HIDDEN


def make_stepper(
    loss: LossOf, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes
) -> Stepper:
    """Return the fastest stepper for the device: a recorded graph if the data is on a single GPU."""
    recordable = processes.device.type == "cuda" and processes.count == 1 and train.on_device
    return (GraphStepper if recordable else Stepper)(loss, module, train, config, processes)
