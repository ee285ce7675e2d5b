"""A data set: named splits of symbols, and the meaning of the symbols."""

__all__ = ["Data", "DataSet"]

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from ddf.classes import Classes, Columns
from ddf.data.resampled import Resampled
from ddf.shapes import Array, format_shape

Data = Tensor | Array | Resampled
"""Symbols (samples, channels, *spatial), in memory or mapped from disk, or resampled ones."""


@dataclass(frozen=True)
class DataSet:
    """Named splits of symbols, and the meaning of the symbols.

    Arguments:
        name: The name of the data set.
        classes: The meaning of the symbols.
        splits: The symbols of each split: `"train"`, and usually `"validation"` and `"test"`. A split for training may
            be a `Resampled`, which has fresh randomness on each pass; the others are fixed.
        skipped: What could not be read and was skipped, a line for each.
    """

    name: str
    classes: Classes | Columns
    splits: Mapping[str, Data]
    skipped: tuple[str, ...] = ()

    def __getitem__(self, split: str) -> Data:
        if split not in self.splits:
            raise KeyError(f"{self.name} does not have a split {split!r}; it has {', '.join(self.splits)}")
        return self.splits[split]

    def __contains__(self, split: object) -> bool:
        return split in self.splits

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the splits."""
        return iter(self.splits)

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return self.classes.num_classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        train = self["train"]
        return train.shape if isinstance(train, Resampled) else tuple(train.shape[1:])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        return f"DataSet({self.name!r}: {self.num_classes} classes, samples of {format_shape(self.shape)}; {sizes})"
