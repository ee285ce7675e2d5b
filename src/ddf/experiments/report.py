"""Write a report on all finished runs: a comparison with the paper, ablations, pictures and commands."""

__all__ = ["check_report_folder", "write_report"]

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from ddf.data import DataSet, EightGaussians
from ddf.experiments.category_tables import FOLDS, METHODS, TABLES, TableResult
from ddf.experiments.collected import Results, plus_minus
from ddf.experiments.differences import published_difference
from ddf.experiments.report_ordered import Causal, ordered_section
from ddf.experiments.report_pictures import pictures
from ddf.experiments.report_texts import (
    AUTHORS,
    CATEGORIES,
    CLAIM,
    FAITHFUL_FLOWS,
    HEAD,
    MEASURED_TIMES,
    NOTES,
    PREDICTIONS,
    PREDICTIONS_HEAD,
    RANKED,
    RUN_TIMES,
    UNTRAINED,
)
from ddf.experiments.results import Result, Times, follows
from ddf.experiments.rows import (
    COUPLINGS,
    DF_ABLATION,
    EXPERIMENTS,
    FAITHFUL,
    H_GRID,
    LADDER,
    MODELS,
    ORDERED,
    ROWS,
    TABLE,
)
from ddf.files import atomic_write
from ddf.viz import dots

_PAPER = "https://arxiv.org/abs/2107.11625"  # in the head of every report


def write_report(
    results: Sequence[Result],
    folder: Path,
    command: str,
    data: Mapping[str, DataSet],
    tables: Sequence[TableResult] = (),
    times: Times | None = None,
    causal: Mapping[str, Causal] | None = None,
) -> Path:
    """Write README.md with the tables, results.json with every run, and pictures.

    Arguments:
        results: The finished runs.
        folder: The folder of the report.
        command: The command that wrote the report, for the record.
        data: The available data sets by name, to show data next to samples.
        tables: The results on tables of categories.
        times: Times measured separately, which replace those of the runs.
        causal: The scores of causal flows, by data set.

    Returns:
        The path of the report.
    """
    if not results and not tables:
        raise ValueError("no run is finished; train at least one before writing a report")
    check_report_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "results.json") as temporary:
        temporary.write_text(json.dumps([result.to_plain() for result in results]) + "\n", encoding="utf-8")
    found = Results(results)
    sections = [
        HEAD,
        _opening(found),
        AUTHORS if any(found.models(name) for name in FAITHFUL) else "",
        _claim(found),
        _predictions(found, times),
        ordered_section(found, times, causal or {}, folder),
        *(_ladder(found, name, folder) for name in LADDER),
        _grid(found, H_GRID, "h", "## The number of ranked classes", RANKED),
        _grid(found, COUPLINGS, "couplings", "## The number of couplings", "the number of couplings."),
        _df_ablation(found),
        _category_tables(tables),
        _layers(found),
        *([_table(found), _departures(found)] if results else []),
        _how(found, command),
        *(pictures(found, row, folder, data) for row in (*TABLE, *ORDERED, *FAITHFUL)),
    ]
    with atomic_write(folder / "README.md") as temporary:
        temporary.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    return folder / "README.md"


def check_report_folder(folder: Path) -> None:
    """Raise an error if a report would replace a README.md that is not a report."""
    path = folder / "README.md"
    if path.exists():
        head = path.read_text(encoding="utf-8", errors="replace")[:500]
        if not head.startswith("# Results") or _PAPER not in head:
            raise ValueError(f"{path} is not a report of this command and would be overwritten; choose another folder")


# ---- Tables ----------------------------------------------------------------------------------------------------------


def _opening(found: Results) -> str:
    """Compare the paper, its authors' code, the faithful flows and our presets."""
    lines = []
    for name in FAITHFUL:
        ours = name.removesuffix("-faithful")
        title = ROWS[name].title.removesuffix(", faithful")
        for model in ("base", "df", "ddf"):
            if found.of(name, model) or found.of(ours, model):
                lines.append(
                    f"| {title} | {MODELS[model]} | {_published(name, model)} | – | {found.test(name, model)} "
                    f"| {found.test(ours, model)} |"
                )
    head = ["| data | model | paper | authors' code | faithful | ours |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines, "", FAITHFUL_FLOWS, *_untrained(found)]) if lines else ""


def _untrained(found: Results) -> list[str]:
    """List the Discrete Flows that are no better than the base alone."""
    lines = []
    for ours in TABLE:
        for name in (f"{ours}-faithful", ours, *DF_ABLATION.get(ours, ())):
            runs = found.of(name, "df")
            title = f"{ROWS[name].title}, ours" if name == ours else ROWS[name].title
            failed = [run.test_bits for run in runs if found.learned_nothing(name, run.test_bits)]
            if failed:
                others = [f"{run.test_bits:.4f}" for run in runs if run.test_bits not in failed]
                rest = f" (other runs: {', '.join(others)})" if others else ""
                lines.append(f"- {title}: {', '.join(f'{bits:.4f}' for bits in failed)}{rest}")
            if name == ours and found.learned_nothing(f"{ours}-faithful", sum(ROWS[ours].paper["df"])):
                lines.append(f"- {ROWS[ours].title}, in the paper: {_published(ours, 'df')}")
    return ["", UNTRAINED, "", *lines] if lines else []


def _claim(found: Results) -> str:
    """Compare the two flows of the paper in every row."""
    lines = []
    for name in FAITHFUL:
        cells = [found.difference(row, row, "ddf", "df") for row in (name, name.removesuffix("-faithful"))]
        if any(cells):
            paper = published_difference(ROWS[name].paper["ddf"], ROWS[name].paper["df"])
            lines.append(f"| {ROWS[name].title.removesuffix(', faithful')} | {paper} | {' | '.join(cells)} |")
    if not lines:
        return ""
    head = ["## The denoising flow minus the Discrete Flow", "", CLAIM, ""]
    return "\n".join([*head, "| data | paper | faithful | ours |", "|---|---|---|---|", *lines])


def _predictions(found: Results, times: Times | None) -> str:
    """Compare the uses of a prediction."""
    lines = []
    for row in ("mnist-split", "cityscapes-split", "cityscapes"):
        models = [model for model in found.models(row) if model != "base"]
        if not set(models) - {"df", "ddf"}:
            continue
        title = "Cityscapes, without split priors" if row == "cityscapes" else ROWS[row].title
        for model in models:
            runs = found.of(row, model)
            nets = sum("net" in layer for layer in runs[0].spec["layers"])
            training, sampling = _times(runs, times)
            lines.append(
                f"| {title} | {MODELS[model]} | {nets} | {runs[0].parameters / 1e6:.1f} M "
                f"| {runs[0].settings['max_epochs']} | **{found.test(row, model)}** "
                f"| {found.difference(row, row, model, models[0])} | {found.difference(row, row, model, 'sp')} "
                f"| {training} | {sampling} |"
            )
    if not lines:
        return ""
    measured = MEASURED_TIMES.format(device=times.device) if times else RUN_TIMES
    head = PREDICTIONS_HEAD.format(training="optimizer steps" if times else "training")
    return "\n".join([PREDICTIONS, "", measured, "", head, *lines])


def _times(runs: Sequence[Result], times: Times | None) -> tuple[str, str]:
    """Format the time of training and the time per sample."""
    if times is None:
        training, sampling = min(run.train_seconds for run in runs), min(run.sample_seconds for run in runs)
    else:
        key = f"{runs[0].row} {runs[0].model}"
        if key not in times.steps:
            return "", ""
        steps = times.steps[key]
        training = mean(sum(part["steps"] * one for part, one in zip(run.parts, steps, strict=True)) for run in runs)
        sampling = times.samples[key]
    return _duration(training), f"{1000 * sampling:.1f} ms" if sampling else ""


def _ladder(found: Results, data: str, folder: Path) -> str:
    """List the changes between the faithful flow and ours, without split priors."""
    rows = [row for row in LADDER[data] if found.of(row, "ddf")]
    if len(rows) < 3:
        return ""
    title = ROWS[data].title
    labels = {LADDER[data][0]: "faithful", LADDER[data][-1]: "+ moving average of the weights"}
    labels |= {row: ROWS[row].title.removeprefix(f"{title}: ") for row in LADDER[data][1:-1]}
    lines = [
        f"| {labels[row]} | {found.of(row, 'ddf')[0].parameters / 1e6:.1f} M | {found.validation(row)} "
        f"| {found.test(row)} | {found.difference(row, before)} |"
        for row, before in zip(rows, [rows[0], *rows], strict=False)
    ]
    dots(
        {labels[row]: [result.test_bits for result in found.of(row, "ddf")] for row in rows},
        f"{title}, without split priors",
        "bits per dimension on the test set: each run, and the mean",
        folder / f"{data}-ladder.png",
    )
    head = [
        f"## From faithful to ours: {title} without split priors",
        "",
        "Each row adds one change to the previous row; training schedules, including their length and the number of",
        "binarizations, count as one.",
        "",
        f"![scores]({data}-ladder.png)",
        "",
        "| | parameters | validation | test | change |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines])


def _grid(found: Results, rows: Mapping[int, str], name: str, heading: str, what: str) -> str:
    """List the scores for each value of one setting."""
    ours = "cityscapes"
    lines = [
        f"| {value} | {found.validation(row)} | {found.test(row)} | {found.difference(row, ours)} |"
        for value, row in rows.items()
        if found.of(row, "ddf")
    ]
    if len(lines) < 2:
        return ""
    head = [
        heading,
        "",
        f"Cityscapes without split priors, as a function of {what}",
        "",
        f"| {name} | validation | test | difference from ours |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *lines])


def _df_ablation(found: Results) -> str:
    """List the scores of Discrete Flows in which one choice is changed."""
    lines = []
    for data, rows in DF_ABLATION.items():
        if any(found.of(row, "df") for row in rows):
            lines.append(f"| {ROWS[data].title} | ours | {found.validation(data, 'df')} | {found.test(data, 'df')} | |")
            lines += [
                f"| | {ROWS[row].departures['df'].partition(';')[0]} | {found.validation(row, 'df')} "
                f"| {found.test(row, 'df')} | {found.difference(row, data, 'df')} |"
                for row in rows
                if found.of(row, "df")
            ]
    if not lines:
        return ""
    head = [
        "## The Discrete Flow baseline",
        "",
        "Our Discrete Flows without split priors, with one choice changed at a time.",
        "",
        "| data | change | validation | test | difference from ours |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines])


def _category_tables(tables: Sequence[TableResult]) -> str:
    """List the scores on tables of categories, and the nats of each column of the last table."""
    if not tables:
        return ""

    def scores(table: str, method: str) -> list[float]:
        return [result.nats for result in tables if (result.table, result.method) == (table, method)]

    names = [name for name in TABLES if any(result.table == name for result in tables)]
    lines = []
    for method, title in METHODS.items():
        cells = [plus_minus(scores(name, method), 3, FOLDS) for name in names]
        sizes = [result.parameters for result in tables if (result.table, result.method) == (names[-1], method)]
        size = f"{sizes[0]:,}" if sizes and sizes[0] else ""
        lines.append(f"| {title} | {' | '.join(cells)} | {size} |")
    titles = [*(TABLES[name] for name in names), f"parameters, {TABLES[names[-1]]}"]
    head = [CATEGORIES, "", f"| | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    columns = [result.columns for result in tables if (result.table, result.method) == (names[-1], "sp")]
    alone = [result.columns for result in tables if (result.table, result.method) == (names[-1], "factorized")]
    if columns and alone:
        lines += ["", f"{TABLES[names[-1]]}, nats by column:", ""]
        lines += ["| column | given the preceding columns (split priors) | independent |", "|---|---|---|"]
        lines += [
            f"| {name} | {mean(part[name] for part in columns):.3f} | {mean(part[name] for part in alone):.3f} |"
            for name in columns[0]
        ]
    return "\n".join([*head, *lines])


def _layers(found: Results) -> str:
    """List the bits of each layer, for the first seed."""
    lines = []
    for row in TABLE:
        for model in found.models(row):
            layers = found.of(row, model)[0].layers
            if len(layers) > 1:
                parts = ", ".join(f"{name} {bits:.4f}" for name, bits in layers.items())
                lines.append(f"| {ROWS[row].title} | {MODELS[model]} | {parts} |")
    if not lines:
        return ""
    head = [
        "## Bits by layer",
        "",
        "The contribution of each layer to the test score, in bits per dimension of the data, for the first seed.",
        "",
        "| data | model | layers that factor out symbols, and the base |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *lines])


def _table(found: Results) -> str:
    """List every experiment with its validation score, parameters and training time."""
    lines = [
        "## All experiments",
        "",
        '"Error" is the standard error of the test score of a single run, over test samples. "Training" is the time of',
        "the fastest run from data to finished flow; runs may have shared their device with others.",
        "",
        "| data | model | paper | here | seeds | error | validation | parameters | training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (row, model), experiment in EXPERIMENTS.items():
        runs = found.of(row, model)
        if runs:
            changed = "" if all(follows(run, experiment) for run in runs) else " (**not** with the current settings)"
            score = f"**{found.test(row, model)}**"
            lines.append(
                f"| {ROWS[row].title} | {MODELS[model]}{changed} | {_published(row, model)} | {score} "
                f"| {', '.join(str(run.seed) for run in runs)} | {mean(run.test_error for run in runs):.4f} "
                f"| {found.validation(row, model)} | {runs[0].parameters / 1e6:.1f} M "
                f"| {_duration(min(run.train_seconds for run in runs))}, {runs[0].machine['device']} |"
            )
        elif row in TABLE and model in ("df", "ddf"):
            lines.append(f"| {ROWS[row].title} | {MODELS[model]} | {_published(row, model)} | not run yet | | | | | |")
    return "\n".join(lines)


def _departures(found: Results) -> str:
    lines = ["## What differs from the paper", "", "| data | model | differences |", "|---|---|---|"]
    for row, model in EXPERIMENTS:
        if found.of(row, model):
            lines.append(f"| {ROWS[row].title} | {MODELS[model]} | {ROWS[row].departures[model]} |")
    return "\n".join([*lines, "", NOTES.format(optimum=EightGaussians.coupling_optimum())])


def _how(found: Results, command: str) -> str:
    machines = dict.fromkeys(
        f"{result.machine['device']}, torch {result.machine['torch']}, Python {result.machine['python']}, "
        f"ddf {result.machine['ddf']}"
        for result in found.all
    )
    last = {(result.row, result.model): result.seed for result in found.all}  # results are sorted by seed
    typed = [f"ddf reproduce {row} --model {model} --seeds {seed + 1}" for (row, model), seed in last.items()]
    lines = ["## Commands", ""]
    if typed:
        lines += [
            "The runs (add `--mnist` and `--cityscapes` to specify the location of the data):",
            "",
            "```sh",
            *typed,
            "```",
            "",
        ]
    lines += ["This report:", "", "```sh", command, "```", ""]
    if typed:
        lines += [*(f"- {text}" for text in machines), ""]
        lines += ["All runs, with their settings and learning curves, are in [results.json](results.json)."]
    return "\n".join(lines).rstrip()


# ---- Formatting ------------------------------------------------------------------------------------------------------


def _published(name: str, model: str) -> str:
    paper = ROWS[name].paper.get(model)
    return "" if paper is None else f"{paper[0]:.2f} ± {paper[1]:.2f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
