"""Probabilities in integer arithmetic: logistic functions as tables, adaptive counters, and a binary range coder.

A probability is a 22-bit integer. A counter packs a probability and an update count into 32 bits; its step size
decreases with the count. All arithmetic is on integers, so encoder and decoder agree on every machine.
"""

__all__ = [
    "CODER_SIZE",
    "COUNT_BITS",
    "PROBABILITY_BITS",
    "SQUASH",
    "STEPS",
    "STRETCH",
    "code_bit",
    "code_number",
    "code_uniform",
    "code_weighted",
    "finish",
    "spent",
    "start_decoder",
    "start_encoder",
    "stretch",
    "updated",
]

import numpy as np

from ddf.labelmaps.compiling import jit
from ddf.shapes import Array

PROBABILITY_BITS = 22
COUNT_BITS = 10
_ONE = 1 << PROBABILITY_BITS
_TAIL = _ONE >> 6  # below this probability, stretch uses a finer table
_UNIT = 256  # logits are integers in units of 1/256 nat
LIMIT = 12 * _UNIT - 1
"""The largest logit; larger ones are clamped before they become probabilities."""

_COUNTS = (1 << COUNT_BITS) - 1


def _squash_table() -> Array:
    """Return the probabilities of the logits −LIMIT … LIMIT.

    No value is close to a rounding boundary (this is tested), so every machine computes the same table.
    """
    logits = np.arange(-LIMIT, LIMIT + 1) / _UNIT
    return np.clip(np.rint(_ONE / (1 + np.exp(-logits))), 1, _ONE - 1).astype(np.int32)


def _stretch_table() -> Array:
    """Return the logits of probabilities: 4096 steps from 0 to 1, then 4096 finer steps from 0 to 1/64."""
    coarse = (np.arange(4096) + 0.5) / 4096
    fine = (np.arange(4096) + 0.5) / 4096 / 64
    p = np.concatenate([coarse, fine])
    return np.clip(np.rint(_UNIT * np.log(p / (1 - p))), -LIMIT, LIMIT).astype(np.int16)


SQUASH = _squash_table()
STRETCH = _stretch_table()
STEPS = np.array([65536 * 2 // (2 * n + 3) for n in range(1 << COUNT_BITS)], dtype=np.int64)
"""The step size of a counter after n updates: 1 / (n + 1.5), in units of 2^-16."""

# ---- State of the coder: an array of uint64
LOW, RANGE, CODE, CACHE, PENDING, POSITION = range(0, 18, 3)
CODER_SIZE = 18
_TOP = np.uint64(1 << 24)
_MASK = np.uint64(0xFFFFFFFF)
_CARRY = np.uint64(1 << 32)
_NO_CACHE = np.uint64(256)


@jit
def start_encoder(coder: Array) -> None:
    """Initialize a coder for encoding."""
    coder[LOW] = 0
    coder[RANGE] = 0xFFFFFFFF
    coder[CACHE] = _NO_CACHE
    coder[PENDING] = 0
    coder[POSITION] = 0


@jit
def start_decoder(coder: Array, data: Array) -> None:
    """Initialize a coder for decoding; past the end of the data, it reads zeros."""
    coder[RANGE] = 0xFFFFFFFF
    coder[CODE] = 0
    for i in range(4):
        byte = data[i] if i < len(data) else 0
        coder[CODE] = coder[CODE] << np.uint64(8) | np.uint64(byte)
    coder[POSITION] = 4


@jit
def _shift(coder: Array, data: Array) -> None:
    """Shift out the top byte of the lower bound and propagate the carry to pending bytes."""
    low = coder[LOW]
    if low < np.uint64(0xFF000000) or low >= _CARRY:
        carry = low >> np.uint64(32)
        position = coder[POSITION]
        if coder[CACHE] != _NO_CACHE:
            data[position] = np.uint8(coder[CACHE] + carry)
            position += np.uint64(1)
        for _ in range(coder[PENDING]):
            data[position] = np.uint8(np.uint64(0xFF) + carry)
            position += np.uint64(1)
        coder[PENDING] = 0
        coder[POSITION] = position
        coder[CACHE] = (low >> np.uint64(24)) & np.uint64(0xFF)
    else:
        coder[PENDING] += np.uint64(1)
    coder[LOW] = (low << np.uint64(8)) & _MASK


@jit
def _renormalize(coder: Array, data: Array, decoding: bool) -> None:
    while coder[RANGE] < _TOP:
        coder[RANGE] = coder[RANGE] << np.uint64(8)
        if decoding:
            position = coder[POSITION]
            byte = data[position] if position < np.uint64(len(data)) else np.uint8(0)
            coder[CODE] = ((coder[CODE] << np.uint64(8)) | np.uint64(byte)) & _MASK
            coder[POSITION] = position + np.uint64(1)
        else:
            _shift(coder, data)


@jit
def code_bit(coder: Array, data: Array, decoding: bool, bit: int, probability: int) -> int:
    """Code a bit that is 1 with the given 22-bit probability."""
    bound = (coder[RANGE] * np.uint64(probability)) >> np.uint64(PROBABILITY_BITS)
    if decoding:
        bit = 1 if coder[CODE] < bound else 0
    if bit:
        coder[RANGE] = bound
    else:
        coder[RANGE] -= bound
        if decoding:
            coder[CODE] -= bound
        else:
            coder[LOW] += bound
    if coder[RANGE] < _TOP:
        _renormalize(coder, data, decoding)
    return bit


@jit
def _code_interval(coder: Array, data: Array, decoding: bool, unit: int, start: int, size: int) -> None:
    if decoding:
        coder[CODE] -= np.uint64(start) * np.uint64(unit)
    else:
        coder[LOW] += np.uint64(start) * np.uint64(unit)
    coder[RANGE] = np.uint64(unit) * np.uint64(size)
    if coder[RANGE] < _TOP:
        _renormalize(coder, data, decoding)


@jit
def code_uniform(coder: Array, data: Array, decoding: bool, value: int, count: int) -> int:
    """Code one of `count` equally likely values; `count` is at most 2^16."""
    unit = coder[RANGE] // np.uint64(count)
    if decoding:
        value = min(np.int64(coder[CODE] // unit), count - 1)
    _code_interval(coder, data, decoding, unit, value, 1)
    return value


@jit
def code_weighted(coder: Array, data: Array, decoding: bool, value: int, weights: Array, total: int) -> int:
    """Code an index with probability proportional to its weight; an index of weight 0 cannot be coded."""
    unit = coder[RANGE] // np.uint64(total)
    start = 0
    if decoding:
        point = min(np.int64(coder[CODE] // unit), total - 1)
        value = 0
        while start + weights[value] <= point:
            start += weights[value]
            value += 1
    else:
        for i in range(value):
            start += weights[i]
    _code_interval(coder, data, decoding, unit, start, weights[value])
    return value


@jit
def finish(coder: Array, data: Array) -> int:
    """Write the shortest code in the interval, given that trailing zeros are implied; return its total length."""
    low, high = coder[LOW], coder[LOW] + coder[RANGE]
    zeros = np.uint64(32)
    while True:
        unit = np.uint64(1) << zeros
        point = (low + unit - np.uint64(1)) & ~(unit - np.uint64(1))
        if point < high:
            break
        zeros -= np.uint64(8)
    coder[LOW] = point
    for _ in range(5):
        _shift(coder, data)
    length = coder[POSITION]
    while length > np.uint64(0) and data[length - np.uint64(1)] == 0:
        length -= np.uint64(1)
    return np.int64(length)


@jit
def spent(coder: Array) -> float:
    """Return the number of bits an encoder has produced so far, including fractions."""
    shifted = coder[POSITION] + coder[PENDING] + np.uint64(coder[CACHE] != _NO_CACHE)
    return 8.0 * np.float64(shifted) + 32.0 - np.log2(np.float64(coder[RANGE]))


@jit
def code_number(coder: Array, data: Array, decoding: bool, value: int, counters: Array) -> int:
    """Code a positive integer below 2^64: its length in bits, with adaptive counters, then the bits."""
    length = 0
    while True:
        more = 0 if decoding else 1 if (value >> np.uint64(length)) > np.uint64(1) else 0
        more = code_bit(coder, data, decoding, more, np.int64(counters[length] >> COUNT_BITS))
        counters[length] = updated(counters[length], more, STEPS, 30)
        if not more or length == 63:
            break
        length += 1
    found = np.uint64(1)
    for i in range(length - 1, -1, -1):
        bit = 0 if decoding else np.int64((value >> np.uint64(i)) & np.uint64(1))
        bit = code_bit(coder, data, decoding, bit, _ONE >> 1)
        found = found << np.uint64(1) | np.uint64(bit)
    return found


@jit
def stretch(table: Array, probability: int) -> int:
    """Return the logit of a 22-bit probability."""
    if probability < _TAIL:
        return np.int64(table[4096 + (probability >> 4)])
    if probability > _ONE - _TAIL:
        return -np.int64(table[4096 + ((_ONE - probability) >> 4)])
    return np.int64(table[probability >> 10])


@jit
def updated(counter: int, bit: int, steps: Array, limit: int) -> np.uint32:
    """Return a counter after an update with a bit."""
    count = np.int64(counter & _COUNTS)
    p = np.int64(counter >> COUNT_BITS)
    p += (((bit << PROBABILITY_BITS) - p) * steps[count]) >> 16
    p = min(max(p, 16), _ONE - 16)
    if count < limit:
        count += 1
    return np.uint32(p << COUNT_BITS | count)
