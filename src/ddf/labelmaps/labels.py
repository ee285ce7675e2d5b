"""Conversion between arbitrary integer labels and the symbols 0 … K − 1 that are coded."""

__all__ = ["MOST_LABELS", "labels_of", "looks_like_noise", "lookup"]

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddf.shapes import Array

MOST_LABELS = 65_535
_WIDEST = 1 << 16  # ranges of labels up to this size use a lookup table
_CHUNK = 1 << 20
_NOISE = 0.4  # fraction of pixels unlike both neighbors; far lower in label maps


def labels_of(array: Array) -> list[int] | None:
    """Return the sorted distinct values of an array, or None if there are more than `MOST_LABELS`.

    Examples:
        >>> labels_of(np.array([[5, -1], [5, 255]]))
        [-1, 5, 255]
    """
    if array.dtype.kind == "b":
        return [int(value) for value in np.unique(array)]
    low, high = int(array.min()), int(array.max())
    flat = array.reshape(-1)
    if high - low >= _WIDEST:
        found: set[int] = set()
        for start in range(0, len(flat), _CHUNK):
            found.update(np.unique(flat[start : start + _CHUNK]).tolist())
            if len(found) > MOST_LABELS:
                return None
        return sorted(found)
    present = np.zeros(high - low + 1, np.bool_)
    for start in range(0, len(flat), _CHUNK):
        present[_offset(flat[start : start + _CHUNK], low)] = True
    labels = (np.flatnonzero(present) + low).tolist() if low + _WIDEST < 1 << 62 else None
    if labels is None:  # the sum could overflow int64
        labels = [low + int(i) for i in np.flatnonzero(present)]
    return labels if len(labels) <= MOST_LABELS else None


def _offset(part: Array, low: int) -> Array:
    """Subtract the smallest label without overflow."""
    if part.dtype.itemsize == 1 and low == 0:
        return part
    if part.dtype.kind == "u":
        return (part - part.dtype.type(low)).astype(np.int64)
    return part.astype(np.int64) - low


def lookup(labels: Sequence[int], dtype: "np.dtype[Any]") -> Callable[[Array], Array]:
    """Return a function that maps labels to symbols (uint16); its input must contain only the given labels.

    Examples:
        >>> lookup([-1, 5, 255], np.dtype(np.int64))(np.array([[5, -1], [5, 255]]))
        array([[1, 0],
               [1, 2]], dtype=uint16)
    """
    if dtype.kind == "b":
        table = np.zeros(2, np.uint16)
        table[[int(label) for label in labels if label in (0, 1)]] = [i for i, v in enumerate(labels) if v in (0, 1)]
        return lambda part: table[part.view(np.uint8)]
    info = np.iinfo(dtype)
    kept = sorted((label, i) for i, label in enumerate(labels) if info.min <= label <= info.max)
    low, high = kept[0][0], kept[-1][0]
    if high - low >= _WIDEST:
        ordered, places = np.array([label for label, _ in kept], dtype), np.array([i for _, i in kept], np.uint16)
        return lambda part: places[np.searchsorted(ordered, part)]
    table = np.zeros(high - low + 1, np.uint16)
    for label, i in kept:
        table[label - low] = i
    return lambda part: table[_offset(part, low)]


def looks_like_noise(array: Array) -> bool:
    """Return whether many pixels differ from both the pixel to the left and the one above."""
    one = array.reshape(-1, *array.shape[-2:])[0]
    one = one[: max(2, _CHUNK // max(1, one.shape[1]))]
    if min(one.shape) < 2:
        return False
    here = one[1:, 1:]
    return bool(((here != one[1:, :-1]) & (here != one[:-1, 1:])).mean() > _NOISE)
