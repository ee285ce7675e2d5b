"""What an archive contains, where its bits are spent, and how large the files of other codecs would be."""

__all__ = ["ArchiveStatistics", "Comparison", "LabelShare", "Labels", "measure"]

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from ddf.archive import Archive
from ddf.archive.parallel import Pool, thread_count
from ddf.archive.pictures import Coloring
from ddf.classes import Classes, Color
from ddf.shapes import Array
from ddf.viz.map_index import MapIndex
from ddf.viz.measured_maps import COSTLY, CostlyMap, Encode, MeasuredMap, Task, Worker, most_costly

_LISTED = 24  # labels


@dataclass(frozen=True)
class Comparison:
    """The sizes of some maps in an archive and in the files of other codecs.

    Arguments:
        maps: The number of maps.
        pixels: The number of their pixels.
        size: Their size in the archive in bytes, without names and index.
        others: Codec → the size of all its files in bytes.
        failed: Codecs that cannot encode some of the maps.
    """

    maps: int
    pixels: int
    size: float
    others: dict[str, int]
    failed: tuple[str, ...]


@dataclass(frozen=True)
class LabelShare:
    """A label, and how much of some maps it accounts for.

    Arguments:
        label: The label.
        name: The name of its class, or "".
        color: Its color.
        pixels: The number of its pixels.
        bits: The bits that were spent on them, in the maps that the model coded.
    """

    label: int
    name: str
    color: Color
    pixels: int
    bits: float


@dataclass(frozen=True)
class Labels:
    """The labels of some maps.

    Arguments:
        maps: The number of maps.
        explained: How many of them the model coded, so that the bits of their pixels are known.
        count: The number of different labels.
        pixels: The number of pixels.
        bits: The bits that were spent on them, in the maps that the model coded.
        frequent: The most frequent labels, in descending order.
    """

    maps: int
    explained: int
    count: int
    pixels: int
    bits: float
    frequent: tuple[LabelShare, ...]


@dataclass(frozen=True)
class ArchiveStatistics:
    """The result of `measure`.

    Arguments:
        index: Its maps and their sizes.
        arrays: The number of arrays.
        size: The size of the archive in bytes.
        fingerprint: The fingerprint of its model; None if it has none.
        embedded: Whether the archive contains its model.
        pretrained: Whether its model is the one that is included in the package.
        comparison: The sizes of other codecs; None if no map was compared.
        labels: The labels of the maps in the sample.
        costly: The maps that take the most bytes.
    """

    index: MapIndex
    arrays: int
    size: int
    fingerprint: bytes | None
    embedded: bool
    pretrained: bool
    comparison: Comparison | None
    labels: Labels
    costly: tuple[CostlyMap, ...]

    @property
    def maps(self) -> int:
        """The number of label maps."""
        return len(self.index.numbers)

    @property
    def bits_per_pixel(self) -> Array:
        """The bits per pixel of each map."""
        return 8 * self.index.sizes / self.index.pixels


def measure(
    archive: Archive,
    max_maps: int = 50,
    codecs: Mapping[str, Encode] | None = None,
    progress: Callable[[Iterator[Any], int], Iterable[Any]] = lambda steps, total: steps,
) -> ArchiveStatistics:
    """Measure an archive. Totals are exact; labels and other codecs are measured on a random sample of its maps.

    Arguments:
        archive: The archive.
        max_maps: The largest number of maps in the sample.
        codecs: The other codecs by name: functions from maps of uint8 to bytes; None for those of `ddf.peers`.
        progress: A function that shows the progress of an iterator with a known number of steps.

    Raises:
        WrongModelError: The model of the archive is missing.
    """
    if codecs is None:
        from ddf.peers import peers

        codecs = peers()
    worker = Worker(archive, codecs)
    tasks = _tasks(worker.index, max_maps)

    def results() -> Iterator[tuple[list[MeasuredMap], list[CostlyMap]]]:
        pool: Pool[tuple[list[MeasuredMap], list[CostlyMap]]] = Pool(thread_count(archive.threads))
        try:
            for block, some in tasks.items():
                pool.submit(worker.measure_block, block, some)
                yield from pool.ready()
            yield from pool.rest()
        finally:
            pool.close()

    found: list[MeasuredMap] = []
    costly: list[CostlyMap] = []
    for some, drawn in progress(results(), len(tasks)):
        found += some
        costly = most_costly([*costly, *drawn])
    return _statistics(archive, worker, found, costly)


def _tasks(index: MapIndex, max_maps: int) -> dict[int, list[Task]]:
    """Return the tasks in each block."""
    sample, compared = map(set, index.sample(max_maps))
    drawn = set(np.flatnonzero(np.isin(index.blocks, index.costly_blocks(COSTLY))).tolist())
    tasks = [Task(place, place in sample, place in compared, place in drawn) for place in sorted(sample | drawn)]
    return {block: list(some) for block, some in groupby(tasks, lambda task: int(index.blocks[task.place]))}


def _statistics(
    archive: Archive, worker: Worker, found: list[MeasuredMap], costly: list[CostlyMap]
) -> ArchiveStatistics:
    """Add up what was measured. All pictures share one set of colors."""
    from ddf.labelmaps import pretrained

    sample = [one for one in found if one.task.in_sample]
    white = _white(found)
    fingerprint = archive.fingerprint if any(archive.fingerprint) else None
    return ArchiveStatistics(
        index=worker.index,
        arrays=len(archive),
        size=archive.size,
        fingerprint=fingerprint,
        embedded=archive.embeds_model,
        pretrained=fingerprint == pretrained().fingerprint,
        comparison=_comparison(worker, sample),
        labels=_labels(sample, worker.classes, white),
        costly=tuple(replace(one, colors=replace(one.colors, white=white)) for one in costly),
    )


def _white(found: list[MeasuredMap]) -> int | None:
    """Return the label that is shown in white because 0 is the only other label of all maps; None if there are more."""
    whites = {one.colors.white for one in found} - {None}
    white = whites.pop() if len(whites) == 1 else None
    others = {label for one in found for label in one.counts[0].tolist()} - {0, white}
    return None if others else white


def _comparison(worker: Worker, sample: list[MeasuredMap]) -> Comparison | None:
    compared = [one for one in sample if one.others]
    if not compared:
        return None
    failed = tuple(name for name in worker.codecs if any(one.others[name] is None for one in compared))
    places = [one.task.place for one in compared]
    return Comparison(
        maps=len(compared),
        pixels=int(worker.index.pixels[places].sum()),
        size=float(worker.index.sizes[places].sum()),
        others={name: sum(one.others[name] or 0 for one in compared) for name in worker.codecs if name not in failed},
        failed=failed,
    )


def _labels(sample: list[MeasuredMap], classes: Classes | None, white: int | None) -> Labels:
    pixels: Counter[int] = Counter()
    bits: dict[int, float] = defaultdict(float)
    known: dict[int, Color] = {}
    for one in sample:
        for label, count in zip(*(part.tolist() for part in one.counts), strict=True):
            pixels[label] += count
            if label in one.colors.known:
                known.setdefault(label, one.colors.known[label])
        for label, some in zip(*(part.tolist() for part in one.bits or ()), strict=True):
            bits[label] += some
    names = {} if classes is None else dict(zip(classes.values, classes.names, strict=False))
    colors = Coloring(known, white)
    frequent = sorted(pixels.items(), key=lambda item: (-item[1], item[0]))[:_LISTED]
    return Labels(
        maps=len(sample),
        explained=sum(one.bits is not None for one in sample),
        count=len(pixels),
        pixels=pixels.total(),
        bits=sum(bits.values()),
        frequent=tuple(
            LabelShare(label, names.get(label, ""), colors.of(label), count, bits[label]) for label, count in frequent
        ),
    )
