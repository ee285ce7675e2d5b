"""Code a map in a single pass of integer code: context, net, ranks, adaptive counters and range coder."""

__all__ = ["code_rows", "collect_rows"]

import numpy as np

from ddf.labelmaps.arithmetic import (
    COUNT_BITS,
    LIMIT,
    PROBABILITY_BITS,
    SQUASH,
    STEPS,
    STRETCH,
    code_bit,
    code_uniform,
    code_weighted,
    spent,
    stretch,
    updated,
)
from ddf.labelmaps.compiling import jit
from ddf.labelmaps.context import (
    CANDIDATES,
    FAR,
    FINE,
    FLAT_TABLES,
    LONGEST,
    OTHER,
    OUTSIDE,
    PAD,
    RELATIVE,
    RUN_BINS,
    RUN_BINS_COARSE,
    RUN_BINS_FINE,
    RUNS,
    Ring,
    finish_row,
    is_flat,
    start_row,
)
from ddf.labelmaps.state import (
    CONFIDENCE,
    DECISIONS,
    FLAT_BINS,
    GAPS,
    MIXED,
    NEXT_GAPS,
    NO_CANDIDATE,
    Nets,
    Scratch,
    State,
    Trace,
)
from ddf.shapes import Array

_SINGLES = 2112


@jit
def _flat_places(
    symbols: Array, left: Array, right: Array, up: Array, up_left: Array, up_right: Array, at: int, stride: int,
    run: int, symbol: int, places: Array,
) -> None:  # fmt: skip
    """Compute the indices into the tables for flat pixels, each from one or three run lengths."""
    above = at - stride
    far, farther = at - FAR * stride + 8, at - 2 * FAR * stride + 8
    q, fine = RUN_BINS_COARSE, RUN_BINS_FINE
    a, b, c, d = np.int64(q[run]), np.int64(q[right[above]]), np.int64(q[up[above]]), np.int64(q[up_left[above - 1]])
    e, f = np.int64(q[up_right[above + 1]]), np.int64(q[left[above]])
    g = np.int64(q[left[far]]) if symbols[far] == symbol else 0
    h = np.int64(q[left[farther]]) if symbols[farther] == symbol else 0
    places[0] = a << 6 | b << 3 | c
    places[1] = 512 + (d << 6 | e << 3 | a)
    places[2] = 1024 + (f << 6 | c << 3 | e)
    places[3] = 1536 + (b << 6 | e << 3 | f)
    places[4] = 2048 + (g << 3 | h)
    places[5] = _SINGLES + np.int64(fine[run])
    places[6] = _SINGLES + FINE + np.int64(fine[right[above]])
    places[7] = _SINGLES + 2 * FINE + np.int64(fine[up[above]])
    places[8] = _SINGLES + 3 * FINE + np.int64(fine[up_left[above - 1]])
    places[9] = _SINGLES + 4 * FINE + np.int64(fine[up_right[above + 1]])
    places[10] = _SINGLES + 5 * FINE + np.int64(fine[left[above]])


@jit
def _runs(
    left: Array, right: Array, up: Array, up_left: Array, up_right: Array, above: int, run: int, found: Array
) -> None:
    """Compute the binned run lengths that the net uses as inputs."""
    found[0] = RUN_BINS[run]
    found[1] = RUN_BINS[right[above]]
    found[2] = RUN_BINS[left[above]]
    found[3] = RUN_BINS[up[above]]
    found[4] = RUN_BINS[up_left[above - 1]]
    found[5] = RUN_BINS[up_right[above + 1]]


@jit
def _context(
    pixels: Array, at: int, near: Array, index: Array, candidates: Array, relative: Array, outside: int
) -> int:
    """Find the candidates and the relative labels of a context; return the number of candidates."""
    count = 0
    for j in range(len(relative)):
        v = pixels[np.uint64(at + near[j])]
        k = index[v]
        if k == NO_CANDIDATE:
            if v == outside:
                k = np.uint8(OUTSIDE)
            elif count < CANDIDATES:
                k = np.uint8(count)
                index[v] = k
                candidates[count] = v
                count += 1
            else:
                k = np.uint8(OTHER)
        relative[j] = k
    return count


@jit
def _add(total: Array, table: Array, row: int) -> None:
    for q in range(len(total)):
        total[q] += table[row, q]


@jit
def _layers(
    first: Array, active: Array, second: Array, logits: Array, weights: Array, bias: Array, last: Array,
    last_bias: Array, shift: int, second_shift: int,
) -> None:  # fmt: skip
    """Run the second and third layers of the net."""
    n = 0
    for q in range(len(first)):
        active[n] = q
        n += first[q] >> shift > 0
    for o in range(len(second)):
        second[o] = bias[o]
    for i in range(n):
        q = active[i]
        a = np.float32(min(first[q] >> shift, 255))
        for o in range(len(second)):
            second[o] += a * weights[q, o]
    for o in range(8):
        logits[o] = last_bias[o]
    for q in range(len(second)):
        a = np.float32(min(max(np.int32(second[q]) >> second_shift, 0), 255))
        for o in range(8):
            logits[o] += a * last[q, o]


@jit
def _order(logits: Array, count: int, symbols: int, order: Array, sorted_: Array, scale: int) -> int:
    """Sort the options by logit, in descending order and stably; return the number of options.

    The options are the candidates and, unless all symbols are candidates, "none of these".
    """
    n = 0
    for k in range(CANDIDATES + 1):
        if k < count or (k == OTHER and count < symbols):
            value = np.int64(logits[k])
            i = n
            while i > 0 and sorted_[i - 1] < value:
                sorted_[i] = sorted_[i - 1]
                order[i] = order[i - 1]
                i -= 1
            sorted_[i] = value
            order[i] = k
            n += 1
    for i in range(n):
        sorted_[i] >>= scale
    for i in range(n, CANDIDATES + 3):
        sorted_[i] = sorted_[n - 1] - (1 << 14)
    return n


@jit
def _mix(state_weights: Array, inputs: Array, which: int) -> int:
    total = np.int64(0)
    for i in range(MIXED):
        total += np.int64(state_weights[which, i]) * inputs[i]
    total >>= 16
    return np.int64(SQUASH[min(max(total, -LIMIT), LIMIT) + LIMIT])


@jit
def _learn(state_weights: Array, inputs: Array, which: int, bit: int, p: int, rate: int) -> None:
    error = ((bit << PROBABILITY_BITS) - p) * rate
    for i in range(MIXED):
        state_weights[which, i] += (inputs[i] * error + (1 << 29)) >> 30


@jit
def _code_escape(
    state: State, coder: Array, data: Array, decoding: bool, symbol: int, left: int, excluded: Array, count: int,
    scratch: Array, settings: Array,
) -> int:  # fmt: skip
    """Code a symbol that is not among the candidates."""
    symbols = len(state.seen)
    if state.escapes.shape[0]:
        row = state.escapes[left]
        total = 0
        for i in range(symbols):
            scratch[i] = row[i]
        for i in range(count):
            scratch[excluded[i]] = 0
        for i in range(symbols):
            total += scratch[i]
        if total == 0:  # only in damaged data
            return 0
        symbol = code_weighted(coder, data, decoding, symbol, scratch, total)
        row[symbol] += settings[4]
        sum_ = 0
        for i in range(symbols):
            sum_ += row[i]
        if sum_ > 1 << 15:
            for i in range(symbols):
                row[i] = (row[i] + 1) >> 1
        return symbol
    fresh = 0
    first = -1
    total = 0
    for i in range(symbols):
        scratch[i] = state.seen[i]
        if state.seen[i] == 0:
            fresh += 1
            if first < 0:
                first = i
    for i in range(count):
        if scratch[excluded[i]] == 0:
            fresh -= 1
        scratch[excluded[i]] = 0
    for i in range(symbols):
        total += scratch[i]
    new = 0
    if fresh > 0:
        new = 1
        if total > 0:
            new = code_bit(
                coder, data, decoding, 1 if decoding or state.seen[symbol] == 0 else 0, state.fresh[0] >> COUNT_BITS
            )
            state.fresh[0] = updated(state.fresh[0], new, STEPS, 60)
    elif total == 0:
        return 0
    if not new:
        symbol = code_weighted(coder, data, decoding, symbol, scratch, total)
        if state.seen[symbol] < 60000:
            state.seen[symbol] += 24
        if total > 1 << 19:
            for i in range(symbols):
                state.seen[i] = (state.seen[i] + 1) >> 1
        return symbol
    if fresh > 1:
        is_first = code_bit(coder, data, decoding, 1 if symbol == first else 0, state.fresh[1] >> COUNT_BITS)
        state.fresh[1] = updated(state.fresh[1], is_first, STEPS, 30)
        if is_first:
            symbol = first
        else:
            rank = 0
            if not decoding:
                for i in range(first + 1, symbol):
                    rank += state.seen[i] == 0
            rank = code_uniform(coder, data, decoding, rank, fresh - 1)
            if decoding:
                symbol = first
                while rank >= 0 and symbol + 1 < symbols:
                    symbol += 1
                    if state.seen[symbol] == 0:
                        rank -= 1
    else:
        symbol = first
    state.seen[symbol] += 24
    return symbol


@jit
def _hash(a: int, b: int, bits: int) -> int:
    h = (np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)) ^ (np.uint64(b) * np.uint64(0xD6E8FEB86659FD93))
    return np.int64((h * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(64 - bits))


@jit
def code_rows(
    symbols: Array, first_row: int, height: int, classes: Array, nets: Nets, state: State, ring: Ring, scratch: Scratch,
    settings: Array, coder: Array, data: Array, decoding: bool, trace: Trace,
) -> None:  # fmt: skip
    """Encode or decode consecutive rows of a map.

    Arguments:
        symbols: The rows (rows, width), uint16: read when encoding, written when decoding.
        first_row, height: Index of the first of these rows in the map, and height of the map.
        classes: The model's class of every symbol.
        nets, state, ring, scratch: The fixed parameters, the adaptive state, the preceding rows, and the work space.
        settings: Limits of the counters, learning rate of the mixers, increment of the escape weights.
        coder, data: The range coder and its bytes.
        decoding: Whether to decode.
        trace: Receives a record of each pixel, unless its arrays are empty.
    """
    height_here, width = symbols.shape
    outside = len(classes) - 1
    index, candidates, relative, places, found, near = (
        scratch.index, scratch.candidates, scratch.relative, scratch.places, scratch.runs, scratch.near
    )  # fmt: skip
    first, active, second, logits = scratch.first, scratch.active, scratch.second, scratch.logits
    order, ordered, inputs, escape = scratch.order, scratch.ordered, scratch.inputs, scratch.escape
    shift, second_shift, scale = nets.shifts[0], nets.shifts[1], nets.shifts[2]
    stride = ring.symbols.shape[1]
    pixels, left, right = ring.symbols.reshape(-1), ring.left.reshape(-1), ring.right.reshape(-1)
    up, up_left, up_right = ring.up.reshape(-1), ring.up_left.reshape(-1), ring.up_right.reshape(-1)
    pair_rows = nets.pairs.reshape(-1, len(first))
    run_rows, run_values = nets.runs.reshape(-1, len(first)), nets.runs.shape[1]
    class_rows, class_values, shown = nets.classes.reshape(-1, len(first)), nets.classes.shape[1], nets.classes.shape[0]
    position_rows, bias, flat_tables, flat_classes = nets.rows, nets.bias, nets.flat, nets.flat_classes
    weights, second_bias, last, last_bias = nets.second, nets.second_bias, nets.third, nets.third_bias
    rank_counters, flat_counters, local, mixers = state.ranks, state.flat, state.local, state.weights
    hash_bits = 0
    while 1 << hash_bits < state.local.shape[1]:
        hash_bits += 1
    limit_rank, limit_local, limit_flat, rate = settings[0], settings[1], settings[2], settings[3]
    tracing = trace.bits.shape[0] > 0
    row_bins = nets.flat_classes.shape[1]
    for i in range(height_here):
        at = start_row(ring) * stride + PAD - 1
        row_bin = (first_row + i) * row_bins // height
        run = LONGEST
        for j in range(width):
            at += 1
            w = np.int64(pixels[at - 1])
            symbol = np.int64(symbols[i, j])
            before = spent(coder) if tracing else 0.0
            rank, margin = 0, 0
            if is_flat(pixels, left, at, stride, run, outside):
                _flat_places(pixels, left, right, up, up_left, up_right, at, stride, run, w, places)
                score = np.int64(flat_classes[classes[w], row_bin])
                for k in range(FLAT_TABLES):
                    score += flat_tables[places[k]]
                b = min(max((score + 48 * 64) >> 6, 0), FLAT_BINS - 1)
                counter = flat_counters[b]
                hit = code_bit(coder, data, decoding, 1 if symbol == w else 0, np.int64(counter >> COUNT_BITS))
                flat_counters[b] = updated(counter, hit, STEPS, limit_flat)
                margin = -score
                if hit:
                    symbol = w
                else:
                    rank = 1
                    candidates[0] = w
                    symbol = _code_escape(state, coder, data, decoding, symbol, w, candidates, 1, escape, settings)
            else:
                count = _context(pixels, at, near, index, candidates, relative, outside)
                _runs(left, right, up, up_left, up_right, at - stride, run, found)
                for q in range(len(first)):
                    first[q] = bias[q]
                for k in range(len(relative) // 2):
                    pair = np.int64(relative[2 * k]) * RELATIVE + np.int64(relative[2 * k + 1])
                    _add(first, pair_rows, k * RELATIVE * RELATIVE + pair)
                for k in range(RUNS):
                    _add(first, run_rows, k * run_values + found[k])
                for k in range(shown):
                    _add(
                        first,
                        class_rows,
                        k * class_values + (classes[candidates[k]] if k < count else class_values - 1),
                    )
                if len(position_rows):
                    _add(first, position_rows, row_bin)
                _layers(first, active, second, logits, weights, second_bias, last, last_bias, shift, second_shift)
                options = _order(logits, count, outside, order, ordered, scale)
                margin = ordered[0] - ordered[1]
                target = OTHER
                if not decoding and index[symbol] != NO_CANDIDATE:
                    target = index[symbol]
                for k in range(count):
                    index[candidates[k]] = NO_CANDIDATE
                north = np.int64(pixels[at - stride])
                nw = np.int64(pixels[at - stride - 1])
                ne = np.int64(pixels[at - stride + 1])
                ww = np.int64(pixels[at - 2])
                nn = np.int64(pixels[at - 2 * stride])
                around = ((w * 65537 + north) * 65537 + nw) * 65537 + ne
                beyond = (ww * 65537 + nn) * 65537 + np.int64(pixels[at - stride + 2])
                lengths = found[0] << 16 | found[1] << 8 | found[2]
                chosen = OTHER
                for r in range(options):
                    k = order[r]
                    if r == options - 1:
                        chosen = k
                        break
                    d = min(r, DECISIONS - 1)
                    gap = min((ordered[r] - ordered[r + 1]) >> 5, GAPS - 1)
                    next_gap = min((ordered[r + 1] - ordered[r + 2]) >> 8, NEXT_GAPS - 1)
                    place = (d * GAPS + gap) * NEXT_GAPS + next_gap
                    c0 = rank_counters[place]
                    option = np.int64(candidates[k]) if k < OTHER else outside
                    h1 = _hash(around, beyond * 65537 + option, hash_bits)
                    h2 = _hash((w * 65537 + north) * 65537 + option, lengths + 1, hash_bits)
                    c1, c2 = local[0, h1], local[1, h2]
                    if c1 == 0:
                        c1 = c0 & ~np.uint32(1023) | np.uint32(1)
                    if c2 == 0:
                        c2 = c0 & ~np.uint32(1023) | np.uint32(1)
                    inputs[0] = stretch(STRETCH, np.int64(c0 >> COUNT_BITS))
                    inputs[1] = stretch(STRETCH, np.int64(c1 >> COUNT_BITS))
                    inputs[2] = stretch(STRETCH, np.int64(c2 >> COUNT_BITS))
                    inputs[3] = 256
                    n1, n2 = np.int64(c1 & np.uint32(1023)), np.int64(c2 & np.uint32(1023))
                    q1 = 0 if n1 < 2 else 1 if n1 < 5 else 2 if n1 < 20 else 3
                    q2 = 0 if n2 < 2 else 1 if n2 < 5 else 2 if n2 < 20 else 3
                    which = (d * CONFIDENCE + q1) * CONFIDENCE + q2
                    p = _mix(mixers, inputs, which)
                    hit = code_bit(coder, data, decoding, 1 if k == target else 0, p)
                    _learn(mixers, inputs, which, hit, p, rate)
                    rank_counters[place] = updated(c0, hit, STEPS, limit_rank)
                    local[0, h1] = updated(c1, hit, STEPS, limit_local)
                    local[1, h2] = updated(c2, hit, STEPS, limit_local)
                    if hit:
                        chosen = k
                        break
                    rank += 1
                if chosen < OTHER:
                    symbol = candidates[chosen]
                else:
                    symbol = _code_escape(state, coder, data, decoding, symbol, w, candidates, count, escape, settings)
            pixels[at] = symbol
            if decoding:
                symbols[i, j] = symbol
            if tracing:
                trace.bits[i, j] = spent(coder) - before
                trace.ranks[i, j] = rank
                trace.margins[i, j] = margin
            run = min(run + 1, LONGEST) if symbol == w else 1
        finish_row(ring, width, first_row + i == 0)


@jit
def collect_rows(
    symbols: Array, height: int, classes: Array, shown: int, known: int, row_bins: int, ring: Ring, scratch: Scratch,
    busy: Array, flat: Array, every: int,
) -> tuple[int, int]:  # fmt: skip
    """Collect training examples from the pixels of a map; return the numbers of busy and flat ones.

    Arguments:
        symbols: The map (height, width), uint16.
        height: Its height.
        classes: The model's class of every symbol.
        shown: Number of candidates whose class is an input of the net.
        known: Number of known classes.
        row_bins: Number of bins for the vertical position.
        ring, scratch: The ring, after `start_map`, and the work space.
        busy: Output: relative labels, run lengths, classes, vertical position, number of candidates and target, uint8.
        flat: Output: indices into the tables, class times bins plus vertical position, and target, int16.
        every: Of the flat pixels that equal their neighbors, keep one in `every`, at random.
    """
    height_here, width = symbols.shape
    outside = len(classes) - 1
    index, candidates, relative, places, found, near = (
        scratch.index, scratch.candidates, scratch.relative, scratch.places, scratch.runs, scratch.near
    )  # fmt: skip
    stride = ring.symbols.shape[1]
    pixels, left, right = ring.symbols.reshape(-1), ring.left.reshape(-1), ring.right.reshape(-1)
    up, up_left, up_right = ring.up.reshape(-1), ring.up_left.reshape(-1), ring.up_right.reshape(-1)
    inputs = len(relative)
    n_busy, n_flat = 0, 0
    random = np.uint64(height_here * width)
    for i in range(height_here):
        at = start_row(ring) * stride + PAD - 1
        row_bin = i * row_bins // height
        run = LONGEST
        for j in range(width):
            at += 1
            w, symbol = pixels[at - 1], symbols[i, j]
            if is_flat(pixels, left, at, stride, run, outside):
                random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                if symbol == w and (random >> np.uint64(33)) % np.uint64(every):
                    pixels[at] = symbol
                    run = min(run + 1, LONGEST)
                    continue
                _flat_places(pixels, left, right, up, up_left, up_right, at, stride, run, w, places)
                for k in range(FLAT_TABLES):
                    flat[n_flat, k] = places[k]
                flat[n_flat, FLAT_TABLES] = classes[w] * row_bins + row_bin
                flat[n_flat, FLAT_TABLES + 1] = symbol == w
                n_flat += 1
            else:
                count = _context(pixels, at, near, index, candidates, relative, outside)
                for k in range(inputs):
                    busy[n_busy, k] = relative[k]
                _runs(left, right, up, up_left, up_right, at - stride, run, found)
                for k in range(RUNS):
                    busy[n_busy, inputs + k] = found[k]
                for k in range(shown):
                    busy[n_busy, inputs + RUNS + k] = classes[candidates[k]] if k < count else known
                busy[n_busy, inputs + RUNS + shown] = row_bin
                busy[n_busy, inputs + RUNS + shown + 1] = count
                busy[n_busy, inputs + RUNS + shown + 2] = index[symbol] if index[symbol] != NO_CANDIDATE else OTHER
                for k in range(count):
                    index[candidates[k]] = NO_CANDIDATE
                n_busy += 1
            pixels[at] = symbol
            run = min(run + 1, LONGEST) if symbol == w else 1
        finish_row(ring, width, i == 0)
    return n_busy, n_flat
