"""The ordered split of the reference decoder, from docs/format.md: its order, and the arithmetic of its net.

Sums of integers are computed in 64-bit integers. Everything else is in single precision, as NumPy computes it.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RUN = 1 << 14  # pixels whose weighted values add up exactly
PER_SCORE = 1.4426950408889634 / (1 << 24)
WEIGHTS = np.array([round(2.0 ** (23 - i / 1024)) for i in range(23553)] + [0])


# ---- The order -------------------------------------------------------------------------------------------------------


def offsets(cell: int) -> list[tuple[int, int]]:
    """Return the pixels of a cell that are coded, in their order."""
    n = cell // 2
    parts = sorted(
        ((a, b) for a in range(n) for b in range(n)),
        key=lambda part: (sum(part) % 2, mirrored(part[0], n), mirrored(part[1], n)),
    )
    return [(row + 2 * a, column + 2 * b) for row, column in ((1, 1), (0, 1), (1, 0)) for a, b in parts]


def steps(order: dict[str, Any], height: int, width: int) -> Array:
    """Return the step of every pixel of a map."""
    assert order["kind"] == "LatticeOrder"
    rows, columns = np.indices((height, width))
    found = np.zeros((height, width), dtype=np.int64)
    step, s = 1, order["stride"] // 2
    while s:
        period = order["cell"] * s
        for y, x in offsets(order["cell"]):
            found[(rows % period == y * s) & (columns % period == x * s)] = step
            step += 1
        s //= 2
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


class LatticeNet:
    """A net, whose tensors have names that begin with `prefix`. Maps are (batch, height, width, planes)."""

    def __init__(self, tensors: dict[str, Array], prefix: str, spec: dict[str, Any], num_classes: int) -> None:
        assert spec["kind"] == "LatticeNet"
        self.tensors, self.prefix, self.spec, self.k = tensors, prefix, spec, num_classes

    def logits(self, x: Array, step: int, positions: bool) -> tuple[Array, Array]:
        """Return the pixels of a step, as a mask (height, width), and their logits (batch, channels, pixels, K).

        Arguments:
            x: Symbols (batch, channels, height, width). Those of this step and of later ones have no effect.
            step: The number of the step, at least 1.
            positions: Whether there are embeddings of positions.
        """
        cell, width = self.spec["cell"], self.spec["width"]
        groups = offsets(cell)
        level, group = divmod(step - 1, len(groups))
        s = 2 ** (self.spec["levels"] - 1 - level)
        thin = x[:, :, ::s, ::s]
        batch, channels, height, width_ = thin.shape
        self.channels = channels
        unit = max(cell, 2 ** len(self.spec["blocks"]))
        thin = np.pad(thin, [(0, 0), (0, 0), (0, -height % unit), (0, -width_ % unit)], constant_values=self.k)
        planes = np.stack([thin == k for k in range(self.k + 1)], axis=1)
        planes = planes.reshape(batch, -1, *thin.shape[2:]).transpose(0, 2, 3, 1).astype(np.float32)

        known = planes[:, ::2, ::2]
        if self.spec["hints"]:
            known = np.pad(known, [(0, 0), (0, 0), (0, 0), (0, 4 * self.k * channels)])
        h = self.affine("enter", padded(known))
        if positions:
            position = fixed(self.tensors[f"{self.prefix}.position"])[::s, ::s]
            h[:, : position.shape[0], : position.shape[1]] += position
        features = self.affine("mix", act(norm(self.unet("unet", h, self.spec["blocks"], level))))
        parts = {kind: features[..., i * width :][..., :width] for i, kind in enumerate(((1, 1), (0, 1), (1, 0)))}
        own = [parts[y % 2, x % 2][:, y // 2 :: cell // 2, x // 2 :: cell // 2] for y, x in groups]
        seen = [planes[:, y::cell, x::cell] for y, x in groups]
        h = self.affine("seen", padded(np.concatenate(seen, axis=3)), "earlier") + np.concatenate(own, axis=3)
        for j in range(self.spec["depth"]):
            inner = self.affine(f"stack.{j}.first", self.group_norm(h), "same or earlier")
            h = self.affine(f"stack.{j}.second", act(inner), "same or earlier") + h
        h = self.affine("leave", act(self.group_norm(h)), "same")
        integers = np.clip(whole(h, 8), -(1 << 24), 1 << 24).astype(np.int64)

        of_group = integers[..., group * self.k * channels :][..., : self.k * channels]
        of_group = of_group.reshape(*of_group.shape[:3], self.k, channels).transpose(0, 4, 1, 2, 3)
        (y, x_) = groups[group]
        of_group = of_group[:, :, : len(range(y, height, cell)), : len(range(x_, width_, cell))]
        here = np.zeros(x.shape[2:], dtype=bool)
        here[::s, ::s][y::cell, x_::cell] = True
        return here, of_group.reshape(batch, channels, -1, self.k)

    def group_norm(self, x: Array) -> Array:
        return norm(x.reshape(*x.shape[:3], -1, self.spec["width"])).reshape(x.shape)

    def unet(self, name: str, x: Array, blocks: list[int], level: int) -> Array:
        for j in range(blocks[0]):
            x = self.block(f"{name}.before.{j}", x, level)
            if len(blocks) == 1:
                x = self.attention(f"{name}.attention.{j}", x)
        if len(blocks) > 1:
            batch, height, width, planes = x.shape
            joined = x.reshape(batch, height // 2, 2, width // 2, 2, planes).transpose(0, 1, 3, 2, 4, 5)
            joined = joined.reshape(batch, height // 2, width // 2, 4 * planes)
            below = self.unet(f"{name}.next", self.affine(f"{name}.down", joined), blocks[1:], level)
            split = self.affine(f"{name}.up", below).reshape(batch, height // 2, width // 2, 2, 2, planes)
            x = split.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape) + x
            for j in range(blocks[0]):
                x = self.block(f"{name}.after.{j}", x, level)
        return x

    def block(self, name: str, x: Array, level: int) -> Array:
        h = self.affine(f"{name}.first", norm(x)) + fixed(self.tensors[f"{self.prefix}.{name}.table"][level])
        return self.affine(f"{name}.second", act(h)) + x

    def causal(self, stored: Array, outs: int, ins: int, reach: str) -> Array:
        """Put the weights that files hold where they belong; all others are zero."""
        groups = len(offsets(self.spec["cell"]))
        weight = np.zeros((outs, ins, *stored.shape[1:]), dtype=np.int64)
        rows, columns = self.sizes(reach, ins)
        weights = iter(stored)
        for out in range(outs):
            for plane in range(ins):
                to, of = out // rows, plane // columns
                sees = {"earlier": of < to, "same or earlier": of <= to, "same": of == to}[reach]
                if sees and to < groups and of < groups:
                    weight[out, plane] = next(weights)
        assert next(weights, None) is None
        return weight

    def sizes(self, reach: str, ins: int) -> tuple[int, int]:
        """Return the number of output and input planes of each group of a causal map."""
        width = self.spec["width"]
        return {
            "earlier": (width, (self.k + 1) * self.channels),
            "same or earlier": (width, width),
            "same": (self.k * self.channels, width),
        }[reach]

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

    def affine(self, name: str, x: Array, reach: str | None = None) -> Array:
        assert x.dtype == np.float32
        name = f"{self.prefix}.{name}"
        weight, shift = (self.tensors[f"{name}.{part}"] for part in ("weight", "shift"))
        if reach is not None:
            weight = self.causal(weight, len(shift), x.shape[3], reach)
        bits = int(self.tensors[f"{name}.input_bits"])
        integers = limited(x, bits)
        if weight.ndim == 2:
            weight = weight[:, :, None, None]
        edge = weight.shape[2] // 2
        framed = np.pad(integers, [(0, 0), (edge, edge), (edge, edge), (0, 0)])
        sums = np.zeros((*x.shape[:3], len(weight)), dtype=np.int64)
        for i in range(weight.shape[2]):
            for j in range(weight.shape[3]):
                sums += framed[:, i : i + x.shape[1], j : j + x.shape[2]] @ weight[:, :, i, j].T
        y = np.ldexp(sums.astype(np.float64), -(shift + bits)).astype(np.float32)
        bias = self.tensors.get(f"{name}.bias")
        return y if bias is None else y + fixed(bias)


def padded(planes: Array) -> Array:
    """Append planes of zeros until their number is a multiple of 8."""
    return np.pad(planes, [(0, 0), (0, 0), (0, 0), (0, -planes.shape[3] % 8)])


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
