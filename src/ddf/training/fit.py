"""Train a flow: `fit`."""

__all__ = ["Fitted", "fit"]

import contextlib
import hashlib
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf.classes import Classes, Columns
from ddf.data.dataset import Data, DataSet
from ddf.data.resampled import Resampled
from ddf.flow import Flow, FlowSpec
from ddf.layers import NetLayer
from ddf.plain import describe, to_plain
from ddf.training.cache import Cache, fill, take
from ddf.training.config import PAPER, TrainingConfig
from ddf.training.display import TrainingDisplay
from ddf.training.joint import train_jointly
from ddf.training.local import train_locally
from ddf.training.loop import Session
from ddf.training.processes import Processes
from ddf.training.run import Run


@dataclass(frozen=True)
class Fitted:
    """The result of a training run.

    Arguments:
        flow: The trained flow.
        validation_bits: Its bits per dimension on the validation data, on which the best epochs are also chosen, and
            the corrections of denoising splits counted.
        parts: For each trained part: validation score, epochs, steps, seconds, and the seconds it took to pass the data
            through it.
    """

    flow: Flow
    validation_bits: float
    parts: list[dict[str, Any]]


def fit(
    flow: Flow,
    data: Data | DataSet,
    validation: Data | None = None,
    config: TrainingConfig = PAPER,
    run: str | PathLike[str] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
    change_settings: bool = False,
) -> Fitted:
    """Train a flow.

    Denoising couplings and split priors are trained one after the other, each as a classifier on the output of the
    layers before it; the base is then fitted by counting. A flow with modular couplings is trained end to end.

    Frozen parts are already trained and are not changed; `thaw()` makes them trainable again.

    If started by `torchrun`, several processes train together, each on its share of the data. All processes call `fit`
    with the same data.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021), algorithm 3

    Arguments:
        flow: The flow, which is trained in place.
        data: Symbols (samples, *shape): a tensor, an array (which may be memory-mapped), or a `Resampled`; or a
            `DataSet`, whose training and validation splits are used and whose classes become those of the flow.
        validation: Validation data of the same form; if None, a part of `data` is held out.
        config: How to train.
        run: A run directory for checkpoints and metrics. After an interruption, call `fit` again with the same
            arguments to resume.
        device: The device to train on; if None, a GPU if available.
        progress: Whether to show progress: bars on a terminal, lines in a log. None for the default, True.
        tensorboard: Whether to also write metrics for TensorBoard to the run directory.
        change_settings: Whether to resume a run with a different `config` (learning rate, batch size, epochs, …) or a
            different number of processes: finished layers are kept, the others are trained with the new settings.

    Examples:
        >>> from ddf import architectures
        >>> from ddf.data import EightGaussians
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> fitted = fit(flow, EightGaussians.sample(2000, seed=0), config=TrainingConfig(max_epochs=2))
        >>> fitted.validation_bits < 5.5
        True
    """
    classes = None
    if isinstance(data, DataSet):
        classes = data.classes
        validation = data.splits.get("validation") if validation is None else validation
        data = data["train"]
    _check(flow, data, validation, config)
    if classes is not None:
        _check_classes(flow, classes)
    if tensorboard and run is None:
        raise ValueError("tensorboard=True needs a run directory: pass run=")
    processes = Processes.start(device)
    folder = None if run is None else Path(run).expanduser()
    prints = {"data": _fingerprint(data), "validation": None if validation is None else _fingerprint(validation)}
    if not processes.agree(repr(prints)):
        raise ValueError("the processes were given different data; pass the same data to all, and fit distributes it")
    settings: dict[str, Any] = {}
    if folder is not None:  # a flow without a spec can be trained, but not saved
        training = config.to_plain()
        del training["memory_cap"]  # it does not affect the result
        settings = {"flow": to_plain(describe(flow)), "training": training, **prints, "processes": processes.count}
        settings["classes"] = None if classes is None else classes.to_plain()
    record = Run(folder, settings, change_settings, writes=processes.leads, tensorboard=tensorboard)
    processes.wait()
    if classes is not None:
        flow.classes = classes
    devices = [processes.device] if processes.device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.callback(record.close)
        # Independent of the caller's modes, and without changing the caller's random numbers.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices))
        # Deterministic algorithms, so that the seed determines the result on a GPU too.
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True))
        where = f"process-{processes.rank}"
        scratch = Path(tempfile.mkdtemp(prefix="ddf-")) if folder is None else folder / "cache" / where
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        bars = TrainingDisplay(_parts_to_train(flow), progress if processes.leads else False)
        stack.callback(bars.close)
        flow.to(processes.device)
        shares = _Shares(flow, data, validation, config, processes, scratch)
        train = train_jointly if _is_joint(flow) else train_locally
        parts = train(flow, shares.train(), shares.validation(), Session(config, processes, record, bars))
        flow.eval()
        bits = _evaluate(flow, shares.validation(), processes)
        result = None if folder is None else folder / "flow.safetensors"
        if result is not None and processes.leads and (record.progressed or not result.exists()):
            with record.writing():
                flow.save(result)
            record.log(done=True, validation_bits=bits)
        processes.wait()
    return Fitted(flow, bits, parts)


class _Shares:
    """The training and validation data of this process."""

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
        self.draws = config.draws if isinstance(data, Resampled) else 1
        index = np.arange(len(data))
        if validation is None:
            count = max(1, round(config.validation_fraction * len(data)))
            index = np.random.default_rng(config.seed).permutation(len(data))
            # In the order of the data, which is faster to read from disk; every epoch shuffles anyway.
            self.sources = (data, np.sort(index[count:])), (data, np.sort(index[:count]))
        else:
            self.sources = (data, index), (validation, np.arange(len(validation)))
        for (_, rows), what in zip(self.sources, ("training", "validation"), strict=True):
            if len(rows) < processes.count:
                raise ValueError(f"{len(rows)} samples for {what} are too few for {processes.count} processes")

    def train(self) -> Cache:
        data, index = self.sources[0]
        # The same number for every process, so that all take the same steps.
        count = len(index) // self.processes.count
        return self._cache(data, index[self.processes.rank :: self.processes.count][:count], self.draws, "the data")

    def validation(self) -> Cache:
        data, index = self.sources[1]
        return self._cache(data, index[self.processes.rank :: self.processes.count], 1, "the validation data")

    def _cache(self, data: Data, index: np.ndarray[Any, Any], draws: int, name: str) -> Cache:
        shape = _sample_shape(data)
        flow, config = self.flow, self.config
        device = self.processes.device
        rows = draws * len(index)
        cache = Cache(rows, shape, flow.num_classes, device, config.memory_cap, self.folder, name, draws)
        seed = 1 + 2 * config.seed + (name != "the data")
        fill(cache, data, index, seed * self.processes.count + self.processes.rank)
        return cache


def _evaluate(flow: Flow, validation: Cache, processes: Processes) -> float:
    """Return the bits per dimension of the whole flow on the validation data of all processes."""
    total = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for batch in validation.batches(256):
        total[0] += flow.bits_per_dim(batch).sum()
        total[1] += len(batch)
    validation.drop()
    total = processes.sum(total)
    return float(total[0] / total[1])


def _is_joint(flow: Flow) -> bool:
    return any(layer.trained_jointly for layer in flow.layer_list())


def _parts_to_train(flow: Flow) -> int:
    return 1 if _is_joint(flow) else sum(isinstance(layer, NetLayer) for layer in flow.layer_list())


def _stored(data: Data) -> Tensor | np.ndarray[Any, Any]:
    return data.stored if isinstance(data, Resampled) else data


def _sample_shape(data: Data) -> tuple[int, ...]:
    return data.shape if isinstance(data, Resampled) else tuple(data.shape[1:])


def _check(flow: Flow, data: Data, validation: Data | None, config: TrainingConfig) -> None:
    """Raise an error for what cannot be trained, before anything is done."""
    if not isinstance(flow, Flow):
        hint = "; call its build() method first" if isinstance(flow, FlowSpec) else ""
        raise TypeError(f"the flow must be a Flow, not a {type(flow).__name__}{hint}")
    if not isinstance(config, TrainingConfig):
        raise TypeError(f"config must be a TrainingConfig, not a {type(config).__name__}")
    _check_data(flow, data, "data", least=2 if validation is None else 1)
    if validation is not None:
        _check_data(flow, validation, "validation data", least=1)
        shapes = _sample_shape(data), _sample_shape(validation)
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"samples of the data have shape {shapes[0]}, but those of the validation data {shapes[1]}"
            )
    owners: dict[int, int] = {}
    for number, layer in enumerate(flow.layer_list()):
        if isinstance(layer, NetLayer):
            first = owners.setdefault(id(layer.net), number)
            if first != number:
                raise ValueError(f"layers {first} and {number} share a net; each needs its own")
        elif not _is_joint(flow) and next(layer.parameters(), None) is not None and not layer.frozen:
            warnings.warn(
                f"layer {number}: {type(layer).__name__} has parameters, but only the nets of `NetLayer`s are trained",
                stacklevel=3,
            )
    if all(part.frozen for part in flow.parts()):
        warnings.warn("all parts of this flow are frozen, so nothing is trained; call flow.thaw() first", stacklevel=3)


def _check_classes(flow: Flow, classes: Classes | Columns) -> None:
    if classes.num_classes != flow.num_classes:
        raise ValueError(f"the data has {classes.num_classes} classes, but the flow has {flow.num_classes}")
    if flow.classes is not None and flow.classes != classes:
        raise ValueError(
            "the classes of the flow differ from those of the data; set flow.classes = None to replace them"
        )


def _check_data(flow: Flow, data: Data, name: str, least: int) -> None:
    if not isinstance(data, Tensor | np.ndarray | Resampled):
        raise TypeError(f"the {name} must be a tensor, an array or a Resampled, not a {type(data).__name__}")
    stored = _stored(data)
    if not _sample_shape(data):
        raise ValueError(f"the {name} must be symbols (samples, …), not an array of shape {tuple(stored.shape)}")
    if not isinstance(data, Resampled) and isinstance(stored, np.ndarray) and stored.dtype.kind not in "iub":
        raise TypeError(f"the {name} must hold integers 0…{flow.num_classes - 1}, but its dtype is {stored.dtype}")
    if len(data) < least:
        raise ValueError(f"the {name} has {len(data)} samples, but at least {least} are needed")
    flow.check_sample_shape(_sample_shape(data))


def _fingerprint(data: Data) -> dict[str, Any]:
    """Return what identifies data: its size, a checksum of some of its samples, and how it is resampled."""
    stored = _stored(data)
    some = np.unique(np.linspace(0, len(stored) - 1, 64).astype(np.int64))
    sample = stored[torch.from_numpy(some)].cpu().numpy() if isinstance(stored, Tensor) else take(stored, some)
    plain = np.ascontiguousarray(sample, dtype=np.int64 if sample.dtype.kind in "iub" else sample.dtype)
    digest = hashlib.sha256(plain.tobytes()).hexdigest()[:16]
    drawn = {}
    if isinstance(data, Resampled):
        drawn["drawn by"] = getattr(data.draw, "__qualname__", "")
        if data.read:
            sha = hashlib.sha256()
            for array in data.read:
                sha.update(f"{array.shape} {array.dtype}".encode())
                sha.update(array.reshape(-1)[:: max(1, array.size >> 16)].tobytes())
            drawn["read"] = sha.hexdigest()[:16]
    return {"samples": len(stored), "shape": list(stored.shape[1:]), "some of it": digest, **drawn}
