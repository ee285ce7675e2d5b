"""Differences between scores, with confidence intervals."""

__all__ = ["Difference", "published_difference", "score_difference"]

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from statistics import mean, stdev

import numpy as np

from ddf.experiments.results import Result

# The 97.5 % quantiles of Student's t distribution, by degrees of freedom.
_QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
_NORMAL_QUANTILE = 1.96


@dataclass(frozen=True)
class Difference:
    """A mean difference with its 95 % confidence interval.

    Arguments:
        mean: The mean.
        margin: Half the width of the interval; None if there are too few seeds to determine it.
    """

    mean: float
    margin: float | None

    def __str__(self) -> str:
        if self.margin is None:
            return f"{self.mean:+.4f}"
        # Two significant digits of the margin, within limits.
        digits = min(max(1 - floor(log10(self.margin)), 2), 5) if self.margin else 5
        return f"{self.mean:+.{digits}f} ± {self.margin:.{digits}f}"


def score_difference(first: Sequence[Result], second: Sequence[Result]) -> Difference:
    """Return the first test score minus the second, with an interval for the choice of seeds and of test samples.

    Runs with the same seed are paired, because they share what the seed determines, such as shuffles and binarizations;
    if both experiments have two or more of the same seeds, other runs are ignored. Scores are also paired by test
    sample if both experiments recorded the scores of samples.

    Arguments:
        first: The runs of an experiment, one for each seed.
        second: The runs of another one.
    """
    by_seed = {run.seed: run for run in second}
    pairs = [(run, by_seed[run.seed]) for run in first if run.seed in by_seed]
    if len(pairs) < 2:
        return Difference(mean(run.test_bits for run in first) - mean(run.test_bits for run in second), None)
    gaps = [one.test_bits - other.test_bits for one, other in pairs]
    bits = [[run.sample_bits for run in runs if run.sample_bits is not None] for runs in zip(*pairs, strict=True)]
    if {len(part) for part in bits} == {len(pairs)} and len({len(one) for part in bits for one in part}) == 1:
        paired = np.subtract(*(np.stack(part).astype(np.float64).mean(axis=0) for part in bits))
        by_sample = float(paired.std(ddof=1)) / len(paired) ** 0.5
    else:
        by_sample = sum(mean(run.test_error for run in runs) ** 2 for runs in zip(*pairs, strict=True)) ** 0.5
    of_seeds = _QUANTILES[min(len(pairs) - 1, 10)] * stdev(gaps) / len(pairs) ** 0.5
    return Difference(mean(gaps), float(np.hypot(of_seeds, _NORMAL_QUANTILE * by_sample)))


def published_difference(first: tuple[float, float], second: tuple[float, float], runs: int = 3) -> Difference:
    """Return the difference between two published means with standard deviations over independent runs."""
    spread = (first[1] ** 2 + second[1] ** 2) ** 0.5 / runs**0.5
    return Difference(first[0] - second[0], _QUANTILES[2 * (runs - 1)] * spread)
