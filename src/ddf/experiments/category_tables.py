"""The protocol of Discrete Tree Flows: tables of categories, five contiguous folds, nats per sample."""

__all__ = ["FOLDS", "METHODS", "TABLES", "TableResult", "collect_tables", "has_joint_table", "load_table", "run_table"]

import json
import time
import warnings
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddf import architectures
from ddf.base import FactorizedCategorical
from ddf.data import EightGaussians
from ddf.data.columns import cop, mushrooms
from ddf.errors import DataError
from ddf.files import atomic_write
from ddf.flow import FlowSpec
from ddf.layers import DenoisingCouplingSpec, LayerSpec, ModularCouplingSpec, ShuffleSpec
from ddf.nets import MLPSpec
from ddf.shapes import Array
from ddf.training import TrainingConfig, fit

FOLDS = 5

TABLES = {
    "cop-h": "COP-H",
    "cop-m": "COP-M",
    "cop-w": "COP-W",
    "eight-gaussians": "8 Gaussians",
    "mushroom": "Mushroom",
}
"""The titles of the tables, by name."""

METHODS = {
    "factorized": "independent columns",
    "joint": "joint table",
    "df": "Discrete Flow",
    "ddf": "Discrete Denoising Flow",
    "sp": "split priors",
    "ds": "denoising splits",
}
"""The titles of the models, by name."""

_COUPLINGS = 4
_LOCAL = TrainingConfig(batch_size=128, max_epochs=40, patience=10, cosine=True, ema=0.99)
_JOINT = TrainingConfig(
    batch_size=128, max_epochs=40, patience=40, cosine=True, ema=0.99, base_learning_rate=1e-2, relaxation=0.2
)
_MOST_CELLS = 1 << 14  # of a joint table


@dataclass(frozen=True)
class TableResult:
    """The score of a model on one fold of a table.

    Arguments:
        table: The table.
        method: The model.
        fold: The index of the fold.
        nats: Nats per sample on the fold.
        columns: Nats of each column by name, for models that predict one column at a time; empty for others.
        parameters: The number of parameters.
        seconds: The training time in seconds.
        settings: The flow and how it was trained; empty for models that are only counted.
    """

    table: str
    method: str
    fold: int
    nats: float
    columns: dict[str, float]
    parameters: int
    seconds: float
    settings: dict[str, Any]


def load_table(name: str, folder: str | PathLike[str] | None = None) -> tuple[tuple[str, ...], tuple[int, ...], Array]:
    """Return the names of the columns of a table, their numbers of classes, and its symbols (rows, columns).

    Arguments:
        name: One of `TABLES`.
        folder: The folder of the COP tables; see `ddf.data.cop`.
    """
    if name == "eight-gaussians":
        return ("x", "y"), (EightGaussians.num_classes,) * 2, EightGaussians.sample(12_800, seed=2022).numpy()
    if name == "mushroom":
        columns, symbols = mushrooms()
    elif folder is None:
        raise ValueError(f"{name} is not included in the package; pass the folder of the COP tables")
    else:
        columns, symbols = cop(folder, name.removeprefix("cop-"))
    return columns.names, tuple(len(values) for values in columns.values), symbols


def run_table(name: str, method: str, fold: int, table: tuple[Any, ...], runs: Path) -> TableResult:
    """Train and test a model on one fold of a table, or return the result of an earlier run.

    Arguments:
        name: The table.
        method: The model.
        fold: The fold to test on; the rest is training data, a tenth of which is held out for validation.
        table: What `load_table` returned.
        runs: The folder of all runs.
    """
    path = runs / "tables" / name / method / f"fold-{fold}.json"
    names, limits, symbols = table
    settings = _settings(method, limits)
    if path.exists():
        result = _read(path)
        if result.settings != settings:
            raise ValueError(f"{path} was run with other settings than the current ones; move it away or delete it")
        return result
    x = torch.as_tensor(symbols)
    size = len(x) // FOLDS
    test = x[fold * size : (fold + 1) * size]
    train = torch.cat([x[: fold * size], x[(fold + 1) * size :]])
    start = time.monotonic()
    by_column: dict[str, float] = {}
    parameters = 0
    if method == "joint":
        nats = _joint(train, test, limits)
    elif method == "factorized":
        base = FactorizedCategorical(max(limits), (len(limits),), limits=limits).fit(train).freeze()
        parts: list[Tensor] = []
        base(test, lambda found, logits: parts.append(_nats(found, logits)))
        nats, by_column = float(parts[0].sum(1).mean()), _by_name(names, parts[0])
        parameters = sum(limits)
    else:
        flow = _spec(method, limits).build(seed=fold)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(fold))
        held_out = len(train) // 10
        fit(
            flow,
            train[order[held_out:]],
            validation=train[order[:held_out]],
            config=_config(method),
            device="cpu",
            progress=False,
        )
        nats = -float(flow.log_prob(test, batch_size=1000).detach().mean())
        parameters = sum(parameter.numel() for parameter in flow.parameters())
        if method in ("sp", "ds"):
            by_column = _by_name(names, _emitted(flow, test))
    seconds = round(time.monotonic() - start, 1)
    result = TableResult(name, method, fold, nats, by_column, parameters, seconds, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(result)) + "\n", encoding="utf-8")
    return result


def collect_tables(runs: Path) -> list[TableResult]:
    """Return all results on tables in a folder of runs, and warn about invalid ones."""
    found = []
    for path in sorted((runs / "tables").glob("*/*/fold-*.json")):
        try:
            found.append(_read(path))
        except DataError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
    return found


def _read(path: Path) -> TableResult:
    try:
        result = TableResult(**json.loads(path.read_text(encoding="utf-8")))
        found = result.table, result.method, f"fold-{result.fold}.json"
        if found != path.parts[-3:]:
            raise ValueError(f"it is the result of {' '.join(found)}")
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"the result {path} is invalid ({error}); delete it and run the command again") from error
    return result


def has_joint_table(limits: tuple[int, ...]) -> bool:
    """Return whether a table is small enough to count all combinations of its classes."""
    return int(np.prod(limits, dtype=np.float64)) <= _MOST_CELLS


def _config(method: str) -> TrainingConfig:
    return _JOINT if method == "df" else _LOCAL


def _settings(method: str, limits: tuple[int, ...]) -> dict[str, Any]:
    if method in ("factorized", "joint"):
        return {}
    return {"flow": json.loads(_spec(method, limits).to_json()), "training": _config(method).to_plain()}


def _spec(method: str, limits: tuple[int, ...]) -> FlowSpec:
    columns, classes = len(limits), max(limits)
    if method in ("sp", "ds"):
        return architectures.vectors(classes, columns, limits=limits, kind="priors" if method == "sp" else "splits")
    layers: list[LayerSpec] = []
    for i in range(_COUPLINGS):
        if i:
            layers.append(ShuffleSpec(permutation=(1, 0)) if columns == 2 else ShuffleSpec())
        if method == "ddf":
            layers.append(DenoisingCouplingSpec(MLPSpec(), top=classes))
        else:
            layers.append(ModularCouplingSpec(MLPSpec(activation="tanh"), scale=False))
    return FlowSpec(classes, (columns,), tuple(layers))


def _joint(train: Tensor, test: Tensor, limits: tuple[int, ...]) -> float:
    """Return the nats per test sample under a joint table of counts, with 1/2 added to each count."""
    strides = torch.tensor(np.cumprod((1, *limits[:-1])))
    cells = int(np.prod(limits))
    counts = torch.bincount(train.long() @ strides, minlength=cells).double() + 0.5
    return -float((counts / counts.sum()).log()[test.long() @ strides].mean())


def _nats(symbols: Tensor, logits: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), symbols.long(), reduction="none").double()


@torch.no_grad()
def _emitted(flow: Any, test: Tensor) -> Tensor:
    """Return the nats of each column, for a flow that factors out the last column first."""
    parts: list[Tensor] = []
    flow.to_latents(test, lambda found, logits: parts.append(_nats(found, logits)))
    return torch.cat(parts[::-1], dim=1)


def _by_name(names: tuple[str, ...], nats: Tensor) -> dict[str, float]:
    return {name: round(float(value), 5) for name, value in zip(names, nats.mean(0), strict=True)}
