"""The report of all finished runs: the table beside the paper's, pictures, and how it was done."""

__all__ = ["write_report"]

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch

from ddf.data import DataSet, EightGaussians
from ddf.data.binary_mnist import MNIST_CLASSES
from ddf.data.cityscapes_maps import CITYSCAPES_CLASSES
from ddf.experiments.results import SAMPLES, Result, follows
from ddf.experiments.rows import EXPERIMENTS, FAITHFUL, GRID, MODELS, ROWS, TABLE
from ddf.files import atomic_write
from ddf.viz import learning_curves, map_grids, pair_histograms


def write_report(results: Sequence[Result], folder: Path, command: str, data: Mapping[str, DataSet]) -> Path:
    """Writes README.md with the table, results.json with every run, and pictures.

    Arguments:
        results: The finished runs.
        folder: Where to.
        command: What was typed, for the record.
        data: The data sets by name, as far as they are at hand: for pictures of data beside samples.

    Returns:
        The path of the report.
    """
    if not results:
        raise ValueError("there is no finished run to report on")
    folder.mkdir(parents=True, exist_ok=True)
    plain = [{key: value for key, value in asdict(result).items() if key != "samples"} for result in results]
    with atomic_write(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(plain) + "\n", encoding="utf-8")
    sections = [_HEAD, _comparison(results), _table(results), _departures(results), _h_grid(results)]
    sections.append(_how(results, command))
    for row in dict.fromkeys([*TABLE, *(result.row for result in results)]):
        if row in GRID and row not in TABLE:
            continue
        sections.append(_pictures(row, [result for result in results if result.row == row], folder, data))
    with atomic_write(folder / "README.md") as temporary:
        temporary.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    return folder / "README.md"


_HEAD = """# Results

Table 1 of [Discrete Denoising Flows](https://arxiv.org/abs/2107.11625) (Lindt & Hoogeboom, 2021), run again with this
software. Bits per dimension on the test set, lower is better. ± is the standard deviation over seeds (n − 1), all on
the same test set; "error" is the standard error of one such figure over the samples of the test set. "training" is the
shortest of the runs: some shared a device with others, and took longer."""

_FAITHFUL = """\
"Faithful" follows the paper's appendices to the letter and adds only what they leave open. "Ours" are presets with the
same nets that are free to differ. The table after this one has the details of both."""

_NOTES = """\
All use Adam (at 0.001 where nothing else is said) and nets of the sizes in the paper's appendices. Split priors factor
out the part that the coupling has transformed (the order of the published figures) unless a row says otherwise; the
paper's appendix C describes the opposite order. The paper's own figure for 8 Gaussians is below what one coupling can
reach on unseen data, {optimum:.4f}. Cityscapes: 2500 maps to train on, 475 to validate (the last of the official
training maps by path), 500 to test (the official validation maps, of other cities: hence figures apart from those in
validation).

With split priors the denoising flow need not be the lower one. Whatever the coupling does with a
part, the split prior after it is a net of the same size that codes that part given the same other part; a Discrete Flow
whose couplings do nothing leaves it the symbols themselves, a denoising flow their ranks, which are no easier to
predict than the symbols were: on Cityscapes the first coupling predicts its half at 0.167 bits, and the prior after it
codes the ranks at 0.174. What denoising couplings are for is the flow without split priors.

On what the choices were made: validation data. The best epoch of each net: its validation figure. Epochs, batches and
moving averages of the denoising flows: runs with seed 0, among those above. The order of the channels: seed 0, too, and
what is given to later couplings smaller nets on a part of MNIST's training images. The Discrete Flows' relaxation,
temperature, learning rates and activation: on 8 Gaussians, other draws than those of the runs; on MNIST and Cityscapes,
smaller nets on a part of the training data, then 2 and 8 epochs with seed 0. On Cityscapes without split priors a
Discrete Flow may not start to learn at all, depending on the seed, and then ends where the base alone does."""


def _comparison(results: Sequence[Result]) -> str:
    """The paper, what its appendices lead to, and our presets side by side, if there are faithful runs."""
    lines = ["| data | model | paper | faithful | seeds | ours |", "|---|---|---|---|---|---|"]
    for name in FAITHFUL:
        base = ROWS[name.removesuffix("-faithful")]
        for model, words in MODELS.items():
            faithful, ours = (
                [result.test_bits for result in results if (result.row, result.model) == (row, model)]
                for row in (name, base.name)
            )
            if faithful:
                lines.append(
                    f"| {base.title} | {words} | {_published(name, model)} | **{_plus_minus(faithful)}** "
                    f"| {len(faithful)} | {_plus_minus(ours) if ours else ''} |"
                )
    return "\n".join([_FAITHFUL, "", *lines]) if len(lines) > 2 else ""


def _published(name: str, model: str) -> str:
    paper = ROWS[name].paper.get(model)
    return "" if paper is None else f"{paper[0]:.2f} ± {paper[1]:.2f}"


def _table(results: Sequence[Result]) -> str:
    lines = [
        "| data | model | paper | here | seeds | error | validation | parameters | training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for name in dict.fromkeys([*TABLE, *(result.row for result in results)]):
        figures: dict[str, list[float]] = {}
        for model, words in MODELS.items():
            runs = [result for result in results if (result.row, result.model) == (name, model)]
            published = _published(name, model)
            if runs:
                figures[model] = [run.test_bits for run in runs]
                seconds = min(run.train_seconds for run in runs)
                here = _plus_minus([run.test_bits for run in runs])
                lines.append(
                    f"| {ROWS[name].title} | {words} | {published} | **{here}** "
                    f"| {', '.join(str(run.seed) for run in runs)} | {mean(run.test_error for run in runs):.4f} "
                    f"| {_plus_minus([run.validation_bits for run in runs])} "
                    f"| {runs[0].parameters / 1e6:.1f} M | {_duration(seconds)}, {runs[0].machine['device']} |"
                )
            elif name in TABLE:
                lines.append(f"| {ROWS[name].title} | {words} | {published} | not run yet | | | | | |")
        if len(figures) == 2:
            verdicts.append(f"- {ROWS[name].title}: {_verdict(figures)}.")
        for model in figures:
            runs = [result for result in results if (result.row, result.model) == (name, model)]
            if not all(follows(run, EXPERIMENTS[name, model]) for run in runs):
                verdicts.append(f"- {ROWS[name].title}, {MODELS[model]}: **not** run with the settings of the preset.")
    return "\n".join(lines) + ("\n\n" + "\n".join(verdicts) if verdicts else "")


def _verdict(figures: Mapping[str, Sequence[float]]) -> str:
    """How the two models compare."""
    (df, df_deviation), (ddf, ddf_deviation) = (_mean_and_deviation(figures[model]) for model in ("df", "ddf"))
    gap, spread = df - ddf, df_deviation + ddf_deviation
    if min(len(values) for values in figures.values()) < 2:
        comparison = "lower" if gap > 0 else "**not** lower"
        return f"the denoising flow is {comparison} ({gap:+.4f}), but one seed shows no deviation to compare that with"
    if gap > spread:
        return f"the denoising flow is lower by {gap:.4f}, more than the sum of the deviations ({spread:.4f})"
    if -gap > spread:
        return f"the Discrete Flow is lower by {-gap:.4f}, more than the sum of the deviations ({spread:.4f})"
    return f"the denoising flow is **not** lower by more than the sum of the deviations ({gap:+.4f}, {spread:.4f})"


def _departures(results: Sequence[Result]) -> str:
    lines = ["## What differs from the paper", ""]
    for name in dict.fromkeys([*TABLE, *(result.row for result in results)]):
        for model in dict.fromkeys(result.model for result in results if result.row == name):
            lines.append(f"- {ROWS[name].title}, {MODELS[model]}: {ROWS[name].departures[model]}.")
    return "\n".join([*lines, "", _NOTES.format(optimum=EightGaussians.coupling_optimum())])


def _h_grid(results: Sequence[Result]) -> str:
    lines = []
    for name in GRID:
        runs = [result for result in results if (result.row, result.model) == (name, "ddf")]
        if runs:
            top = name.removeprefix("cityscapes-split-h") if name != "cityscapes-split" else "4"
            lines.append(f"| {top} | {_plus_minus([run.validation_bits for run in runs])} | {len(runs)} |")
    if len(lines) < 2:
        return ""
    head = ["## How many classes to sort", "", "Cityscapes with split priors, by h: validation bits per dimension.", ""]
    return "\n".join([*head, "| h | validation | seeds |", "|---|---|---|", *lines])


def _how(results: Sequence[Result], command: str) -> str:
    machines = dict.fromkeys(
        f"{result.machine['device']}, torch {result.machine['torch']}, Python {result.machine['python']}, "
        f"ddf {result.machine['ddf']}"
        for result in results
    )
    seeds = {(result.row, result.model): result.seed for result in results}  # the last of each: they are sorted
    typed = [f"ddf reproduce {row} --model {model} --seeds {last + 1}" for (row, model), last in seeds.items()]
    lines = ["## How", "", "The runs (with `--mnist` and `--cityscapes` for where the data is), and this report:", ""]
    lines += ["```sh", *typed, command, "```", "", *(f"- {text}" for text in machines)]
    return "\n".join([*lines, "", "Every run, with its settings and curves, is in [results.json](results.json)."])


def _pictures(row: str, results: Sequence[Result], folder: Path, data: Mapping[str, DataSet]) -> str:
    first = {model: next((run for run in results if run.model == model), None) for model in MODELS}
    shown = {model: run for model, run in first.items() if run is not None and run.samples is not None}
    if not shown:
        return ""
    source = data.get(ROWS[row].data)
    picture = folder / f"{row}-samples.png"
    groups: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = {}
    if source is not None:
        groups["data"] = torch.as_tensor(source["test"]).numpy()
    for model, run in shown.items():
        assert run.samples is not None
        groups[f"{MODELS[model]}, {run.test_bits:.3f} bits"] = run.samples
    if ROWS[row].data == "eight-gaussians":
        pairs = {title: samples[: SAMPLES * 1000] for title, samples in groups.items()}
        pair_histograms(pairs, EightGaussians.num_classes, picture)
    else:
        maps = {title: samples[:SAMPLES] for title, samples in groups.items()}
        if ROWS[row].data == "mnist":
            map_grids(maps, MNIST_CLASSES.colors, picture, columns=8)
        else:
            map_grids(maps, CITYSCAPES_CLASSES.colors, picture, CITYSCAPES_CLASSES.names, columns=4)
    curves = {f"{MODELS[model]}, seed {run.seed}": run.curves for model, run in shown.items() if run.curves}
    lines = [f"## {ROWS[row].title}", "", f"![samples]({picture.name})"]
    if curves:
        learning_curves(curves, folder / f"{row}-curves.png")
        lines += [
            "",
            "What each net reaches in validation on what it predicts itself, by epoch (for a Discrete Flow: all at",
        ]
        lines += ["once, on everything).", "", f"![learning curves]({row}-curves.png)"]
    return "\n".join(lines)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def _plus_minus(values: Sequence[float]) -> str:
    average, deviation = _mean_and_deviation(values)
    return f"{average:.4f} ± {deviation:.4f}" if len(values) > 1 else f"{average:.4f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
