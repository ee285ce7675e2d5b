"""The state of coding one array of label maps: the header of its code, then its maps, a few rows at a time."""

__all__ = ["Coding", "limits"]

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ddf.errors import InvalidCodeError
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
from ddf.labelmaps.context import Ring, new_ring, offsets, start_map
from ddf.labelmaps.grid import Grid
from ddf.labelmaps.kernel import code_rows
from ddf.labelmaps.labels import MOST_LABELS
from ddf.labelmaps.state import Scratch, State, Trace, new_scratch
from ddf.lazy import lazy
from ddf.shapes import Array

if TYPE_CHECKING:
    from ddf.labelmaps.model import CausalFlow

_CHUNK = 1 << 17  # pixels coded per kernel call
_MOST_BYTES = 24  # upper bound on the bytes of a pixel
_HALF = np.uint32(1 << (PROBABILITY_BITS - 1 + COUNT_BITS))
_KNOWN = (1 << PROBABILITY_BITS) - (1 << 17)  # probability that all labels are classes of the model: 31/32
_PLAIN = (1 << PROBABILITY_BITS) - (1 << 14)  # probability that a map is not upsampled: 255/256
_NO_TRACE = Trace(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.int32))


# Held while compiled code is loaded for the first time. A process that is forked meanwhile would otherwise wait forever
# for the locks of numba and of Python's imports.
_loading = threading.RLock()
_state = {"begun": False, "ready": False}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _prepare(model: "CausalFlow") -> None:
    """Load all compiled code when the first array is coded."""
    if _state["ready"]:
        return
    with _loading:
        if _state["begun"]:  # in this thread: the others wait
            return
        _state["begun"] = True
        try:
            announce()
            array = np.kron(np.eye(4, dtype=np.int64), np.full((3, 5), 98_765))
            model.decompress(model.compress(array) or b"", array.shape, array.dtype)
            _state["ready"] = True
        finally:
            _state["begun"] = _state["ready"]


class Coding:
    """Encodes or decodes one array.

    Arguments:
        model: The model.
        labels: The labels that occur, sorted; None to decode them or to use the model's.
        pixels: The size of the array.
        data: The code to decode; None to encode.
    """

    def __init__(self, model: "CausalFlow", labels: list[int] | None, pixels: int, data: bytes | None = None) -> None:
        _prepare(model)
        self.model, self.pixels = model, pixels
        self.decoding = data is not None
        self.coder = np.zeros(CODER_SIZE, np.uint64)
        self.out = bytearray()
        self.counters = np.full(64, _HALF, np.uint32)
        self.workspace: tuple[Ring, Scratch] | None = None
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
        low, high = limits(dtype)
        if not low <= labels[0] <= labels[-1] <= high:
            raise InvalidCodeError(f"labels from {labels[0]} to {labels[-1]} do not fit {dtype}")
        self.labels = labels

    # ---- Maps

    @lazy
    def state(self) -> State:
        return self.model.new_state(len(self.labels), self.known, self.pixels)

    @lazy
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
        if self.workspace is None:  # all maps of an array have one size
            near = offsets(len(self.model.arrays["pixels"]))
            hidden = self.model.arrays["second"].shape
            self.workspace = new_ring(width), new_scratch(len(self.labels), near, width, hidden)
        ring, scratch = self.workspace
        start_map(ring, len(self.labels))
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


def limits(dtype: "np.dtype[Any]") -> tuple[int, int]:
    """Return the smallest and the largest value of a dtype."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
