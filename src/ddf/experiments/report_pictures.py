"""The pictures of the report: samples and learning curves."""

__all__ = ["pictures"]

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ddf.data import DataSet, EightGaussians
from ddf.data.binary_mnist import MNIST_CLASSES
from ddf.data.cityscapes_maps import CITYSCAPES_CLASSES
from ddf.experiments.collected import Results
from ddf.experiments.results import SAMPLES, Result
from ddf.experiments.rows import MODELS, ORDERED, ROWS
from ddf.viz import Curves, learning_curves, map_grids, pair_histograms


def pictures(found: Results, row: str, folder: Path, data: Mapping[str, DataSet]) -> str:
    """Draw samples and learning curves of the runs of a row with the median test score.

    Arguments:
        found: The finished runs.
        row: The row.
        folder: The folder of the report.
        data: The available data sets by name, to show data next to samples.

    Returns:
        The section of the report; "" if there are no samples.
    """
    shown = {}
    for model in ("df", "ddf", "sp" if found.of(row, "sp") else "ds", "of"):  # sp and ds have the same nets
        run = _median(found, row, model)
        if run is not None:
            shown[model] = run
    if row in ORDERED:  # next to the paper's flow
        paper = _median(found, ROWS[row].data, "ddf")
        shown = {"ddf": paper, **shown} if paper is not None and shown else shown
    if not shown:
        return ""
    source = data.get(ROWS[row].data)
    picture = folder / f"{row}-samples.png"
    groups: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = {}
    if source is not None:
        groups["data"] = torch.as_tensor(source["test"]).numpy()
    for model, run in shown.items():
        assert run.samples is not None
        failed = ", learned nothing" if found.learned_nothing(row, run.test_bits) else ""
        groups[f"{MODELS[model]}, seed {run.seed}, {run.test_bits:.3f} bits{failed}"] = run.samples
    if ROWS[row].data == "eight-gaussians":
        pairs = {title: samples[: SAMPLES * 1000] for title, samples in groups.items()}
        pair_histograms(pairs, EightGaussians.num_classes, picture)
    else:
        maps = {title: samples[:SAMPLES] for title, samples in groups.items()}
        if ROWS[row].data in ("mnist", "static-mnist"):
            map_grids(maps, MNIST_CLASSES.colors, picture, columns=8)
        else:
            map_grids(maps, CITYSCAPES_CLASSES.colors, picture, CITYSCAPES_CLASSES.names, columns=4)
    panels = [_curves(found, run) for run in shown.values() if run.curves and run.row == row]
    median = ", of the run with the median test score" if max(len(found.of(row, model)) for model in shown) > 2 else ""
    lines = [f"## {ROWS[row].title}", "", f"Samples{median}:", "", f"![samples]({picture.name})"]
    if len({run.seed for run in shown.values()}) < len(shown):
        lines += ["", "Samples with the same seed are drawn with the same random numbers and can resemble each other."]
    if ROWS[row].data.startswith("cityscapes"):
        lines += ["", "(The Cityscapes license does not allow us to show its maps.)"]
    if panels:
        learning_curves(panels, folder / f"{row}-curves.png")
        lines += [
            "",
            "Validation score per epoch, of each net on the symbols that it predicts. The nets of a Discrete Flow are",
            "trained together, and scored on all symbols.",
            "",
            f"![learning curves]({row}-curves.png)",
        ]
    return "\n".join(lines)


def _median(found: Results, row: str, model: str) -> Result | None:
    """Return the run with the median test score of those with samples."""
    runs = sorted((run for run in found.of(row, model) if run.samples is not None), key=lambda run: run.test_bits)
    return runs[(len(runs) - 1) // 2] if runs else None


def _curves(found: Results, run: Result) -> Curves:
    """Return the learning curves of a run, with names that a reader of the paper understands."""
    title = f"{MODELS[run.model]}, seed {run.seed}"
    if list(run.curves) == ["all layers"]:
        base = found.of(run.row, "base")
        reference = ("base alone", base[0].validation_bits) if base else None
        return Curves(title, "validation bits per symbol", run.curves, reference)
    every = run.settings.get("validate_every", 1)
    names = {
        "DenoisingCoupling": "coupling",
        "SplitPrior": "split prior",
        "DenoisingSplit": "denoising split",
        "OrderedSplit": "ordered split",
    }
    curves: dict[str, list[float]] = {}
    for layer, values in run.curves.items():
        kind = names.get(layer.split()[-1], layer.split()[-1])
        number = sum(name.startswith(kind) for name in curves) + 1
        curves[f"{kind} {number}"] = values
    return Curves(title, "validation bits per predicted symbol", curves, every=every)
