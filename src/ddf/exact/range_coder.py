"""The entropy coder: symbols and their integer frequencies in, bytes out, and back."""

__all__ = ["Decoder", "Encoder"]

from functools import cache
from math import log2
from typing import Any

import numpy as np

from ddf.errors import InvalidCodeError
from ddf.shapes import Array

_WORD = 32  # bits that the coder writes at a time
_STATE = 64


@cache
def _streams() -> Any:
    """Return the module of stream coders. It is imported when it is used: nets run without it."""
    from constriction import stream

    return stream


@cache
def _model() -> Any:
    return _streams().model.Categorical(perfect=False)


def _weights(frequencies: Array) -> Array:
    """Return the weights of the coder's model.

    It adds 1 of 2^24 to each weight and scales the sum to 2^24: weights of 256 f − 1 make that scale exactly 1. They
    are in C order because constriction misreads the rows of other arrays.
    """
    weights = np.multiply(frequencies, 256, dtype=np.float32, order="C", casting="unsafe")
    weights -= 1
    return weights


class Encoder:
    """A range encoder: the decoder returns symbols in the order in which they were encoded.

    Examples:
        >>> frequencies = np.array([[60000, 5536], [5536, 60000], [5536, 60000]], dtype=np.int32)
        >>> encoder = Encoder()
        >>> encoder.put(np.array([0, 1, 0]), frequencies)
        >>> data = encoder.finish()
        >>> len(data)
        1
        >>> Decoder(data).take(frequencies)
        array([0, 1, 0], dtype=int32)
    """

    def __init__(self) -> None:
        self._coder = _streams().queue.RangeEncoder()

    def put(self, symbols: Array, frequencies: Array) -> None:
        """Encode symbols (count,) with the frequencies (count, K) of their classes."""
        if frequencies.shape[1] > 1:  # a single class takes no bits
            self._coder.encode(symbols.astype(np.int32), _model(), _weights(frequencies))

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
    """Decodes what an `Encoder` encoded, given the same frequencies in the same order."""

    def __init__(self, data: bytes) -> None:
        padded = data + bytes(-len(data) % 4 + 8)
        self._coder = _streams().queue.RangeDecoder(np.frombuffer(padded, dtype=">u4").astype(np.uint32))

    def take(self, frequencies: Array) -> Array:
        """Return the next symbols, int32. Those of a damaged code are arbitrary; only a checksum detects that."""
        if frequencies.shape[1] == 1 or not len(frequencies):
            return np.zeros(len(frequencies), dtype=np.int32)
        try:
            symbols: Array = self._coder.decode(_model(), _weights(frequencies))
        except AssertionError as error:  # which constriction raises if it detects the damage
            raise InvalidCodeError(str(error)) from error
        return symbols
