"""Finished runs, by row and model, and their scores as text."""

__all__ = ["Results", "plus_minus"]

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from ddf.experiments.differences import score_difference
from ddf.experiments.results import Result
from ddf.experiments.rows import MODELS, ROWS

_LEARNED = 0.01  # how much better than the base alone a flow must be, as a fraction of the score


class Results:
    """Finished runs, by row and model."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.all = list(results)

    def of(self, row: str, model: str) -> list[Result]:
        """Return the runs of an experiment, one for each seed."""
        return [result for result in self.all if (result.row, result.model) == (row, model)]

    def models(self, row: str) -> list[str]:
        """Return the models for which a row has runs."""
        return [model for model in MODELS if self.of(row, model)]

    def test(self, row: str, model: str = "ddf") -> str:
        """Return the test score of an experiment: mean and standard deviation."""
        return plus_minus([result.test_bits for result in self.of(row, model)])

    def validation(self, row: str, model: str = "ddf") -> str:
        """Return the validation score of an experiment: mean and standard deviation."""
        return plus_minus([result.validation_bits for result in self.of(row, model)])

    def difference(self, row: str, from_row: str, model: str = "ddf", from_model: str | None = None) -> str:
        """Return the difference between two test scores; "" if there is nothing to compare."""
        other = from_row, from_model or model
        runs, others = self.of(row, model), self.of(*other)
        if (row, model) == other or not runs or not others:
            return ""
        return str(score_difference(runs, others))

    def learned_nothing(self, row: str, bits: float) -> bool:
        """Return whether a test score is about the same as that of the base alone in a row, or worse.

        A row without a run of the base is compared with another row with the same data, if possible a faithful one with
        a faithful one.
        """
        data = ROWS[row].data
        rows = (row, f"{data}-faithful" if row.endswith("-faithful") else data, data)
        base = next((self.of(name, "base")[0] for name in rows if self.of(name, "base")), None)
        return base is not None and bits > (1 - _LEARNED) * base.test_bits


def plus_minus(values: Sequence[float], digits: int = 4, expected: int = 3) -> str:
    """Format the mean and the standard deviation, and the number of values if it differs from `expected`."""
    if not values:
        return ""
    count = "" if len(values) == expected else f" ({len(values)})"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}{count}"
