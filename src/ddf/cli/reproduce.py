"""The `ddf reproduce` command."""

__all__ = ["add"]

import argparse
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.cli.common import Commands, UsageError, add_device, add_json, formatted, print_result
from ddf.extras import require

if TYPE_CHECKING:
    from ddf.experiments import Experiment

_REPRODUCE = """\
Run the experiments of Table 1 of the paper and write a report of all finished runs. If interrupted, run the same
command again to resume. Finished runs are not repeated, so a second call only rewrites the report."""


SOURCES = ("mnist", "static-mnist", "cityscapes", "cityscapes-128x256")
"""The data sets that have an option for their location."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = formatted(
        commands,
        "reproduce",
        "reproduce the results of the paper",
        _REPRODUCE,
        "ddf reproduce eight-gaussians --seeds 3                     a few minutes on a CPU",
        "ddf reproduce mnist mnist-split --model ddf                 downloads MNIST",
        "ddf reproduce --cityscapes ~/data/cityscapes --device cuda  the full table",
        "ddf reproduce mnist-split --model all                       plus split priors alone, and denoising splits",
        "ddf reproduce ordered --cityscapes ~/data/cityscapes        ordered flows, hours on a GPU",
        "ddf reproduce ladder --cityscapes ~/data/cityscapes         from the faithful flows to ours, step by step",
        "ddf reproduce --tables --cop ~/Discrete-Tree-Flows/data     tables of categories, about half an hour on a CPU",
        "ddf reproduce --faithful --cityscapes ~/data/cityscapes     follow the appendices to the letter",
    )
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="rows of the table, `ordered` for ordered flows, `ladder` for the steps from the faithful flows to ours, "
        "or `ablations` for the grids and the variants of the Discrete Flow (default: the five rows of the paper)",
    )
    parser.add_argument(
        "--faithful",
        action="store_true",
        help="follow the paper's appendices to the letter, with split priors in both orders (default: our presets)",
    )
    parser.add_argument(
        "--tables",
        action="store_true",
        help="run the protocol of Discrete Tree Flows on tables of categories (default: the paper's table)",
    )
    parser.add_argument(
        "--cop", metavar="FOLDER", help="for --tables: the folder of the COP tables (default: omit them)"
    )
    parser.add_argument(
        "--model",
        choices=("df", "ddf", "ds", "sp", "sp-wide", "sp-fine", "of", "base", "all"),
        help="the model to train: a Discrete Flow (df), a denoising flow (ddf), denoising splits (ds), split priors "
        "only (sp; sp-wide: about as many parameters as the flows; sp-fine: one channel at a time), an ordered flow "
        "(of), the base alone, or all (default: df, ddf, of and base)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds, starting at 0 (default: 3)")
    add_device(parser)
    parser.add_argument("--mnist", metavar="FOLDER", help="the folder of the MNIST idx files (default: download them)")
    parser.add_argument(
        "--cityscapes",
        metavar="PATH",
        help="the folder with gtFine, or a prepared npz file (no default: required for Cityscapes rows)",
    )
    parser.add_argument(
        "--static-mnist",
        metavar="FOLDER",
        help="the folder of the amat files of static binary MNIST (default: download them)",
    )
    parser.add_argument(
        "--cityscapes-128x256",
        metavar="PATH",
        help="a prepared npz file of 128 × 256 maps, for the row cityscapes-128x256-ordered, which `ordered` does not "
        "include (default: the folder of --cityscapes)",
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder for the runs (default: runs)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("report"),
        metavar="FOLDER",
        help="folder for the report (default: report)",
    )
    add_json(parser)
    parser.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    require("torch", "`ddf reproduce`")
    from ddf.experiments import ROWS, collect, run_experiment, write_report
    from ddf.experiments.category_tables import collect_tables
    from ddf.experiments.report import check_report_folder
    from ddf.experiments.report_ordered import read_causal
    from ddf.experiments.results import is_finished, load_data, read_times
    from ddf.experiments.rows import MODELS

    if options.seeds is not None and options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds} is out of range: pass 1 or more")
    if options.cop and not options.tables:
        raise UsageError("--cop applies only to --tables")
    for name in ("rows", "faithful", "model", "seeds", "device"):
        if options.tables and getattr(options, name):
            what = "rows do" if name == "rows" else f"--{name} does"
            raise UsageError(f"{what} not apply to --tables, which runs all models on all folds, on the CPU")
    chosen = [] if options.tables else _chosen(options)
    require("matplotlib", "the report")  # before training, not after
    check_report_folder(options.report)
    times, causal = read_times(options.runs), read_causal(options.runs)
    tables = _run_tables(options) if options.tables else []
    sources = {name: getattr(options, name.replace("-", "_")) for name in SOURCES}
    # The first seed of every experiment comes first, so that an interrupted command has a result for every row.
    planned = [(seed, experiment) for seed in range(options.seeds or 3) for experiment in chosen]
    unfinished = [experiment.row for seed, experiment in planned if not is_finished(experiment, seed, options.runs)]
    needed = {row.data for row in unfinished}
    # Fail on missing data before anything is trained; MNIST, a download, comes last.
    for name, augment in sorted({(row.data, row.augment) for row in unfinished}):
        load_data(name, sources, augment=augment)
    runs: list[dict[str, Any]] = []
    for seed, experiment in planned:
        done = is_finished(experiment, seed, options.runs)
        data = None if done else load_data(experiment.row.data, sources, seed, experiment.row.augment)
        result = run_experiment(experiment, seed, data, options.runs, options.device)
        print(
            f"{experiment.row.title}, {MODELS[experiment.model]}, seed {seed}: {result.test_bits:.4f} bits per "
            f"dimension on the test set, {result.validation_bits:.4f} in validation, {result.train_seconds:.0f} s",
            file=sys.stderr if options.json else sys.stdout,
            flush=True,
        )
        runs.append(
            {
                "row": experiment.row.name,
                "model": experiment.model,
                "seed": seed,
                "test_bits": result.test_bits,
                "validation_bits": result.validation_bits,
                "train_seconds": result.train_seconds,
            }
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = collect(options.runs)
        table_results = collect_tables(options.runs)
    for warning in caught:
        print(f"ddf: {warning.message}", file=sys.stderr)
    data_sets = {}
    at_hand = {name for name, path in sources.items() if path} | needed | {"eight-gaussians"}
    for name in {ROWS[result.row].data for result in results} & at_hand:
        try:
            data_sets[name] = load_data(name, sources)
        except (OSError, ValueError):
            print(f"ddf: {name} is not available; the report shows only samples", file=sys.stderr)
    report = write_report(results, options.report, options.typed, data_sets, table_results, times, causal)
    print_result(options, {"runs": runs, "tables": tables, "report": str(report)}, f"Report: {report}")
    return 0


def _chosen(options: argparse.Namespace) -> "list[Experiment]":
    """Return the experiments of the rows and models on the command line."""
    from ddf.experiments import EXPERIMENTS, ROWS
    from ddf.experiments.rows import FAITHFUL, GROUPS, MODELS, TABLE

    names = options.rows or list(FAITHFUL if options.faithful else TABLE)
    models = {None: ["base", "df", "ddf", "of"], "all": list(MODELS)}.get(options.model, [options.model])
    chosen: dict[tuple[str, str], None] = {}
    missing: list[str] = []
    for name in names:
        row = f"{name}-faithful" if options.faithful and name not in FAITHFUL else name
        if row in ROWS:
            found = [(row, model) for model in models if (row, model) in EXPERIMENTS]
        elif name not in GROUPS:
            choices = FAITHFUL if options.faithful else (*GROUPS, *ROWS)
            raise UsageError(f"row {row!r} does not exist; choose from {', '.join(choices)}")
        elif options.faithful:
            raise UsageError(f"--faithful does not apply to {name}")
        else:
            found = [key for key in GROUPS[name] if options.model is None or key[1] in models]
        missing += [] if found else [name]
        chosen |= dict.fromkeys(found)
    if not chosen:
        raise UsageError(f"{', '.join(names)} has no experiment with --model {options.model}")
    if missing and options.rows:
        print(f"ddf: {', '.join(missing)}: no experiment with --model {options.model}", file=sys.stderr)
    return [EXPERIMENTS[key] for key in chosen]


def _run_tables(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all models on all folds of the tables of categories, and return the results as plain data."""
    from ddf.experiments.category_tables import FOLDS, METHODS, TABLES, has_joint_table, load_table, run_table

    names = [name for name in TABLES if options.cop or not name.startswith("cop")]
    tables = {name: load_table(name, options.cop) for name in names}
    results = []
    for fold in range(FOLDS):
        for name, table in tables.items():
            for method in METHODS:
                if method != "joint" or has_joint_table(table[1]):
                    result = run_table(name, method, fold, table, options.runs)
                    print(
                        f"{TABLES[name]}, {METHODS[method]}, fold {fold}: {result.nats:.4f} nats per sample, "
                        f"{result.seconds:.0f} s",
                        file=sys.stderr if options.json else sys.stdout,
                        flush=True,
                    )
                    results.append(asdict(result))
    return results
