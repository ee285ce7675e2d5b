"""Measure single maps of an archive: their labels, the bits of their pixels, and their sizes in other formats."""

__all__ = ["COSTLY", "CostlyMap", "Encode", "MeasuredMap", "Task", "Worker", "most_costly"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ddf.archive import Archive, FileReader
from ddf.archive.pictures import Coloring, classes_of, coloring, format_of, thumbnail
from ddf.shapes import Array, fits
from ddf.viz.bit_pictures import pooled
from ddf.viz.explanations import share_of_half
from ddf.viz.map_index import MapIndex

Encode = Callable[[Array], bytes]
"""A codec: a function from a map of uint8 (height, width) to bytes."""

COSTLY = 6
"""The number of maps to draw."""

_SIDE = 480  # pixels of their pictures
_MOST_LABELS = 256  # of a map that other codecs compress
_NARROW = 1 << 16  # ranges of labels that are counted in a table


@dataclass(frozen=True)
class CostlyMap:
    """One of the maps that take the most bytes.

    Arguments:
        name: Its name, or its number.
        shape: Its height and width.
        size: Its size in bytes. If it shares a block: the size if it were coded on its own.
        half: The smallest share of its pixels that holds half of the bits; None if the bits are not known.
        thumbnail: The map, with sides of at most 480 pixels.
        bits: The bits of its pixels, averaged down to sides of at most 480 pixels; None if they are not known.
        colors: The colors of its labels.
    """

    name: str
    shape: tuple[int, int]
    size: float
    half: float | None
    thumbnail: Array
    bits: Array | None
    colors: Coloring


class Task(NamedTuple):
    """What to do with a map, selected by its place in the index."""

    place: int
    in_sample: bool
    compared: bool  # compress it with other codecs
    drawn: bool  # draw it if it is one of the most expensive ones


class MeasuredMap(NamedTuple):
    """What was measured on a map."""

    task: Task
    counts: tuple[Array, Array]  # labels and the number of their pixels
    bits: tuple[Array, Array] | None  # labels and the bits of their pixels
    others: dict[str, int | None]  # codec → bytes; None if it cannot encode the map
    colors: Coloring


class Worker:
    """Measures the maps of an archive, in any number of threads."""

    def __init__(self, archive: Archive, codecs: Mapping[str, Encode]) -> None:
        self.archive, self.codecs = archive, codecs
        self.index = MapIndex(archive)
        self.model = archive.model if self.index.by_codec[self.index.blocks].any() else None
        self.classes = classes_of(archive)

    def measure_block(self, block: int, tasks: list[Task]) -> tuple[list[MeasuredMap], list[CostlyMap]]:
        """Measure maps of a block; also return the most expensive ones of those to be drawn."""
        encoded = self.archive.contents.read_block(block)
        arrays = self.archive.decode_block(encoded)
        found: list[MeasuredMap] = []
        costly: list[CostlyMap] = []
        for task in tasks:
            array = arrays[int(self.index.numbers[task.place]) - encoded.number]
            explained = _explained(self.model, array) if self.index.by_codec[block] else None
            found.append(self._measure_map(task, array, explained))
            if task.drawn:
                costly = most_costly([*costly, self._draw_map(task, array, explained, found[-1].colors)])
        return found, costly

    def _measure_map(self, task: Task, array: Array, explained: tuple[Array, Array] | None) -> MeasuredMap:
        counts = _totals(array)
        return MeasuredMap(
            task,
            counts,
            None if explained is None else _totals(*explained),
            self._compressed(array, counts[0]) if task.compared else {},
            coloring(array, format_of(self.archive, int(self.index.numbers[task.place])), self.classes),
        )

    def _draw_map(self, task: Task, array: Array, explained: tuple[Array, Array] | None, colors: Coloring) -> CostlyMap:
        alone = self.index.decoded[self.index.blocks[task.place]] == array.size
        bits = None if explained is None else explained[1]
        return CostlyMap(
            FileReader(self.archive).name(int(self.index.numbers[task.place])),
            array.shape,
            float(self.index.sizes[task.place] if alone or bits is None else bits.sum(dtype=np.float64) / 8),
            None if bits is None else share_of_half(bits),
            thumbnail(array, _SIDE).copy(),
            None if bits is None else pooled(bits, _SIDE),
            colors,
        )

    def _compressed(self, array: Array, labels: Array) -> dict[str, int | None]:
        """Return the sizes of a map in the files of other codecs; none if it has too many labels for them."""
        if len(labels) > _MOST_LABELS:
            return {}
        small = np.searchsorted(labels, array).astype(np.uint8)  # the smallest PNG files have consecutive labels
        found: dict[str, int | None] = {}
        for name, encode in self.codecs.items():
            try:
                found[name] = len(encode(small))
            except Exception:  # libraries raise all kinds of errors; the sides of WebP images are limited, for example
                found[name] = None
        return found


def _explained(model: Any, array: Array) -> tuple[Array, Array] | None:
    """Return a map as a model codes it, which may have fewer pixels, and the bits of its pixels; None if unknown."""
    from ddf.labelmaps import CausalFlow
    from ddf.labelmaps.grid import find_grid

    if isinstance(model, CausalFlow):
        cells = find_grid(array).reduce(array)
        return cells, model.explain(cells).bits
    if hasattr(model, "to_latents"):  # a flow on PyTorch
        from ddf.analysis import bits_of

        for sample in (array.shape, (1, *array.shape), array.shape[1:]):
            if fits(sample, model.shape):
                symbols = model.classes.to_symbols(array).reshape(-1, *sample)
                return array, bits_of(model, symbols).by_symbol.reshape(array.shape)
    return None


def _totals(array: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Return the labels of a map, in ascending order, and for each the number or the total weight of its pixels."""
    flat = array.reshape(-1)
    low, high = int(array.min()), int(array.max())
    if high - low < _NARROW and high < 1 << 62 and low > -(1 << 62):
        places = flat.astype(np.int64) - low
        labels = np.flatnonzero(np.bincount(places))
        return labels + low, np.bincount(places, None if weights is None else weights.reshape(-1))[labels]
    labels, places = np.unique(flat, return_inverse=True)
    return labels, np.bincount(places.reshape(-1), None if weights is None else weights.reshape(-1))


def most_costly(maps: list[CostlyMap]) -> list[CostlyMap]:
    """Return the most expensive maps, in descending order of their sizes."""
    return sorted(maps, key=lambda one: -one.size)[:COSTLY]
