"""The ordered split of the reference decoder, from docs/format.md: its order, and the arithmetic of the U-net.

Sums of integers are computed in 64-bit integers. Everything else is in single precision, as NumPy computes it.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RUN = 1 << 14  # pixels whose weighted values add up exactly
PER_SCORE = 1.4426950408889634 / (1 << 24)
WEIGHTS = np.array([round(2.0 ** (23 - i / 1024)) for i in range(23553)] + [0])


# ---- The order -------------------------------------------------------------------------------------------------------


def steps(order: dict[str, Any], height: int, width: int) -> Array:
    """Return the step of every pixel of a map."""
    assert order["kind"] == "LatticeOrder"
    rows, columns = np.indices((height, width))
    found = np.full((height, width), -1)
    found[(rows % order["stride"] == 0) & (columns % order["stride"] == 0)] = 0
    step, d = 1, order["stride"]
    while d >= 2:
        period = min(order["stride"], max(2 * d, order["cell"]))
        n = period // d
        cells = [(a, b) for a in range(n) for b in range(n)]
        cells.sort(key=lambda cell: (sum(cell) % 2, mirrored(cell[0], n), mirrored(cell[1], n)))
        for row, column in ((d // 2, d // 2), (0, d // 2), (d // 2, 0)):
            for a, b in cells:
                found[(rows % period == row + a * d) & (columns % period == column + b * d)] = step
                step += 1
        d //= 2
    assert found.min() >= 0
    return found


def mirrored(number: int, n: int) -> int:
    """Reverse the log2(n) bits of a number."""
    out = 0
    while n > 1:
        out, number, n = 2 * out + number % 2, number // 2, n // 2
    return out


# ---- Single precision ------------------------------------------------------------------------------------------------


def fixed(integers: Array) -> Array:
    return integers.astype(np.float32) * np.float32(2.0**-16)


def total(x: Array) -> Array:
    """Sum the numbers of the last axis, which remains."""
    n = x.shape[-1]
    while n % 2 == 0:
        n //= 2
        x = x[..., :n] + x[..., n:]
    out = x[..., :1]
    for i in range(1, n):
        out = out + x[..., i : i + 1]
    return out


def norm(x: Array) -> Array:
    with np.errstate(over="ignore"):
        squares = total(x * x)
    return x / np.sqrt(squares * np.float32(1 / x.shape[-1]) + np.float32(1e-5))


def act(x: Array) -> Array:
    return np.clip(x + np.float32(3), np.float32(0), np.float32(6)) * x


def whole(x: Array, bits: int) -> Array:
    """Round to multiples of 2^−bits; return how many."""
    scaled = x * np.float32(2.0**bits)
    assert scaled.dtype == np.float32
    return np.rint(scaled)


def limited(x: Array, bits: int) -> Array:
    """Round inputs of affine maps, and values; return integers."""
    return np.clip(whole(x, bits), -32639, 32639).astype(np.int64)


# ---- The net ---------------------------------------------------------------------------------------------------------


class UNet:
    """A U-net, whose tensors have names that begin with `prefix`. Maps are (batch, height, width, planes)."""

    def __init__(self, tensors: dict[str, Array], prefix: str, spec: dict[str, Any], num_classes: int) -> None:
        assert spec["kind"] == "UNet"
        self.tensors, self.prefix, self.spec, self.k = tensors, prefix, spec, num_classes

    def logits(self, x: Array, known: Array, step: int, positions: bool) -> Array:
        """Return logits (batch, channels, height, width, K).

        Arguments:
            x: Symbols (batch, channels, height, width).
            known: Which pixels are known (height, width).
            step: The number of the step.
            positions: Whether there are embeddings of positions.
        """
        patch, blocks = self.spec["patch"], self.spec["blocks"]
        batch, channels, height, width = x.shape
        shown = np.where(known, x, self.k)
        planes = np.stack([shown == k for k in range(self.k + 1)], axis=1).reshape(batch, -1, height, width)
        unit = patch * 2 ** (len(blocks) - 1)
        planes = np.pad(planes, [(0, 0), (0, 0), (0, -height % unit), (0, -width % unit)])
        rows, columns = planes.shape[2] // patch, planes.shape[3] // patch
        cut = planes.reshape(batch, -1, rows, patch, columns, patch)
        cut = cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, rows, columns, -1)
        cut = np.pad(cut, [(0, 0), (0, 0), (0, 0), (0, -cut.shape[3] % 8)])
        h = self.affine("enter", cut.astype(np.float32))
        if positions:
            h = h + fixed(self.tensors[f"{self.prefix}.position"])
        h = self.level("level", h, blocks, step)
        h = self.affine("leave", act(norm(h)))
        integers = np.clip(whole(h, 8), -(1 << 24), 1 << 24).astype(np.int64)
        used = integers[..., : self.k * channels * patch**2]
        used = used.reshape(batch, rows, columns, self.k, channels, patch, patch).transpose(0, 4, 1, 5, 2, 6, 3)
        return used.reshape(batch, channels, rows * patch, columns * patch, self.k)[:, :, :height, :width]

    def level(self, name: str, x: Array, blocks: list[int], step: int) -> Array:
        for j in range(blocks[0]):
            x = self.block(f"{name}.before.{j}", x, step)
            if len(blocks) == 1:
                x = self.attention(f"{name}.attention.{j}", x)
        if len(blocks) > 1:
            batch, height, width, planes = x.shape
            joined = x.reshape(batch, height // 2, 2, width // 2, 2, planes).transpose(0, 1, 3, 2, 4, 5)
            joined = joined.reshape(batch, height // 2, width // 2, 4 * planes)
            below = self.level(f"{name}.next", self.affine(f"{name}.down", joined), blocks[1:], step)
            split = self.affine(f"{name}.up", below).reshape(batch, height // 2, width // 2, 2, 2, planes)
            x = split.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape) + x
            for j in range(blocks[0]):
                x = self.block(f"{name}.after.{j}", x, step)
        return x

    def block(self, name: str, x: Array, step: int) -> Array:
        h = self.affine(f"{name}.first", norm(x)) + fixed(self.tensors[f"{self.prefix}.{name}.table"][step])
        return self.affine(f"{name}.second", act(h)) + x

    def attention(self, name: str, x: Array) -> Array:
        batch, height, width, planes = x.shape
        thirds = self.affine(f"{name}.mix", norm(x)).reshape(batch, height * width, 3, planes // 64, 64)
        bits = int(self.tensors[f"{self.prefix}.{name}.out.input_bits"])
        means = np.empty((batch, height * width, planes // 64, 64), dtype=np.float32)
        for sample in range(batch):
            for head in range(planes // 64):
                query, key, value = (thirds[sample, :, i, head] for i in range(3))
                queries, keys = (whole(norm(part), 16).astype(np.int64) for part in (query, key))
                means[sample, :, head] = attend(queries, keys, limited(value, bits)).astype(np.float32)
        return self.affine(f"{name}.out", means.reshape(x.shape) * np.float32(2.0**-bits)) + x

    def affine(self, name: str, x: Array) -> Array:
        assert x.dtype == np.float32
        name = f"{self.prefix}.{name}"
        weight, shift = (self.tensors[f"{name}.{part}"] for part in ("weight", "shift"))
        bits = int(self.tensors[f"{name}.input_bits"])
        integers = limited(x, bits)
        if weight.ndim == 2:
            weight = weight[:, :, None, None]
        reach = weight.shape[2] // 2
        padded = np.pad(integers, [(0, 0), (reach, reach), (reach, reach), (0, 0)])
        sums = np.zeros((*x.shape[:3], len(weight)), dtype=np.int64)
        for i in range(weight.shape[2]):
            for j in range(weight.shape[3]):
                sums += padded[:, i : i + x.shape[1], j : j + x.shape[2]] @ weight[:, :, i, j].T
        y = np.ldexp(sums.astype(np.float64), -(shift + bits)).astype(np.float32)
        bias = self.tensors.get(f"{name}.bias")
        return y if bias is None else y + fixed(bias)


def attend(queries: Array, keys: Array, values: Array) -> Array:
    """Return the means of the values for each query, in double precision; queries, keys and values are integers."""
    scores = queries @ keys.T
    behind = scores.max(axis=1, keepdims=True) - scores
    weights = WEIGHTS[np.minimum(np.floor(behind.astype(np.float64) * PER_SCORE), 23553).astype(np.int64)]
    sums = np.zeros((len(queries), values.shape[1]))
    for first in range(0, len(keys), RUN):
        sums = sums + (weights[:, first : first + RUN] @ values[first : first + RUN]).astype(np.float64)
    out: Array = sums / weights.sum(axis=1, keepdims=True).astype(np.float64)
    return out
