"""The reference decoder for label maps, from the section "Label maps" of docs/format.md."""

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ONE = 1 << 22
HALF = ONE // 2 << 10  # the initial counter: probability 1/2
WORD = (1 << 64) - 1
PAD = 16  # more repeated edge pixels than any rule reads

NET_BINS = [*range(2, 14), 16, 20, 28, 44, 76, 160, 255]
FINE_BINS = [*range(2, 17), 20, 24, 32, 48, 64, 128, 255]
COARSE_BINS = [3, 5, 8, 12, 20, 40, 255]


def logit(p: float) -> int:
    return max(-3071, min(3071, round(256 * math.log(p / (1 - p)))))


COARSE_LOGITS = [logit((i + 0.5) / 4096) for i in range(4096)]
FINE_LOGITS = [logit((i + 0.5) / 4096 / 64) for i in range(4096)]
SQUASH = [round(ONE / (1 + math.exp(-t / 256))) for t in range(-3071, 3072)]


def stretch(p: int) -> int:
    if p < ONE // 64:
        return FINE_LOGITS[p >> 4]
    if p > ONE - ONE // 64:
        return -FINE_LOGITS[ONE - p >> 4]
    return COARSE_LOGITS[p >> 10]


def updated(counter: int, bit: int, limit: int) -> int:
    p, n = counter >> 10, counter & 1023
    p += ((ONE if bit else 0) - p) * (131072 // (2 * n + 3)) >> 16
    return max(16, min(ONE - 16, p)) << 10 | (n + 1 if n < limit else n)


def quantized(run: int, edges: list[int]) -> int:
    return sum(run >= edge for edge in edges)


class Decoder:
    """The range coder."""

    def __init__(self, data: bytes) -> None:
        self.bytes = iter(data)
        self.range, self.point = 0xFFFFFFFF, 0
        for _ in range(4):
            self.point = self.point << 8 | next(self.bytes, 0)

    def _narrow(self, start: int, size: int) -> None:
        self.point, self.range = self.point - start, size
        while self.range < 1 << 24:
            self.range <<= 8
            self.point = self.point << 8 | next(self.bytes, 0)

    def bit(self, probability: int) -> int:
        bound = self.range * probability >> 22
        hit = self.point < bound
        self._narrow(0 if hit else bound, bound if hit else self.range - bound)
        return int(hit)

    def weighted(self, weights: list[int]) -> int:
        unit = self.range // sum(weights)
        place, symbol = self.point // unit, 0
        while place >= weights[symbol]:
            place -= weights[symbol]
            symbol += 1
        self._narrow(unit * sum(weights[:symbol]), unit * weights[symbol])
        return symbol

    def number(self, counters: list[int]) -> int:
        length = 0
        while True:
            more = self.bit(counters[length] >> 10)
            counters[length] = updated(counters[length], more, 30)
            if not more or length == 63:
                break
            length += 1
        value = 1
        for _ in range(length):
            value = value << 1 | self.bit(ONE // 2)
        return value


class Row:
    """A row with repeated edges, and the runs that end in its pixels."""

    def __init__(self, pixels: list[int], above: "Row | None") -> None:
        self.pixels = [pixels[0]] * PAD + pixels + [pixels[-1]] * PAD
        size = len(self.pixels)
        self.left, self.right = [255] * size, [255] * size
        for x in range(1, size):
            self.left[x] = self._longer(self.left[x - 1], x, self.pixels[x - 1])
        for x in range(size - 2, -1, -1):
            self.right[x] = self._longer(self.right[x + 1], x, self.pixels[x + 1])
        self.up, self.up_left, self.up_right = [255] * size, [255] * size, [255] * size
        if above is not None:
            for x in range(size):
                before, after = max(x - 1, 0), min(x + 1, size - 1)
                self.up[x] = self._longer(above.up[x], x, above.pixels[x])
                self.up_left[x] = self._longer(above.up_left[before], x, above.pixels[before])
                self.up_right[x] = self._longer(above.up_right[after], x, above.pixels[after])

    def _longer(self, run: int, x: int, neighbor: int) -> int:
        return min(run + 1, 255) if self.pixels[x] == neighbor else 1


def outside_row(width: int, outside: int) -> Row:
    row = Row([outside] * width, None)
    for runs in (row.left, row.right, row.up, row.up_left, row.up_right):
        runs[:] = [1] * len(runs)
    return row


class LabelMaps:
    """A model of label maps."""

    def __init__(self, header: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.t = tensors
        self.own: list[int] | None = None if header["classes"] is None else header["classes"]["values"]
        near = [(y * y + x * x, y == 0, y, x) for y in range(-15, 1) for x in range(-15, 16) if y < 0 or x < 0]
        self.offsets = [(y, x) for _, _, y, x in sorted(near)[: len(tensors["pixels"])]]
        self.ranks: list[int] = []  # of all decoded pixels, for tests

    def decode(self, payload: bytes, shape: tuple[int, ...], dtype: str) -> Array:
        coder = Decoder(payload)
        *count, height, width = shape
        cells = [np.arange(height), np.arange(width)]
        counters = [HALF] * 64
        if coder.bit(1 << 14):
            numbers = [coder.number(counters) for _ in range(4)]
            for axis in (0, 1):
                step, start = numbers[axis], numbers[axis + 2] - 1
                cells[axis] = (cells[axis] + (step - start if start else 0)) // step
        known = self.own is not None and bool(coder.bit(ONE - (1 << 17)))
        labels = list(self.own or ()) if known else self._labels(coder, counters)
        array = ArrayDecoder(self, coder, labels, known, math.prod(shape))
        maps = [array.map(int(cells[0][-1]) + 1, int(cells[1][-1]) + 1) for _ in range(math.prod(count))]
        out = np.array([[[labels[s] for s in row] for row in one] for one in maps], dtype=object)
        return out[:, cells[0]][:, :, cells[1]].astype(dtype).reshape(shape)

    def _labels(self, coder: Decoder, counters: list[int]) -> list[int]:
        count = coder.number(counters)
        size = coder.number([HALF] * 64) - 1
        labels = [-size - 1 if coder.bit(ONE // 2) else size]
        counters = [HALF] * 64
        for _ in range(1, count):
            labels.append(labels[-1] + coder.number(counters))
        return labels


class ArrayDecoder:
    """Decode the maps of one array; adaptive state carries over from each map to the next."""

    def __init__(self, model: LabelMaps, coder: Decoder, labels: list[int], known: bool, pixels: int) -> None:
        t = model.t
        self.model, self.coder, self.known, self.symbols = model, coder, known, len(labels)
        own = model.own or []
        self.classes = [own.index(label) if label in own else len(own) for label in labels] + [len(own)]
        self.rank_counters, self.flat_counters = t["ranks"].tolist(), t["flat_counters"].tolist()
        self.weights, self.escapes = t["weights"].tolist(), t["escapes"].tolist()
        self.seen, self.new, self.next = [0] * len(labels), HALF, HALF
        self.bits = min(max((pixels // 4).bit_length(), 8), 18)
        self.local: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.limit_rank, self.limit_local, self.limit_flat, self.rate, self.gain = t["settings"].tolist()

    def map(self, height: int, width: int) -> list[list[int]]:
        done: list[Row] = []
        nothing = outside_row(width, self.symbols)
        out = []
        for i in range(height):
            above = [done[max(i - 1 - k, 0)] if done else nothing for k in range(15)]
            row = [above[0].pixels[PAD]] * PAD
            run = 255
            for _ in range(width):
                symbol, rank = self.pixel(row, above, run, i * self.model.t["flat_classes"].shape[1] // height)
                run = min(run + 1, 255) if symbol == row[-1] else 1
                row.append(symbol)
                self.model.ranks.append(rank)
            out.append(row[PAD:])
            done.append(Row(row[PAD:], done[-1] if done else None))
        return out

    def pixel(self, row: list[int], above: list[Row], run: int, row_bin: int) -> tuple[int, int]:
        """Return the next pixel of a row, and its rank."""
        x, c = len(row), row[-1]
        first, second = above[0], above[1]
        runs = [first.right[x], first.left[x], first.up[x], first.up_left[x - 1], first.up_right[x + 1]]
        flat = run >= 2 and first.pixels[x + 2] == c == second.pixels[x + 1] != self.symbols
        if flat and first.left[x + 2] >= 5 and second.left[x + 1] >= 3:
            return self.flat_pixel(c, [run, *runs], [above[3], above[7]], x, row_bin)
        return self.busy_pixel(row, above, [run, *runs], row_bin)

    def flat_pixel(self, c: int, runs: list[int], far: list[Row], x: int, row_bin: int) -> tuple[int, int]:
        a, b, f, up, d, e = (quantized(run, COARSE_BINS) for run in runs)
        g, h = (quantized(row.left[x + 8], COARSE_BINS) if row.pixels[x + 8] == c else 0 for row in far)
        places = [64 * a + 8 * b + up, 512 + 64 * d + 8 * e + a, 1024 + 64 * f + 8 * up + e, 1536 + 64 * b + 8 * e + f]
        places.append(2048 + 8 * g + h)
        right, left = runs[1], runs[2]
        singles = [runs[0], right, runs[3], runs[4], runs[5], left]
        places += [2112 + 23 * k + quantized(length, FINE_BINS) for k, length in enumerate(singles)]
        score = int(self.model.t["flat_classes"][self.classes[c], row_bin]) + int(self.model.t["flat"][places].sum())
        place = min(max(score + 3072 >> 6, 0), 63)
        hit = self.coder.bit(self.flat_counters[place] >> 10)
        self.flat_counters[place] = updated(self.flat_counters[place], hit, self.limit_flat)
        return (c, 0) if hit else (self.escape(c, [c]), 1)

    def busy_pixel(self, row: list[int], above: list[Row], runs: list[int], row_bin: int) -> tuple[int, int]:
        x = len(row)
        candidates: list[int] = []
        relative = []
        for dy, dx in self.model.offsets:
            symbol = row[x + dx] if dy == 0 else above[-dy - 1].pixels[x + dx]
            if symbol != self.symbols and symbol not in candidates and len(candidates) < 5:
                candidates.append(symbol)
            relative.append(6 if symbol == self.symbols else candidates.index(symbol) if symbol in candidates else 5)
        lengths = [quantized(run, NET_BINS) for run in runs]
        logits = self.net(relative, lengths, candidates, row_bin)
        options = list(range(len(candidates))) + ([5] if len(candidates) < self.symbols else [])
        options.sort(key=lambda k: -logits[k])
        z = [logits[k] >> int(self.model.t["shifts"][2]) for k in options]
        z.append(z[-1] - (1 << 14))
        north, w = above[0].pixels, row[-1]
        around = beyond = 0
        for symbol in (w, north[x], north[x - 1], north[x + 1]):
            around = around * 65537 + symbol
        for symbol in (row[-2], above[1].pixels[x], north[x + 2]):
            beyond = beyond * 65537 + symbol
        ends = (lengths[0] << 16 | lengths[1] << 8 | lengths[2]) + 1
        chosen, rank = options[-1], len(options) - 1
        for r, k in enumerate(options[:-1]):
            option = candidates[k] if k < 5 else self.symbols
            hashes = (
                self.hash(around, beyond * 65537 + option),
                self.hash((w * 65537 + north[x]) * 65537 + option, ends),
            )
            if self.decision(r, min(z[r] - z[r + 1] >> 5, 63), min(z[r + 1] - z[r + 2] >> 8, 5), hashes):
                chosen, rank = k, r
                break
        return (candidates[chosen] if chosen < 5 else self.escape(w, candidates)), rank

    def net(self, relative: list[int], lengths: list[int], candidates: list[int], row_bin: int) -> list[int]:
        t = self.model.t
        total = t["bias"] + t["pixels"][range(len(relative)), relative].sum(0) + t["runs"][range(6), lengths].sum(0)
        for k, table in enumerate(t["classes"]):
            total = total + table[self.classes[candidates[k]] if k < len(candidates) else -1]
        if len(t["rows"]):
            total = total + t["rows"][row_bin]
        for name, shift in (("second", t["shifts"][0]), ("third", t["shifts"][1])):
            total = (total >> shift).clip(0, 255) @ t[name] + t[f"{name}_bias"]
        return [int(value) for value in total[:6]]

    def hash(self, a: int, b: int) -> int:
        mixed = (a * 0x9E3779B97F4A7C15 & WORD) ^ (b * 0xD6E8FEB86659FD93 & WORD)
        return (mixed * 0xFF51AFD7ED558CCD & WORD) >> 64 - self.bits

    def decision(self, r: int, gap: int, next_gap: int, hashes: tuple[int, int]) -> int:
        d = min(r, 2)
        place = (d * 64 + gap) * 6 + next_gap
        general = self.rank_counters[place]
        local = [table.get(h, general >> 10 << 10 | 1) for table, h in zip(self.local, hashes, strict=True)]
        inputs = [*(stretch(counter >> 10) for counter in (general, *local)), 256]
        q1, q2 = (quantized(counter & 1023, [2, 5, 20]) for counter in local)
        weights = self.weights[(d * 4 + q1) * 4 + q2]
        total = sum(weight * value for weight, value in zip(weights, inputs, strict=True)) >> 16
        p = SQUASH[min(max(total, -3071), 3071) + 3071]
        hit = self.coder.bit(p)
        error = ((ONE if hit else 0) - p) * self.rate
        for i, value in enumerate(inputs):
            weights[i] += value * error + (1 << 29) >> 30
        self.rank_counters[place] = updated(general, hit, self.limit_rank)
        for table, h, counter in zip(self.local, hashes, local, strict=True):
            table[h] = updated(counter, hit, self.limit_local)
        return hit

    def escape(self, left: int, excluded: list[int]) -> int:
        if self.known:
            row = self.escapes[left]
            symbol = self.coder.weighted([0 if s in excluded else weight for s, weight in enumerate(row)])
            row[symbol] += self.gain
            if sum(row) > 1 << 15:
                row[:] = [weight + 1 >> 1 for weight in row]
            return symbol
        fresh = [s for s, times in enumerate(self.seen) if times == 0]
        weights = [0 if s in excluded else times for s, times in enumerate(self.seen)]
        total = sum(weights)
        is_new = bool(fresh)
        if fresh and total:
            is_new = bool(self.coder.bit(self.new >> 10))
            self.new = updated(self.new, is_new, 60)
        if not is_new:
            symbol = self.coder.weighted(weights)
            if self.seen[symbol] < 60000:
                self.seen[symbol] += 24
            if total > 1 << 19:
                self.seen = [times + 1 >> 1 for times in self.seen]
            return symbol
        symbol = fresh[0]
        if len(fresh) > 1:
            is_first = self.coder.bit(self.next >> 10)
            self.next = updated(self.next, is_first, 30)
            if not is_first:
                symbol = fresh[1 + self.coder.weighted([1] * (len(fresh) - 1))]
        self.seen[symbol] += 24
        return symbol
