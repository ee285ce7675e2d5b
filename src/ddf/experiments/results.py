"""One experiment with one seed: trained, tested, sampled and written down."""

__all__ = ["Result", "collect", "load_data", "run_experiment"]

import json
import platform
import time
import warnings
import zipfile
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddf import __version__
from ddf.data import DataError, DataSet, EightGaussians, cityscapes, mnist
from ddf.experiments.rows import EXPERIMENTS, Experiment
from ddf.files import atomic_write
from ddf.training import fit

SAMPLES = 32
"""How many samples of maps are kept of each run; of vectors, a thousand times as many."""


@dataclass(frozen=True)
class Result:
    """What came of one run.

    Arguments:
        row: The row of the table.
        model: `"df"` or `"ddf"`.
        seed: The seed.
        test_bits: Bits per dimension on the test set.
        test_error: The standard error of that over the samples of the test set.
        validation_bits: Bits per dimension on the validation set.
        parameters: The number of parameters.
        train_seconds: What the training took.
        parts: What each net reached, and how long it took.
        curves: Validation bits by epoch, for each net.
        machine: Software and hardware.
        settings: The training's settings.
        spec: The flow's spec.
        samples: Some samples of the flow.
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
    samples: np.ndarray[Any, Any] | None = field(default=None, compare=False)


def load_data(
    name: str, sources: dict[str, str | PathLike[str] | None], seed: int = 0, augment: bool = True
) -> DataSet:
    """The data set of an experiment.

    Arguments:
        name: `"eight-gaussians"`, `"mnist"` or `"cityscapes"`.
        sources: Where the files are: the folder of MNIST (downloaded if there is none), the folder or file of
            Cityscapes.
        seed: For generated data: draws what is trained on. Test sets are the same for all seeds.
        augment: Whether maps to train on are mirrored at random.
    """
    if name == "eight-gaussians":
        return EightGaussians.data_set(seed=seed)
    if name == "mnist":
        return mnist(sources.get("mnist"))
    return cityscapes(sources.get("cityscapes"), augment=augment)


def run_experiment(
    experiment: Experiment,
    seed: int,
    data: DataSet | None,
    folder: Path,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> Result:
    """Trains and tests one model with one seed, or reads what came of it before.

    Arguments:
        experiment: The preset.
        seed: Draws the first weights, the order of the samples and the fresh randomness.
        data: The data of the row; a finished run needs none.
        folder: Where the runs are kept, each in a directory of its own. An interrupted one goes on.
        device: Where to train.
        progress: Whether to show progress; None for: on a terminal.
    """
    place = folder / experiment.row.name / experiment.model / f"seed-{seed}"
    if (place / "result.json").exists():
        result = read_result(place)
        if not follows(result, experiment):
            raise ValueError(
                f"{place} holds a finished run with other settings than the preset has now; move it away, "
                "or take another directory for the runs"
            )
        return result
    if data is None:
        raise ValueError(f"{place} is not finished, and there is no data to go on with")
    config = replace(experiment.config, seed=seed)
    flow = experiment.spec.build(seed=seed)
    start = time.monotonic()
    fitted = fit(flow, data, config=config, run=place / "run", device=device, progress=progress)
    seconds = time.monotonic() - start
    test = data["test"]
    assert not hasattr(test, "draw"), "a test set is drawn once"
    bits = flow.bits_per_dim(torch.as_tensor(test).to(flow.device), batch_size=500)
    generator = torch.Generator(flow.device).manual_seed(seed)
    count = SAMPLES * (1000 if len(data.shape) == 1 else 1)
    samples = (
        flow.sample(count, generator=generator, batch_size=8000 if len(data.shape) == 1 else 32).byte().cpu().numpy()
    )
    # A run that went on after an interruption is as long as all its parts.
    trained = sum(part["seconds"] + part.get("push_seconds", 0.0) for part in fitted.parts)
    result = Result(
        row=experiment.row.name,
        model=experiment.model,
        seed=seed,
        test_bits=float(bits.mean()),
        test_error=float(bits.std()) / len(bits) ** 0.5,
        validation_bits=fitted.validation_bits,
        parameters=sum(parameter.numel() for parameter in flow.parameters()),
        train_seconds=round(max(seconds, trained), 1),
        parts=fitted.parts,
        curves=_curves(place / "run" / "metrics.jsonl"),
        machine=machine(flow.device),
        settings=config.to_plain(),
        spec=json.loads(experiment.spec.to_json()),
        samples=samples,
    )
    with atomic_write(place / "samples.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, samples=samples)
    plain = {key: value for key, value in asdict(result).items() if key != "samples"}
    with atomic_write(place / "result.json") as temporary:
        temporary.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return result


def is_finished(experiment: Experiment, seed: int, folder: Path) -> bool:
    """Whether there is a result of that run."""
    return (folder / experiment.row.name / experiment.model / f"seed-{seed}" / "result.json").exists()


def follows(result: Result, experiment: Experiment) -> bool:
    """Whether a run was done as the preset says now."""
    settings = replace(experiment.config, seed=result.seed).to_plain()
    return result.settings == settings and result.spec == json.loads(experiment.spec.to_json())


def read_result(place: Path) -> Result:
    """Reads what `run_experiment` wrote into a directory."""
    try:
        plain = json.loads((place / "result.json").read_text(encoding="utf-8"))
        samples = None
        if (place / "samples.npz").exists():
            with (place / "samples.npz").open("rb") as raw, np.load(raw) as file:
                samples = file["samples"]
        result = Result(**plain, samples=samples)
        if (result.row, result.model) not in EXPERIMENTS or not isfinite(result.test_bits):
            raise ValueError(f"there is no experiment {result.row} {result.model} with {result.test_bits} bits")
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the result in {place} is damaged ({error}); remove that directory and run it again"
        ) from error
    return result


def collect(folder: Path) -> list[Result]:
    """All finished runs below a directory, in the order of row, model and seed. Damaged ones are named in a warning."""
    found = []
    for path in folder.glob("*/*/seed-*/result.json"):
        if not path.parent.name.removeprefix("seed-").isdigit():
            continue
        try:
            found.append(read_result(path.parent))
        except DataError as error:
            warnings.warn(f"left out of the report: {error}", stacklevel=2)
    return sorted(found, key=lambda result: (result.row, result.model, result.seed))


def machine(device: torch.device) -> dict[str, str]:
    """Software and hardware, in words."""
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
    return {"ddf": __version__, "torch": torch.__version__, "python": platform.python_version(), "device": hardware}


def _curves(metrics: Path) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "epoch" in entry:
            curve = curves.setdefault(entry["layer"], [])
            del curve[entry["epoch"] - 1 :]  # after an interruption an epoch may be there twice
            curve.append(round(entry["validation_bits"], 5))
    return curves
