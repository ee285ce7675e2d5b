"""Run experiments, and save and load their results."""

__all__ = ["Result", "collect", "load_data", "run_experiment"]

import json
import platform
import time
import warnings
import zipfile
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, log
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf import __version__
from ddf.analysis import name_of
from ddf.data import DataError, DataSet, EightGaussians, cityscapes, mnist, static_mnist
from ddf.data.cityscapes_maps import mirror, mirror_and_shift, varied
from ddf.experiments.rows import EXPERIMENTS, Experiment
from ddf.files import atomic_write
from ddf.flow import Flow
from ddf.logits import log_probs
from ddf.shapes import Array
from ddf.training import TrainingConfig, fit

SAMPLES = 32
"""The number of sampled maps saved with each run. For vectors, a thousand times as many are saved."""


_ARRAYS = ("samples", "sample_bits")
_TIMED = 5  # how many times samples are drawn to measure the time
_MACHINE = {"ddf", "torch", "python", "device"}


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Arguments:
        row: The row of the table.
        model: The model: a key of `MODELS`.
        seed: The seed.
        test_bits: Bits per dimension on the test set.
        test_error: The standard error of `test_bits` over the samples of the test set.
        validation_bits: Bits per dimension on the validation set.
        parameters: The number of parameters.
        train_seconds: The training time in seconds.
        parts: The validation score and the training time of each net.
        curves: For each net, the score of each validation.
        machine: The software versions and the hardware.
        settings: The training configuration.
        spec: The flow's spec.
        layers: The bits per dimension of each layer that factors out symbols, and of the base.
        sample_seconds: The time per sample in seconds, when samples are drawn in batches.
        shifted_bits: For ordered flows on Cityscapes at 32 × 64: bits per dimension on test maps that are mirrored and
            shifted at random, as in the experiments of others.
        samples: Samples drawn from the flow.
        sample_bits: Bits per dimension of each sample of the test set.
    """

    row: str
    model: str
    seed: int
    test_bits: float
    test_error: float
    validation_bits: float
    parameters: int
    train_seconds: float
    parts: list[dict[str, Any]]
    curves: dict[str, list[float]]
    machine: dict[str, str]
    settings: dict[str, Any]
    spec: dict[str, Any]
    layers: dict[str, float] = field(default_factory=dict)
    sample_seconds: float = 0.0
    shifted_bits: float | None = None
    samples: Array | None = field(default=None, compare=False)
    sample_bits: Array | None = field(default=None, compare=False)

    def to_plain(self) -> dict[str, Any]:
        """Return everything but the arrays."""
        return {key: value for key, value in asdict(self).items() if key not in _ARRAYS}


@dataclass(frozen=True)
class Times:
    """Times measured with one flow alone on a device, by `"row model"`.

    Arguments:
        device: The device.
        steps: The seconds of an optimizer step of each part.
        samples: The seconds per sample.
    """

    device: str
    steps: dict[str, list[float]]
    samples: dict[str, float]


def read_times(folder: Path) -> Times | None:
    """Read the times that `benchmarks/flow_times.py` wrote to a folder of runs; None if there are none."""
    path = folder / "times.json"
    if not path.exists():
        return None
    try:
        return Times(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is invalid ({error}); delete it") from error


def load_data(
    name: str, sources: dict[str, str | PathLike[str] | None], seed: int = 0, augment: str = "mirror"
) -> DataSet:
    """Return the data set of an experiment.

    Arguments:
        name: `"eight-gaussians"`, `"mnist"`, `"static-mnist"`, `"cityscapes"` or `"cityscapes-128x256"`.
        sources: Where data sets are, by name: the folders of MNIST (None: download them), and the folders or files of
            Cityscapes.
        seed: The seed for generated training data. Test sets are the same for all seeds.
        augment: The augmentation of Cityscapes training maps: `"mirror"`, `"vary"` or `""`; `"vary"` also reads the
            maps of `cityscapes-128x256`.
    """
    if name == "eight-gaussians":
        return EightGaussians.data_set(seed=seed)
    if name == "mnist":
        return mnist(sources.get("mnist"))
    if name == "static-mnist":
        return static_mnist(sources.get("static-mnist"))
    change = mirror if augment == "mirror" else None
    if name == "cityscapes-128x256":
        return cityscapes(sources.get(name) or sources.get("cityscapes"), (128, 256), change)
    maps = cityscapes(sources.get("cityscapes"), augment=change)
    return varied(maps, load_data("cityscapes-128x256", sources, augment="")) if augment == "vary" else maps


def run_experiment(
    experiment: Experiment,
    seed: int,
    data: DataSet | None,
    folder: Path,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> Result:
    """Train and test one model with one seed, or return the result of an earlier run.

    Arguments:
        experiment: The preset.
        seed: The seed for initial weights, shuffling and augmentation.
        data: The data of the row; not needed for a finished run.
        folder: The folder of all runs. An interrupted run resumes.
        device: The device to train on.
        progress: Whether to show progress (None: only on a terminal).
    """
    place = folder / experiment.row.name / experiment.model / f"seed-{seed}"
    if (place / "result.json").exists():
        result = read_result(place)
        if not follows(result, experiment):
            raise ValueError(
                f"{place} holds a finished run whose settings differ from the current preset; "
                "move it away or choose another folder for the runs"
            )
        return result
    if data is None:
        raise ValueError(f"the run in {place} is not finished; pass data to start or resume it")
    config = replace(experiment.config, seed=seed)
    flow = experiment.spec.build(seed=seed)
    start = time.monotonic()
    fitted = fit(flow, data, config=config, run=place / "run", device=device, progress=progress)
    seconds = time.monotonic() - start
    test = data["test"]
    assert not hasattr(test, "draw"), "a test set must not be resampled"
    bits, layers = score(flow, torch.as_tensor(test))
    samples, sample_seconds = timed_samples(flow, seed)
    shifted_bits = None
    if experiment.model == "of" and experiment.row.data == "cityscapes":
        moved = mirror_and_shift(torch.as_tensor(test), torch.Generator().manual_seed(0))
        shifted_bits = float(score(flow, moved)[0].mean())
    # After an interruption, `seconds` covers only the last session; the parts store their own durations.
    trained = sum(part["seconds"] + part.get("push_seconds", 0.0) for part in fitted.parts)
    result = Result(
        row=experiment.row.name,
        model=experiment.model,
        seed=seed,
        test_bits=float(bits.mean()),
        test_error=float(bits.std(ddof=1)) / len(bits) ** 0.5,
        validation_bits=fitted.validation_bits,
        parameters=sum(parameter.numel() for parameter in flow.parameters()),
        train_seconds=round(max(seconds, trained), 1),
        parts=fitted.parts,
        curves=_curves(place / "run" / "metrics.jsonl", config.validate_every),
        machine=machine(flow.device),
        settings=config.to_plain(),
        spec=json.loads(experiment.spec.to_json()),
        layers=layers,
        sample_seconds=sample_seconds,
        shifted_bits=shifted_bits,
        samples=samples,
        sample_bits=bits.astype(np.float32),
    )
    with atomic_write(place / "samples.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, samples=samples, sample_bits=bits.astype(np.float32))
    with atomic_write(place / "result.json") as temporary:
        temporary.write_text(json.dumps(result.to_plain(), indent=1) + "\n", encoding="utf-8")
    return result


def timed_samples(flow: Flow, seed: int) -> tuple[Array, float]:
    """Return samples and the seconds per sample, for batches of 32 maps or 8,000 pairs: the median, after a warm-up."""
    count, batch_size = (1000 * SAMPLES, 8000) if len(flow.shape) == 1 else (SAMPLES, SAMPLES)
    flow.sample(min(count, batch_size))
    seconds = []
    for _ in range(_TIMED):
        generator = torch.Generator(flow.device).manual_seed(seed)
        start = time.monotonic()
        samples = flow.sample(count, generator=generator, batch_size=batch_size).byte().cpu()
        seconds.append((time.monotonic() - start) / count)
    return samples.numpy(), round(median(seconds), 6)


@torch.no_grad()
def score(flow: Flow, x: Tensor, batch_size: int = 500) -> tuple[Array, dict[str, float]]:
    """Return the bits per dimension of each sample, and the mean for each layer that emits symbols and for the base."""
    names: list[str] = []
    batches = []
    for batch in x.split(batch_size):
        found: list[tuple[str, Tensor]] = []
        name, output = "", batch.to(flow.device)

        def emit(symbols: Tensor, logits: Tensor) -> None:
            found.append((name, -log_probs(symbols, logits).flatten(1).sum(1) / (log(2) * x[0].numel())))  # noqa: B023

        steps = flow.steps(output, emit)
        for number, layer in enumerate(flow.layer_list()):
            name = name_of(layer, number)
            _, output = next(steps)
        name = "base"
        flow.base(output, emit)
        names = [one for one, _ in found]
        batches.append(torch.stack([bits for _, bits in found], dim=1).cpu())
    table = torch.cat(batches).numpy()
    layers: dict[str, float] = {}
    for name, mean in zip(names, table.mean(axis=0).tolist(), strict=True):  # a layer may emit several times
        layers[name] = layers.get(name, 0.0) + mean
    return table.sum(axis=1), {name: round(mean, 6) for name, mean in layers.items()}


def is_finished(experiment: Experiment, seed: int, folder: Path) -> bool:
    """Return whether a run has a result."""
    return (folder / experiment.row.name / experiment.model / f"seed-{seed}" / "result.json").exists()


def follows(result: Result, experiment: Experiment) -> bool:
    """Return whether a run used the current settings of its preset."""
    settings = {**TrainingConfig().to_plain(), **result.settings}  # settings added since then had their defaults
    same = settings == replace(experiment.config, seed=result.seed).to_plain()
    return same and result.spec == json.loads(experiment.spec.to_json())


def read_result(place: Path) -> Result:
    """Read the result that `run_experiment` wrote to a folder."""
    try:
        plain = json.loads((place / "result.json").read_text(encoding="utf-8"))
        arrays = {}
        if (place / "samples.npz").exists():
            with (place / "samples.npz").open("rb") as raw, np.load(raw) as file:
                arrays = {name: file[name] for name in file}
        result = Result(**plain, **arrays)
        found = result.row, result.model, f"seed-{result.seed}"
        if found != place.parts[-3:]:
            raise ValueError(f"it is the result of {' '.join(found)}")
        if found[:2] not in EXPERIMENTS or not isfinite(result.test_bits) or not result.machine.keys() >= _MACHINE:
            raise ValueError(f"{result.test_bits} bits on {result.machine}")
    except (ValueError, TypeError, AttributeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the result in {place} is invalid ({error}); delete that folder and run the experiment again"
        ) from error
    return result


def collect(folder: Path) -> list[Result]:
    """Return all finished runs in a folder, sorted by row, model and seed, and warn about damaged results."""
    found = []
    for path in folder.glob("*/*/seed-*/result.json"):
        if not path.parent.name.removeprefix("seed-").isdigit():
            continue
        try:
            found.append(read_result(path.parent))
        except DataError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
    return sorted(found, key=lambda result: (result.row, result.model, result.seed))


def machine(device: torch.device) -> dict[str, str]:
    """Describe the software versions and the hardware."""
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        hardware = f"{threads} CPU thread{'s' * (threads > 1)} ({platform.machine()})"
    return {"ddf": __version__, "torch": torch.__version__, "python": platform.python_version(), "device": hardware}


def _curves(metrics: Path, every: int) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "epoch" in entry and "validation_bits" in entry:
            curve = curves.setdefault(entry["layer"], [])
            del curve[-(-entry["epoch"] // every) - 1 :]  # an epoch repeated after an interruption counts once
            curve.append(round(entry["validation_bits"], 5))
    return curves
