"""The causal flow: a trained model of label maps that scores, samples and compresses them in integer arithmetic."""

__all__ = ["CausalFlow", "Explanation"]

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ddf.classes import Classes, classes_from_plain
from ddf.errors import DamagedFileError, InvalidCodeError
from ddf.files import atomic_write
from ddf.labelmaps.arithmetic import COUNT_BITS, PROBABILITY_BITS
from ddf.labelmaps.coding import Coding, limits
from ddf.labelmaps.context import RELATIVE
from ddf.labelmaps.grid import find_grid
from ddf.labelmaps.labels import MOST_LABELS, labels_of, looks_like_noise, lookup
from ddf.labelmaps.parameters import check
from ddf.labelmaps.state import Nets, State, Trace
from ddf.lazy import lazy
from ddf.modelfile import about, arrays_from_bytes, arrays_to_bytes, reading
from ddf.shapes import Array

_HALF = np.uint32(1 << (PROBABILITY_BITS - 1 + COUNT_BITS))
_LOCAL_BITS = (8, 18)  # minimum and maximum size (log2) of the tables that start empty for every array
_SAMPLE_LABELS = 8  # number of labels in samples of a model without known classes
_HIGHEST = (1 << 64) - 1  # too large to be coded as the smallest label
_WIDEST = 1 << 18  # pixels of a row; wider maps would take much memory


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
        classes: The classes that the model was trained on; None for a model that accepts any labels.
        about: Additional metadata for the model file.

    Examples:
        >>> from ddf.labelmaps import pretrained
        >>> model = pretrained()
        >>> disc = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.uint8) * 255
        >>> code = model.compress(disc)
        >>> len(code) < 60
        True
        >>> np.array_equal(model.decompress(code, disc.shape, disc.dtype), disc)
        True
    """

    shape = (1, None, None)

    def __init__(
        self, arrays: Mapping[str, Array], classes: Classes | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.arrays = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
        self.classes = classes
        self.about = dict(about or {})
        check(self.arrays, self.num_classes)

    @property
    def num_classes(self) -> int:
        """The number of known classes; 0 for a model that accepts any labels."""
        return 0 if self.classes is None else self.classes.num_classes

    @lazy
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
        with reading(f"{name} is damaged"):
            known = header.get("classes")
            classes = None if known is None else classes_from_plain(known)
            if classes is not None and not isinstance(classes, Classes):
                raise ValueError("its classes are columns of a table")
            return cls(arrays, classes, about(header))

    def __reduce__(self) -> "tuple[Any, ...]":
        return CausalFlow.from_bytes, (self.to_bytes(),)

    # ---- Compression

    def compress(self, array: Array) -> bytes | None:
        """Compress an array of label maps (…, height, width).

        Returns:
            The code, or None if the array does not hold label maps: it has fewer than two dimensions, is empty, is
            wider than 262,144, looks like noise, or has more than 65,535 labels.
        """
        array = np.asarray(array)
        if array.dtype.kind not in "iub":
            raise TypeError(f"label maps are arrays of integers, not of {array.dtype}")
        if not _codable(array.shape) or looks_like_noise(array):
            return None
        labels = labels_of(array)
        if labels is None or labels[0] >= _HIGHEST:
            return None
        coding = Coding(self, labels, array.size)
        grid = find_grid(array)
        coding.write_header(array.dtype, grid)
        to_symbols = lookup(coding.labels, array.dtype)
        for one in array.reshape(-1, *array.shape[-2:]):
            coding.code_map(grid.reduce(one), to_symbols=to_symbols)
        return coding.finish()

    def decompress(self, data: bytes, shape: tuple[int, ...], dtype: "np.dtype[Any] | type") -> Array:
        """Decompress the code of an array, given its shape and dtype.

        A damaged code usually decodes to some other map without an error; archives detect this by their checksums.
        """
        dtype = np.dtype(dtype)
        if not _codable(shape):
            raise InvalidCodeError(f"arrays of shape {shape} are never coded as label maps")
        coding = Coding(self, None, prod(shape), data)
        grid = coding.read_header(dtype, (shape[-2], shape[-1]))
        low, high = limits(dtype)
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
        coding = Coding(self, labels_of(array), array.size)
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
        coding = Coding(self, labels, array.size)
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
            coding = Coding(self, labels, prod(size), noise)
            coding.code_map(one, values=np.array(coding.labels, np.int64))
        return out

    # ---- Inputs of the kernel

    @lazy
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


def _codable(shape: tuple[int, ...]) -> bool:
    """Return whether an array may consist of label maps."""
    return len(shape) >= 2 and min(shape) > 0 and shape[-1] <= _WIDEST
