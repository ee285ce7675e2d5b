"""A second decoder of ddf archives, from docs/format.md, in plain NumPy: without torch, numba, constriction or ddf.

It is slow and written to be read. `decode(archive, model)` returns the arrays of an archive and their names.
Label maps are decoded in `reference_labelmaps`; ordered splits use `reference_lattice_net`.
"""

import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.reference_labelmaps import LabelMaps
from tests.reference_lattice_net import LatticeNet, steps

Array = np.ndarray[Any, Any]
Block = tuple[bytes, int, list[str], list[int]]
"""A block of a table: its kind, the size of its code, and the names and file formats of its arrays."""

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


def column(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    numbers = []
    for _ in range(count):
        number, position = varint(data, position)
        numbers.append(number)
    return numbers, position


def written(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class Record(NamedTuple):
    type: int
    head: bytes
    data: bytes
    after: int


def record(archive: bytes, position: int) -> Record:
    assert archive[position : position + 4] == b"\x8dDDR"
    size, sizes_end = varint(archive, position + 5)
    data_size, sizes_end = varint(archive, sizes_end)
    start = sizes_end + 8
    head, end = archive[start : start + size], start + size + data_size
    checked = archive[position + 4 : sizes_end] + head
    assert hashlib.sha256(checked).digest()[:8] == archive[sizes_end:start]
    return Record(archive[position + 4], head, archive[start + size : end], end)


def decode(archive: bytes, model: bytes | None = None) -> list[tuple[str, Array]]:
    """Return the arrays of an archive, read from front to back without its index."""
    assert archive[:4] == b"\x89DDF"
    assert archive[4] == 1
    assert zlib.crc32(archive[:22]) == int.from_bytes(archive[22:26], "little")
    assert archive[-4:] == b"FDD\x89"
    net = None if model is None else read_model(model)
    out: list[tuple[str, Array]] = []
    position = 26
    groups = []
    while position < len(archive) - 12:
        start = position
        kind, head, data, position = record(archive, position)
        if kind == 128 | 1:
            net = read_model(head)
        elif kind == 128 | 2:
            own, offset = varint(head, 4)
            before, offset = varint(head, offset)
            assert (own, before) == (start, len(out))
            groups.append((position - len(data), read_table(unsqueezed(head[offset:]))))
            out += group(groups[-1][1], data, net, len(out))
        elif kind == 128 | 3:
            check_index(head, groups)
        elif kind == 5:
            assert hashlib.sha256(archive[:start]).digest() == head
        else:
            assert kind == 128 | 4
    return out


def unsqueezed(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[0] else data[1:]


def check_index(head: bytes, groups: list[tuple[int, list[Block]]]) -> None:
    """Check that the index matches the groups and lists each kind once."""
    plain = unsqueezed(head[4:])
    count, position = varint(plain, 0)
    pairs, position = column(plain, position, 2 * count)
    starts = np.cumsum(pairs[::2]).tolist()
    formats, position = varint(plain, position)
    for _ in range(formats):
        size, position = varint(plain, position)
        position += size
    blocks = read_table(plain[position:])
    assert starts == [start for start, _ in groups]
    assert pairs[1::2] == [len(found) for _, found in groups]
    assert blocks == [block for _, found in groups for block in found]


def read_table(data: bytes) -> list[Block]:
    blocks, position = varint(data, 0)
    count, position = varint(data, position)
    kinds = []
    for _ in range(count):
        size, position = varint(data, position)
        kinds.append(data[position : position + size])
        position += size
    sizes, position = column(data, position, blocks)
    which, position = column(data, position, blocks) if count > 1 else ([0] * blocks, position)
    shared = [bool(kinds[i][0] & 4) for i in which]
    counts, position = column(data, position, sum(shared))
    arrays = [counts.pop(0) if is_shared else 1 for is_shared in shared]
    names = [""] * sum(arrays)
    named, position = data[position], position + 1
    if named:
        names, position = read_names(data, position, len(names))
    filed, position = data[position], position + 1
    formats, position = column(data, position, len(names)) if filed else ([0] * len(names), position)
    assert position == len(data)
    found = []
    first = 0
    for size, i, length in zip(sizes, which, arrays, strict=True):
        found.append((kinds[i], size, names[first : first + length], formats[first : first + length]))
        first += length
    return found


def read_names(data: bytes, position: int, count: int) -> tuple[list[str], int]:
    prefixes, position = column(data, position, count)
    suffixes, position = column(data, position, count)
    sizes, position = column(data, position, count)
    names, last = [], b""
    for prefix, suffix, size in zip(prefixes, suffixes, sizes, strict=True):
        last = last[:prefix] + data[position : position + size] + last[len(last) - suffix :]
        position += size
        names.append(last.decode())
    return names, position


def group(
    blocks: list[Block], data: bytes, net: "IntegerFlow | LabelMaps | None", before: int
) -> list[tuple[str, Array]]:
    """Return the arrays of the blocks of a group."""
    out: list[tuple[str, Array]] = []
    position = 0
    for kind, size, names, _ in blocks:
        checksum = int.from_bytes(data[position : position + 4], "little")
        payload = data[position + 4 : position + 4 + size]
        position += 4 + size
        arrays = block(kind, payload, len(names), net)
        covered = arrays.tobytes() + kind + written(len(payload)) + written(before + len(out))
        assert zlib.crc32(covered) == checksum
        out += list(zip(names, arrays, strict=True))
    assert position == len(data)
    return out


def chunk(data: bytes, model: bytes) -> Array:
    """Return the array of a chunk."""
    start = 1 + data[0]
    kind, payload = data[1:start], data[start + 4 :]
    ((_, array),) = group([(kind, len(payload), [""], [])], data[start:], read_model(model), 0)
    return array


def block(kind: bytes, payload: bytes, count: int, net: "IntegerFlow | LabelMaps | None") -> Array:
    """Return all arrays of a block, (count, *shape)."""
    flags, dtype, dimensions = kind[0], DTYPES[kind[1]], kind[2]
    sizes, end = column(kind, 3, dimensions)
    shape = (count, *sizes)
    if flags & 3 == 2:
        assert net is not None
        if not flags & 8:
            return net.decode(payload, shape if flags & 4 else shape[1:], dtype).reshape(shape)
        rows, _ = varint(kind, end)
        firsts = range(0, sizes[0], rows)
        lengths, start = column(payload, 0, len(firsts) - 1)
        bands = []
        for first, length in zip(firsts, [*lengths, len(payload)], strict=True):
            band = (min(rows, sizes[0] - first), *sizes[1:])
            bands.append(net.decode(payload[start : start + length], band, dtype).reshape(band))
            start += length
        return np.concatenate(bands)[None]
    if flags & 3 == 1:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        dictionary = next(2**n for n in range(12, 25) if 2**n >= size or n == 24)
        filters = [{"id": lzma.FILTER_LZMA2, "dict_size": dictionary}]
        payload = lzma.decompress(payload, lzma.FORMAT_RAW, filters=filters)
    return np.frombuffer(payload, dtype=dtype).reshape(shape)


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
    """Return (…, K) frequencies that add up to 65536, for (…, K) logits in units of 1/256 bit."""
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
        """Return all arrays of a block, (count, *shape of an array)."""
        own = len(self.shape)
        sample = shape[-own:] if len(shape) >= own and self.fits(shape[-own:]) else (1, *shape[-2:])
        coder = RangeDecoder(payload)
        symbols = np.zeros((int(np.prod(shape)) // int(np.prod(sample)), *sample), dtype=np.int64)
        together = max(1, min(1 << 18, (1 << 21) // self.k) // int(np.prod(sample)))
        for first in range(0, len(symbols), together):
            part = symbols[first : first + together]
            part[...] = self.inverse(coder, part.shape)
        return self.values[symbols].reshape(shape).astype(dtype)

    def fits(self, shape: tuple[int, ...]) -> bool:
        return all(expected in (None, size) for size, expected in zip(shape, self.shape, strict=True))

    def inverse(self, coder: RangeDecoder, shape: tuple[int, ...]) -> Array:
        left = shape[1:]  # the shape of a sample that reaches the base
        coded: dict[int, int] = {}  # the channels that each split prior codes
        sizes: dict[int, tuple[int, ...]] = {}  # the height and width of the maps of each ordered split
        for number, layer in enumerate(self.layers):
            if layer["kind"] == "OrderedSplit":
                sizes[number] = left[1:]
                stride = layer["order"]["stride"]
                assert None not in self.shape or not any(side % stride for side in left[1:])
                left = (left[0], *(-(-side // stride) for side in left[1:]))
            elif layer["kind"] == "Squeeze":
                left = (4 * left[0], left[1] // 2, left[2] // 2)
            elif layer["kind"] in ("SplitPrior", "DenoisingSplit"):
                index = layer["partition"]["index"] or left[0] // 2
                kept = index if layer.get("factor_out", "b") == "b" else left[0] - index
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
            elif layer["kind"] == "DenoisingSplit":
                logits = self.logits(name, layer["net"], z, coded[number])
                rows = frequencies(self.rank_logits(number, logits)).reshape(len(z), -1, self.k)
                ranks = np.array([[coder.symbol(row) for row in part] for part in rows])
                ranks = ranks.reshape(len(z), coded[number], *z.shape[2:])
                z = np.concatenate([z, unrank(ranks, logits, self.k)], axis=1)
            elif layer["kind"] == "OrderedSplit":
                z = self.ordered(number, coder, z, sizes[number])
            else:
                assert layer["kind"] == "DenoisingCoupling"
                index = layer["partition"]["index"] or z.shape[1] // 2
                given, ranks = z[:, :index], z[:, index:]
                logits = self.logits(name, layer["net"], given, ranks.shape[1])
                z = np.concatenate([given, unrank(ranks, logits, layer["top"])], axis=1)
        return z

    def ordered(self, number: int, coder: RangeDecoder, z: Array, size: tuple[int, ...]) -> Array:
        """Decode the pixels of an ordered split, given those of step 0."""
        layer = self.layers[number]
        net = LatticeNet(self.tensors, f"{number}.net", layer["net"], self.k)
        positions = layer["net"]["positions"] and None not in self.shape
        of_pixel = steps(layer["order"], *size)
        x = np.zeros((*z.shape[:2], *size), dtype=np.int64)
        x[:, :, of_pixel == 0] = z.reshape(*z.shape[:2], -1)
        for step in range(1, of_pixel.max() + 1):
            if not (of_pixel == step).any():
                continue
            here, logits = net.logits(x, step, positions)  # pixels in the order (row, column)
            rows = frequencies(self.rank_logits(number, logits) if layer["ranks"] else logits)
            drawn = np.array([coder.symbol(row) for row in rows.reshape(-1, self.k)]).reshape(logits.shape[:-1])
            x[:, :, here] = unrank(drawn, logits, self.k) if layer["ranks"] else drawn
        return x

    def rank_logits(self, number: int, logits: Array) -> Array:
        """Return the logits of the ranks of a denoising split or an ordered split."""
        table = self.tensors[f"{number}.table"].astype(np.int64)
        ordered = -np.sort(-logits, axis=-1)
        margins = (ordered[..., :-1] - ordered[..., 1:])[..., : table.ndim - 1]
        bins = [
            np.minimum(margins[..., i] // width, (40, 8, 4)[i] - 1)
            for i, width in enumerate((128, 256, 512)[: table.ndim - 1])
        ]
        return ordered + table[tuple(bins)]

    def logits(self, name: str, net: dict[str, Any], given: Array, channels: int) -> Array:
        """Return logits (batch, channels, *spatial, K) for symbols (batch, channels, *spatial)."""
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
        """Map (…, in) to (…, out) in integers; weights (out, in, rows, columns) convolve (batch, height, width, in)."""
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
    """Return the classes at these ranks: first the `top` classes by logit, then the rest in the order left by swaps."""
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
