"""A data set: named splits of symbols, and what the symbols stand for."""

__all__ = ["Data", "DataError", "DataSet"]

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ddf.classes import Classes, Columns
from ddf.data.redrawn import Redrawn

Data = Tensor | np.ndarray[Any, Any] | Redrawn
"""Symbols (samples, channels, *spatial), in memory or mapped from disk, or redrawn ones."""


class DataError(ValueError):
    """Data that cannot be read as what it should be."""


@dataclass(frozen=True)
class DataSet:
    """Named splits of symbols with what they stand for.

    Arguments:
        name: What the data set is called.
        classes: What the symbols stand for.
        splits: The symbols by split, `"train"` and as a rule `"validation"` and `"test"`. A split that is a `Redrawn`
            has fresh randomness at every look; those to evaluate on have none.
        skipped: What could not be read and was left out, a line for each.
    """

    name: str
    classes: Classes | Columns
    splits: Mapping[str, Data]
    skipped: tuple[str, ...] = ()

    def __getitem__(self, split: str) -> Data:
        if split not in self.splits:
            raise KeyError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        return self.splits[split]

    def __contains__(self, split: object) -> bool:
        return split in self.splits

    def __iter__(self) -> Iterator[str]:
        """The names of the splits."""
        return iter(self.splits)

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return self.classes.num_classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        train = self["train"]
        return train.shape if isinstance(train, Redrawn) else tuple(train.shape[1:])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        shape = " × ".join(str(side) for side in self.shape)
        return f"DataSet({self.name!r}: {self.num_classes} classes, samples of {shape}; {sizes})"
