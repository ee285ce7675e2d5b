"""Optimizer steps, as fast as the device allows."""

__all__ = ["Stepper", "make_stepper"]

import contextlib
import warnings
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ddf.base import FactorizedCategorical
from ddf.training.cache import Cache
from ddf.training.config import TrainingConfig
from ddf.training.processes import Processes

_PIXELS_FOR_CHANNELS_LAST = 128  # on a CPU, where it makes smaller maps slower (benchmarks/README.md)

Loss = Callable[[nn.Module, Tensor], Tensor]


class Stepper:
    """Takes optimizer steps: gathers a batch, computes the loss and its gradients, and updates the weights with Adam.

    Arguments:
        loss: `loss(module, batch)`, the mean bits of a batch.
        module: The module to train.
        train: The training data.
        config: How to train.
        processes: The processes that train together.
    """

    def __init__(
        self, loss: Loss, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes
    ) -> None:
        self.loss = loss
        self.wrapped = processes.wrap(module)
        self.train = train
        self.cuda = processes.device.type == "cuda"
        bfloat16 = config.precision == "bfloat16" or (config.precision == "auto" and self.cuda)
        self.autocast: Callable[[], Any] = contextlib.nullcontext
        if bfloat16:
            # Without the cache of converted weights, which a captured graph would keep using.
            self.autocast = lambda: torch.autocast(processes.device.type, torch.bfloat16, cache_enabled=False)
        base = config.base_learning_rate or config.learning_rate
        groups: dict[float, list[nn.Parameter]] = {}  # by the factor on the learning rate
        for part in module.modules():
            factor = base / config.learning_rate if isinstance(part, FactorizedCategorical) else 1.0
            groups.setdefault(factor, []).extend(part.parameters(recurse=False))
        self.factors = list(groups)
        if self.cuda or prod(train.shape[1:]) >= _PIXELS_FOR_CHANNELS_LAST:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        rates: list[Any] = [config.learning_rate * factor for factor in self.factors]
        if self.cuda:
            rates = [torch.tensor(rate, device=processes.device) for rate in rates]
        options = [{"params": group, "lr": rate} for group, rate in zip(groups.values(), rates, strict=True)]
        self.adam = torch.optim.Adam(options, fused=True, capturable=self.cuda)
        self._rate = -1.0
        self.bits = torch.zeros((), dtype=torch.float32, device=processes.device)

    def step(self, index: Tensor) -> None:
        """Take a step on these rows, and add the loss to `bits`."""
        self._step(self.train.gather(index))

    def _step(self, batch: Tensor) -> None:
        self.adam.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss(self.wrapped, batch)
        loss.backward()
        self.adam.step()
        self.bits += loss.detach()

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        if rate == self._rate:
            return
        self._rate = rate
        for group, factor in zip(self.adam.param_groups, self.factors, strict=True):
            if self.cuda:
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def moments(self) -> dict[str, Tensor]:
        """Return the moments of Adam, by name."""
        return {
            f"adam.{i}.{name}": torch.as_tensor(value)
            for i, state in self.adam.state_dict()["state"].items()
            for name, value in state.items()
        }

    def load_moments(self, moments: dict[str, Tensor]) -> None:
        """Restore the moments of Adam."""
        parameters = [parameter for group in self.adam.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            _, i, name = key.split(".")
            parameter = parameters[int(i)]
            if value.shape == parameter.shape:  # fused steps on a GPU need the memory format of the parameter
                value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            state.setdefault(int(i), {})[name] = value
        self.adam.load_state_dict(self.adam.state_dict() | {"state": state})


class GraphStepper(Stepper):
    """A stepper that records one step as a CUDA graph and replays it, so that no time is lost between kernels."""

    _EAGER_STEPS = 3  # so that everything is allocated and selected before the recording

    def __init__(
        self, loss: Loss, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes
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


def make_stepper(loss: Loss, module: nn.Module, train: Cache, config: TrainingConfig, processes: Processes) -> Stepper:
    """Return the fastest stepper for the device: a recorded graph if the data is on a single GPU."""
    recordable = processes.device.type == "cuda" and processes.count == 1 and train.on_device
    return (GraphStepper if recordable else Stepper)(loss, module, train, config, processes)
