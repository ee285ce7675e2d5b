"""How samples are assigned to the training, validation and test splits."""

__all__ = ["SPLITS", "named_split", "split_samples"]

from collections.abc import Sequence

import numpy as np

from ddf.errors import DataError
from ddf.shapes import Array

SPLITS = ("train", "validation", "test")


def split_samples(
    count: int, validation: float = 0.1, test: float = 0.1, seed: int = 0, assigned: Sequence[str] = (), name: str = ""
) -> dict[str, Array]:
    """Assign samples to splits: as the data prescribes, otherwise at random.

    Arguments:
        count: The number of samples.
        validation: The fraction for validation; if it is not 0, at least one sample.
        test: The fraction for testing, likewise.
        seed: The seed of the random choice.
        assigned: The split of each sample, if the data prescribes it; empty otherwise.
        name: The name of the data in error messages.

    Returns:
        The indices of the samples of each split, without empty splits; in random order if they were chosen at random.

    Examples:
        >>> {split: len(index) for split, index in split_samples(20).items()}
        {'train': 16, 'validation': 2, 'test': 2}
        >>> split_samples(3, assigned=("test", "train", "train"))
        {'train': array([1, 2]), 'test': array([0])}
    """
    for what, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise ValueError(f"{what}={fraction} is out of range: pass a fraction of at least 0 and less than 1")
    if assigned:
        found = {split: np.flatnonzero(np.array(assigned) == split) for split in SPLITS}
        return {split: index for split, index in found.items() if len(index)}
    counts = [max(1, round(fraction * count)) if fraction else 0 for fraction in (validation, test)]
    left = count - sum(counts)
    if left < 1:
        raise DataError(f"{name or 'the data'}: {count} samples are too few for validation={validation}, test={test}")
    order = np.random.default_rng(seed).permutation(count)
    parts = np.split(order, [left, left + counts[0]])
    return {split: part for split, part in zip(SPLITS, parts, strict=True) if len(part)}


def named_split(name: str) -> str:
    """Return the split that the name of a folder or an array stands for, or an empty string.

    Examples:
        >>> named_split("trainannot"), named_split("val"), named_split("masks")
        ('train', 'validation', '')
    """
    for prefix, split in (("train", "train"), ("val", "validation"), ("test", "test")):
        if name.lower().startswith(prefix):
            return split
    return ""
