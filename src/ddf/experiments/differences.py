"""Differences between scores, with confidence intervals."""

__all__ = ["Difference", "score_difference"]

from collections.abc import Sequence
from dataclasses import dataclass
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
        margin: Half the width of the interval; None if a single seed does not determine it.
    """

    mean: float
    margin: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.4f}" if self.margin is None else f"{self.mean:+.5f} ± {self.margin:.5f}"


def score_difference(first: Sequence[Result], second: Sequence[Result], shared: bool = False) -> Difference:
    """Return the first test score minus the second, with an interval for the choice of seeds and of test samples.

    The scores are paired by test sample if both record the scores of samples.

    Arguments:
        first: The runs of an experiment, one for each seed.
        second: The runs of another one.
        shared: Whether runs with the same seed share their nets, and are therefore paired too.
    """
    scores = [[run.test_bits for run in runs] for runs in (first, second)]
    gap = mean(scores[0]) - mean(scores[1])
    if shared:
        other = {run.seed: run.test_bits for run in second}
        gaps = [run.test_bits - other[run.seed] for run in first if run.seed in other]
        freedom = len(gaps) - 1
        by_seed = stdev(gaps) / len(gaps) ** 0.5 if freedom > 0 else 0.0
    else:
        freedom = sum(len(part) - 1 for part in scores)
        squares = sum((score - mean(part)) ** 2 for part in scores for score in part)
        by_seed = (squares / freedom * sum(1 / len(part) for part in scores)) ** 0.5 if freedom > 0 else 0.0
    if freedom <= 0:
        return Difference(gap, None)
    bits = [[run.sample_bits for run in runs if run.sample_bits is not None] for runs in (first, second)]
    complete = all(len(part) == len(runs) for part, runs in zip(bits, (first, second), strict=True))
    if complete and len({len(one) for part in bits for one in part}) == 1:
        paired = np.stack(bits[0]).astype(np.float64).mean(axis=0) - np.stack(bits[1]).astype(np.float64).mean(axis=0)
        by_sample = float(paired.std(ddof=1)) / len(paired) ** 0.5
    else:
        by_sample = sum(mean(run.test_error for run in runs) ** 2 for runs in (first, second)) ** 0.5
    return Difference(gap, float(np.hypot(_QUANTILES[min(freedom, 10)] * by_seed, _NORMAL_QUANTILE * by_sample)))
