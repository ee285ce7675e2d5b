"""Where the bits go, and what a flow makes of a sample on the way."""

__all__ = ["Bits", "State", "bits_of", "states_of"]

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddf.exact import IntegerFlow
from ddf.flow import Flow
from ddf.layers import Conditional, Layer, SplitPrior
from ddf.layers.layer import Rearrangement

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bits:
    """What some samples cost.

    Arguments:
        by_symbol: The bits of every symbol (samples, *shape), counted where it was in the data.
        by_layer: What each layer that codes symbols, and the base, codes them with: its name and its bits.
    """

    by_symbol: Array
    by_layer: tuple[tuple[str, float], ...]

    def by_class(self, x: Array, num_classes: int) -> tuple[Array, Array]:
        """How many symbols of each class there are in the data, and the bits of them."""
        symbols = np.asarray(x).ravel().astype(np.int64)
        counts = np.bincount(symbols, minlength=num_classes)
        return counts, np.bincount(symbols, weights=self.by_symbol.ravel(), minlength=num_classes)


@dataclass(frozen=True)
class State:
    """What a flow has made of a sample after some of its layers.

    Arguments:
        layer: The name of the last of them.
        symbols: (height, width), or (1, columns) for a vector: the symbols where they came from; −1 for those that
            have left the flow. Rows and columns that have left altogether are not there.
        left: How many symbols are still in the flow.
        changed: Of the same shape: which symbols a coupling has made something else of, ranks as a rule.
    """

    layer: str
    symbols: Array
    left: int
    changed: Array


@torch.no_grad()
def bits_of(model: Flow | IntegerFlow, x: Array) -> Bits:
    """Scores samples symbol by symbol.

    Arguments:
        model: A flow, or an integer flow, whose frequencies are then what is counted.
        x: Symbols (samples, *shape).

    Examples:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> bits_of(flow, np.array([[45, 85]])).by_symbol  # untrained: log2(91) each
        array([[6.5077..., 6.5077...]])
    """
    x = _checked(model, x, 1)
    found = _integer_parts(model, x) if isinstance(model, IntegerFlow) else _float_parts(model, x)
    whole = np.zeros((len(x), prod(x.shape[1:])))
    by_layer = []
    for name, places, bits in found:
        whole[:, places] = bits
        by_layer.append((name, float(bits.sum())))
    return Bits(whole.reshape(x.shape), tuple(by_layer))


def _checked(model: Flow | IntegerFlow, x: Array, before: int) -> Array:
    """Symbols with so many dimensions before those of a sample; others are refused."""
    x = np.asarray(x)
    wanted = tuple("any" if side is None else str(side) for side in model.shape)
    fits = zip(x.shape[before:], model.shape, strict=False)
    if x.ndim != before + len(wanted) or any(want is not None and have != want for have, want in fits):
        what = f"samples ({', '.join(('samples', *wanted))})" if before else f"one sample ({', '.join(wanted)})"
        raise ValueError(f"symbols of shape {x.shape}, but wanted is {what}")
    return x


def _float_parts(flow: Flow, x: Array) -> Iterator[tuple[str, Array, Array]]:
    """The name of each layer that codes, the places of what it codes, and the bits (samples, places)."""
    coded: list[Array] = []

    def emit(symbols: Tensor, logits: Tensor) -> None:
        nats = F.cross_entropy(logits.float(), symbols.long(), reduction="none")
        coded.append(nats.double().flatten(1).cpu().numpy() / log(2))

    symbols = torch.from_numpy(np.ascontiguousarray(x)).to(flow.device)
    places = torch.arange(prod(x.shape[1:]), device=flow.device).view(1, *x.shape[1:])
    for i, layer in enumerate(flow.layer_list()):
        symbols = layer(symbols, emit)
        places, gone = _follow(layer, i, places)
        if gone is not None:
            yield name_of(layer, i), gone, coded.pop()
    flow.base(symbols, emit)
    yield "base", places.flatten().cpu().numpy(), coded.pop()


def _integer_parts(model: IntegerFlow, x: Array) -> Iterator[tuple[str, Array, Array]]:
    places = torch.arange(prod(x.shape[1:]), device=model.device).view(1, *x.shape[1:])
    order: list[tuple[str, Array]] = []
    for i, layer in enumerate(model.layers):
        places, gone = _follow(layer, i, places)
        if gone is not None:
            order.append((name_of(layer, i), gone))
    order.append(("base", places.flatten().cpu().numpy()))
    for (name, gone), (symbols, predictions) in zip(order, reversed(model.forward(x)), strict=True):
        bits = [prediction.costs(part) for part, prediction in zip(symbols, predictions, strict=True)]
        yield name, gone, np.stack(bits)


def _follow(layer: Layer, number: int, places: Tensor) -> tuple[Tensor, Array | None]:
    """Where the symbols that go on come from, and those that a layer factors out, if any."""
    if isinstance(layer, Rearrangement):
        return layer.arrange(places), None
    if isinstance(layer, SplitPrior):
        kept, gone = layer.given_and_target(places)
        return kept, gone.flatten().cpu().numpy()
    shape = tuple(places.shape[1:])
    if layer.output_shape(shape) != shape:
        raise TypeError(f"layer {number}: where {type(layer).__name__} moves the symbols is not known")
    return places, None  # a coupling leaves every symbol where it is


def name_of(layer: Layer, number: int) -> str:
    """What a layer is called in tables and pictures."""
    return f"{number} {type(layer).__name__}"


@torch.no_grad()
def states_of(model: Flow | IntegerFlow, x: Array) -> list[State]:
    """What one sample becomes, layer by layer; layers that only move symbols around are left out.

    Arguments:
        model: A flow, or an integer flow.
        x: Symbols of one sample, of the flow's shape.
    """
    x = _checked(model, x, 0)
    shape = (x.shape[1:] if x.ndim == 3 else (1, *x.shape)) if x.ndim > 1 else (1, len(x))
    layers = model.layers if isinstance(model, IntegerFlow) else model.layer_list()
    symbols = torch.from_numpy(np.ascontiguousarray(x))[None].to(model.device)
    places = torch.arange(x.size, device=model.device).view(1, *x.shape)
    symbols = symbols.to(torch.int16) if isinstance(model, IntegerFlow) else symbols
    canvas = np.asarray(x, dtype=np.int64).reshape(-1).copy()
    changed = np.zeros(x.size, dtype=bool)
    found = [_state("data", canvas, changed, shape)]
    for i, layer in enumerate(layers):
        symbols = model.carry(layer, symbols) if isinstance(model, IntegerFlow) else layer.carry(symbols)
        if isinstance(layer, Conditional) and not isinstance(layer, SplitPrior):
            _, target = layer.given_and_target(places)
            changed[target.flatten().cpu().numpy()] = True
        places, _ = _follow(layer, i, places)
        if isinstance(layer, Rearrangement):
            continue
        there = places.flatten().cpu().numpy()
        canvas[:] = -1
        canvas[there] = symbols.flatten().cpu().numpy()
        found.append(_state(name_of(layer, i), canvas, changed, shape))
    return found


def _state(layer: str, symbols: Array, changed: Array, shape: tuple[int, ...]) -> State:
    """The first channel, without the rows and columns that have left."""
    first, marks = (whole.reshape(-1, *shape)[0] for whole in (symbols, changed))
    there = first >= 0
    rows, columns = there.any(axis=1), there.any(axis=0)
    return State(layer, first[rows][:, columns].copy(), int((symbols >= 0).sum()), marks[rows][:, columns].copy())
