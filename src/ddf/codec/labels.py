"""Labels that a model does not know, and the classes that stand for them."""

__all__ = ["LARGEST_LABEL", "LabelTables", "Labels", "relabelled"]

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ddf.codec.coder import Array
from ddf.data.classes import Classes

Labels = tuple[tuple[int, int], ...]
"""(class, label) for every class that stands for another label than it does in the model, by class."""

LARGEST_LABEL = 1 << 53
"""So far labels of all dtypes compare exactly."""

_TABLES = 8  # that are remembered
_CHUNK = 1 << 20  # pixels that are counted together
_WIDEST = 1 << 16  # labels that are counted rather than sorted


@lru_cache(maxsize=256)
def relabelled(classes: Classes, labels: Labels) -> Classes:
    """Classes some of which stand for other labels; refuses what cannot be."""
    values = list(classes.values)
    for symbol, label in labels:
        if symbol >= len(values):
            raise ValueError(f"class {symbol} of {len(values)} has a label")
        values[symbol] = label
    return Classes(tuple(values))


class LabelTables:
    """Finds classes for the labels of one array after the other, the same for all as far as can be.

    A label that a model does not know takes the place of one that has not occurred yet.

    Arguments:
        classes: Those of the model.

    Examples:
        >>> tables = LabelTables(Classes.plain(4))
        >>> tables.of(np.array([0, 1]))
        ()
        >>> tables.of(np.array([0, 255]))
        ((2, 255),)
        >>> tables.of(np.array([0, 1]))
        ((2, 255),)
    """

    def __init__(self, classes: Classes) -> None:
        self._own = classes.values
        self._tables = [_Table(self._own)]  # that of the last array comes last

    def of(self, array: Array) -> Labels:
        """The labels of classes for an array of integers; none if there are more of them than classes."""
        found = _labels_in(array, len(self._own))
        if found is None:
            return ()
        for table in reversed(self._tables):
            if found <= table.labels:
                self._tables.remove(table)
                break
        else:
            grown = self._tables[-1].with_labels(found) or _Table(self._own).with_labels(found)
            assert grown is not None  # there are no more labels than classes
            table = grown
            # It takes the place of those whose arrays it would have done for.
            self._tables = [other for other in self._tables if not other.used <= table.labels]
        table.used |= found
        self._tables = [*self._tables, table][-_TABLES:]
        return tuple(pair for pair, own in zip(enumerate(table.values), self._own, strict=True) if pair[1] != own)


class _Table:
    """What each class stands for, and which of that has occurred."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = list(values)
        self.labels = set(values)
        self.used: set[int] = set()

    def with_labels(self, found: set[int]) -> "_Table | None":
        """A table that has these labels as well, if there is room."""
        missing = sorted(found - self.labels)
        taken = self.used | found
        free = [symbol for symbol, label in enumerate(self.values) if label not in taken]
        if len(missing) > len(free):
            return None
        values = list(self.values)
        for symbol, label in zip(free, missing, strict=False):
            values[symbol] = label
        table = _Table(values)
        table.used = set(self.used)
        return table


def _labels_in(array: Array, most: int) -> set[int] | None:
    """The labels of an array, None if there are more, or such as no class can stand for."""
    if not array.size:
        return set()
    least, largest = int(array.min()), int(array.max())
    if least < -LARGEST_LABEL or largest > LARGEST_LABEL:
        return None
    if largest - least >= _WIDEST:
        found = np.unique(array)
    else:
        counts = np.zeros(largest - least + 1, dtype=bool)
        flat = array.ravel()
        for start in range(0, len(flat), _CHUNK):
            counts[flat[start : start + _CHUNK].astype(np.int64) - least] = True
        found = np.flatnonzero(counts) + least
    return set(found.tolist()) if len(found) <= most else None
