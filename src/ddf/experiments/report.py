"""Write a report of all finished runs: tables beside the paper's, pictures and commands."""

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
from ddf.experiments.rows import EXPERIMENTS, FAITHFUL, H_GRID, MODELS, ROWS, TABLE
from ddf.files import atomic_write
from ddf.viz import learning_curves, map_grids, pair_histograms


def write_report(results: Sequence[Result], folder: Path, command: str, data: Mapping[str, DataSet]) -> Path:
    """Write README.md with the tables, results.json with every run, and pictures.

    Arguments:
        results: The finished runs.
        folder: The folder of the report.
        command: The command that wrote the report, for the record.
        data: The available data sets by name, to show data beside samples.

    Returns:
        The path of the report.
    """
    if not results:
        raise ValueError("no run is finished; train at least one before writing a report")
    folder.mkdir(parents=True, exist_ok=True)
    plain = [{key: value for key, value in asdict(result).items() if key != "samples"} for result in results]
    with atomic_write(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(plain) + "\n", encoding="utf-8")
    sections = [_HEAD, _comparison(results), _table(results), _departures(results), _h_grid(results)]
    sections.append(_how(results, command))
    for row in dict.fromkeys([*TABLE, *(result.row for result in results)]):
        if row in H_GRID.values() and row not in TABLE:
            continue
        sections.append(_pictures(row, [result for result in results if result.row == row], folder, data))
    with atomic_write(folder / "README.md") as temporary:
        temporary.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    return folder / "README.md"


_HEAD = """# Results

Table 1 of [Discrete Denoising Flows](https://arxiv.org/abs/2107.11625) (Lindt & Hoogeboom, 2021), reproduced with this
software. All scores are bits per dimension on the test set; lower is better. ± is the standard deviation over seeds
(n − 1) on the same test set, and "error" is the standard error of one score over the samples of the test set.
"Training" is the shortest training time of all seeds, because some runs shared their device with others."""

_FAITHFUL = """\
"Faithful" rows follow the paper's appendices to the letter; only what the appendices leave open was chosen here. "Ours"
are our own presets, with nets of the same size. The next table has the details of both."""

_NOTES = """\
All runs use Adam (with a learning rate of 0.001 unless noted) and nets of the sizes in the paper's appendices. Split
priors factor out the transformed part, as in the authors' code, unless a row says otherwise; the paper's appendix C
describes the opposite order. The published score for 8 Gaussians is below the optimum of one coupling on unseen data,
{optimum:.4f}. Cityscapes has 2500 training maps, 475 validation maps (the last of the official training maps by path)
and 500 test maps (the official validation maps, which show other cities; hence the gap between validation and test).

With split priors, the denoising flow is not necessarily the better one. The split prior after a coupling is a net of
the same size that codes the same part given the same other part. In a Discrete Flow whose couplings are the identity,
it codes the symbols themselves; in a denoising flow, it codes their ranks, which are not easier to predict: on
Cityscapes, the first coupling predicts its half at 0.167 bits, and the prior after it codes the ranks at 0.174.
Denoising couplings pay off in flows without split priors.

All choices were made on validation data. The best epoch of each net is that with the best validation score. Epochs,
batch sizes and moving averages of the denoising flows were chosen on runs with seed 0, which are among those above; so
was the order of the channels. What later couplings predict from was chosen with smaller nets on a part of MNIST's
training images. The relaxation, temperature, learning rates and activation of the Discrete Flows were chosen, for 8
Gaussians, on other draws than those of the runs, and for MNIST and Cityscapes, with smaller nets on a part of the
training data and then with 2 and 8 epochs at seed 0. On Cityscapes without split priors, a Discrete Flow may not learn
at all, depending on the seed; it then scores what the base alone would."""


def _comparison(results: Sequence[Result]) -> str:
    """Compare the paper, the faithful runs and our presets, if there are faithful runs."""
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
        scores: dict[str, list[float]] = {}
        for model, words in MODELS.items():
            runs = [result for result in results if (result.row, result.model) == (name, model)]
            published = _published(name, model)
            if runs:
                scores[model] = [run.test_bits for run in runs]
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
        if len(scores) == 2:
            verdicts.append(f"- {ROWS[name].title}: {_verdict(scores)}.")
        for model in scores:
            runs = [result for result in results if (result.row, result.model) == (name, model)]
            if not all(follows(run, EXPERIMENTS[name, model]) for run in runs):
                verdicts.append(
                    f"- {ROWS[name].title}, {MODELS[model]}: **not** run with the current settings of the preset."
                )
    return "\n".join(lines) + ("\n\n" + "\n".join(verdicts) if verdicts else "")


def _verdict(scores: Mapping[str, Sequence[float]]) -> str:
    """Compare the two models."""
    (df, df_deviation), (ddf, ddf_deviation) = (_mean_and_deviation(scores[model]) for model in ("df", "ddf"))
    gap, spread = df - ddf, df_deviation + ddf_deviation
    if min(len(values) for values in scores.values()) < 2:
        comparison = "lower" if gap > 0 else "**not** lower"
        return f"the denoising flow is {comparison} ({gap:+.4f}), but a standard deviation requires several seeds"
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
    return ""


def _how(results: Sequence[Result], command: str) -> str:
    machines = dict.fromkeys(
        f"{result.machine['device']}, torch {result.machine['torch']}, Python {result.machine['python']}, "
        f"ddf {result.machine['ddf']}"
        for result in results
    )
    seeds = {
        (result.row, result.model): result.seed for result in results
    }  # the last seed of each, because results are sorted
    typed = [f"ddf reproduce {row} --model {model} --seeds {last + 1}" for (row, model), last in seeds.items()]
    lines = [
        "## Commands",
        "",
        "The runs (add `--mnist` and `--cityscapes` for the location of the data), and this report:",
        "",
    ]
    lines += ["```sh", *typed, command, "```", "", *(f"- {text}" for text in machines)]
    return "\n".join([*lines, "", "All runs, with their settings and curves, are in [results.json](results.json)."])


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
            "Validation score of each net on the symbols that it predicts, by epoch (for a Discrete Flow: of all nets",
        ]
        lines += ["together, on all symbols).", "", f"![learning curves]({row}-curves.png)"]
    return "\n".join(lines)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def _plus_minus(values: Sequence[float]) -> str:
    average, deviation = _mean_and_deviation(values)
    return f"{average:.4f} ± {deviation:.4f}" if len(values) > 1 else f"{average:.4f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
