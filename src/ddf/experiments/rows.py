"""The experiments as plain data: the rows of the paper's Table 1, their ablations, and ordered flows."""

__all__ = [
    "COUPLINGS",
    "DF_ABLATION",
    "EXPERIMENTS",
    "FAITHFUL",
    "GROUPS",
    "H_GRID",
    "LADDER",
    "MODELS",
    "ORDERED",
    "ROWS",
    "TABLE",
    "Experiment",
    "Row",
]

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddf import architectures
from ddf.layers import LatticeOrder
from ddf.spec import DenseNetSpec, FlowSpec, LatticeNetSpec, MLPSpec
from ddf.training.config import TrainingConfig

MODELS = {
    "base": "base alone, without layers",
    "df": "Discrete Flow",
    "ddf": "Discrete Denoising Flow",
    "ds": "denoising splits",
    "sp": "split priors only",
    "sp-wide": "split priors only, with about as many parameters as the flows",
    "sp-fine": "split priors only, one channel at a time",
    "of": "ordered flow",
}


@dataclass(frozen=True)
class Row:
    """A row of a table: a data set, and the models that are trained on it.

    Arguments:
        name: Its name on the command line.
        title: Its name in the report.
        data: The data set; see `load_data`.
        paper: The published mean and standard deviation, by model.
        departures: The differences from the paper, by model.
        augment: The augmentation of Cityscapes training maps: `"mirror"`, `"vary"` or `""`; see `load_data`.
    """

    name: str
    title: str
    data: str
    paper: dict[str, tuple[float, float]]
    departures: dict[str, str]
    augment: str = "mirror"


@dataclass(frozen=True)
class Experiment:
    """A model of a row, with everything needed to train it."""

    row: Row
    model: str
    spec: FlowSpec
    config: TrainingConfig


_MNIST = TrainingConfig(batch_size=128, max_epochs=12, patience=12, cosine=True, ema=0.999, warmup_steps=100, draws=6)
_CITYSCAPES = TrainingConfig(max_epochs=40, patience=40, cosine=True, ema=0.999, warmup_steps=100)
_TOY = TrainingConfig(batch_size=512, max_epochs=15, patience=15, cosine=True, ema=0.99)
_TOY_JOINT = replace(_TOY, base_learning_rate=1e-2, relaxation=0.2)
_MNIST_JOINT = replace(_MNIST, learning_rate=3e-4, base_learning_rate=1e-2, relaxation=1.0)
_MNIST_SPLIT_JOINT = replace(_MNIST_JOINT, learning_rate=1e-3)
_CITYSCAPES_JOINT = replace(_CITYSCAPES, base_learning_rate=3e-2, relaxation=1.0)
_CITYSCAPES_SPLIT_JOINT = replace(_CITYSCAPES_JOINT, base_learning_rate=1e-2)

# The defaults are the paper's settings: Adam, a learning rate of 0.001 and batches of 64.
_MNIST_FAITHFUL = TrainingConfig(max_epochs=8, patience=2, draws=4, relaxation=0.0)
_CITYSCAPES_FAITHFUL = TrainingConfig(max_epochs=40, patience=5, relaxation=0.0)
_TOY_FAITHFUL = TrainingConfig(max_epochs=10, patience=3, relaxation=0.0)

_BASES = {
    "eight-gaussians": FlowSpec(91, (2,), ()),
    "mnist": FlowSpec(2, (1, 28, 28), ()),
    "cityscapes": FlowSpec(8, (1, 32, 64), ()),
}

_MAKERS: dict[str, Callable[..., FlowSpec]] = {
    "eight-gaussians": architectures.eight_gaussians,
    "mnist": architectures.binary_mnist,
    "cityscapes": architectures.cityscapes,
}

_HOT = "temperature 1 instead of 0.1"
_LATTICE = "channels in lattice order instead of random order"
_GIVEN = ", later couplings conditioned on all transformed channels instead of on half of the channels"
_SCHEDULE = "cosine decay, moving average of the weights"
_JOINT = "a higher learning rate for the base, a different relaxation (see `relaxed_log_prob`)"
_MNIST_TRAINING = f"batches of 128, six binarizations, a warm-up of 100 steps, {_SCHEDULE}"
_CITYSCAPES_TRAINING = f"a warm-up of 100 steps, mirrored maps, {_SCHEDULE}"
_MNIST_LOCAL = f"12 epochs for each net, {_MNIST_TRAINING}"
_CITYSCAPES_LOCAL = f"40 epochs for each net, {_CITYSCAPES_TRAINING}"


def _experiments() -> list[Experiment]:
    found = _table()
    rows = {experiment.row.name: experiment.row for experiment in found}
    return [*found, *_faithful(rows), *_ladder(rows), *_grids(rows), *_df_ablation(rows), *_ordered()]


def _table() -> list[Experiment]:
    """Return our presets for the paper's rows, and for the other uses of a prediction."""
    toy = Row(
        "eight-gaussians",
        "8 Gaussians",
        "eight-gaussians",
        {"df": (5.05, 0.05), "ddf": (4.58, 0.02)},
        {
            "ddf": f"200,000 pairs, batches of 512, 15 epochs, {_SCHEDULE}",
            "df": f"200,000 pairs, batches of 512, 15 epochs, {_SCHEDULE}, {_JOINT}, tanh instead of ReLU, shifts "
            "without scaling",
            "base": "no layers",
        },
    )
    tanh = MLPSpec(activation="tanh")
    found = [
        Experiment(toy, "base", _BASES["eight-gaussians"], TrainingConfig()),
        Experiment(toy, "ddf", architectures.eight_gaussians(), _TOY),
        Experiment(toy, "df", architectures.eight_gaussians("modular", net=tanh, scale=False), _TOY_JOINT),
    ]
    for split in (False, True):
        suffix, words = ("-split", ", split priors") if split else ("", "")
        order = _LATTICE if split else _LATTICE + _GIVEN
        rate = "" if split else "a learning rate of 0.0003, "
        mnist = Row(
            f"mnist{suffix}",
            f"binary MNIST{words}",
            "mnist",
            {"df": (0.17, 0.01), "ddf": (0.16, 0.01)} if split else {"df": (0.37, 0.01), "ddf": (0.23, 0.01)},
            {
                "ddf": f"{_MNIST_LOCAL}, {order}",
                "df": f"12 epochs, {rate}{_MNIST_TRAINING}, {_JOINT}, {order}",
                **_others(_MNIST_LOCAL),
            },
        )
        city = Row(
            f"cityscapes{suffix}",
            f"Cityscapes{words}",
            "cityscapes",
            {"df": (0.65, 0.03), "ddf": (0.59, 0.03)} if split else {"df": (1.46, 0.0), "ddf": (0.79, 0.01)},
            {
                "ddf": f"{_CITYSCAPES_LOCAL}, {order}",
                "df": f"40 epochs, {_CITYSCAPES_TRAINING}, {_JOINT}, {order}",
                **_others(_CITYSCAPES_LOCAL),
            },
        )
        joint = (_MNIST_SPLIT_JOINT, _CITYSCAPES_SPLIT_JOINT) if split else (_MNIST_JOINT, _CITYSCAPES_JOINT)
        for row, local, config in ((mnist, _MNIST, joint[0]), (city, _CITYSCAPES, joint[1])):
            found += [
                Experiment(row, "ddf", _spec(row, "denoising", split_priors=split), local),
                Experiment(row, "df", _spec(row, "modular", split_priors=split), config),
            ]
            if not split:
                found.append(Experiment(row, "base", _BASES[row.name], TrainingConfig()))
            if split or row is city:
                found.append(Experiment(row, "ds", _spec(row, "split", split_priors=split), local))
            if split:
                wide = DenseNetSpec(8 if row is mnist else 15, hidden=736)
                found += [
                    Experiment(row, "sp", _spec(row, "none"), local),
                    Experiment(row, "sp-wide", _spec(row, "none", net=wide), local),
                    Experiment(row, "sp-fine", _spec(row, "none, one by one"), local),
                ]
    return found


def _spec(row: Row, coupling: str, **options: Any) -> FlowSpec:
    return _MAKERS[row.data](coupling, **{"shuffles": "lattice", **options})


def _others(training: str) -> dict[str, str]:
    """Return the differences from the paper for models that are not in the paper."""
    return {
        "base": "no layers",
        "ds": f"a denoising split instead of each coupling and its split prior, {training}, {_LATTICE}",
        "sp": f"no couplings, {training}, {_LATTICE}",
        "sp-wide": f"no couplings, nets of width 736, {training}, {_LATTICE}",
        "sp-fine": f"no couplings, a split prior for each channel, {training}, {_LATTICE}",
    }


def _faithful(rows: dict[str, Row]) -> list[Experiment]:
    """Return experiments that follow appendices C and D to the letter, and list our choices where these are silent."""
    width = "nets of width 512, as in the authors' commands"
    mnist = f"{width}, four binarizations of each image"
    found = []
    for name, config, unstated in (
        ("eight-gaussians", _TOY_FAITHFUL, "200,000 pairs"),
        ("mnist", _MNIST_FAITHFUL, mnist),
        ("cityscapes", _CITYSCAPES_FAITHFUL, f"{width}, no mirrored maps"),
        ("mnist-split", _MNIST_FAITHFUL, mnist),
        ("cityscapes-split", _CITYSCAPES_FAITHFUL, f"{width}, no mirrored maps"),
        ("mnist-split-a", _MNIST_FAITHFUL, mnist),
        ("cityscapes-split-a", _CITYSCAPES_FAITHFUL, f"{width}, no mirrored maps"),
    ):
        ours = rows[name.removesuffix("-a")]
        order = "split priors factor out the transformed part, as in the authors' code but not in appendix C; "
        stated = order if name.endswith("-split") else "none; "
        epochs = f"at most {config.max_epochs} epochs with a patience of {config.patience}"
        title = f"{ours.title} in the order of appendix C" if name.endswith("-a") else ours.title
        row = replace(
            ours,
            name=f"{name}-faithful",
            title=f"{title}, faithful",
            departures={
                "ddf": f"{stated}our choices where the paper is silent: {epochs} for each net, {unstated}",
                "df": f"{stated}our choices where the paper is silent: {epochs}, {unstated}, a temperature of 0.1, "
                "a base initialized to the class frequencies of the data",
                "base": "no layers",
            },
            augment="",
        )
        if not name.endswith(("-split", "-a")):
            found.append(Experiment(row, "base", _BASES[name], TrainingConfig()))
        for model, coupling in (("ddf", "denoising"), ("df", "modular")):
            if name == "eight-gaussians":
                spec = architectures.eight_gaussians(coupling)
            else:
                options = {"split_priors": "split" in name, "factor_out": "a" if name.endswith("-a") else "b"}
                spec = _spec(row, coupling, shuffles="random", **options)
            found.append(Experiment(row, model, spec, config))
    return found


def _ladder(rows: dict[str, Row]) -> list[Experiment]:
    """Return the steps between the faithful flows and ours, without split priors: each adds one change."""
    found = []
    for data, faithful, ours in (
        ("mnist", _MNIST_FAITHFUL, _MNIST),
        ("cityscapes", _CITYSCAPES_FAITHFUL, _CITYSCAPES),
    ):
        schedule = "warm-up, cosine decay over 40 epochs, no early stopping"
        if data == "mnist":
            schedule = "warm-up, cosine decay over 12 epochs, no early stopping, six binarizations instead of four"
        third = (
            ("batch", "batches of 128", replace(faithful, batch_size=128), "")
            if data == "mnist"
            else ("mirrored", "mirrored maps", faithful, "mirror")
        )
        for name, title, config, augment, shuffles in (
            ("lattice", "lattice order", faithful, "", "lattice, halves"),
            ("given", "conditioning on all transformed channels", faithful, "", "lattice"),
            (*third, "lattice"),
            (
                "cosine",
                schedule,
                replace(ours, ema=None),
                "mirror",
                "lattice",
            ),
        ):
            row = replace(
                rows[data],
                name=f"{data}-{name}",
                title=f"{rows[data].title}: + {title}",
                paper={},
                departures={"ddf": title},
                augment=augment,
            )
            found.append(Experiment(row, "ddf", _spec(row, "denoising", split_priors=False, shuffles=shuffles), config))
    return found


def _grids(rows: dict[str, Row]) -> list[Experiment]:
    """Return the grids over the number of ranked classes and the number of couplings, without split priors."""
    found = []
    row = rows["cityscapes"]
    options: dict[str, dict[str, Any]] = {f"h{top}": {"top": top} for top in (1, 2, 6, 8)}
    options |= {f"couplings{sum(counts)}": {"couplings": counts} for counts in ((1, 1, 1), (2, 2, 2))}
    for name, option in options.items():
        what = f"h = {option['top']}" if "top" in option else f"{sum(option['couplings'])} couplings"
        variant = replace(row, name=f"cityscapes-{name}", title=f"Cityscapes, {what}", paper={})
        found.append(Experiment(variant, "ddf", _spec(row, "denoising", split_priors=False, **option), _CITYSCAPES))
    return found


def _df_ablation(rows: dict[str, Row]) -> list[Experiment]:
    """Return variants of our Discrete Flows in which one choice is reverted."""
    toy = {"net": MLPSpec(activation="tanh"), "scale": False}
    maps = {"split_priors": False, "shuffles": "lattice"}
    found = []
    for data, name, title, options, config in (
        ("eight-gaussians", "plain", "plain relaxation", toy, _TOY_JOINT),
        ("eight-gaussians", "relu", "ReLU instead of tanh", {**toy, "net": None}, _TOY_JOINT),
        ("eight-gaussians", "scale", "with scale", {**toy, "scale": True}, _TOY_JOINT),
        ("eight-gaussians", "hot", _HOT, {**toy, "temperature": 1.0}, _TOY_JOINT),
        ("mnist", "plain", "plain relaxation", maps, _MNIST_JOINT),
        ("mnist", "hot", _HOT, {**maps, "temperature": 1.0}, _MNIST_JOINT),
        ("cityscapes", "plain", "plain relaxation", maps, _CITYSCAPES_JOINT),
        ("cityscapes", "hot", _HOT, {**maps, "temperature": 1.0}, _CITYSCAPES_JOINT),
    ):
        row = replace(
            rows[data],
            name=f"{data}-{name}",
            title=f"{rows[data].title}: {title}",
            paper={},
            departures={"df": f"{title}; otherwise the same as {rows[data].title}"},
        )
        config = replace(config, relaxation=0.0) if name == "plain" else config
        found.append(Experiment(row, "df", _MAKERS[data]("modular", **options), config))
    return found


def _ordered() -> list[Experiment]:
    """Return ordered flows: one net for many steps."""
    changes = "an ordered flow: one net for all steps, Muon, gradient clipping, weight decay, dropout, "
    mnist = TrainingConfig(
        batch_size=128,
        learning_rate=1e-3,
        max_epochs=26,
        patience=26,
        ema=0.999,
        warmup_steps=200,
        weight_decay=0.02,
        clip=1.0,
        optimizer="muon",
        validate_every=2,
        cosine=True,
        draws=26,
    )
    city = replace(mnist, batch_size=64, max_epochs=256, patience=256, validate_every=8, draws=128)
    fine = replace(city, batch_size=16, max_epochs=52, patience=52, validate_every=4, draws=52)
    nets = {rate: LatticeNetSpec(dropout=rate) for rate in (0.1, 0.2, 0.3)}
    large = LatticeNetSpec(planes=(128, 256, 384), blocks=(2, 2, 4), dropout=0.1)
    digits, maps = (1, 28, 28), (1, 32, 64)
    specs = {
        "mnist": (architectures.ordered(2, digits, nets[0.1]), mnist, "26 binarizations"),
        "static-mnist": (architectures.ordered(2, digits, nets[0.3]), mnist, "no augmentation"),
        "cityscapes": (
            architectures.ordered(8, maps, nets[0.2]),
            city,
            "varied maps (see `ddf.data.cityscapes_maps.varied`)",
        ),
        "cityscapes-128x256": (
            architectures.ordered(8, (1, 128, 256), large, LatticeOrder(128)),
            fine,
            "mirrored maps",
        ),
    }
    titles = ("binary MNIST", "static binary MNIST", "Cityscapes", "Cityscapes at 128 × 256")
    found = []
    for title, (data, (spec, config, more)) in zip(titles, specs.items(), strict=True):
        departures = f"{changes}{config.max_epochs} epochs, batches of {config.batch_size}, {more}"
        augment = "vary" if data == "cityscapes" else "mirror"
        row = Row(f"{data}-ordered", f"{title}, ordered", data, {}, {"of": departures}, augment)
        found.append(Experiment(row, "of", spec, config))
    return found


EXPERIMENTS = {(experiment.row.name, experiment.model): experiment for experiment in _experiments()}
"""All experiments, by row and model."""

ROWS = {experiment.row.name: experiment.row for experiment in EXPERIMENTS.values()}
"""All rows by name."""

TABLE = ("eight-gaussians", "mnist", "cityscapes", "mnist-split", "cityscapes-split")
"""The rows of the paper's table."""

FAITHFUL = tuple(f"{name}-faithful" for name in (*TABLE, "mnist-split-a", "cityscapes-split-a"))
"""The rows that follow the paper's appendices; only the last two factor out the part that appendix C names."""

LADDER = {
    "mnist": ("mnist-faithful", "mnist-lattice", "mnist-given", "mnist-batch", "mnist-cosine", "mnist"),
    "cityscapes": (
        "cityscapes-faithful",
        "cityscapes-lattice",
        "cityscapes-given",
        "cityscapes-mirrored",
        "cityscapes-cosine",
        "cityscapes",
    ),
}
"""The steps from the faithful flows to ours, by data set: each row adds one change to the previous row."""

H_GRID = {1: "cityscapes-h1", 2: "cityscapes-h2", 4: "cityscapes", 6: "cityscapes-h6", 8: "cityscapes-h8"}
"""The rows of the paper's search for h."""

COUPLINGS = {3: "cityscapes-couplings3", 5: "cityscapes", 6: "cityscapes-couplings6"}
"""The rows of the search for the number of couplings."""

DF_ABLATION = {
    data: tuple(
        name for name, model in EXPERIMENTS if model == "df" and name.startswith(f"{data}-") and not ROWS[name].paper
    )
    for data in ("eight-gaussians", "mnist", "cityscapes")
}
"""The rows in which one choice of our Discrete Flows is reverted, by data set."""

ORDERED = ("mnist-ordered", "static-mnist-ordered", "cityscapes-ordered", "cityscapes-128x256-ordered")
"""The rows of ordered flows."""

GROUPS = {
    "ordered": tuple((row, "of") for row in ORDERED[:-1]),
    "ladder": tuple((row, "ddf") for rows in LADDER.values() for row in rows),
    **{f"ladder-{data}": tuple((row, "ddf") for row in rows) for data, rows in LADDER.items()},
    "ablations": (
        *dict.fromkeys((row, "ddf") for row in (*H_GRID.values(), *COUPLINGS.values())),
        *((row, "df") for data, rows in DF_ABLATION.items() for row in (data, *rows)),
    ),
}
"""Groups of experiments that `ddf reproduce` accepts in place of a row, with what they are compared with."""
