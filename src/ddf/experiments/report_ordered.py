"""The section of the report on ordered flows, and the picture that compares all flows."""

__all__ = ["Causal", "ordered_section", "read_causal"]

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from ddf.data import DataError
from ddf.experiments.collected import Results, plus_minus
from ddf.experiments.report_texts import ORDERED_FLOWS, PUBLISHED
from ddf.experiments.results import Times
from ddf.experiments.rows import ORDERED, ROWS
from ddf.viz import Comparison, comparisons

_SHOWN = ("df", "ddf", "ds", "sp-fine", "of")
_SHORT = {"df": "DF", "ddf": "DDF", "ds": "denoising splits", "sp-fine": "split priors", "of": "ordered flow"}


@dataclass(frozen=True)
class Causal:
    """The score of a causal flow on a data set.

    Arguments:
        bits: Bits per dimension of the test set.
        actual_bits: Bits per dimension of the compressed test set, from its size in bytes.
        parameters: The number of parameters.
        train_seconds: The training time in seconds.
        device: What it was trained on.
    """

    bits: float
    actual_bits: float
    parameters: int
    train_seconds: float
    device: str


def read_causal(folder: Path) -> dict[str, Causal]:
    """Read the scores that `benchmarks/causal_scores.py` wrote to a folder of runs, by data set."""
    path = folder / "causal.json"
    if not path.exists():
        return {}
    try:
        return {name: Causal(**facts) for name, facts in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is invalid ({error}); delete it") from error


def ordered_section(found: Results, times: Times | None, causal: Mapping[str, Causal], folder: Path) -> str:
    """List the scores of ordered flows next to others, and plot the scores of all models against training time."""
    rows = [name for name in ORDERED if found.of(name, "of")]
    if not rows:
        return ""
    lines = []
    for name in rows:
        data = ROWS[name].data
        runs = found.of(name, "of")
        seconds = _seconds(found, name, "of", times)
        published = "; ".join(f"{title} {bits:.4f}" for title, bits in PUBLISHED.get(data, {}).items())
        code = f"{causal[data].actual_bits:.4f}" if data in causal else ""
        lines.append(
            f"| {ROWS[name].title.removesuffix(', ordered')} | **{found.test(name, 'of')}** "
            f"| {found.validation(name, 'of')} | {runs[0].parameters / 1e6:.1f} M "
            f"| {sum(part['steps'] for part in runs[0].parts):,} | {seconds / 60:.1f} min "
            f"| {1000 * min(run.sample_seconds for run in runs):.1f} ms | {code} | {published} |"
        )
    head = [
        "## Ordered flows",
        "",
        ORDERED_FLOWS,
        "",
        "| data | test | validation | parameters | optimizer steps | training | time per sample | causal flow "
        "| published |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    panels = [panel for data in ("mnist", "cityscapes") if (panel := _comparison(found, data, times, causal)).points]
    comparisons(panels, folder / "likelihoods.png")
    picture = [
        "",
        "Test scores of flows against their training time; the area of a circle is proportional to the number of "
        "parameters. The causal flow is the label-map codec, trained on a CPU. Gray lines mark published scores.",
        "",
        "![test scores against training time](likelihoods.png)",
    ]
    shifted = [run.shifted_bits for run in found.of("cityscapes-ordered", "of") if run.shifted_bits is not None]
    if shifted:
        lines += [
            "",
            "On test maps that are mirrored and shifted at random, as in other published experiments, "
            f"Cityscapes scores {plus_minus(shifted)}.",
        ]
    return "\n".join([*head, *lines, *picture])


def _comparison(found: Results, data: str, times: Times | None, causal: Mapping[str, Causal]) -> Comparison:
    """Return the scores, training minutes and parameters of all flows of a data set."""
    points = {}
    for name in (data, f"{data}-split", f"{data}-ordered"):
        for model in _SHOWN:
            runs = found.of(name, model)
            if runs:
                title = _SHORT[model] + (", split priors" if name.endswith("-split") and model in ("df", "ddf") else "")
                title += ", no split priors" if name == data and model == "ds" else ""
                bits = mean(run.test_bits for run in runs)
                points[title] = (_seconds(found, name, model, times) / 60, bits, runs[0].parameters)
    if data in causal and points:
        known = causal[data]
        points["causal flow (CPU)"] = (known.train_seconds / 60, known.bits, known.parameters)
    return Comparison(ROWS[data].title, points, PUBLISHED.get(data, {}))


def _seconds(found: Results, row: str, model: str, times: Times | None) -> float:
    """Return the training time: that of the optimizer steps alone, if it was measured."""
    runs = found.of(row, model)
    key = f"{row} {model}"
    if times is not None and key in times.steps:
        return mean(
            sum(part["steps"] * one for part, one in zip(run.parts, times.steps[key], strict=True)) for run in runs
        )
    return min(run.train_seconds for run in runs)
