"""`ddf inspect`."""

__all__ = ["add", "inspect_model"]

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.cli.common import Commands, add_json, formatted, print_result, thousands

if TYPE_CHECKING:
    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "inspect",
        "describe a model or an archive",
        "Print the kind, size, training data and layers of a model, or the contents of an archive.",
        "ddf inspect run/model.safetensors",
        "ddf inspect masks.ddf",
    )
    parser.add_argument("file", metavar="FILE", help="a model, or an archive or its URL")
    add_json(parser)
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    from ddf.remote import is_url

    if is_url(options.file):
        return _inspect_archive(options)
    options.file = Path(options.file)
    with options.file.open("rb") as file:
        begin = file.read(9)
    from ddf.archive.records import MAGIC

    if begin[:4] == MAGIC:
        return _inspect_archive(options)
    if begin[8:] != b"{":  # as safetensors files have it
        raise ValueError(f"{options.file} is neither a model nor an archive of ddf, or its first bytes are damaged")
    return inspect_model(options)


def inspect_model(options: argparse.Namespace) -> int:
    """Describe the model in `options.file`."""
    import ddf
    from ddf.archive import Codec

    model = ddf.load(options.file)
    kind, parameters, layers = _details(model)
    shape = ["any" if side is None else side for side in model.shape]
    about = model.about
    classes = f"{model.num_classes} classes" if model.num_classes else "any labels"
    lines = [
        f"{options.file}: {kind}",
        f"  {classes}, samples of {' × '.join(map(str, shape))}, {thousands(parameters)} parameters, "
        f"{thousands(options.file.stat().st_size)} bytes",
    ]
    if about:
        score = f": {about['score']} {about.get('unit', 'bits')} on held-out data" if "score" in about else ""
        lines.append(f"  {about.get('what', 'a model')}, trained on {about.get('trained_on', 'unknown data')}{score}")
    if isinstance(model, Codec):
        lines.append(f"  fingerprint {model.fingerprint.hex()}")
    if layers:
        lines += ["  layers, from the data to the base:", *(f"  {i:>4}  {layer}" for i, layer in enumerate(layers))]
    values = getattr(model.classes, "values", None)
    names = getattr(model.classes, "names", None) or ()
    if values and len(values) <= 40 and not isinstance(values[0], tuple):
        pairs = [f"{value} {names[i]}" if names else str(value) for i, value in enumerate(values)]
        lines.append(f"  classes: {', '.join(pairs)}")
    result: dict[str, Any] = {
        "kind": kind.partition(":")[0],
        "classes": model.num_classes,
        "shape": list(model.shape),
        "parameters": parameters,
        "layers": layers,
        "about": about,
    }
    if isinstance(model, Codec):
        result["fingerprint"] = model.fingerprint.hex()
    print_result(options, result, *lines)
    return 0


def _details(model: "Flow | IntegerFlow | CausalFlow") -> tuple[str, int, list[str]]:
    """Return the kind of a model, its number of parameters, and its layers."""
    from ddf.labelmaps import CausalFlow

    if isinstance(model, CausalFlow):
        return "causal flow: compresses label maps", sum(array.size for array in model.arrays.values()), [repr(model)]
    from ddf.exact import IntegerFlow

    integer = isinstance(model, IntegerFlow)
    modules = list(model.layers if isinstance(model, IntegerFlow) else model.layer_list())
    parts = modules if isinstance(model, IntegerFlow) else list(model.parts())
    parameters = sum(parameter.numel() for module in parts for parameter in module.parameters())
    kind = "integer flow: compresses, with the same result on every machine" if integer else "floating-point flow"
    return kind, parameters, [repr(module) for module in modules]


def _inspect_archive(options: argparse.Namespace) -> int:
    from collections import Counter

    import numpy as np

    from ddf.archive import Archive
    from ddf.archive.block_table import CHECKSUM_SIZE
    from ddf.archive.blocks import DTYPES

    with Archive(options.file) as archive:
        raw = 0
        kinds: Counter[tuple[str, tuple[int, ...], str]] = Counter()
        coded: Counter[tuple[str, tuple[int, ...], str]] = Counter()
        for kind, block_size, count, _ in archive.contents.index.table.blocks():
            key = kind.method.name.lower(), kind.shape, np.dtype(DTYPES[kind.dtype]).name
            kinds[key] += count
            coded[key] += block_size - CHECKSUM_SIZE
            raw += kind.size * count
        arrays = len(archive)
        model = archive.fingerprint.hex() if any(archive.fingerprint) else None
        size, inside, digest = archive.size, archive.embeds_model, archive.sha256
    which = "created without a model" if model is None else f"model {model}, {'embedded' if inside else 'not embedded'}"
    words = {"codec": "by the model", "lzma": "by a general-purpose compressor", "raw": "uncompressed"}
    lines = [
        f"{options.file}: {arrays} arrays of {thousands(raw)} bytes compressed to {thousands(size)} "
        f"({raw / max(1, size):.1f} : 1); {which}",
        *([] if digest is None else [f"  SHA-256 of all preceding bytes: {digest.hex()}"]),
        "",
        "| arrays | shape | dtype | coded | bytes |",
        "|---|---|---|---|---|",
    ]
    some = kinds.most_common(20)
    for (method, shape, dtype), count in some:
        sides = " × ".join(map(str, shape)) or "scalar"
        lines.append(f"| {count} | {sides} | {dtype} | {words[method]} | {coded[method, shape, dtype]} |")
    if len(kinds) > len(some):
        lines.append(f"({len(kinds) - len(some)} other shapes)")
    entries = [
        {"method": method, "shape": list(shape), "dtype": dtype, "arrays": count, "bytes": coded[method, shape, dtype]}
        for (method, shape, dtype), count in kinds.items()
    ]
    print_result(
        options,
        {
            "arrays": arrays,
            "sha256": None if digest is None else digest.hex(),
            "raw_bytes": raw,
            "bytes": size,
            "model": model,
            "embedded": inside,
            "kinds": entries,
        },
        *lines,
    )
    return 0
