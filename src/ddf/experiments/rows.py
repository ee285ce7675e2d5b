"""The rows of the paper's Table 1 and some more, as plain data."""

__all__ = ["EXPERIMENTS", "FAITHFUL", "GRID", "MODELS", "ROWS", "TABLE", "Experiment", "Row"]

from dataclasses import dataclass, replace

from ddf import architectures
from ddf.spec import FlowSpec, MLPSpec
from ddf.training.config import TrainingConfig

MODELS = {"df": "Discrete Flow", "ddf": "Discrete Denoising Flow"}


@dataclass(frozen=True)
class Row:
    """A row of the table: a data set, with a flow of each model.

    Arguments:
        name: Its name on the command line.
        title: Its name in the report.
        data: The data set: `"eight-gaussians"`, `"mnist"` or `"cityscapes"`.
        paper: The published mean and standard deviation, by model.
        departures: The differences from the paper, by model.
        augment: Whether training maps are mirrored at random.
    """

    name: str
    title: str
    data: str
    paper: dict[str, tuple[float, float]]
    departures: dict[str, str]
    augment: bool = True


@dataclass(frozen=True)
class Experiment:
    """A model on a row, with everything needed to train it."""

    row: Row
    model: str
    spec: FlowSpec
    config: TrainingConfig


_MNIST = TrainingConfig(batch_size=128, max_epochs=12, patience=12, cosine=True, ema=0.999, warmup_steps=100, draws=6)
_CITYSCAPES = TrainingConfig(max_epochs=40, patience=40, cosine=True, ema=0.999, warmup_steps=100)
_TOY = TrainingConfig(batch_size=512, max_epochs=15, patience=15, cosine=True, ema=0.99)
_TOY_JOINT = replace(_TOY, ema=None, base_learning_rate=1e-2, relaxation=0.2)
_MNIST_JOINT = TrainingConfig(
    batch_size=128,
    learning_rate=3e-4,
    base_learning_rate=1e-2,
    max_epochs=8,
    patience=8,
    cosine=True,
    warmup_steps=100,
    draws=6,
    relaxation=1.0,
)
_MNIST_SPLIT_JOINT = replace(_MNIST_JOINT, learning_rate=1e-3)
_CITYSCAPES_SPLIT_JOINT = TrainingConfig(max_epochs=30, patience=30, cosine=True, base_learning_rate=1e-2)
_CITYSCAPES_JOINT = replace(_CITYSCAPES_SPLIT_JOINT, base_learning_rate=3e-2, relaxation=1.0, warmup_steps=100)

# The defaults are the paper's settings: Adam, a learning rate of 0.001 and batches of 64.
_MNIST_FAITHFUL = TrainingConfig(max_epochs=8, patience=2, draws=4, relaxation=0.0)
_CITYSCAPES_FAITHFUL = TrainingConfig(max_epochs=40, patience=5, relaxation=0.0)
_TOY_FAITHFUL = TrainingConfig(max_epochs=10, patience=3, relaxation=0.0)

_LATTICE = "channels in lattice order instead of a random one"
_GIVEN = ", later couplings predict from all transformed channels instead of from half of the channels"
_LOCAL = "cosine decay, moving average of the weights"
_JOINT = "cosine decay, a higher learning rate for the base, a different relaxation (see Flow.relaxed_log_prob)"


def _experiments() -> list[Experiment]:
    toy = Row(
        "eight-gaussians",
        "8 Gaussians",
        "eight-gaussians",
        {"df": (5.05, 0.05), "ddf": (4.58, 0.02)},
        {
            "ddf": f"200,000 pairs, batches of 512, 15 epochs, {_LOCAL}",
            "df": f"200,000 pairs, batches of 512, 15 epochs, {_JOINT}, tanh instead of ReLU, location without scale",
        },
    )
    tanh = MLPSpec(activation="tanh")
    found = [
        Experiment(toy, "ddf", architectures.eight_gaussians(), _TOY),
        Experiment(toy, "df", architectures.eight_gaussians("modular", net=tanh, scale=False), _TOY_JOINT),
    ]
    for split, order in ((False, ""), (True, ""), (True, "a")):
        suffix = f"-split{order and '-' + order}" if split else ""
        words = f", split priors{' in the order of appendix C' if order else ''}" if split else ""
        order_words = _LATTICE if split else _LATTICE + _GIVEN
        rate = "" if split else "a learning rate of 0.0003, "
        heat = "" if split else "a warm-up of 100 steps, a temperature of 1, "
        options = {"split_priors": split, "factor_out": order or "b", "shuffles": "lattice"}
        mnist = Row(
            f"mnist{suffix}",
            f"binary MNIST{words}",
            "mnist",
            {}
            if order
            else {"df": (0.17, 0.01), "ddf": (0.16, 0.01)}
            if split
            else {"df": (0.37, 0.01), "ddf": (0.23, 0.01)},
            {
                "ddf": f"batches of 128, 12 epochs per net, a warm-up of 100 steps, {_LOCAL}, {order_words}",
                "df": f"batches of 128, 8 epochs, {rate}a warm-up of 100 steps, a temperature of 1, {_JOINT}, "
                + order_words,
            },
        )
        city = Row(
            f"cityscapes{suffix}",
            f"Cityscapes{words}",
            "cityscapes",
            {}
            if order
            else {"df": (0.65, 0.03), "ddf": (0.59, 0.03)}
            if split
            else {"df": (1.46, 0.0), "ddf": (0.79, 0.01)},
            {
                "ddf": f"40 epochs per net, a warm-up of 100 steps, mirrored maps, {_LOCAL}, {order_words}",
                "df": f"30 epochs, mirrored maps, {heat}{_JOINT}, {order_words}",
            },
        )
        for row, make, local, joint, temperature in (
            (mnist, architectures.binary_mnist, _MNIST, _MNIST_SPLIT_JOINT if split else _MNIST_JOINT, 1.0),
            (
                city,
                architectures.cityscapes,
                _CITYSCAPES,
                _CITYSCAPES_SPLIT_JOINT if split else _CITYSCAPES_JOINT,
                0.1 if split else 1.0,
            ),
        ):
            found.append(Experiment(row, "ddf", make("denoising", **options), local))  # type: ignore[arg-type]
            modular = make("modular", temperature=temperature, **options)  # type: ignore[arg-type]
            found.append(Experiment(row, "df", modular, joint))
    for top in (1, 2, 6, 8):
        row = Row(
            f"cityscapes-split-h{top}",
            f"Cityscapes, split priors, h = {top}",
            "cityscapes",
            {},
            {"ddf": f"40 epochs per net, a warm-up of 100 steps, mirrored maps, {_LOCAL}, {_LATTICE}"},
        )
        found.append(Experiment(row, "ddf", architectures.cityscapes(top=top, shuffles="lattice"), _CITYSCAPES))
    return found + _faithful({experiment.row.name: experiment.row for experiment in found})


def _faithful(rows: dict[str, Row]) -> list[Experiment]:
    """Return experiments that follow appendices C and D to the letter; what they leave open is listed."""
    width = "nets of width 512, as on the authors' command line"
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
        ours = rows[name]
        order = "split priors factor out the transformed part, as in the authors' code but not in appendix C; "
        stated = order if name.endswith("-split") else "none that the paper specifies; "
        epochs = f"at most {config.max_epochs} epochs with a patience of {config.patience}"
        row = replace(
            ours,
            name=f"{name}-faithful",
            title=f"{ours.title}, faithful",
            paper=rows[name.removesuffix("-a")].paper,
            departures={
                "ddf": f"{stated}unspecified there: {epochs} per net, {unstated}",
                "df": f"{stated}unspecified there: {epochs}, {unstated}, a temperature of 0.1, "
                "a base initialized to the frequencies of the data",
            },
            augment=False,
        )
        for model, coupling in (("ddf", "denoising"), ("df", "modular")):
            if name == "eight-gaussians":
                spec = architectures.eight_gaussians(coupling)
            else:
                make = architectures.binary_mnist if ours.data == "mnist" else architectures.cityscapes
                spec = make(coupling, split_priors="split" in name, factor_out="a" if name.endswith("-a") else "b")
            found.append(Experiment(row, model, spec, config))
    return found


EXPERIMENTS = {(experiment.row.name, experiment.model): experiment for experiment in _experiments()}
"""All experiments, by row and model."""

ROWS = {experiment.row.name: experiment.row for experiment in EXPERIMENTS.values()}
"""All rows by name."""

TABLE = ("eight-gaussians", "mnist", "cityscapes", "mnist-split", "cityscapes-split")
"""The rows of the paper's table."""

FAITHFUL = tuple(f"{name}-faithful" for name in (*TABLE, "mnist-split-a", "cityscapes-split-a"))
"""The rows that follow the paper's appendices to the letter. The last two factor out the part named in appendix C."""

GRID = ("cityscapes-split-h1", "cityscapes-split-h2", "cityscapes-split", "cityscapes-split-h6", "cityscapes-split-h8")
"""The rows of the paper's search for h."""
