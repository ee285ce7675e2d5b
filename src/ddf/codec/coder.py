"""The entropy coder: symbols and their integer frequencies in, bytes out, and back."""

__all__ = ["Decoder", "Encoder", "InvalidCodeError", "Prediction"]

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddf.codec.frequencies import PRECISION

Array = np.ndarray[Any, Any]

_WORD = 32  # the coder writes words of so many bits
_STATE = 64


class InvalidCodeError(ValueError):
    """Bytes that no encoder returns."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of some symbols.

    Arguments:
        table: Frequencies (rows, K) of which each is for many symbols.
        place: The row of the table for each symbol, −1 for those with a row of their own.
        rows: Frequencies (symbols with place −1, K), in order.
    """

    table: Array
    place: Array
    rows: Array

    def __len__(self) -> int:
        return len(self.place)

    def groups(self) -> "list[tuple[Array, Array]]":
        """In the order in which they are coded: the places of symbols, and the frequencies of all of them or of each.

        First those of row 0 of the table, then those of row 1 and so on, last those with a row of their own.
        """
        order = np.argsort(self.place, kind="stable")
        own, *counts = np.bincount(self.place + 1, minlength=1).tolist()
        found = []
        start = own
        for row, count in enumerate(counts):
            if count:
                found.append((order[start : start + count], self.table[row]))
            start += count
        if own:
            found.append((order[:own], self.rows))
        return found


def _model(frequencies: Array) -> tuple[Any, tuple[Array, ...]]:
    """The coder's model of integer frequencies, and its parameters.

    It adds 1 of 2^24 to each weight and scales the sum to 2^24: weights of 256 f − 1 make that scale exactly 1.
    """
    import constriction

    categorical = constriction.stream.model.Categorical
    # In C order: the library takes rows of other arrays for what they are not, and says nothing.
    weights = np.ascontiguousarray(frequencies.astype(np.int32) * 256 - 1, dtype=np.float32)
    if frequencies.ndim == 1:
        return categorical(weights, perfect=False), ()
    return categorical(perfect=False), (weights,)


class Encoder:
    """A range coder: what is put in first comes out first.

    Example:
        >>> frequencies = np.array([[60000, 5536], [5536, 60000]], dtype=np.int32)
        >>> prediction = Prediction(frequencies, np.array([0, 1, 1]), np.empty((0, 2), np.int32))
        >>> encoder = Encoder()
        >>> encoder.put(np.array([0, 1, 0]), prediction)
        >>> data = encoder.finish()
        >>> len(data)
        1
        >>> Decoder(data).take(prediction)
        array([0, 1, 0])
    """

    def __init__(self) -> None:
        import constriction

        self._coder = constriction.stream.queue.RangeEncoder()
        self.bits = 0.0  # what the frequencies say

    def put(self, symbols: Array, prediction: Prediction) -> None:
        """Codes symbols."""
        if prediction.table.shape[1] == 1:
            return  # one class: there is nothing to say
        for places, frequencies in prediction.groups():
            model, parameters = _model(frequencies)
            chosen = symbols[places].astype(np.int32)
            self._coder.encode(chosen, model, *parameters)
            self.bits += PRECISION * len(chosen)
            if frequencies.ndim == 1:
                self.bits -= float(np.bincount(chosen, minlength=len(frequencies)) @ np.log2(frequencies))
            else:
                self.bits -= float(np.log2(frequencies[np.arange(len(chosen)), chosen]).sum())

    def finish(self) -> bytes:
        """The code: the shortest bytes that, with zeros after them, lie in the interval that is left."""
        words = np.asarray(self._coder.get_compressed(), dtype=np.uint32)
        if not len(words):
            return b""
        count, (lower, size) = self._coder.pos()
        upper = lower + size
        if lower + (1 << _WORD) - 1 >= 1 << _STATE:
            lower = 1 << _STATE  # it has been carried into the words before
        else:
            upper = min(upper, 1 << _STATE)
        zeros = _STATE
        while zeros and -(-lower >> zeros) << zeros >= upper:
            zeros -= 8
        point = (-(-lower >> zeros) << zeros) % (1 << _STATE)
        code = words[:count].astype(">u4").tobytes() + point.to_bytes(_STATE // 8, "big")
        return code.rstrip(b"\0")


class Decoder:
    """Takes out again what an `Encoder` was given, when told the same predictions in the same order."""

    def __init__(self, data: bytes) -> None:
        import constriction

        padded = data + bytes(-len(data) % 4 + 8)
        self._coder = constriction.stream.queue.RangeDecoder(np.frombuffer(padded, dtype=">u4").astype(np.uint32))

    def take(self, prediction: Prediction) -> Array:
        """The next symbols. Of a damaged code they are any symbols: checksums tell."""
        symbols = np.zeros(len(prediction), dtype=np.int64)
        if prediction.table.shape[1] == 1:
            return symbols
        for places, frequencies in prediction.groups():
            model, parameters = _model(frequencies)
            arguments = parameters or (len(places),)
            try:
                symbols[places] = self._coder.decode(model, *arguments)
            except AssertionError as error:  # what the library raises when it notices
                raise InvalidCodeError(str(error)) from error
        return symbols
