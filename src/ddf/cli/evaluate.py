"""`ddf evaluate`."""

__all__ = ["add", "read_maps", "read_samples"]

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.cli.common import Commands, add_device, add_json, formatted, load_model, positive, print_result, progress
from ddf.cli.train import NAMED

if TYPE_CHECKING:
    import numpy as np

    from ddf.exact import IntegerFlow
    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow

    Array = np.ndarray[Any, Any]

_BATCH_SYMBOLS = 1 << 17


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "evaluate",
        "score data under a model",
        "Score data: bits per dimension with the standard error over samples, by layer (or rank) and by class.",
        "ddf evaluate run/model.safetensors masks",
        "ddf evaluate run/model.safetensors masks --compare",
        "ddf evaluate run/model.safetensors mnist --count 1000 --json",
    )
    parser.add_argument("model", metavar="MODEL", help="a model file")
    parser.add_argument("data", metavar="DATA", help=f"a path, or the test set of one of {', '.join(NAMED)}")
    parser.add_argument(
        "--compare", action="store_true", help="also compress with PNG, xz and other installed codecs (default: do not)"
    )
    parser.add_argument("--count", type=positive, metavar="N", help="score only the first N samples (default: all)")
    parser.add_argument(
        "--source", metavar="PATH", help="the location of mnist or cityscapes (default: download mnist)"
    )
    add_device(parser)
    add_json(parser)
    parser.set_defaults(run=_evaluate)


def read_samples(
    model: "Flow | IntegerFlow", data: str, source: str | None = None
) -> "tuple[list[Array], tuple[str, ...]]":
    """Read data as samples of a model's symbols, each with an axis of one sample, and what was skipped.

    Raises:
        ValueError: The data does not fit the model.
    """
    samples, skipped = _read(model, data, source)
    for part in samples:
        wanted = tuple(model.shape)
        fits = part.ndim == len(wanted) + 1 and all(
            want in (None, have) for want, have in zip(wanted, part.shape[1:], strict=True)
        )
        if not fits:
            sides = " × ".join("any" if side is None else str(side) for side in wanted)
            found = " × ".join(map(str, part.shape[1:]))
            raise ValueError(f"{data} has samples of shape {found}, but the model expects {sides}")
    return samples, skipped


def _read(model: "Flow | IntegerFlow", data: str, source: str | None) -> "tuple[list[Array], tuple[str, ...]]":
    import numpy as np

    if data in NAMED:
        import torch

        from ddf.experiments.results import load_data

        return [part[None] for part in torch.as_tensor(load_data(data, {data: source})["test"]).numpy()], ()
    path = Path(data)
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".txt"):
        from ddf.classes import Columns
        from ddf.data.tables import read_rows

        if not isinstance(model.classes, Columns):
            raise ValueError(f"{data} is a table, but the model expects maps")
        names, rows = read_rows(path)
        if tuple(names) != tuple(model.classes.names):
            raise ValueError(
                f"{data} has the columns {', '.join(names)}, but the model expects {', '.join(model.classes.names)}"
            )
        try:
            return [part[None] for part in np.asarray(model.classes.to_symbols(rows))], ()
        except ValueError as error:
            raise ValueError(f"{data}: {error}") from error
    from ddf.classes import Classes
    from ddf.data.label_maps import read_label_maps

    maps = read_label_maps(data)
    arrays = [maps.classes.to_values(part) for part in maps.maps]
    if len(model.shape) == 3 and path.suffix.lower() == ".npy" and {part.ndim for part in arrays} == {1}:
        arrays = [np.stack(arrays)]  # one map, not a vector per row
    found = []
    for name, values in zip(maps.names, arrays, strict=False):
        try:
            symbols = model.classes.to_symbols(values) if isinstance(model.classes, Classes) else values
        except ValueError as error:
            raise ValueError(f"{name}: {error}: {_brief(model)}") from error
        found.append(symbols[None] if symbols.ndim + 1 > len(model.shape) else symbols[None, None])
    return found, tuple(maps.skipped)


def _brief(model: "Flow | IntegerFlow") -> str:
    from ddf.classes import Classes

    values = model.classes.values if isinstance(model.classes, Classes) else range(model.num_classes)
    some = [str(value) for value in list(values)[:12]]
    return ", ".join(some) + (" …" if len(some) < model.num_classes else "")


def _evaluate(options: argparse.Namespace) -> int:
    import numpy as np

    from ddf.analysis import bits_of
    from ddf.classes import Columns
    from ddf.labelmaps import CausalFlow

    model = load_model(options.model, options.device)
    if isinstance(model, CausalFlow):
        return _evaluate_maps(options, model)
    samples, skipped = read_samples(model, options.data, options.source)
    samples = samples[: options.count]
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    k = model.num_classes
    each, by_layer = [], dict[str, float]()
    counts, bits_by_class = np.zeros(k), np.zeros(k)
    batches = _batches(samples)
    for part in progress(batches, len(batches), "scoring", "batch"):
        bits = bits_of(model, part)
        each += [(taken.sum(), taken.size) for taken in bits.by_symbol]
        for name, taken in bits.by_layer:
            by_layer[name] = by_layer.get(name, 0.0) + taken
        found, costs = bits.by_class(part, k)
        counts += found
        bits_by_class += costs
    totals, sizes = np.array(each).T
    mean = totals.sum() / sizes.sum()
    # The standard error of a ratio of sums, because samples may differ in size.
    error = float(np.sqrt(((totals - mean * sizes) ** 2).sum()) / sizes.sum()) if len(each) > 1 else None
    names = _class_names(model)
    classes = [
        {"class": names[i], "share": counts[i] / counts.sum(), "bits_per_symbol": bits_by_class[i] / counts[i]}
        for i in range(k)
        if counts[i]
    ]
    layers = [{"layer": name, "bits": taken, "share": taken / totals.sum()} for name, taken in by_layer.items()]
    lines = [
        f"{mean:.5f}{'' if error is None else f' ± {error:.5f}'} bits per dimension: {len(each)} samples, "
        f"{int(sizes.sum())} symbols",
        "",
        "| coded by | bits per dimension | share of bits |",
        "|---|---|---|",
        *(f"| {row['layer']} | {row['bits'] / sizes.sum():.5f} | {row['share']:.1%} |" for row in layers),
    ]
    if not isinstance(model.classes, Columns):  # where a class has another meaning in every column
        lines += [
            "",
            "| class | share of symbols | bits per symbol |",
            "|---|---|---|",
            *(f"| {row['class']} | {row['share']:.2%} | {row['bits_per_symbol']:.5f} |" for row in classes),
        ]
    result: dict[str, Any] = {
        "bits_per_dim": mean, "standard_error": error, "samples": len(each), "symbols": int(sizes.sum()),
        "layers": layers, "classes": classes, "left_out": list(skipped),
    }  # fmt: skip
    if options.compare:
        rivals = _compare(model, samples, int(sizes.sum()))
        result["others"] = rivals
        lines += ["", "| codec, each sample on its own | bits per dimension |", "|---|---|"]
        lines += [f"| {name} | {bits:.5f} |" for name, bits in rivals.items()]
    print_result(options, result, *lines)
    return 0


def read_maps(data: str) -> "tuple[list[Array], tuple[str, ...]]":
    """Read label maps (height, width), and what was skipped."""
    from ddf.data.label_maps import read_label_maps
    from ddf.labelmaps.labels import MOST_LABELS

    found = read_label_maps(data, most_classes=MOST_LABELS)
    maps = [found.classes.to_values(part) for part in found.maps]
    if {part.ndim for part in maps} == {1}:
        import numpy as np

        maps = [np.stack(maps)]  # one map in an npy file
    if any(part.ndim != 2 for part in maps):
        raise ValueError(f"{data} has maps with several channels, but the model expects one")
    return maps, tuple(found.skipped)


def _evaluate_maps(options: argparse.Namespace, model: "CausalFlow") -> int:
    """Score label maps under a causal flow."""
    from collections import Counter, defaultdict

    import numpy as np

    if options.data in NAMED:
        raise ValueError(f"{options.model} is a model of label maps; pass a folder of maps, not {options.data}")
    maps, skipped = read_maps(options.data)
    maps = maps[: options.count]
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    totals, ranks, rank_bits = [], np.zeros(7), np.zeros(7)
    counts: Counter[int] = Counter()
    costs: defaultdict[int, float] = defaultdict(float)
    for one in progress(maps, len(maps), "scoring", "map"):
        found = model.explain(one)
        totals.append((float(found.bits.sum(dtype=np.float64)), one.size))
        ranks += np.bincount(found.ranks.ravel(), minlength=7)
        rank_bits += np.bincount(found.ranks.ravel(), weights=found.bits.ravel(), minlength=7)
        labels, place = np.unique(one, return_inverse=True)
        for label, times, taken in zip(
            labels.tolist(),
            np.bincount(place.ravel()),
            np.bincount(place.ravel(), weights=found.bits.ravel()),
            strict=True,
        ):
            counts[label] += int(times)
            costs[label] += float(taken)
    bits, sizes = np.array(totals).T
    mean = bits.sum() / sizes.sum()
    error = float(np.sqrt(((bits - mean * sizes) ** 2).sum()) / sizes.sum()) if len(maps) > 1 else None
    classes = [
        {"class": str(label), "share": counts[label] / sizes.sum(), "bits_per_symbol": costs[label] / counts[label]}
        for label, _ in counts.most_common(40)
    ]
    rows = [
        {"rank": rank, "share": ranks[rank] / sizes.sum(), "bits": rank_bits[rank] / sizes.sum()}
        for rank in range(7)
        if ranks[rank]
    ]
    lines = [
        f"{mean:.5f}{'' if error is None else f' ± {error:.5f}'} bits per pixel: {len(maps)} maps, "
        f"{int(sizes.sum())} pixels",
        "",
        "| rank of the label in the prediction | share of pixels | bits per pixel of the map |",
        "|---|---|---|",
        *(f"| {row['rank']} | {row['share']:.3%} | {row['bits']:.5f} |" for row in rows),
        "",
        "| class | share of pixels | bits per pixel of the class |",
        "|---|---|---|",
        *(f"| {row['class']} | {row['share']:.2%} | {row['bits_per_symbol']:.5f} |" for row in classes),
    ]
    result: dict[str, Any] = {
        "bits_per_dim": mean, "standard_error": error, "samples": len(maps), "symbols": int(sizes.sum()),
        "ranks": rows, "classes": classes, "left_out": list(skipped),
    }  # fmt: skip
    if options.compare:
        from ddf.archive import ArchiveWriter
        from ddf.peers import peers

        buffer = io.BytesIO()
        with ArchiveWriter(buffer, model, verify=False) as archive:
            for one in maps:
                archive.add(one)
        rivals = {"ddf, in one archive": 8 * len(buffer.getvalue()) / sizes.sum()}
        if all(one.min() >= 0 and one.max() < 256 for one in maps):
            for name, encode in peers().items():
                rivals[name] = 8 * sum(len(encode(one.astype(np.uint8))) for one in maps) / sizes.sum()
        result["others"] = rivals
        lines += ["", "| codec, each map on its own | bits per pixel |", "|---|---|"]
        lines += [f"| {name} | {value:.5f} |" for name, value in rivals.items()]
    print_result(options, result, *lines)
    return 0


def _batches(samples: "list[Array]") -> "list[Array]":
    """Group consecutive samples of one shape into batches."""
    import numpy as np

    found: list[list[Array]] = []
    for part in samples:
        last = found[-1] if found else []
        if last and last[0].shape == part.shape and (len(last) + 1) * part.size <= _BATCH_SYMBOLS:
            last.append(part)
        else:
            found.append([part])
    return [np.concatenate(parts) for parts in found]


def _class_names(model: "Flow | IntegerFlow") -> list[str]:
    from ddf.classes import Classes

    if not isinstance(model.classes, Classes):
        return [str(i) for i in range(model.num_classes)]
    return [
        f"{value} {name}".strip()
        for value, name in zip(model.classes.values, model.classes.names or [""] * model.num_classes, strict=True)
    ]


def _compare(model: "Flow | IntegerFlow", samples: "list[Array]", pixels: int) -> dict[str, float]:
    """Return the bits per symbol of an archive, if the model can compress, and of other codecs."""
    import numpy as np

    from ddf.archive import ArchiveWriter
    from ddf.exact import IntegerFlow
    from ddf.peers import peers

    found = {}
    if isinstance(model, IntegerFlow):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, model, verify=False) as archive:
            for part in samples:
                archive.add(model.classes.to_values(part[0]))
        found["ddf, in one archive"] = 8 * len(buffer.getvalue()) / pixels
    pictures = all(part.ndim == 4 and part.shape[1] == 1 for part in samples)
    small = [np.ascontiguousarray((part[0, 0] if pictures else part).astype(np.uint8)) for part in samples]
    for name, encode in peers(pictures).items():
        found[name] = 8 * sum(len(encode(part)) for part in small) / pixels
    return found
