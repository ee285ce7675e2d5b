"""The experiments of the paper's Table 1: presets, runs and a report."""

__all__ = ["EXPERIMENTS", "ROWS", "Experiment", "Row", "collect", "run_experiment", "write_report"]

from ddf.experiments.report import write_report
from ddf.experiments.results import collect, run_experiment
from ddf.experiments.rows import EXPERIMENTS, ROWS, Experiment, Row
