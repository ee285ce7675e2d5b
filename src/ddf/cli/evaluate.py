"""`ddf evaluate`."""

__all__ = ["add", "read_maps", "read_samples"]

import argparse
import io
import sys
from collections import Counter, defaultdict
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
        "--compare",
        action="store_true",
        help="also compress with PNG, xz and other installed codecs (default: only score)",
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
    """Read data as samples of a model's symbols, each with a leading axis of size 1; also return what was skipped.

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


class _Scores:
    """The bits of samples, in total and by value."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self.counts: Counter[int] = Counter()
        self.bits: defaultdict[int, float] = defaultdict(float)

    def add(self, values: "Array", bits: "Array") -> None:
        """Add the values of a sample, and the bits of each."""
        import numpy as np

        self.samples.append((float(bits.sum(dtype=np.float64)), bits.size))
        found, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        sums = np.bincount(place.ravel(), weights=bits.ravel())
        for value, count, taken in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self.counts[value] += count
            self.bits[value] += taken

    def mean_and_error(self) -> tuple[float, float | None]:
        """Return the bits per symbol, and their standard error over samples."""
        import numpy as np

        totals, sizes = np.array(self.samples).T
        mean = totals.sum() / sizes.sum()
        if len(sizes) < 2:
            return float(mean), None
        # The standard error of a ratio of sums, because samples may differ in size.
        return float(mean), float(np.sqrt(((totals - mean * sizes) ** 2).sum()) / sizes.sum())


def _evaluate(options: argparse.Namespace) -> int:
    from ddf.classes import Columns
    from ddf.labelmaps import CausalFlow

    model = load_model(options.model, options.device)
    scores = _Scores()
    if isinstance(model, CausalFlow):
        if options.data in NAMED:
            raise ValueError(f"{options.model} is a model of label maps; pass a folder of maps, not {options.data}")
        samples, skipped = read_maps(options.data)
        samples, names = samples[: options.count], {}
        key, title, parts = "rank", "rank of the label", _score_maps(model, samples, scores)
        most = scores.counts.most_common(40)
    else:
        samples, skipped = read_samples(model, options.data, options.source)
        samples, names = samples[: options.count], dict(enumerate(_class_names(model)))
        key = "column" if isinstance(model.classes, Columns) else "layer"
        title = "column" if isinstance(model.classes, Columns) else "coded by"
        parts = _score_samples(model, samples, scores)
        most = sorted(scores.counts.items())
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    mean, error = scores.mean_and_error()
    size = sum(scores.counts.values())
    classes = [
        {"class": names.get(i, str(i)), "share": n / size, "bits_per_symbol": scores.bits[i] / n} for i, n in most
    ]
    rows = [{key: name, "share": share, "bits_per_dim": bits / size} for name, (share, bits) in parts.items()]
    lines = [
        f"{mean:.5f}{'' if error is None else f' ± {error:.5f}'} bits per dimension: {len(samples)} samples, "
        f"{size} symbols",
        "",
        f"| {title} | share of symbols | bits per dimension |",
        "|---|---|---|",
        *(f"| {row[key]} | {row['share']:.3%} | {row['bits_per_dim']:.5f} |" for row in rows),
    ]
    if not isinstance(model.classes, Columns):  # in a table, a class has another meaning in every column
        lines += [
            "",
            "| class | share of symbols | bits per symbol |",
            "|---|---|---|",
            *(f"| {row['class']} | {row['share']:.2%} | {row['bits_per_symbol']:.5f} |" for row in classes),
        ]
    result: dict[str, Any] = {
        "bits_per_dim": mean, "standard_error": error, "samples": len(samples), "symbols": size,
        f"{key}s": rows, "classes": classes, "skipped": list(skipped),
    }  # fmt: skip
    if options.compare:
        result["others"] = _compare(model, samples, size)
        lines += ["", "| codec, each sample on its own | bits per dimension |", "|---|---|"]
        lines += [f"| {name} | {bits:.5f} |" for name, bits in result["others"].items()]
    print_result(options, result, *lines)
    return 0


def _score_samples(
    model: "Flow | IntegerFlow", samples: "list[Array]", scores: _Scores
) -> dict[str, tuple[float, float]]:
    """Score samples, and return the share of symbols and the bits of each layer, or of each column of a table."""
    from ddf.analysis import bits_of
    from ddf.classes import Columns

    layers: dict[str, tuple[int, float]] = {}
    batches = _batches(samples)
    for part in progress(batches, len(batches), "scoring", "batch"):
        found = bits_of(model, part)
        for values, bits in zip(part, found.by_symbol, strict=True):
            scores.add(values, bits)
        groups = found.by_layer
        if isinstance(model.classes, Columns):
            groups = tuple(zip(model.classes.names, [len(part)] * part.shape[1], found.by_symbol.sum(0), strict=True))
        for name, count, bits in groups:
            before = layers.get(name, (0, 0.0))
            layers[name] = before[0] + count, before[1] + bits
    size = sum(count for count, _ in layers.values())
    return {name: (count / size, bits) for name, (count, bits) in layers.items()}


def _score_maps(model: "CausalFlow", maps: "list[Array]", scores: _Scores) -> dict[str, tuple[float, float]]:
    """Score label maps, and return the share of symbols and the bits of each rank."""
    ranks = _Scores()
    for one in progress(maps, len(maps), "scoring", "map"):
        found = model.explain(one)
        scores.add(one, found.bits)
        ranks.add(found.ranks, found.bits)
    size = sum(ranks.counts.values())
    return {str(rank): (count / size, ranks.bits[rank]) for rank, count in sorted(ranks.counts.items())}


def read_maps(data: str) -> "tuple[list[Array], tuple[str, ...]]":
    """Read label maps (height, width); also return what was skipped."""
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


def _compare(model: Any, samples: "list[Array]", symbols: int) -> dict[str, float]:
    """Return the bits per symbol of an archive, if the model can compress, and of other codecs."""
    import numpy as np

    from ddf.archive import ArchiveWriter, Codec
    from ddf.labelmaps import CausalFlow
    from ddf.peers import peers

    causal = isinstance(model, CausalFlow)
    found = {}
    codec: object = model
    if isinstance(codec, Codec):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, codec, verify=False) as archive:
            for part in samples:
                archive.add(part if causal else model.classes.to_values(part[0]))
        found["ddf, in one archive"] = 8 * len(buffer.getvalue()) / symbols
    if any(part.min() < 0 or part.max() > 255 for part in samples):
        return found  # other codecs take bytes
    pictures = causal or all(part.ndim == 4 and part.shape[1] == 1 for part in samples)
    small = [np.ascontiguousarray(part[0, 0] if pictures and not causal else part, np.uint8) for part in samples]
    for name, encode in peers(pictures).items():
        found[name] = 8 * sum(len(encode(part)) for part in small) / symbols
    return found
