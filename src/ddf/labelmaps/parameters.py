"""The parameters of a causal flow: names, dtypes and shapes of its arrays, and what keeps their sums exact."""

__all__ = ["SHAPES", "check"]

from collections.abc import Mapping

import numpy as np

from ddf.labelmaps.arithmetic import COUNT_BITS
from ddf.labelmaps.context import CANDIDATES, FLAT_ENTRIES, NET_RUN_VALUES, RELATIVE, RUNS
from ddf.labelmaps.labels import MOST_LABELS
from ddf.labelmaps.state import CONFIDENCE, DECISIONS, FLAT_BINS, GAPS, MIXED, NEXT_GAPS
from ddf.shapes import Array

_INT16, _FLOAT24 = 1 << 15, 1 << 24

SHAPES: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "pixels": ("int16", ("pixels", RELATIVE, "first")),
    "runs": ("int16", (RUNS, NET_RUN_VALUES, "first")),
    "classes": ("int16", ("shown", "classes", "first")),
    "rows": ("int16", ("rows", "first")),
    "bias": ("int16", ("first",)),
    "second": ("int16", ("first", "second")),
    "second_bias": ("int32", ("second",)),
    "third": ("int16", ("second", 8)),
    "third_bias": ("int32", (8,)),
    "shifts": ("int8", (3,)),
    "flat": ("int16", (FLAT_ENTRIES,)),
    "flat_classes": ("int16", ("classes", "bins")),
    "flat_counters": ("uint32", (FLAT_BINS,)),
    "ranks": ("uint32", (DECISIONS * GAPS * NEXT_GAPS,)),
    "weights": ("int32", (DECISIONS * CONFIDENCE * CONFIDENCE, MIXED)),
    "escapes": ("uint16", ("classes", "known")),
    "settings": ("int64", (5,)),
}


def check(arrays: Mapping[str, Array], classes: int) -> None:
    """Raise a `ValueError` for unexpected names, dtypes or shapes, and for nets whose sums could overflow."""
    if set(arrays) != set(SHAPES):
        raise ValueError(f"it has the arrays {sorted(arrays)}, but expected {sorted(SHAPES)}")
    if classes > MOST_LABELS:
        raise ValueError(f"it has {classes} classes, but at most {MOST_LABELS} are supported")
    sizes: dict[str, int] = {"classes": classes + 1, "known": classes}
    for name, (dtype, wanted) in SHAPES.items():
        array = arrays[name]
        fits = array.ndim == len(wanted) and array.dtype == dtype
        for want, have in zip(wanted, array.shape, strict=False):
            fits &= have == (want if isinstance(want, int) else sizes.setdefault(want, have))
        if not fits:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, but expected {dtype} of shape {wanted}")
    if not 10 <= sizes["pixels"] <= 256 or sizes["pixels"] % 2 or sizes["rows"] not in (0, sizes["bins"]):
        raise ValueError(f"unsupported sizes: {sizes['pixels']} pixels, {sizes['rows']} rows and {sizes['bins']} bins")
    if (
        sizes["shown"] > CANDIDATES
        or not 1 <= sizes["bins"] <= 256
        or not 1 <= sizes["first"] * sizes["second"] <= 1 << 20
    ):
        raise ValueError(f"unsupported sizes: {sizes}")
    first = np.abs(arrays["bias"].astype(np.int64))
    for name in ("pixels", "runs", "classes"):
        first = first + np.abs(arrays[name].astype(np.int64)).max(axis=1, initial=0).sum(axis=0)
    first = first + np.abs(arrays["rows"].astype(np.int64)).max(axis=0, initial=0)
    if first.max() >= _INT16:
        raise ValueError(f"sums of the first layer reach {first.max()}, but must be less than {_INT16} to fit int16")
    for name in ("second", "third"):
        most = (255 * np.abs(arrays[name].astype(np.int64))).sum(axis=0) + np.abs(
            arrays[f"{name}_bias"].astype(np.int64)
        )
        if most.max() >= _FLOAT24:
            raise ValueError(f"sums of the {name} layer reach {most.max()}, but are exact only below {_FLOAT24}")
    shifts, settings = arrays["shifts"], arrays["settings"]
    if (
        shifts.min() < 0
        or shifts.max() > 24
        or settings.min() < 0
        or settings.max() > 1 << 16
        or settings[:3].max() > 1023
    ):
        raise ValueError(f"shifts {shifts.tolist()} or settings {settings.tolist()} are out of range")
    if classes and arrays["escapes"].min() < 1:
        raise ValueError("escape weights must be at least 1")
    if classes and arrays["escapes"].sum(axis=1, dtype=np.int64).max() > 1 << 16:
        raise ValueError("escape weights are too large")
    if (arrays["flat_counters"] >> COUNT_BITS).min() < 1:
        raise ValueError("a counter has probability 0")
