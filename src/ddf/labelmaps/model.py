"""The causal flow: a trained model of label maps that scores, samples and compresses them in integer arithmetic."""

__all__ = ["CausalFlow"]

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ddf.archive.protocol import Array, InvalidCodeError
from ddf.data.classes import Classes, classes_from_plain
from ddf.files import atomic_write
from ddf.labelmaps.arithmetic import (
    CODER_SIZE,
    COUNT_BITS,
    PENDING,
    POSITION,
    PROBABILITY_BITS,
    code_bit,
    code_number,
    finish,
    start_decoder,
    start_encoder,
)
from ddf.labelmaps.compiling import announce
from ddf.labelmaps.context import (
    CANDIDATES,
    FLAT_ENTRIES,
    NET_RUN_VALUES,
    RELATIVE,
    RUNS,
    new_ring,
    offsets,
    start_map,
)
from ddf.labelmaps.grid import Grid, find_grid
from ddf.labelmaps.kernel import (
    CONFIDENCE,
    DECISIONS,
    FLAT_BINS,
    GAPS,
    MIXED,
    NEXT_GAPS,
    Nets,
    State,
    Trace,
    code_rows,
    new_scratch,
)
from ddf.labelmaps.labels import MOST_LABELS, labels_of, looks_like_noise, lookup
from ddf.modelfile import DamagedFileError, arrays_from_bytes, arrays_to_bytes

_CHUNK = 1 << 17  # pixels coded per kernel call
_MOST_BYTES = 24  # upper bound on the bytes of a pixel
_HALF = np.uint32(1 << (PROBABILITY_BITS - 1 + COUNT_BITS))
_KNOWN = (1 << PROBABILITY_BITS) - (1 << 17)  # probability that all labels are classes of the model: 31/32
_PLAIN = (1 << PROBABILITY_BITS) - (1 << 14)  # probability that a map is not upsampled: 255/256
_NO_TRACE = Trace(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.int32))
_LOCAL_BITS = (8, 18)  # minimum and maximum size (log2) of the tables that start empty for every array
_SAMPLE_LABELS = 8  # number of labels in samples of a model without known classes
_HIGHEST = (1 << 64) - 1  # too large to be coded as the smallest label
_INT16, _FLOAT24 = 1 << 15, 1 << 24


@dataclass(frozen=True)
class Explanation:
    """How a flow codes a map, pixel by pixel.

    Arguments:
        bits: Number of bits spent on each pixel.
        ranks: Rank of each pixel under the prediction: 0 where the prediction was right.
        margins: Margin between the best and the second-best class, in nats.
    """

    bits: Array
    ranks: Array
    margins: Array


class CausalFlow:
    """An autoregressive Discrete Denoising Flow that replaces each pixel by its rank given the preceding pixels.

    A small integer net ranks the classes that occur nearby. The rank is coded with counters that are selected by the
    net's confidence and adapt while a map is coded.

    Arguments:
        arrays: The integer parameters, by name; see docs/format.md.
        classes: The classes that the model was trained on; None for a model of any labels.
        about: Additional metadata for the model file.

    Examples:
        >>> from ddf.labelmaps import pretrained
        >>> model = pretrained()
        >>> disc = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.uint8) * 255
        >>> code = model.encode(disc)
        >>> len(code) < 60
        True
        >>> np.array_equal(model.decode(code, disc.shape, disc.dtype), disc)
        True
    """

    shape = (1, None, None)

    def __init__(
        self, arrays: Mapping[str, Array], classes: Classes | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.arrays = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
        self.classes = classes
        self.about = dict(about or {})
        _check(self.arrays, self.num_classes)

    @property
    def num_classes(self) -> int:
        """The number of classes that the model knows; 0 for a model of any labels."""
        return 0 if self.classes is None else self.classes.num_classes

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash of 16 bytes that identifies the model."""
        sha = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name, array in self.arrays.items():
            sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
        return sha.digest()[:16]

    def __repr__(self) -> str:
        pixels, _, width = self.arrays["pixels"].shape
        known = f"{self.num_classes} classes" if self.classes else "any labels"
        return f"CausalFlow({known}, {pixels} pixels, hidden=({width}, {self.arrays['second'].shape[1]}))"

    # ---- Files

    def _header(self) -> dict[str, Any]:
        return {"kind": "labelmaps", "classes": None if self.classes is None else self.classes.to_plain()}

    def to_bytes(self) -> bytes:
        """Return the contents of the model file."""
        return arrays_to_bytes(self.arrays, self._header() | ({"about": self.about} if self.about else {}))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file."""
        data = self.to_bytes()
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the model") -> "CausalFlow":
        """Load a model from the contents of a model file; `name` is used in error messages."""
        arrays, header = arrays_from_bytes(data, name)
        if header.get("kind") != "labelmaps":
            raise DamagedFileError(f"{name} is not a model of label maps (its kind is {header.get('kind')!r})")
        try:
            known = header.get("classes")
            classes = None if known is None else classes_from_plain(known)
            if classes is not None and not isinstance(classes, Classes):
                raise ValueError("its classes are columns of a table")
            return cls(arrays, classes, header.get("about"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedFileError(f"{name} is damaged: {error}") from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "CausalFlow":
        """Load a model from a file."""
        return cls.from_bytes(Path(path).read_bytes(), str(path))

    # ---- Compression

    def encode(self, array: Array) -> bytes | None:
        """Compress an array of label maps (…, height, width).

        Returns:
            The code, or None if the array does not hold label maps: it has fewer than two dimensions, is empty, looks
            like noise, or has more than 65,535 labels.
        """
        array = np.asarray(array)
        if array.dtype.kind not in "iub":
            raise TypeError(f"label maps are arrays of integers, not of {array.dtype}")
        if array.ndim < 2 or not array.size or looks_like_noise(array):
            return None
        labels = labels_of(array)
        if labels is None or labels[0] >= _HIGHEST:
            return None
        coding = _Coding(self, labels, array.size)
        grid = find_grid(array)
        coding.write_header(array.dtype, grid)
        to_symbols = lookup(coding.labels, array.dtype)
        for one in array.reshape(-1, *array.shape[-2:]):
            coding.code_map(grid.reduce(one), to_symbols=to_symbols)
        return coding.finish()

    def decode(self, data: bytes, shape: tuple[int, ...], dtype: "np.dtype[Any] | type") -> Array:
        """Decompress the code of an array, given its shape and dtype.

        A damaged code usually decodes to some other map without an error; archives detect this by their checksums.
        """
        dtype = np.dtype(dtype)
        if len(shape) < 2 or min(shape) < 1:
            raise InvalidCodeError(f"shape {shape} is invalid: label maps are nonempty, with at least two dimensions")
        coding = _Coding(self, None, prod(shape), data)
        grid = coding.read_header(dtype, (shape[-2], shape[-1]))
        low, high = _limits(dtype)
        values = np.array([min(max(label, low), high) for label in coding.labels], dtype)  # known labels may not fit
        out = np.empty((prod(shape[:-2]), *shape[-2:]), dtype)
        for one in out:
            small = one if grid.is_trivial else np.empty(grid.shape, dtype)
            coding.code_map(small, values=values)
            if small is not one:
                one[...] = grid.expand(small)
        return out.reshape(shape)

    # ---- Scoring and sampling

    def bits(self, array: Array) -> Array:
        """Return the size in bits of each map of an array (…, height, width), coded independently, without headers."""
        maps = np.asarray(array).reshape(-1, *np.shape(array)[-2:])
        return np.array([self.explain(one).bits.sum(dtype=np.float64) for one in maps]).reshape(np.shape(array)[:-2])

    def log_prob(self, array: Array) -> Array:
        """Return the log-probability of each map of an array of labels (…, height, width), in nats."""
        return -np.log(2) * self.bits(array)

    def bits_per_dim(self, array: Array) -> Array:
        """Return the bits per pixel of each map of an array of labels (…, height, width)."""
        return self.bits(array) / max(1, prod(np.shape(array)[-2:]))

    def learn(self, array: Array) -> State:
        """Return the adaptive state after coding a map (height, width)."""
        coding = _Coding(self, labels_of(array), array.size)
        coding.code_map(array, to_symbols=lookup(coding.labels, array.dtype))
        return coding.state

    def explain(self, array: Array) -> Explanation:
        """Return the bits, rank and margin of every pixel of a map (height, width)."""
        array = np.asarray(array)
        if array.ndim != 2 or not array.size or array.dtype.kind not in "iub":
            raise ValueError(
                f"a label map has integer labels (height, width), but this array is {array.dtype} {array.shape}"
            )
        labels = labels_of(array)
        if labels is None:
            raise ValueError(f"the map has too many labels: at most {MOST_LABELS:,} are supported")
        coding = _Coding(self, labels, array.size)
        found = Trace(
            np.zeros(array.shape, np.float32), np.zeros(array.shape, np.uint8), np.zeros(array.shape, np.int32)
        )
        coding.code_map(array, to_symbols=lookup(coding.labels, array.dtype), trace=found)
        return Explanation(found.bits, found.ranks, found.margins / np.float32(256))

    def sample(self, n: int, size: Sequence[int], seed: int = 0) -> Array:
        """Sample maps by decoding random bytes.

        Arguments:
            n: Number of maps.
            size: Height and width.
            seed: Random seed.

        Returns:
            Labels (n, height, width), int64.
        """
        if n < 0 or len(size) != 2 or min(size) < 1:
            raise ValueError(f"n={n}, size={tuple(size)}: pass n ≥ 0, and a positive height and width as size")
        rng = np.random.default_rng(seed)
        out = np.empty((n, *size), np.int64)
        for one in out:
            noise = rng.bytes(4 * prod(size) + 4096)
            labels = None if self.classes else list(range(_SAMPLE_LABELS))
            coding = _Coding(self, labels, prod(size), noise)
            coding.code_map(one, values=np.array(coding.labels, np.int64))
        return out

    # ---- Inputs of the kernel

    @cached_property
    def nets(self) -> Nets:
        """The fixed parameters, in the form that the kernel expects."""
        a = self.arrays
        single = a["pixels"].astype(np.int16)
        pairs = (single[0::2, :, None, :] + single[1::2, None, :, :]).reshape(-1, RELATIVE * RELATIVE, single.shape[2])
        parts = [
            np.ascontiguousarray(pairs),
            *(a[name].astype(np.int16) for name in ("runs", "classes", "rows", "bias")),
            *(a[name].astype(np.float32) for name in ("second", "second_bias", "third", "third_bias")),
            a["shifts"].astype(np.int64),
            *(a[name].astype(np.int16) for name in ("flat", "flat_classes")),
        ]
        return Nets(*parts)

    def new_state(self, symbols: int, known: bool, pixels: int) -> State:
        """Return the adaptive state for the beginning of an array."""
        a = self.arrays
        bits = min(max((pixels // 4).bit_length(), _LOCAL_BITS[0]), _LOCAL_BITS[1])
        return State(
            a["ranks"].copy(),
            a["flat_counters"].copy(),
            np.zeros((2, 1 << bits), np.uint32),
            a["weights"].astype(np.int64),
            a["escapes"].astype(np.int64) if known else np.zeros((0, 0), np.int64),
            np.zeros(symbols, np.int64),
            np.full(2, _HALF, np.uint32),
        )


class _Coding:
    """Encodes or decodes one array.

    Arguments:
        model: The model.
        labels: The labels that occur, sorted; None to decode them or to use the model's.
        pixels: The size of the array.
        data: The code to decode; None to encode.
    """

    def __init__(self, model: CausalFlow, labels: list[int] | None, pixels: int, data: bytes | None = None) -> None:
        announce()
        self.model, self.pixels = model, pixels
        self.decoding = data is not None
        self.coder = np.zeros(CODER_SIZE, np.uint64)
        self.out = bytearray()
        self.counters = np.full(64, _HALF, np.uint32)
        if data is None:
            self.data = np.zeros(1024, np.uint8)
            start_encoder(self.coder)
        else:
            self.data = np.frombuffer(data, np.uint8).copy()  # writable, as the kernel expects
            start_decoder(self.coder, self.data)
        own = () if model.classes is None else model.classes.values
        self.known = bool(own) and (labels is None or set(labels) <= set(own))
        self.labels: list[int] = list(own) if self.known else list(labels or ())

    # ---- The header

    def _bit(self, bit: bool, probability: int) -> bool:
        return bool(code_bit(self.coder, self.data, self.decoding, int(bit), probability))

    def _number(self, value: int = 1) -> int:
        if not self.decoding and int(self.coder[POSITION] + self.coder[PENDING]) + 256 > len(self.data):
            self._drain()
        return int(code_number(self.coder, self.data, self.decoding, np.uint64(value), self.counters))

    def write_header(self, dtype: "np.dtype[Any]", grid: Grid) -> None:
        """Encode the header, which applies to all maps of the array."""
        self._code_header(dtype, grid)

    def read_header(self, dtype: "np.dtype[Any]", size: tuple[int, int]) -> Grid:
        """Decode the header, which applies to all maps of the array."""
        return self._code_header(dtype, Grid(size))

    def _code_header(self, dtype: "np.dtype[Any]", grid: Grid) -> Grid:
        if self._bit(not grid.is_trivial, (1 << PROBABILITY_BITS) - _PLAIN):
            numbers = [self._number(value + 1) - 1 for value in grid.numbers]
            if self.decoding:
                grid = Grid.from_numbers(grid.size, numbers)
        if self.model.classes is not None:
            self.known = self._bit(self.known, _KNOWN)
        if not self.known:
            self._code_labels(dtype)
        return grid

    def _code_labels(self, dtype: "np.dtype[Any]") -> None:
        """Code the set of labels: their number, the first, and the differences between consecutive labels."""
        count = self._number(len(self.labels) or 1)
        if count > MOST_LABELS:
            raise InvalidCodeError(f"{count} labels in one array, but at most {MOST_LABELS} are supported")
        labels = self.labels if not self.decoding else [0] * count
        first = labels[0] << 1 if labels[0] >= 0 else -labels[0] * 2 - 1
        self.counters[:] = _HALF
        first = (self._number((first >> 1) + 1) - 1) << 1 | int(self._bit(bool(first & 1), 1 << (PROBABILITY_BITS - 1)))
        labels[0] = first >> 1 if first & 1 == 0 else -(first + 1 >> 1)
        self.counters[:] = _HALF
        for i in range(1, count):
            labels[i] = labels[i - 1] + self._number(labels[i] - labels[i - 1] if not self.decoding else 1)
        low, high = _limits(dtype)
        if not low <= labels[0] <= labels[-1] <= high:
            raise InvalidCodeError(f"labels from {labels[0]} to {labels[-1]} do not fit {dtype}")
        self.labels = labels

    # ---- Maps

    @cached_property
    def state(self) -> State:
        return self.model.new_state(len(self.labels), self.known, self.pixels)

    @cached_property
    def classes(self) -> Array:
        """The model's class of every symbol, and of `outside`; unknown labels have the class `num_classes`."""
        unknown = self.model.num_classes
        own = () if self.model.classes is None else self.model.classes.values
        place = {label: i for i, label in enumerate(own)}
        return np.array([place.get(label, unknown) for label in self.labels] + [unknown], np.int64)

    def code_map(
        self, one: Array, to_symbols: Any = None, values: Array | None = None, trace: Trace = _NO_TRACE
    ) -> None:
        """Encode a map with `to_symbols`, or decode it with `values`, in chunks of rows."""
        height, width = one.shape
        ring = new_ring(width)
        start_map(ring, len(self.labels))
        hidden = self.model.arrays["second"].shape
        scratch = new_scratch(len(self.labels), offsets(len(self.model.arrays["pixels"])), width, hidden)
        step = max(1, _CHUNK // width)
        for row in range(0, height, step):
            part = one[row : row + step]
            if not self.decoding:
                self._drain(part.size)
                symbols = np.ascontiguousarray(to_symbols(part))
            else:
                symbols = np.empty(part.shape, np.uint16)
            some = Trace(*(array[row : row + step] for array in trace))
            code_rows(
                symbols, row, height, self.classes, self.model.nets, self.state, ring, scratch,
                self.model.arrays["settings"], self.coder, self.data, self.decoding, some,
            )  # fmt: skip
            if values is not None:
                part[...] = values[symbols]

    def _drain(self, pixels: int = 0) -> None:
        """Move finished bytes out of the buffer, and make room for the given number of pixels."""
        done = int(self.coder[POSITION])
        self.out += self.data[:done].tobytes()
        self.coder[POSITION] = 0
        room = pixels * _MOST_BYTES + int(self.coder[PENDING]) + 1024
        if len(self.data) < room:
            self.data = np.zeros(room, np.uint8)

    def finish(self) -> bytes:
        """Return the code."""
        self._drain()
        length = int(finish(self.coder, self.data))
        return bytes(self.out + self.data[:length].tobytes()).rstrip(b"\0")


def _limits(dtype: "np.dtype[Any]") -> tuple[int, int]:
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


_SHAPES: dict[str, tuple[str, tuple[int | str, ...]]] = {
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


def _check(arrays: Mapping[str, Array], classes: int) -> None:
    """Raise a `ValueError` for unexpected names, dtypes or shapes, and for nets whose sums could overflow."""
    if set(arrays) != set(_SHAPES):
        raise ValueError(f"it has the arrays {sorted(arrays)}, but expected {sorted(_SHAPES)}")
    sizes: dict[str, int] = {"classes": classes + 1, "known": classes}
    for name, (dtype, wanted) in _SHAPES.items():
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
