"""Explanations: the bits of every symbol, and a sample after each layer."""

__all__ = ["Bits", "State", "bits_of", "name_of", "states_of"]

from dataclasses import dataclass
from math import log, prod

import numpy as np
import torch
from torch import Tensor

from ddf.flow import Flow
from ddf.layers.layer import Layer, Movement, in_layer
from ddf.logits import log_probs
from ddf.shapes import Array, fits, format_shape


@dataclass(frozen=True)
class Bits:
    """The bits of some samples.

    Arguments:
        by_symbol: The bits of every symbol (samples, *shape), at its place in the data.
        by_layer: For each layer that factors out symbols, and the base: its name, the number of symbols and their bits.
    """

    by_symbol: Array
    by_layer: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True)
class State:
    """A sample after one of the layers of a flow.

    Arguments:
        layer: The name of the layer.
        symbols: (height, width), or (1, columns) for a vector: each symbol at its place in the data; −1 for those that
            have left the flow. Rows and columns without any symbols are omitted.
        left: The number of symbols that are still in the flow.
        changed: Which symbols a layer has replaced, usually by ranks; of the same shape.
    """

    layer: str
    symbols: Array
    left: int
    changed: Array


@torch.no_grad()
def bits_of(flow: Flow, x: Array) -> Bits:
    """Return the bits of every symbol of some samples.

    Arguments:
        flow: A flow of any kind.
        x: Symbols (samples, *shape).

    Examples:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> bits_of(flow, np.array([[45, 85]])).by_symbol  # untrained: log2(91) each
        array([[6.5077..., 6.5077...]])
    """
    x = np.asarray(x)
    if x.ndim == 0 or not fits(x.shape[1:], flow.shape):
        raise ValueError(f"pass samples of shape (samples, {_sizes(flow)}), not an array of shape {x.shape}")
    flow.latent_shape(x.shape[1:])  # raises an error for sizes that a layer cannot work on
    emitted: list[Array] = []

    def emit(symbols: Tensor, logits: Tensor) -> None:
        emitted.append(log_probs(symbols, logits).flatten(1).cpu().numpy() / -log(2))

    flow.to_latents(torch.from_numpy(np.ascontiguousarray(x)).to(flow.device), emit)
    places = _places(flow, x.shape[1:])
    names, where = [], []
    for i, layer in enumerate(flow.layer_list()):
        movement = _follow(layer, i, places)
        places = movement.kept
        if movement.emitted is not None:
            names.append(name_of(layer, i))
            where.append(movement.emitted)
    order = [part.flatten().cpu().numpy() for part in (*where, places)]
    found = np.concatenate(emitted, axis=1)
    bits = np.zeros((len(x), prod(x.shape[1:])))
    bits[:, np.concatenate(order)] = found
    parts = np.split(found, np.cumsum([len(part) for part in order])[:-1], axis=1)
    by_layer = [(name, part.size, float(part.sum())) for name, part in zip([*names, "base"], parts, strict=True)]
    return Bits(bits.reshape(x.shape), tuple(by_layer))


@torch.no_grad()
def states_of(flow: Flow, x: Array) -> list[State]:
    """Return one sample as data and after each layer, without the layers that only move symbols.

    Arguments:
        flow: A flow of any kind.
        x: Symbols of one sample, of the flow's shape.
    """
    x = np.asarray(x)
    if not fits(x.shape, flow.shape):
        raise ValueError(f"pass one sample of shape ({_sizes(flow)}), not an array of shape {x.shape}")
    shape = (x.shape[1:] if x.ndim == 3 else (1, *x.shape)) if x.ndim > 1 else (1, len(x))
    canvas = np.asarray(x, dtype=np.int64).reshape(-1).copy()
    changed = np.zeros(x.size, dtype=bool)
    found = [_state("data", canvas, changed, shape)]
    places = _places(flow, x.shape)
    symbols = torch.from_numpy(np.ascontiguousarray(x))[None].to(flow.device)
    for i, (layer, left) in enumerate(flow.steps(symbols, lambda symbols, logits: None)):
        movement = _follow(layer, i, places)
        places = movement.kept
        if movement.replaced is not None:
            changed[movement.replaced.flatten().cpu().numpy()] = True
        if movement.replaced is None and movement.emitted is None:
            continue
        canvas[:] = -1
        canvas[places.flatten().cpu().numpy()] = left.flatten().cpu().numpy()
        found.append(_state(name_of(layer, i), canvas, changed, shape))
    return found


def name_of(layer: Layer, number: int) -> str:
    """Return the name of a layer in tables and pictures."""
    return f"{number} {type(layer).__name__}"


def _places(flow: Flow, shape: tuple[int, ...]) -> Tensor:
    return torch.arange(prod(shape), device=flow.device).view(1, *shape)


def _follow(layer: Layer, number: int, places: Tensor) -> Movement:
    with in_layer(number):
        return layer.follow(places)


def _sizes(flow: Flow) -> str:
    return ", ".join(format_shape((size,)) for size in flow.shape)


def _state(layer: str, symbols: Array, changed: Array, shape: tuple[int, ...]) -> State:
    """Return the state of the first channel, without the rows and columns that have left."""
    first, marks = (whole.reshape(-1, *shape)[0] for whole in (symbols, changed))
    present = first >= 0
    rows, columns = present.any(axis=1), present.any(axis=0)
    return State(layer, first[rows][:, columns].copy(), int((symbols >= 0).sum()), marks[rows][:, columns].copy())
