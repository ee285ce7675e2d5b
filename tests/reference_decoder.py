"""A second decoder of ddf archives, from docs/format.md, in plain NumPy: without torch, numba, constriction and ddf.

It is slow and it is meant to be read. `decode(archive, model)` returns the arrays of an archive with their names.
Label maps are decoded in `reference_labelmaps`.
"""

import json
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.reference_labelmaps import LabelMaps

Array = np.ndarray[Any, Any]

DTYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "|b1")
POWERS = [round(2.0 ** (23 - i / 256)) for i in range(256)]


# ---- The archive -----------------------------------------------------------------------------------------------------


def varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position


def written(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def decode(archive: bytes, model: bytes | None = None) -> list[tuple[str, Array]]:
    assert archive[:4] == b"\x89DDF"
    assert archive[4] == 1
    assert zlib.crc32(archive[:22]) == int.from_bytes(archive[22:26], "little")
    net = None if model is None else read_model(model)
    out: list[tuple[str, Array]] = []
    position = 26
    kind: dict[str, Any] = {}
    kinds: list[dict[str, Any]] = []
    while True:
        is_model = position == 26 and archive[5] & 1
        head, position = varint(archive, position)
        if head & 3 == 2 and not is_model:
            kind = kinds[head >> 2]
            continue
        body, position = archive[position : position + (head >> 2)], position + (head >> 2)
        if head & 3 == 0:
            out += block(kind, body, net, len(out))
            continue
        assert zlib.crc32(body[4:]) == int.from_bytes(body[:4], "little")
        if head & 3 == 1:
            kind = read_kind(body[4:])
            kinds.append(kind)
        elif head & 3 == 2:
            net = read_model(body[4:])
        else:
            return out


def read_kind(body: bytes) -> dict[str, Any]:
    flags, dtype, dimensions = body[:3]
    position, shape = 3, []
    for _ in range(dimensions):
        size, position = varint(body, position)
        shape.append(size)
    assert position == len(body)
    return {
        "bytes": body,
        "method": flags & 3,
        "named": bool(flags & 4),
        "shared": bool(flags & 8),
        "dtype": DTYPES[dtype],
        "shape": tuple(shape),
    }


def block(
    kind: dict[str, Any], body: bytes, net: "IntegerFlow | LabelMaps | None", before: int
) -> list[tuple[str, Array]]:
    count, position = varint(body, 0) if kind["shared"] else (1, 0)
    start = position
    names = []
    for _ in range(count if kind["named"] else 0):
        length, position = varint(body, position)
        names.append(body[position : position + length].decode())
        position += length
    spelled = body[start:position]
    checksum, payload = int.from_bytes(body[position : position + 4], "little"), body[position + 4 :]
    shape = (count, *kind["shape"])
    if kind["method"] == 2:
        assert net is not None
        arrays = net.decode(payload, shape, kind["dtype"])
    else:
        if kind["method"] == 1:
            size = int(np.prod(shape)) * np.dtype(kind["dtype"]).itemsize
            dictionary = next(2**n for n in range(12, 27) if 2**n >= size or n == 26)
            filters = [{"id": lzma.FILTER_LZMA2, "dict_size": dictionary}]
            payload_raw = lzma.decompress(payload, lzma.FORMAT_RAW, filters=filters)
        else:
            payload_raw = payload
        arrays = np.frombuffer(payload_raw, dtype=kind["dtype"]).reshape(shape)
    data = kind["bytes"] + spelled + written(len(payload)) + arrays.tobytes() + written(before)
    assert zlib.crc32(data) == checksum
    return list(zip(names or [""] * count, arrays, strict=True))


def read_model(data: bytes) -> "IntegerFlow | LabelMaps":
    size = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + size])
    header = json.loads(table.pop("__metadata__")["ddf"])
    kinds = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U16": "<u2", "U32": "<u4"}
    tensors: dict[str, Array] = {}
    for name, entry in table.items():
        first, last = entry["data_offsets"]
        values = np.frombuffer(data[8 + size + first : 8 + size + last], dtype=kinds[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).astype(np.int64)
    return LabelMaps(header, tensors) if header["kind"] == "labelmaps" else IntegerFlow(header, tensors)


# ---- The entropy coder of integer flows ------------------------------------------------------------------------------


class RangeDecoder:
    def __init__(self, data: bytes) -> None:
        self.words: Iterator[int] = iter(np.frombuffer(data + bytes(-len(data) % 4), dtype=">u4").tolist())
        self.lower, self.range = 0, (1 << 64) - 1
        self.point = next(self.words, 0) << 32 | next(self.words, 0)

    def symbol(self, frequencies: Array) -> int:
        scale = self.range >> 24
        quantile = (self.point - self.lower) % (1 << 64) // scale
        symbol = left = 0
        while left + 256 * int(frequencies[symbol]) <= quantile:
            left += 256 * int(frequencies[symbol])
            symbol += 1
        self.lower = (self.lower + scale * left) % (1 << 64)
        self.range = scale * 256 * int(frequencies[symbol])
        if self.range < 1 << 32:
            self.lower = (self.lower << 32) % (1 << 64)
            self.range <<= 32
            self.point = (self.point << 32) % (1 << 64) | next(self.words, 0)
        return symbol


def frequencies(logits: Array) -> Array:
    """(…, K) logits in 1/256 bit → (…, K) frequencies that add up to 65536."""
    k = logits.shape[-1]
    behind = np.minimum(logits.max(axis=-1, keepdims=True) - logits, 24 * 256 - 1)
    weights = np.array(POWERS)[behind % 256] >> (behind // 256)
    shares: Array = 1 + weights * (65536 - k) // weights.sum(axis=-1, keepdims=True)
    first = logits.argmax(axis=-1)
    np.put_along_axis(
        shares,
        first[..., None],
        np.take_along_axis(shares, first[..., None], -1) + 65536 - shares.sum(axis=-1, keepdims=True),
        -1,
    )
    return shares


# ---- Integer flows ---------------------------------------------------------------------------------------------------


def channels_to_space(x: Array) -> Array:
    b, c, h, w = x.shape
    return x.reshape(b, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * w)


class IntegerFlow:
    def __init__(self, header: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.tensors = tensors
        self.layers = header["spec"]["layers"]
        self.shape = header["spec"]["shape"]
        self.k = header["spec"]["num_classes"]
        self.values = np.array(header["classes"]["values"])

    def decode(self, payload: bytes, shape: tuple[int, ...], dtype: str) -> Array:
        """All arrays of a block, (count, *shape of an array)."""
        own = len(self.shape)
        sample = shape[-own:] if len(shape) >= own and self.fits(shape[-own:]) else (1, *shape[-2:])
        coder = RangeDecoder(payload)
        symbols = np.zeros((int(np.prod(shape)) // int(np.prod(sample)), *sample), dtype=np.int64)
        together = max(1, (1 << 18) // int(np.prod(sample)))
        for first in range(0, len(symbols), together):
            part = symbols[first : first + together]
            part[...] = self.inverse(coder, part.shape)
        return self.values[symbols].reshape(shape).astype(dtype)

    def fits(self, shape: tuple[int, ...]) -> bool:
        return all(want in (None, have) for have, want in zip(shape, self.shape, strict=True))

    def inverse(self, coder: RangeDecoder, shape: tuple[int, ...]) -> Array:
        left = shape[1:]  # of a sample, in the base
        coded: dict[int, int] = {}  # the channels that each split prior codes
        for number, layer in enumerate(self.layers):
            if layer["kind"] == "Squeeze":
                left = (4 * left[0], left[1] // 2, left[2] // 2)
            elif layer["kind"] == "SplitPrior":
                index = layer["partition"]["index"] or left[0] // 2
                kept = index if layer["factor_out"] == "b" else left[0] - index
                coded[number] = left[0] - kept
                left = (kept, *left[1:])
        base = np.moveaxis(self.tensors["base"], 0, -1)  # (channels, *spatial, K)
        rows = frequencies(np.broadcast_to(base, (*left, self.k)).reshape(-1, self.k))
        z = np.array([[coder.symbol(row) for row in rows] for _ in range(shape[0])]).reshape(-1, *left)
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            name = f"{number}.net"
            if layer["kind"] == "Squeeze":
                z = channels_to_space(z)
            elif layer["kind"] == "Shuffle":
                z = z[:, np.argsort(layer["permutation"])]
            elif layer["kind"] == "SplitPrior":
                rows = frequencies(self.logits(name, layer["net"], z, coded[number])).reshape(len(z), -1, self.k)
                drawn = np.array([[coder.symbol(row) for row in part] for part in rows])
                drawn = drawn.reshape(len(z), coded[number], *z.shape[2:])
                z = np.concatenate([z, drawn] if layer["factor_out"] == "b" else [drawn, z], axis=1)
            else:
                assert layer["kind"] == "DenoisingCoupling"
                index = layer["partition"]["index"] or z.shape[1] // 2
                given, ranks = z[:, :index], z[:, index:]
                logits = self.logits(name, layer["net"], given, ranks.shape[1])
                z = np.concatenate([given, unrank(ranks, logits, layer["top"])], axis=1)
        return z

    def logits(self, name: str, net: dict[str, Any], given: Array, channels: int) -> Array:
        """(batch, channels, *spatial, K) from symbols (batch, channels, *spatial)."""
        planes = (given[:, None] == np.arange(self.k).reshape(-1, *[1] * (given.ndim - 1))).astype(np.int64)
        x = planes.reshape(len(given), -1, *given.shape[2:])
        x = np.moveaxis(x, 1, -1)
        x = np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % 8), dtype=np.int64)], axis=-1)
        if net["kind"] == "MLP":
            for i in range(net["layers"]):
                x = self.affine(f"{name}.stack.{i}", x, 7 if i else 0, i == net["layers"] - 1)
        else:
            assert net["kind"] == "DenseNet"
            x = 64 * x
            for i in range(net["blocks"]):
                mixed = self.affine(f"{name}.stack.{i + 1}.mix", x, 7, False)
                grown = self.affine(f"{name}.stack.{i + 1}.grow", mixed, 7, False)
                x = np.concatenate([x, grown], axis=-1)
            x = self.affine(f"{name}.stack.{net['blocks'] + 1}", x, 7, True)
        x = x[..., : self.k * channels].reshape(*x.shape[:-1], self.k, channels)
        return np.moveaxis(x, -1, 1)

    def affine(self, name: str, x: Array, input_bits: int, reads_out: bool) -> Array:
        """(…, in) → (…, out), in integers; with (out, in, rows, columns) weights, over (batch, height, width, in)."""
        weight, bias, shift = (self.tensors[f"{name}.{part}"] for part in ("weight", "bias", "shift"))
        if weight.ndim == 2:
            sums = x @ weight.T
        else:
            pad = weight.shape[2] // 2
            padded = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
            sums = np.zeros((*x.shape[:3], len(weight)), dtype=np.int64)
            for i in range(weight.shape[2]):
                for j in range(weight.shape[3]):
                    sums += padded[:, i : i + x.shape[1], j : j + x.shape[2]] @ weight[:, :, i, j].T
        down = shift + input_bits - (8 if reads_out else 7)  # bits to shift down, or up if negative
        sums = (sums + bias) << np.maximum(-down, 0)
        rounded = np.where(down > 0, (sums + (1 << np.maximum(down - 1, 0))) >> np.maximum(down, 0), sums)
        return rounded if reads_out else rounded.clip(0, 127)


def unrank(ranks: Array, logits: Array, top: int) -> Array:
    """The classes at these ranks: the first `top` by their logits, and then whatever swapping them has left."""
    k = logits.shape[-1]
    out = np.empty_like(ranks)
    for place in np.ndindex(ranks.shape):
        order = list(range(k))
        leaders = sorted(range(k), key=lambda c: (-logits[place][c], c))[:top]
        for i, leader in enumerate(leaders):
            j = order.index(leader)
            order[i], order[j] = order[j], order[i]
        out[place] = order[ranks[place]]
    return out
