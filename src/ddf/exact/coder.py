"""The entropy coder: symbols and their integer frequencies in, bytes out, and back."""

__all__ = ["Decoder", "Encoder", "Prediction"]

from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any

import numpy as np

from ddf.archive.protocol import Array, InvalidCodeError
from ddf.exact.frequencies import PRECISION

_WORD = 32  # bits that the coder writes at a time
_STATE = 64


@dataclass(frozen=True)
class Prediction:
    """The predicted frequencies of symbols.

    Arguments:
        table: Frequencies (rows, K) that symbols share.
        place: The row of the table for each symbol, −1 for those with a row of their own.
        rows: Frequencies (symbols with place −1, K), in order.
    """

    table: Array
    place: Array
    rows: Array

    def __len__(self) -> int:
        return len(self.place)

    def costs(self, symbols: Array) -> Array:
        """Return the bits that each symbol takes."""
        symbols = symbols.astype(np.int64)
        own = self.place < 0
        taken = np.empty(len(symbols))
        taken[~own] = self.table[self.place[~own], symbols[~own]]
        taken[own] = self.rows[np.arange(len(self.rows)), symbols[own]]
        return np.asarray(PRECISION - np.log2(taken))

    def draw(self, points: Array) -> Array:
        """Return the symbols at points 0 … 2^16 − 1: random points give random symbols."""
        own = self.place < 0
        symbols = np.empty(len(self), dtype=np.int64)
        symbols[own] = (self.rows.cumsum(axis=1) <= points[own, None]).sum(axis=1)
        if len(self.table):
            symbols[~own] = (self.table.cumsum(axis=1)[self.place[~own]] <= points[~own, None]).sum(axis=1)
        return symbols

    def groups(self) -> "tuple[Array, list[tuple[slice, Array]]]":
        """Return the order in which the symbols are coded, and which of them share frequencies or have a row each.

        First come those of row 0 of the table, then those of row 1 and so on, last those with a row of their own.
        """
        keys = np.where(self.place < 0, len(self.table), self.place)
        if len(self.table) < 256:
            keys = keys.astype(np.uint8)  # NumPy sorts bytes in one pass
        order = np.argsort(keys, kind="stable")
        found = []
        start = 0
        for row, count in enumerate(np.bincount(keys, minlength=len(self.table) + 1).tolist()):
            if count:
                found.append((slice(start, start + count), self.rows if row == len(self.table) else self.table[row]))
            start += count
        return order, found


def _weights(frequencies: Array) -> Array:
    """Return the weights of the coder's model.

    It adds 1 of 2^24 to each weight and scales the sum to 2^24: weights of 256 f − 1 make that scale exactly 1. They
    are in C order because constriction misreads the rows of other arrays.
    """
    weights = np.multiply(frequencies, 256, dtype=np.float32, order="C", casting="unsafe")
    weights -= 1
    return weights


@lru_cache(maxsize=4096)
def _shared_model(frequencies: bytes) -> Any:
    import constriction

    return constriction.stream.model.Categorical(_weights(np.frombuffer(frequencies, dtype=np.int32)), perfect=False)


def _model(frequencies: Array) -> tuple[Any, tuple[Array, ...]]:
    """Return the coder's model of integer frequencies, and its parameters."""
    import constriction

    if frequencies.ndim == 1:
        return _shared_model(frequencies.astype(np.int32).tobytes()), ()
    return constriction.stream.model.Categorical(perfect=False), (_weights(frequencies),)


class Encoder:
    """A range encoder: the decoder returns symbols in the order in which they were encoded.

    Examples:
        >>> frequencies = np.array([[60000, 5536], [5536, 60000]], dtype=np.int32)
        >>> prediction = Prediction(frequencies, np.array([0, 1, 1]), np.empty((0, 2), np.int32))
        >>> encoder = Encoder()
        >>> encoder.put(np.array([0, 1, 0]), prediction)
        >>> data = encoder.finish()
        >>> len(data)
        1
        >>> Decoder(data).take(prediction)
        array([0, 1, 0], dtype=int32)
    """

    def __init__(self) -> None:
        import constriction

        self._coder = constriction.stream.queue.RangeEncoder()

    def put(self, symbols: Array, prediction: Prediction) -> None:
        """Encode symbols."""
        if prediction.table.shape[1] == 1:
            return  # one class takes no bits
        order, groups = prediction.groups()
        chosen = symbols.astype(np.int32)[order]
        for which, frequencies in groups:
            model, parameters = _model(frequencies)
            self._coder.encode(chosen[which], model, *parameters)

    @property
    def bits(self) -> float:
        """The bits of the symbols so far, without the end of the code."""
        count, (_, size) = self._coder.pos()
        return _WORD * count + _STATE - log2(size)

    def finish(self) -> bytes:
        """Return the shortest bytes that, followed by zeros, lie in the interval that is left."""
        words = np.asarray(self._coder.get_compressed(), dtype=np.uint32)
        if not len(words):
            return b""
        count, (lower, size) = self._coder.pos()
        upper = lower + size
        carried = lower + (1 << _WORD) - 1 >= 1 << _STATE  # into the bytes before
        if carried:
            lower = 1 << _STATE
        zeros = _STATE
        while zeros and -(-lower >> zeros) << zeros >= upper:
            zeros -= 8
        carry, point = divmod(-(-lower >> zeros) << zeros, 1 << _STATE)
        before = words[:count].astype(">u4").tobytes()
        if carry and not carried:
            before = (int.from_bytes(before, "big") + 1).to_bytes(len(before), "big")
        return (before + point.to_bytes(_STATE // 8, "big")).rstrip(b"\0")


class Decoder:
    """Decodes what an `Encoder` encoded, given the same predictions in the same order."""

    def __init__(self, data: bytes) -> None:
        import constriction

        padded = data + bytes(-len(data) % 4 + 8)
        self._coder = constriction.stream.queue.RangeDecoder(np.frombuffer(padded, dtype=">u4").astype(np.uint32))

    def take(self, prediction: Prediction) -> Array:
        """Return the next symbols. Those of a damaged code are arbitrary; only a checksum detects that."""
        symbols = np.zeros(len(prediction), dtype=np.int32)
        if prediction.table.shape[1] == 1:
            return symbols
        order, groups = prediction.groups()
        chosen = np.empty(len(prediction), dtype=np.int32)
        for which, frequencies in groups:
            model, parameters = _model(frequencies)
            arguments = parameters or (which.stop - which.start,)
            try:
                chosen[which] = self._coder.decode(model, *arguments)
            except AssertionError as error:  # which constriction raises if it detects the damage
                raise InvalidCodeError(str(error)) from error
        symbols[order] = chosen
        return symbols
