"""Training: from label maps to a causal flow. Needs torch."""

__all__ = ["train"]

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.data.classes import Classes
from ddf.labelmaps.arithmetic import COUNT_BITS, PROBABILITY_BITS
from ddf.labelmaps.context import CANDIDATES, FLAT_ENTRIES, FLAT_TABLES, NET_RUN_VALUES, OTHER, RELATIVE, RUNS
from ddf.labelmaps.kernel import CONFIDENCE, DECISIONS, FLAT_BINS, GAPS, MIXED, NEXT_GAPS
from ddf.labelmaps.model import CausalFlow
from ddf.labelmaps.places import ROW_BINS, Places, collect, input_sizes
from ddf.labelmaps.presets import PRESETS, Preset
from ddf.labelmaps.types import Array

SETTINGS = np.array([1023, 127, 1023, 12, 32], dtype=np.int64)
_UNIT = 256  # logits of a model are integers in units of 1/256 nat
_ACTIVATION = 255
_FLAT_RATE = 2e-2


class Net(nn.Module):
    """The net in floating point: one-hot inputs, two hidden layers, a logit for each candidate and for none of them."""

    def __init__(self, sizes: Sequence[int], hidden: tuple[int, int], generator: torch.Generator) -> None:
        super().__init__()
        self.inputs = sum(sizes)
        self.register_buffer("starts", torch.tensor([0, *np.cumsum(sizes)[:-1]]), persistent=False)
        first = torch.randn(self.inputs, hidden[0], generator=generator) * (2 * len(sizes)) ** -0.5
        self.first, self.bias = nn.Parameter(first), nn.Parameter(torch.zeros(hidden[0]))
        self.second, self.third = nn.Linear(*hidden), nn.Linear(hidden[1], CANDIDATES + 1)
        for layer in (self.second, self.third):
            bound = layer.in_features**-0.5
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.zero_()

    def forward(self, values: Tensor, counts: Tensor) -> Tensor:
        places = values.long() + self.starts
        one_hot = torch.zeros(len(values), self.inputs, dtype=torch.bfloat16, device=values.device)
        one_hot.scatter_(1, places, 1.0)
        h = (one_hot @ self.first.bfloat16()).float() + self.bias
        logits = self.third(torch.relu(self.second(torch.relu(h))))
        return logits.masked_fill(impossible(counts), -1e4)


def impossible(counts: Tensor) -> Tensor:
    """Which outputs stand for candidates that are not there: (places, outputs)."""
    outputs = torch.arange(CANDIDATES + 1, device=counts.device)
    return (outputs >= counts[:, None].long()) & (outputs != OTHER)


def train_net(
    places: Places, sizes: Sequence[int], preset: Preset, seed: int, report: Callable[[int, float], None]
) -> Net:
    """Train the net on busy places."""
    generator = torch.Generator().manual_seed(seed)
    net = Net(sizes, preset.hidden, generator)
    values, counts, targets = (torch.from_numpy(part) for part in (places.busy, places.counts, places.targets))
    optimizer = torch.optim.Adam(net.parameters(), preset.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 200) * (0.5 + 0.5 * np.cos(np.pi * step / preset.steps) + 1e-3)
    )
    for step in range(preset.steps):
        chosen = torch.randint(len(values), (preset.batch,), generator=generator)
        loss = F.cross_entropy(net(values[chosen], counts[chosen]), targets[chosen].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == preset.steps - 1:
            report(step + 1, loss.item() / np.log(2))
    return net


def fit_flat(places: Places, classes: int, seed: int, steps: int = 3000, batch: int = 8192) -> tuple[Array, Array]:
    """Fit the tables of flat places by logistic regression: the log-odds of a change, in units of 1/256 nat."""
    bins = ROW_BINS if classes else 1
    own = (classes + 1) * bins
    tables = torch.zeros(FLAT_ENTRIES + own)
    generator = torch.Generator().manual_seed(seed)
    changed, kept = (torch.from_numpy(part.astype(np.int64)) for part in (places.changed, places.kept))
    if len(changed) and len(kept):
        total = len(changed) + len(kept) * places.every
        tables[FLAT_ENTRIES:] = float(np.log(len(changed) / (total - len(changed))))
        parameters = nn.Parameter(tables)
        optimizer = torch.optim.Adam([parameters], _FLAT_RATE, fused=True)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _FLAT_RATE * (0.5 + 0.5 * np.cos(np.pi * step / steps)) + 1e-5
            losses = []
            for part, sign, times, size in ((changed, -1, 1, batch // 4), (kept, 1, places.every, batch)):
                drawn = part[torch.randint(len(part), (size,), generator=generator)]
                drawn[:, FLAT_TABLES] += FLAT_ENTRIES
                odds = parameters[drawn].sum(1)
                losses.append(F.softplus(sign * odds).mean() * (len(part) * times / total))
            optimizer.zero_grad()
            (20 * (losses[0] + losses[1])).backward()
            optimizer.step()
        tables = parameters.detach()
    scaled = (tables * _UNIT).round().clamp(-32000, 32000).to(torch.int16).numpy()
    return scaled[:FLAT_ENTRIES], scaled[FLAT_ENTRIES:].reshape(classes + 1, bins)


def quantize(net: Net, places: Places, preset: Preset, classes: int) -> dict[str, Array]:
    """Round a net to integers: activations to 8 bits, weights to what exact sums allow."""
    shown = preset.shown if classes else 0
    first = net.first.detach().double().numpy()
    bias = net.bias.detach().double().numpy()
    sizes = [RELATIVE] * preset.pixels + [NET_RUN_VALUES] * RUNS + [classes + 1] * shown + [ROW_BINS] * bool(classes)
    parts, start = [], 0
    for size in sizes:
        parts.append(first[start : start + size])
        start += size
    # Move what all values of an input have in common into the bias: then rows are small, and sums fit 16 bits.
    for part in parts:
        middle = (part.max(axis=0) + part.min(axis=0)) / 2
        part -= middle
        bias += middle
    reach = np.abs(bias) + sum(np.abs(part).max(axis=0) for part in parts)
    some = slice(0, min(len(places.busy), 20_000))
    with torch.no_grad():
        values = torch.from_numpy(places.busy[some])
        inputs = np.asarray(values.long() + net.starts)
        sums = first[inputs].sum(1) + bias
        h1 = np.maximum(sums, 0)
        h2 = np.maximum(h1 @ net.second.weight.double().numpy().T + net.second.bias.double().numpy(), 0)
    bits = int(np.floor(np.log2(32000 / reach.max())))  # after the point, in the first layer
    top = np.quantile(h1, 0.9999)
    shift = max(0, int(np.ceil(np.log2(top * 2.0**bits / _ACTIVATION))))
    unit = 2.0 ** (shift - bits)  # of an activation
    arrays: dict[str, Array] = {}
    rounded = [np.rint(part * 2.0**bits) for part in parts]
    arrays["pixels"] = np.stack(rounded[: preset.pixels]).astype(np.int16)
    arrays["runs"] = np.stack(rounded[preset.pixels : preset.pixels + RUNS]).astype(np.int16)
    width = preset.hidden[0]
    known = rounded[preset.pixels + RUNS :]
    arrays["classes"] = np.stack(known[:shown]).astype(np.int16) if shown else np.zeros((0, 1, width), np.int16)
    arrays["rows"] = known[shown].astype(np.int16) if classes else np.zeros((0, width), np.int16)
    arrays["bias"] = np.rint(bias * 2.0**bits + (1 << shift >> 1)).astype(np.int16)

    def layer(linear: nn.Linear, unit: float, top: float, outputs: int) -> tuple[Array, Array, int, float]:
        weight, offset = linear.weight.detach().double().numpy().T * unit, linear.bias.detach().double().numpy()
        reach = (np.abs(weight).sum(axis=0) * _ACTIVATION + np.abs(offset)).max()
        bits = int(np.floor(min(np.log2((1 << 24) * 0.98 / reach), np.log2(32000 / np.abs(weight).max()))))
        shift = max(0, int(np.ceil(np.log2(top * 2.0**bits / _ACTIVATION))))
        w = np.zeros((len(weight), outputs), np.int16)
        b = np.zeros(outputs, np.int32)
        w[:, : weight.shape[1]] = np.rint(weight * 2.0**bits)
        b[: weight.shape[1]] = np.rint(offset * 2.0**bits + (1 << shift >> 1))
        return w, b, shift, 2.0 ** (shift - bits)

    arrays["second"], arrays["second_bias"], second_shift, unit = layer(
        net.second, unit, float(np.quantile(h2, 0.9999)), preset.hidden[1]
    )
    # Logits: the last shift leaves units of 1/256 nat.
    weight = net.third.weight.detach().double().numpy().T * unit
    reach = (np.abs(weight).sum(axis=0) * _ACTIVATION + np.abs(net.third.bias.detach().double().numpy())).max()
    bits = int(np.floor(min(np.log2((1 << 24) * 0.98 / reach), np.log2(32000 / np.abs(weight).max()))))
    scale = max(0, bits - 8)
    bits = scale + 8
    arrays["third"] = np.zeros((preset.hidden[1], 8), np.int16)
    arrays["third"][:, : CANDIDATES + 1] = np.rint(weight * 2.0**bits)
    arrays["third_bias"] = np.zeros(8, np.int32)
    arrays["third_bias"][: CANDIDATES + 1] = np.rint(net.third.bias.detach().double().numpy() * 2.0**bits)
    arrays["shifts"] = np.array([shift, second_shift, scale], np.int8)
    return arrays


def untrained_tables(classes: int) -> dict[str, Array]:
    """Return counters and weights as they are before any map was seen."""
    half = 1 << (PROBABILITY_BITS - 1 + COUNT_BITS)
    weights = np.full((DECISIONS * CONFIDENCE * CONFIDENCE, MIXED), 20000, np.int32)
    weights[:, MIXED - 1] = 0
    bins = np.arange(FLAT_BINS)
    odds = 1 / (1 + np.exp(-(48 - bins - 0.5) / 4))
    flat = (odds * (1 << PROBABILITY_BITS)).astype(np.int64).clip(64, (1 << PROBABILITY_BITS) - 64)
    return {
        "ranks": np.full(DECISIONS * GAPS * NEXT_GAPS, half, np.uint32),
        "flat_counters": (flat << COUNT_BITS | 2).astype(np.uint32),
        "weights": weights,
        "escapes": np.ones((classes, classes), np.uint16),
        "settings": SETTINGS,
    }


def prime(model: CausalFlow, maps: Sequence[Array]) -> CausalFlow:
    """Let the tables of a model learn from maps, as they do while coding, and keep them."""
    arrays = dict(model.arrays)
    for one in maps:
        state = CausalFlow(arrays, model.classes).learn(one)
        arrays["ranks"], arrays["flat_counters"] = state.ranks, state.flat
        arrays["weights"] = state.weights.astype(np.int32)
        if model.num_classes:
            arrays["escapes"] = state.escapes.astype(np.uint16)
    return CausalFlow(arrays, model.classes, model.about)


def train(
    maps: Sequence[Array],
    preset: str | Preset = "fast",
    classes: Classes | None = None,
    mirrored: bool = True,
    seed: int = 0,
    report: Callable[[str, int, int, float], None] | None = None,
) -> CausalFlow:
    """Train a causal flow on label maps.

    Arguments:
        maps: Maps of labels (height, width), of any sizes.
        preset: The size of the model; a name in `PRESETS` or a `Preset`.
        classes: What the labels are. Then the model learns what is particular to each class. None for a model that
            takes labels as they come.
        mirrored: Whether to train on the maps and on their mirror images.
        seed: Random seed.
        report: Called now and then with what is being done, how far it is, and the loss.
    """
    preset = PRESETS[preset] if isinstance(preset, str) else preset
    known = 0 if classes is None else classes.num_classes
    symbols = [_symbols(one, classes) for one in maps]
    both = [*symbols, *(np.ascontiguousarray(one[:, ::-1]) for one in symbols)] if mirrored else symbols
    places = collect(both, preset.pixels, known, preset.shown, seed)
    sizes = input_sizes(preset.pixels, known, preset.shown)
    note = report or (lambda *_: None)
    net = train_net(places, sizes, preset, seed, lambda step, loss: note("net", step, preset.steps, loss))
    arrays = quantize(net, places, preset, known)
    arrays["flat"], arrays["flat_classes"] = fit_flat(places, known, seed)
    model = CausalFlow(arrays | untrained_tables(known), classes)
    return prime(model, [one if classes is None else classes.to_values(one) for one in symbols])


def _symbols(one: Array, classes: Classes | None) -> Array:
    if classes is not None:
        return classes.to_symbols(one).astype(np.uint16)
    return np.unique(one, return_inverse=True)[1].reshape(one.shape).astype(np.uint16)
