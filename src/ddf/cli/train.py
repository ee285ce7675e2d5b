"""`ddf train`."""

__all__ = ["add"]

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.cli.common import Commands, UsageError, add_device, add_json, formatted, positive, print_result, seed

if TYPE_CHECKING:
    from ddf.data import DataSet
    from ddf.data.label_maps import LabelMaps
    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow
    from ddf.spec import FlowSpec
    from ddf.training import TrainingConfig

NAMED = {"mnist": "mnist-split", "cityscapes": "cityscapes-split", "eight-gaussians": "eight-gaussians"}
"""Named data sets, and the experiment that defines the training on each."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "train",
        "train a model on your data",
        "Train a model, write it to RUN/model.safetensors, and report its score on held-out data.\n"
        "If interrupted, run the same command again to resume.",
        "ddf train masks -o run                      label maps: a folder of PNG, TIFF or npy files, or one npy or npz",
        "ddf train masks -o run --preset best        a larger model: smaller archives, but slower",
        "ddf train table.csv -o run                  a table of categorical columns",
        "ddf train mnist -o run --device cuda        a denoising flow with split priors; downloads MNIST",
        "ddf train cityscapes --source ~/cityscapes -o run",
    )
    parser.add_argument("data", metavar="DATA", help=f"a path, or one of {', '.join(NAMED)}")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="RUN", help="the run directory; created if needed"
    )
    parser.add_argument(
        "--preset", choices=("fast", "best"), help="the size of the model, for label maps (default: fast)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="training steps, for label maps (default: 25000 for fast, 60000 for best)",
    )
    parser.add_argument(
        "--epochs", type=positive, metavar="N", help="epochs per net, for other data (default: 30 for a table)"
    )
    parser.add_argument(
        "--mirrored", action="store_true", help="also train on mirrored label maps (default: only the original maps)"
    )
    parser.add_argument(
        "--source", metavar="PATH", help="the location of mnist or cityscapes (default: download mnist)"
    )
    parser.add_argument(
        "--integer",
        action="store_true",
        help="for mnist and cityscapes: also convert the flow to integers, so that it can compress "
        "(default: floating point only)",
    )
    add_device(parser)
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    add_json(parser)
    parser.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    if options.data in NAMED:
        _refuse(options, options.data, "preset", "steps", "mirrored")
        return _train_named(options)
    path = Path(options.data)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; DATA is a path, or one of {', '.join(NAMED)}")
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".txt"):
        from ddf.data.tables import read_table

        _refuse(options, "a table", "preset", "steps", "mirrored", "integer", "source")
        return _train_table(options, read_table(path, seed=options.seed))
    from ddf.data.label_maps import MOST_CLASSES, read_label_maps
    from ddf.labelmaps.labels import MOST_LABELS

    maps = read_label_maps(path, most_classes=MOST_LABELS)
    vectors = {part.ndim for part in maps.maps} == {1}
    if vectors:
        _refuse(options, "an array of vectors", "preset", "steps", "mirrored", "integer", "source")
    else:
        _refuse(options, "label maps; pass --steps instead", "epochs")
        _refuse(options, "label maps", "integer", "source")
    for line in maps.skipped:
        _note(options, f"skipped: {line}")
    if vectors:
        if maps.classes.num_classes > MOST_CLASSES:
            raise ValueError(
                f"{path} has {maps.classes.num_classes} classes, but at most {MOST_CLASSES} are supported for vectors"
            )
        return _train_table(options, maps.data_set(seed=options.seed))
    return _train_codec(options, maps)


def _refuse(options: argparse.Namespace, what: str, *names: str) -> None:
    """Raise an error for options that would have no effect."""
    for name in names:
        if getattr(options, name):
            raise UsageError(f"--{name} does not apply to {what}")


_SETTINGS = "data", "preset", "steps", "epochs", "mirrored", "integer", "seed"
_COMMAND = "command.json"


def _begun(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the settings of the run that was started in this folder, if any."""
    path = options.output / _COMMAND
    return json.loads(path.read_text()) if path.is_file() else None


def _check_run(options: argparse.Namespace) -> None:
    """Raise an error if a run would be resumed with settings other than those it was started with."""
    from ddf.files import atomic_write

    now = {name: getattr(options, name) for name in _SETTINGS}
    now["data"] = options.data if options.data in NAMED else str(Path(options.data).resolve())
    before = _begun(options)
    if before is not None:
        for name, value in now.items():
            if before.get(name, value) != value:
                what = "DATA" if name == "data" else f"--{name}"
                was, now_is = (f"{what} {_shown(setting)}" for setting in (before.get(name), value))
                raise ValueError(
                    f"{options.output} was started with {was}, but this command has {now_is}; pass the same settings "
                    "to resume, or another -o"
                )
        return
    options.output.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output / _COMMAND) as temporary:
        temporary.write_text(json.dumps(now))


def _shown(setting: object) -> str:
    return "(default)" if setting is None else "off" if setting is False else "on" if setting is True else str(setting)


def _train_codec(options: argparse.Namespace, maps: "LabelMaps") -> int:
    import torch

    from ddf.archive import ArchiveWriter
    from ddf.labelmaps import PRESETS, pretrained, train
    from ddf.labelmaps.training import MOST_KNOWN

    if any(part.ndim != 2 for part in maps.maps):
        raise ValueError(f"{maps.name} has maps with several channels; `ddf train` supports one, so split the channels")
    if len(maps.maps) < 2:
        raise ValueError(f"{maps.name} has 1 map; training needs at least 2, because one is held out for the score")
    if not {"validation", "test"} & set(maps.assigned):
        maps = replace(maps, assigned=())
    splits = maps.splits(validation=0.0, test=0.1, seed=options.seed)
    parts = {
        split: [_smallest(maps.classes.to_values(maps.maps[i])) for i in splits.get(split, ())]
        for split in ("train", "validation", "test")
    }
    held_out = parts["test"] or parts["validation"]
    training = parts["train"] + (parts["validation"] if parts["test"] else [])
    _note(
        options,
        f"{maps.classes.num_classes} classes; training on {len(training)} maps, {len(held_out)} held out for the score",
    )
    known = maps.classes.num_classes <= MOST_KNOWN
    if not known:
        _note(options, f"More than {MOST_KNOWN} classes: the model learns shapes, but not what each class looks like.")
    options.preset = options.preset or "fast"
    steps = options.steps or PRESETS[options.preset].steps
    _check_run(options)
    model = train(
        training,
        options.preset,
        maps.classes if known else None,
        mirrored=options.mirrored,
        steps=steps,
        seed=options.seed,
        run=options.output,
        device=options.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        progress=not options.json,
    )
    bits, shipped = (_score(ArchiveWriter, codec, held_out) for codec in (model, pretrained()))
    saved = 1 - bits / shipped
    size = len(model.to_bytes())
    advice = [f"The pretrained model reaches {shipped:.4f} bits per pixel on the same maps."]
    if saved <= 0:
        advice[0] += " Use it instead: run `ddf compress` without --model."
    else:
        pixels = sum(part.size for part in held_out) / len(held_out)
        pays = int(8 * size / ((shipped - bits) * pixels)) + 1
        advice[0] += (
            f" Your model makes archives {saved:.0%} smaller; embedding it (--embed, {size:,} bytes) pays off from "
            f"{pays:,} maps."
        )
    if len(training) < _FEW_MAPS:
        advice.append(f"Warning: only {len(training)} training maps; {_FEW_MAPS} or more give a better model.")
    if steps < PRESETS[options.preset].steps // 4:
        advice.append(
            f"Warning: only {steps:,} training steps; the preset's {PRESETS[options.preset].steps:,} (omit --steps) "
            "give a better model."
        )
    result = {"shipped_bits": shipped, "bytes": size, "warnings": advice[1:]}
    return _finish(options, model, bits, "bits per pixel", f"{options.preset} codec", result, advice)


_FEW_MAPS = 50


def _smallest(values: "Any") -> "Any":
    """Return values in the smallest dtype that holds them, as in an image file."""
    import numpy as np

    low, high = int(values.min()), int(values.max())
    return values.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))


def _score(writer: "Any", model: "Any", maps: "list[Any]") -> float:
    """Return the bits per pixel of an archive of maps that are coded one by one."""
    import io

    buffer = io.BytesIO()
    with writer(buffer, model, verify=False) as archive:
        for part in maps:
            archive.add(part)
    return 8 * len(buffer.getvalue()) / sum(part.size for part in maps)


def _train_table(options: argparse.Namespace, data: "DataSet") -> int:
    from ddf import architectures
    from ddf.classes import Columns
    from ddf.training import TrainingConfig

    limits = None if not isinstance(data.classes, Columns) else tuple(len(column) for column in data.classes.values)
    spec = architectures.vectors(data.num_classes, data.shape[0], limits=limits)
    batch_size = max(16, min(256, len(data["train"]) // 20))
    epochs = options.epochs or 30
    config = TrainingConfig(batch_size=batch_size, max_epochs=epochs, ema=0.99, cosine=True, seed=options.seed)
    return _fit(options, spec, data, config, "flow for vectors")


def _train_named(options: argparse.Namespace) -> int:
    from ddf.experiments import EXPERIMENTS
    from ddf.experiments.results import load_data

    experiment = EXPERIMENTS[NAMED[options.data], "ddf"]
    if options.integer and options.data == "eight-gaussians":
        raise UsageError("--integer applies only to mnist and cityscapes")
    if options.data == "cityscapes" and options.source is None:
        raise UsageError(
            "the license of Cityscapes does not allow automatic downloads: pass the path of your copy with --source"
        )
    data = load_data(options.data, {options.data: options.source})
    config = replace(experiment.config, seed=options.seed)
    if options.epochs is not None:
        draws = min(config.draws, options.epochs)
        config = replace(config, max_epochs=options.epochs, patience=options.epochs, draws=draws)
    return _fit(options, experiment.spec, data, config, experiment.row.title)


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


def _finish(
    options: argparse.Namespace,
    model: "Flow | IntegerFlow | CausalFlow",
    bits: float,
    unit: str,
    what: str,
    more: "dict[str, Any] | None" = None,
    advice: "list[str] | None" = None,
) -> int:
    path = options.output / "model.safetensors"
    model.about = {"what": what, "trained_on": Path(options.data).name, "score": round(bits, 5), "unit": unit}
    model.save(path)
    print_result(
        options,
        {"model": str(path), "test_bits": bits, "unit": unit, **(more or {})},
        f"{path}: {bits:.4f} {unit} on held-out data",
        *(advice or []),
        *_next(options, model, path, useful=more is None or bits < more["shipped_bits"]),
    )
    return 0


def _next(options: argparse.Namespace, model: "Flow | IntegerFlow | CausalFlow", path: Path, useful: bool) -> list[str]:
    from ddf.archive import Codec

    if not isinstance(model, Codec):
        from ddf.classes import Columns

        return [f"Next: ddf sample {path} -o samples.{'csv' if isinstance(model.classes, Columns) else 'png'}"]
    source = options.data if Path(options.data).exists() else "FOLDER"
    use = ["--model", str(path)] if useful else []
    return [f"Next: {shlex.join(['ddf', 'compress', source, '-o', 'out.ddf', *use])}"]


def _note(options: argparse.Namespace, line: str) -> None:
    import sys

    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
