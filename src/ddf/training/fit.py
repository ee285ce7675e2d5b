"""From an untrained flow and data to a trained flow."""

__all__ = ["Fitted", "fit"]

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.checkpoint import save
from ddf.data.redrawn import Redrawn
from ddf.flow import Flow
from ddf.layers import Conditional, ModularCoupling
from ddf.spec import describe, to_plain
from ddf.training.cache import Cache, Data, fill, take
from ddf.training.config import PAPER, TrainingConfig
from ddf.training.joint import train_jointly
from ddf.training.local import train_locally
from ddf.training.loop import Work
from ddf.training.processes import Processes
from ddf.training.progress import Progress
from ddf.training.run import Run


@dataclass(frozen=True)
class Fitted:
    """What a training run reached.

    Arguments:
        flow: The trained flow.
        validation_bits: Its bits per dimension on the validation data.
        parts: What is worth knowing of each trained part: validation figure, epochs, steps, seconds, and the seconds it
            took to push the data through it.
    """

    flow: Flow
    validation_bits: float
    parts: list[dict[str, Any]]


def fit(
    flow: Flow,
    data: Data,
    validation: Data | None = None,
    config: TrainingConfig = PAPER,
    run: str | PathLike[str] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
) -> Fitted:
    """Trains a flow.

    Denoising couplings and split priors are trained one after the other, each as a classifier on the data as the layers
    before it leave it, and the base is then fitted in closed form. A flow with modular couplings is trained end to end.

    Started by `torchrun`, several processes train together.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), algorithm 3

    Arguments:
        flow: The flow, which is trained in place.
        data: Symbols (samples, *shape): a tensor, an array (which may be mapped from disk), or a `Redrawn`.
        validation: More of them, to validate on; else a part of `data` is held out.
        config: How to train.
        run: A directory to keep everything in. Called again with the same arguments after an interruption, training
            goes on where it was.
        device: Where to train; a GPU if there is one and None is said.
        progress: Whether to show progress; None for: on a terminal.
        tensorboard: Whether to write metrics for TensorBoard into the run directory as well.

    Example:
        >>> from ddf import architectures
        >>> from ddf.data import EightGaussians
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> fitted = fit(flow, EightGaussians.sample(2000, seed=0), config=TrainingConfig(max_epochs=2))
        >>> fitted.validation_bits < 5.5
        True
    """
    processes = Processes.start(device)
    _check(flow, data, "data")
    if validation is not None:
        _check(flow, validation, "validation data")
    folder = None if run is None else Path(run)
    settings: dict[str, Any] = {}
    if folder is not None:  # a flow that has no spec can be trained, but not kept
        settings = {
            "flow": to_plain(describe(flow)),
            "training": config.to_plain(),
            "data": _fingerprint(data),
            "validation": None if validation is None else _fingerprint(validation),
            "processes": processes.count,
        }
    record = Run(folder, settings, writes=processes.leads, tensorboard=tensorboard)
    processes.wait()
    flow.to(processes.device)
    scratch = Path(tempfile.mkdtemp(prefix="ddf-")) if folder is None else folder / "cache"
    scratch_of_process = scratch / f"process-{processes.rank}"
    bars = Progress(_parts_to_train(flow), progress if processes.leads else False)
    try:
        held_out = _Shares(flow, data, validation, config, processes, scratch_of_process)
        train = train_jointly if _is_joint(flow) else train_locally
        # The same algorithms every time: a seed determines the result on a GPU too.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            parts = train(flow, held_out.train(), held_out.validation(), Work(config, processes, record, bars))
        bits = _evaluate(flow, held_out.validation(), processes)
    finally:
        bars.close()
        shutil.rmtree(scratch_of_process, ignore_errors=True)
        if folder is None:
            shutil.rmtree(scratch, ignore_errors=True)
    if folder is not None and processes.leads:
        save(flow, folder / "flow.safetensors")
        record.log(done=True, validation_bits=bits)
    processes.wait()
    return Fitted(flow, bits, parts)


class _Shares:
    """What this process trains and validates on."""

    def __init__(
        self,
        flow: Flow,
        data: Data,
        validation: Data | None,
        config: TrainingConfig,
        processes: Processes,
        folder: Path,
    ) -> None:
        self.flow, self.config, self.processes, self.folder = flow, config, processes, folder
        self.draws = config.draws if isinstance(data, Redrawn) else 1
        index = np.arange(len(data))
        if validation is None:
            count = max(1, round(config.validation_fraction * len(data)))
            index = np.random.default_rng(config.seed).permutation(len(data))
            # In the order of the data, which is how a disk likes to be read; every epoch shuffles anyway.
            self.sources = (data, np.sort(index[count:])), (data, np.sort(index[:count]))
        else:
            self.sources = (data, index), (validation, np.arange(len(validation)))
        for (_, rows), what in zip(self.sources, ("train", "validate"), strict=True):
            if len(rows) < processes.count:
                raise ValueError(f"{len(rows)} samples to {what} on are too few for {processes.count} processes")

    def train(self) -> Cache:
        data, index = self.sources[0]
        # The same number for every process, so that all take the same steps.
        count = len(index) // self.processes.count
        return self._cache(data, index[self.processes.rank :: self.processes.count][:count], self.draws, "train-0")

    def validation(self) -> Cache:
        data, index = self.sources[1]
        return self._cache(data, index[self.processes.rank :: self.processes.count], 1, "validation-0")

    def _cache(self, data: Data, index: np.ndarray[Any, Any], draws: int, name: str) -> Cache:
        shape = tuple(_stored(data).shape[1:])
        flow, config = self.flow, self.config
        device = self.processes.device
        rows = draws * len(index)
        cache = Cache(rows, shape, flow.num_classes, device, config.memory_cap, self.folder, name, draws)
        seed = 1 + 2 * config.seed + (name != "train-0")
        fill(cache, data, index, seed * self.processes.count + self.processes.rank)
        return cache


def _evaluate(flow: Flow, validation: Cache, processes: Processes) -> float:
    """The bits per dimension of the whole flow on the validation data of all processes."""
    total = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for batch in validation.batches(256):
        total[0] += flow.bits_per_dim(batch).sum()
        total[1] += len(batch)
    validation.drop()
    total = processes.sum(total)
    return float(total[0] / total[1])


def _is_joint(flow: Flow) -> bool:
    return any(isinstance(layer, ModularCoupling) for layer in flow.layer_list())


def _parts_to_train(flow: Flow) -> int:
    return 1 if _is_joint(flow) else sum(isinstance(layer, Conditional) for layer in flow.layer_list())


def _stored(data: Data) -> Tensor | np.ndarray[Any, Any]:
    return data.stored if isinstance(data, Redrawn) else data


def _check(flow: Flow, data: Data, name: str) -> None:
    if not isinstance(data, Tensor | np.ndarray | Redrawn):
        raise TypeError(f"the {name} must be a tensor, an array or a Redrawn, but it is a {type(data).__name__}")
    if len(data) < 2:
        raise ValueError(f"the {name} has {len(data)} samples: too few to train on")
    flow.check_sample_shape(tuple(_stored(data).shape[1:]))


def _fingerprint(data: Data) -> dict[str, Any]:
    """What tells one data set from another: its size, and a checksum of some of its samples."""
    stored = _stored(data)
    some = np.unique(np.linspace(0, len(stored) - 1, 64).astype(np.int64))
    sample = stored[torch.from_numpy(some)].cpu().numpy() if isinstance(stored, Tensor) else take(stored, some)
    digest = hashlib.sha256(np.ascontiguousarray(sample).tobytes()).hexdigest()[:16]
    return {"samples": len(stored), "shape": list(stored.shape[1:]), "some of it": digest}
