"""Train a causal flow on label maps. Needs torch."""

__all__ = ["train"]

import math
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.classes import Classes
from ddf.labelmaps.arithmetic import COUNT_BITS, PROBABILITY_BITS
from ddf.labelmaps.context import CANDIDATES, FLAT_ENTRIES, FLAT_TABLES, NET_RUN_VALUES, OTHER, RELATIVE, RUNS
from ddf.labelmaps.labels import MOST_LABELS
from ddf.labelmaps.model import CausalFlow
from ddf.labelmaps.places import ROW_BINS, Places, collect, input_sizes
from ddf.labelmaps.presets import PRESETS, Preset
from ddf.labelmaps.state import CONFIDENCE, DECISIONS, FLAT_BINS, GAPS, MIXED, NEXT_GAPS
from ddf.shapes import Array
from ddf.tensorfile import read_tensors, write_tensors

SETTINGS = np.array([1023, 127, 1023, 12, 32], dtype=np.int64)
SETTINGS_ANY = np.array([1023, 127, 1023, 40, 32], dtype=np.int64)  # mixers learn faster: maps differ more
_UNIT = 256  # logits of a model are integers in units of 1/256 nat
_ACTIVATION = 255
_FLAT_RATE = 2e-2
_WARMUP = 200  # steps
_EVERY = 50  # steps between progress reports
_KEPT_EVERY = 5  # seconds between checkpoints
MOST_KNOWN = 254
"""Maximum number of classes that a model knows; the maps that it codes may have more labels."""


class Progress:
    """Progress of the training: a bar on a terminal, periodic lines in a log.

    Arguments:
        shown: Whether to show progress; None means yes.
        seconds: Interval between lines in a log.
    """

    def __init__(self, shown: bool | None = None, seconds: float = 15) -> None:
        self.bar: Any = None
        self.terminal = sys.stderr.isatty()
        self.shown = shown is not False
        self.seconds = seconds
        self.last = time.monotonic()

    def note(self, line: str) -> None:
        """Print a line."""
        if self.shown:
            print(line, file=sys.stderr, flush=True)

    def show(self, step: int, steps: int, bits: float) -> None:
        """Report a step of the training."""
        if not self.shown:
            return
        if self.terminal:
            from tqdm import tqdm

            self.bar = self.bar or tqdm(total=steps, desc="training", unit="step", leave=False)
            self.bar.set_postfix_str(f"{bits:.4f} bits")
            self.bar.update(step - self.bar.n)
            if step == steps:
                self.bar.close()
        elif time.monotonic() - self.last > self.seconds or step == steps:
            self.last = time.monotonic()
            self.note(f"step {step:,} of {steps:,}: {bits:.4f} bits per busy pixel")


class Net(nn.Module):
    """The net in floating point: one-hot inputs, two hidden layers, logits for the candidates and "none of them"."""

    starts: Tensor

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
    """Return a mask of the outputs that belong to missing candidates (pixels, outputs)."""
    outputs = torch.arange(CANDIDATES + 1, device=counts.device)
    return (outputs >= counts[:, None].long()) & (outputs != OTHER)


def train_net(
    places: Places, sizes: Sequence[int], preset: Preset, seed: int, device: str, shown: Progress, keep: Path | None
) -> Net:
    """Train the net on busy pixels.

    Arguments:
        places: The training examples.
        sizes: Number of possible values of each input.
        preset: The size of the net and the length of its training.
        seed: Random seed.
        device: The device to train on.
        shown: Reports progress.
        keep: A checkpoint file, from which training resumes if it exists; None for no checkpoints.
    """
    generator = torch.Generator().manual_seed(seed)
    net = Net(sizes, preset.hidden, generator).to(device)
    values, counts, targets = (torch.from_numpy(part) for part in (places.busy, places.counts, places.targets))
    parameters = dict(net.named_parameters())
    optimizer = torch.optim.Adam(parameters.values(), preset.learning_rate, fused=True)
    begun = _resume(keep, parameters, optimizer, generator) if keep is not None else 0
    last = time.monotonic()
    for step in range(begun, preset.steps):
        fraction = 0.5 + 0.5 * math.cos(math.pi * step / preset.steps) + 1e-3
        optimizer.param_groups[0]["lr"] = preset.learning_rate * fraction * min(1, (step + 1) / _WARMUP)
        chosen = torch.randint(len(values), (preset.batch,), generator=generator)
        inputs, present, wanted = (part[chosen].to(device) for part in (values, counts, targets))
        loss = F.cross_entropy(net(inputs, present), wanted.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % _EVERY == 0 or step == preset.steps - 1:
            shown.show(step + 1, preset.steps, loss.item() / math.log(2))
            if keep is not None and time.monotonic() - last > _KEPT_EVERY:
                _keep(keep, parameters, optimizer, generator, step + 1)
                last = time.monotonic()
    return net.cpu()


def _keep(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Adam, generator: torch.Generator, step: int
) -> None:
    tensors = {f"weights.{name}": value.detach() for name, value in parameters.items()}
    for name, value in parameters.items():
        tensors |= {f"{part}.{name}": optimizer.state[value][part] for part in ("exp_avg", "exp_avg_sq")}
    write_tensors(path, tensors | {"generator": generator.get_state()}, {"kind": "training", "step": step})


def _resume(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Adam, generator: torch.Generator
) -> int:
    """Restore the checkpoint written by `_keep`, if it exists; return the number of completed steps."""
    if not path.exists():
        return 0
    tensors, header = read_tensors(path)
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(tensors[f"weights.{name}"])
            optimizer.state[value] = {
                "step": torch.tensor(float(header["step"]), device=value.device),
                "exp_avg": tensors[f"exp_avg.{name}"].to(value.device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(value.device),
            }
    generator.set_state(tensors["generator"])
    return int(header["step"])


def fit_flat(places: Places, classes: int, seed: int, steps: int = 3000, batch: int = 8192) -> tuple[Array, Array]:
    """Fit the tables for flat pixels by logistic regression: the log-odds of a change, in units of 1/256 nat."""
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
    """Quantize a net: activations to 8 bits, weights to the highest precision that keeps sums exact."""
    shown = preset.shown if classes else 0
    first = net.first.detach().double().numpy()
    bias = net.bias.detach().double().numpy()
    sizes = [RELATIVE] * preset.pixels + [NET_RUN_VALUES] * RUNS + [classes + 1] * shown + [ROW_BINS] * bool(classes)
    parts, start = [], 0
    for size in sizes:
        parts.append(first[start : start + size])
        start += size
    # Center the weights of each input and move the offset to the bias, so that sums fit in 16 bits.
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
    bits = int(np.floor(np.log2(32000 / reach.max())))  # fractional bits of the first layer
    top = np.quantile(h1, 0.9999)
    shift = max(0, int(np.ceil(np.log2(top * 2.0**bits / _ACTIVATION))))
    unit = 2.0 ** (shift - bits)  # value of one unit of an activation
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
    # Logits are in units of 1/256 nat after the last shift.
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
    """Return the counters and weights before priming."""
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
        "escapes": np.ones((classes + 1, classes), np.uint16),
        "settings": SETTINGS if classes else SETTINGS_ANY,
    }


def prime(model: CausalFlow, maps: Sequence[Array]) -> CausalFlow:
    """Return the model with its counters and mixers as they are after coding the given maps."""
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
    mirrored: bool = False,
    steps: int | None = None,
    seed: int = 0,
    run: str | PathLike[str] | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> CausalFlow:
    """Train a causal flow on label maps.

    Arguments:
        maps: Maps of labels (height, width), of any size.
        preset: A name in `PRESETS`, or a `Preset`.
        classes: The classes of the labels, which lets the model learn the characteristics of each class. None for a
            model of any labels.
        mirrored: Whether to also train on mirrored maps. Use this if a mirrored map is as likely as the original.
        steps: Number of training steps (default: that of the preset).
        seed: Random seed.
        run: A directory for checkpoints, from which interrupted training resumes; None for no checkpoints.
        device: The device to train the net on.
        progress: Whether to show progress; None means yes.

    Returns:
        The trained model.

    Examples:
        >>> stripes = [np.where(np.add.outer(range(40 + i), range(64)) % 16 < 8, 3, 255) for i in range(8)]
        >>> model = train(stripes, steps=20, progress=False)  # far too few, but this is an example
        >>> np.array_equal(model.decompress(model.compress(stripes[0]), stripes[0].shape, stripes[0].dtype), stripes[0])
        True
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r} does not exist; choose one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    preset = preset if steps is None else replace(preset, steps=steps)
    if not len(maps) or any(one.ndim != 2 or not one.size or one.dtype.kind not in "iub" for one in maps):
        raise ValueError("training needs at least one map; every map must be a nonempty integer array (height, width)")
    if classes is not None and classes.num_classes > MOST_KNOWN:
        raise ValueError(f"{classes.num_classes} classes, but at most {MOST_KNOWN} are supported; pass classes=None")
    shown = Progress(progress)
    known = 0 if classes is None else classes.num_classes
    symbols = [_symbols(one, classes) for one in maps]
    both = [*symbols, *(np.ascontiguousarray(one[:, ::-1]) for one in symbols)] if mirrored else symbols
    places = collect(both, preset.pixels, known, preset.shown, seed)
    if not len(places.busy):
        raise ValueError("the maps have no borders, so there is nothing to learn")
    pixels = sum(one.size for one in symbols)
    shown.note(f"{len(maps):,} maps, {pixels:,} pixels; {len(places.busy):,} busy pixels to learn from")
    keep = None
    if run is not None:
        Path(run).mkdir(parents=True, exist_ok=True)
        made_of = (preset, known, mirrored, seed, zlib.crc32(places.busy.tobytes()))
        keep = Path(run) / f"state-{zlib.crc32(repr(made_of).encode()):08x}.safetensors"
    sizes = input_sizes(preset.pixels, known, preset.shown)
    net = train_net(places, sizes, preset, seed, device, shown, keep)
    arrays = quantize(net, places, preset, known)
    shown.note("fitting the tables")
    arrays["flat"], arrays["flat_classes"] = fit_flat(places, known, seed)
    model = CausalFlow(arrays | untrained_tables(known), classes)
    model = prime(model, [one if classes is None else classes.to_values(one) for one in symbols])
    if keep is not None:
        keep.unlink(missing_ok=True)
    return model


def _symbols(one: Array, classes: Classes | None) -> Array:
    if classes is not None:
        return classes.to_symbols(one).astype(np.uint16)
    labels, symbols = np.unique(one, return_inverse=True)
    if len(labels) > MOST_LABELS:
        raise ValueError(f"a map has {len(labels):,} labels, but at most {MOST_LABELS:,} are supported")
    return symbols.reshape(one.shape).astype(np.uint16)
