"""The net for busy pixels: its training in floating point, and its conversion to integers."""

__all__ = ["BusyNet", "quantize", "train_net"]

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.labelmaps.context import CANDIDATES, NET_RUN_VALUES, OTHER, RELATIVE, RUNS
from ddf.labelmaps.places import ROW_BINS, Places
from ddf.labelmaps.presets import Preset
from ddf.progress import Progress
from ddf.shapes import Array
from ddf.tensorfile import read_tensors, write_tensors

_ACTIVATION = 255  # the largest activation
_WARMUP = 200  # steps
_EVERY = 50  # steps between progress reports
_KEPT_EVERY = 5  # seconds between checkpoints


class BusyNet(nn.Module):
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
    places: Places, sizes: Sequence[int], preset: Preset, seed: int, device: str, shown: bool, keep: Path | None
) -> BusyNet:
    """Train the net on busy pixels.

    Arguments:
        places: The training examples.
        sizes: Number of possible values of each input.
        preset: The size of the net and the length of its training.
        seed: Random seed.
        device: The device to train on.
        shown: Whether to show progress.
        keep: A checkpoint file, from which training resumes if it exists; None for no checkpoints.
    """
    generator = torch.Generator().manual_seed(seed)
    net = BusyNet(sizes, preset.hidden, generator).to(device)
    values, counts, targets = (torch.from_numpy(part) for part in (places.busy, places.counts, places.targets))
    parameters = dict(net.named_parameters())
    optimizer = torch.optim.Adam(parameters.values(), preset.learning_rate, fused=True)
    begun = _resume(keep, parameters, optimizer, generator) if keep is not None else 0
    last = time.monotonic()
    with Progress("training", preset.steps, "step", shown) as progress:
        progress.resume(begun)
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
                if progress.due():
                    progress.update(step + 1, f"{loss.item() / math.log(2):.4f} bits per busy pixel")
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


def quantize(net: BusyNet, places: Places, preset: Preset, classes: int) -> dict[str, Array]:
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
