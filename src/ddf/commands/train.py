"""`ddf train`."""

__all__ = ["add"]

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.commands.common import Commands, UsageError, add_device, add_json, formatted, positive, say, seed

if TYPE_CHECKING:
    from ddf.data import DataSet
    from ddf.data.label_maps import LabelMaps
    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.spec import FlowSpec
    from ddf.training import TrainingConfig

NAMED = {"mnist": "mnist-split", "cityscapes": "cityscapes-split", "eight-gaussians": "eight-gaussians"}
"""Data sets that are called by their names, and the experiment that says how to train on each."""


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = formatted(
        commands,
        "train",
        "a model of your data",
        "Trains a model. It is RUN/model.safetensors, and its figure is that of data it has not seen.\n"
        "Interrupted, the same command goes on where it was.",
        "ddf train masks -o run                      label maps: a folder of PNG, TIFF or npy files, or one npy or npz",
        "ddf train masks -o run --preset best        smaller archives, slower",
        "ddf train table.csv -o run                  a table of categorical columns",
        "ddf train mnist -o run --device cuda        the paper's flow with split priors; downloads MNIST",
        "ddf train cityscapes --source ~/cityscapes -o run",
    )
    parser.add_argument("data", metavar="DATA", help=f"a path, or one of {', '.join(NAMED)}")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--preset", choices=("fast", "best"), help="for label maps (default: fast)")
    parser.add_argument("--steps", type=positive, metavar="N", help="steps per net, for label maps (default: 4400)")
    parser.add_argument("--batch", type=positive, metavar="N", help="label maps in a step (default: 1, on a GPU 8)")
    parser.add_argument("--epochs", type=positive, metavar="N", help="epochs per net, for other data")
    parser.add_argument("--mirrored", action="store_true", help="mirrored label maps are as likely: train on both")
    parser.add_argument("--source", metavar="PATH", help="where mnist or cityscapes is (default: downloaded)")
    parser.add_argument(
        "--integer", action="store_true", help="for mnist and cityscapes: make a model that can compress"
    )
    add_device(parser)
    parser.add_argument("--seed", type=seed, default=0, help="where a random choice begins (default: 0)")
    add_json(parser)
    parser.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    if options.data in NAMED:
        _refuse(options, options.data, "preset", "steps", "batch", "mirrored")
        return _train_named(options)
    path = Path(options.data)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; DATA is a path, or one of {', '.join(NAMED)}")
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".txt"):
        from ddf.data import read_table

        _refuse(options, "a table", "preset", "steps", "batch", "mirrored", "integer")
        return _train_table(options, read_table(path, seed=options.seed))
    from ddf.data import read_label_maps

    maps = read_label_maps(path)
    if {part.ndim for part in maps.maps} != {1}:
        _refuse(options, "label maps, which have --steps", "epochs")
    for line in maps.skipped:
        _note(options, f"left out: {line}")
    if {part.ndim for part in maps.maps} == {1}:
        _refuse(options, "an array of vectors", "preset", "steps", "batch", "mirrored", "integer")
        return _train_table(options, maps.data_set(seed=options.seed))
    return _train_codec(options, maps)


def _refuse(options: argparse.Namespace, what: str, *names: str) -> None:
    """Refuses options that have no say in this, rather than to ignore them."""
    for name in names:
        if getattr(options, name):
            raise UsageError(f"--{name} is not for {what}; see `ddf train --help`")


_SETTINGS = "data", "preset", "steps", "batch", "epochs", "mirrored", "integer", "seed"


_COMMAND = "command.json"


def _begun(options: argparse.Namespace) -> dict[str, Any] | None:
    """The settings of the training that was begun in this folder, if one was."""
    path = options.output / _COMMAND
    return json.loads(path.read_text()) if path.is_file() else None


def _check_run(options: argparse.Namespace) -> None:
    """Refuses to go on in a folder where something else was begun, and says in the user's words what is different."""
    from ddf.files import atomic_write

    now = {name: getattr(options, name) for name in _SETTINGS}
    now["data"] = options.data if options.data in NAMED else str(Path(options.data).resolve())
    before = _begun(options)
    if before is not None:
        for name, value in now.items():
            if before.get(name, value) != value:
                what = "DATA" if name == "data" else f"--{name}"
                raise ValueError(
                    f"{options.output} holds a training with {what} {before.get(name)}, but now it is {value}; "
                    "say the same, or another -o"
                )
        return
    options.output.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output / _COMMAND) as temporary:
        temporary.write_text(json.dumps(now))


def _train_codec(options: argparse.Namespace, maps: "LabelMaps") -> int:
    import numpy as np

    from ddf.data.label_maps import shares_of
    from ddf.labelmaps import train

    if any(part.ndim != 2 for part in maps.maps):
        raise ValueError(f"{maps.name}: `ddf train` takes maps of one channel; for others build a flow in Python")
    shares = shares_of(len(maps.maps), 0.1, 0.1, options.seed, maps.name)
    if {"validation", "test"} & set(maps.splits):
        groups = np.array(maps.splits)
        shares = {split: np.flatnonzero(groups == split) for split in ("train", "validation", "test")}
    parts = {split: [maps.maps[i] for i in sorted(share)] for split, share in shares.items()}
    parts["test"] = parts["test"] or parts["validation"]
    _note(
        options,
        f"{maps.classes.num_classes} classes; {len(parts['train'])} maps to train on, {len(parts['validation'])} to "
        f"validate, {len(parts['test'])} to test",
    )
    options.preset = options.preset or "fast"
    options.batch = options.batch or (_begun(options) or {}).get("batch")
    _check_run(options)
    settings: dict[str, Any] = {} if options.steps is None else {"steps": options.steps}
    settings["batch_size"] = options.batch
    model = train(
        [maps.classes.to_values(part) for part in parts["train"]],
        options.preset,
        [maps.classes.to_values(part) for part in parts["validation"]] or None,
        maps.classes,
        mirrored=options.mirrored,
        run=options.output,
        device=options.device,
        **settings,
    )
    pixels = sum(part.size for part in parts["test"])
    bits = sum(float(model.bits_per_dim(part[None, None])[0]) * part.size for part in parts["test"]) / pixels
    return _finish(options, model, bits, "bits per pixel", f"{options.preset} codec")


def _train_table(options: argparse.Namespace, data: "DataSet") -> int:
    from ddf import architectures
    from ddf.training import TrainingConfig

    spec = architectures.vectors(data.num_classes, data.shape[0])
    batch_size = max(16, min(256, len(data["train"]) // 20))
    epochs = options.epochs or 30
    config = TrainingConfig(batch_size=batch_size, max_epochs=epochs, ema=0.99, cosine=True, seed=options.seed)
    return _fit(options, spec, data, config, "flow for vectors")


def _train_named(options: argparse.Namespace) -> int:
    from ddf.experiments import EXPERIMENTS
    from ddf.experiments.runs import load_data

    experiment = EXPERIMENTS[NAMED[options.data], "ddf"]
    if options.integer and options.data == "eight-gaussians":
        raise UsageError("--integer is for mnist and cityscapes")
    if options.data == "cityscapes" and options.source is None:
        raise UsageError("its licence forbids downloads of Cityscapes: say with --source where your copy is")
    data = load_data(options.data, {options.data: options.source})
    config = replace(experiment.config, seed=options.seed)
    if options.epochs is not None:
        draws = min(config.draws, options.epochs)
        config = replace(config, max_epochs=options.epochs, patience=options.epochs, draws=draws)
    return _fit(options, experiment.spec, data, config, "the paper's flow")


def _fit(options: argparse.Namespace, spec: "FlowSpec", data: "DataSet", config: "TrainingConfig", what: str) -> int:
    import torch

    import ddf

    _check_run(options)
    flow = spec.build(seed=options.seed)
    ddf.fit(flow, data, config=config, run=options.output / "float", device=options.device)
    test = torch.as_tensor(data["test"])
    bits = float(flow.bits_per_dim(test, batch_size=500).mean())
    model: Flow | IntegerFlow = flow
    if options.integer:
        short = replace(config, learning_rate=1e-4, max_epochs=max(1, config.max_epochs // 5), ema=None, draws=1)
        short = replace(short, patience=short.max_epochs, precision="float32")
        model = ddf.export(flow, data, config=short, run=options.output / "integer", device=options.device)
        model.to(flow.device)
        bits = float(model.bits_per_dim(test, batch_size=128).mean())
    return _finish(options, model, bits, "bits per dimension", what)


def _finish(options: argparse.Namespace, model: "Flow | IntegerFlow", bits: float, unit: str, what: str) -> int:
    path = options.output / "model.safetensors"
    model.about = {"what": what, "trained_on": Path(options.data).name, "figure": round(bits, 5), "unit": unit}
    model.save(path)
    say(
        options,
        {"model": str(path), "test_bits": bits, "unit": unit},
        f"{path}: {bits:.4f} {unit} on data it has not seen",
        *_next(options, model, path),
    )
    return 0


def _next(options: argparse.Namespace, model: "Flow | IntegerFlow", path: Path) -> list[str]:
    from ddf.exact import IntegerFlow

    if not isinstance(model, IntegerFlow):
        from ddf.data.classes import Columns

        return [f"Next: ddf sample {path} -o samples.{'csv' if isinstance(model.classes, Columns) else 'png'}"]
    source = options.data if Path(options.data).exists() else "FOLDER"
    return [f"Next: {shlex.join(['ddf', 'compress', source, '-o', 'out.ddf', '--model', str(path)])}"]


def _note(options: argparse.Namespace, line: str) -> None:
    import sys

    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
