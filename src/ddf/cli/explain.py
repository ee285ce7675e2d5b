"""`ddf explain`."""

__all__ = ["add"]

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddf.cli.common import Commands, UsageError, add_force, add_json, check_output, formatted, load_model, print_result
from ddf.cli.evaluate import read_maps, read_samples

if TYPE_CHECKING:
    from ddf.labelmaps import CausalFlow


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "explain",
        "plot how a model predicts a map",
        "Plot a map, the rank of each pixel in the prediction of the model, and the bits of each pixel.",
        "ddf explain run/model.safetensors masks/0001.png -o out.png",
    )
    parser.add_argument("model", metavar="MODEL", help="a model file")
    parser.add_argument("image", metavar="IMAGE", help="a label map (PNG, TIFF, GIF, npy)")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the .png file to write")
    add_force(parser)
    add_json(parser)
    parser.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    from ddf import viz
    from ddf.analysis import bits_of, states_of
    from ddf.classes import Classes
    from ddf.labelmaps import CausalFlow

    if options.output.suffix.lower() != ".png":
        raise UsageError(f"-o {options.output} has an unsupported suffix; pass a .png file")
    check_output(options)
    model = load_model(options.model)
    if isinstance(model, CausalFlow):
        return _explain_map(options, model)
    if len(model.shape) != 3:
        raise ValueError(f"{options.model} is a model of vectors; pass a model of maps")
    samples, _ = read_samples(model, options.image)
    if len(samples) != 1:
        raise ValueError(f"{options.image} has {len(samples)} maps; pass a file with one")
    x = samples[0][0]
    bits = bits_of(model, samples[0]).by_symbol[0, 0]
    classes = model.classes if isinstance(model.classes, Classes) else Classes.plain(model.num_classes)
    viz.explanation(states_of(model, x), bits, viz.colors_of(classes), options.output)
    print_result(
        options,
        {"file": str(options.output), "bits": float(bits.sum()), "bits_per_pixel": float(bits.mean())},
        f"{options.output}: {bits.sum():.0f} bits, {bits.mean():.4f} per pixel; half of the bits are in "
        f"{viz.share_of_half(bits):.1%} of the pixels",
    )
    return 0


def _explain_map(options: argparse.Namespace, model: "CausalFlow") -> int:
    from ddf import viz

    maps, _ = read_maps(options.image)
    if len(maps) != 1:
        raise ValueError(f"{options.image} has {len(maps)} maps; pass a file with one")
    found = model.explain(maps[0])
    viz.causal_explanation(maps[0], found, model.classes, options.output)
    right = float((found.ranks == 0).mean())
    print_result(
        options,
        {
            "file": str(options.output),
            "bits": float(found.bits.sum()),
            "bits_per_pixel": float(found.bits.mean()),
            "correct": right,
        },
        f"{options.output}: {found.bits.sum():.0f} bits, {found.bits.mean():.4f} per pixel; {right:.2%} of the pixels "
        f"were predicted correctly, and half of the bits are in {viz.share_of_half(found.bits):.1%}",
    )
    return 0
