"""`ddf sample`."""

__all__ = ["add"]

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddf.cli.common import (
    Commands,
    UsageError,
    add_device,
    add_force,
    add_json,
    check_output,
    formatted,
    load_model,
    positive,
    print_result,
    seed,
    size_of,
)

if TYPE_CHECKING:
    from ddf.labelmaps import CausalFlow

_MOST_SYMBOLS = 1 << 28


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "sample",
        "draw samples from a model",
        "Draw samples and write them as a picture (.png), an array (.npy) or a table (.csv).",
        "ddf sample run/model.safetensors -n 16 -o grid.png --size 128x192",
        "ddf sample run/model.safetensors -n 1000 -o samples.npy --seed 1",
    )
    parser.add_argument("model", metavar="MODEL", help="a model file")
    parser.add_argument(
        "-n",
        "--count",
        type=positive,
        metavar="N",
        help="number of samples (default: 16, or 10,000 for a picture of points)",
    )
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the .png, .npy or .csv file to write"
    )
    parser.add_argument(
        "--size",
        type=size_of,
        metavar="HxW",
        help="height and width of maps (default: 128x128, or the size of the model)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    add_device(parser)
    add_force(parser)
    add_json(parser)
    parser.set_defaults(run=_sample)


def _sample(options: argparse.Namespace) -> int:
    suffix = options.output.suffix.lower()
    if suffix not in (".png", ".npy", ".csv"):
        raise UsageError(f"-o {options.output} has an unsupported suffix; pass a .png, .npy or .csv file")
    check_output(options)
    import numpy as np
    import torch

    from ddf import viz
    from ddf.classes import Classes, Columns
    from ddf.files import atomic_write
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow

    model = load_model(options.model, options.device)
    if isinstance(model, CausalFlow):
        return _sample_maps(options, model, suffix)
    if options.count is None:
        options.count = 10_000 if suffix == ".png" and model.shape == (2,) else 16
    size = options.size or ((128, 128) if None in model.shape else None)
    if options.size and None not in model.shape:
        raise UsageError(
            f"--size does not apply: {options.model} has samples of a fixed size, {' × '.join(map(str, model.shape))}"
        )
    generator = torch.Generator(model.device if isinstance(model, Flow) else "cpu").manual_seed(options.seed)
    if size is not None and options.count * size[0] * size[1] > _MOST_SYMBOLS:
        raise UsageError(
            f"{options.count} samples of {size[0]} × {size[1]} do not fit in memory; pass a smaller -n or --size"
        )
    found = model.sample(options.count, generator, size=size).cpu().numpy()
    classes = model.classes or Classes.plain(model.num_classes)
    if suffix == ".csv":
        if not isinstance(classes, Columns):
            raise UsageError(
                f"{options.model} is not a model of a table, so it cannot write .csv; pass a .png or .npy file"
            )
        import csv

        with atomic_write(options.output) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(classes.names)
            writer.writerows(classes.to_values(found))
    elif suffix == ".npy":
        values = found if isinstance(classes, Columns) else classes.to_values(found)
        with atomic_write(options.output) as temporary, temporary.open("wb") as raw:
            np.save(raw, values)
    elif found.ndim == 4 and found.shape[1] == 1 and isinstance(classes, Classes):
        viz.sheet(found[:, 0], viz.colors_of(classes), options.output)
    elif found.ndim == 2 and found.shape[1] == 2:
        viz.pair_histograms({f"{options.count} samples": found}, model.num_classes, options.output)
    else:
        suffix = "csv" if isinstance(classes, Columns) else "npy"
        raise UsageError(f"samples of shape {found.shape[1:]} cannot be drawn as a picture; pass -o samples.{suffix}")
    print_result(
        options,
        {"samples": len(found), "file": str(options.output)},
        f"{options.output}: {len(found)} samples of {' × '.join(map(str, found.shape[1:]))}",
    )
    return 0


def _sample_maps(options: argparse.Namespace, model: "CausalFlow", suffix: str) -> int:
    import numpy as np

    from ddf import viz
    from ddf.classes import Classes
    from ddf.files import atomic_write

    if suffix == ".csv":
        raise UsageError(
            f"{options.model} is not a model of a table, so it cannot write .csv; pass a .png or .npy file"
        )
    count, size = options.count or 16, options.size or (128, 128)
    if count * size[0] * size[1] > _MOST_SYMBOLS:
        raise UsageError(f"{count} samples of {size[0]} × {size[1]} do not fit in memory; pass a smaller -n or --size")
    found = model.sample(count, size, options.seed)
    if suffix == ".npy":
        with atomic_write(options.output) as temporary, temporary.open("wb") as raw:
            np.save(raw, found)
    else:
        classes = model.classes or Classes.plain(int(found.max(initial=1)) + 1)
        viz.sheet(classes.to_symbols(found), viz.colors_of(classes), options.output)
    print_result(
        options,
        {"samples": count, "file": str(options.output)},
        f"{options.output}: {count} samples of {size[0]} × {size[1]}",
    )
    return 0
