"""The architectures of the paper's appendices C and D, and others, as specs."""

__all__ = ["binary_mnist", "cityscapes", "eight_gaussians", "lattice_split", "ordered", "vectors"]

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from ddf.layers import ChannelSplit, LatticeOrder, Partition
from ddf.logits import checked_limits
from ddf.spec import (
    DenoisingCouplingSpec,
    DenoisingSplitSpec,
    DenseNetSpec,
    FactorizedCategoricalSpec,
    FlowSpec,
    LatticeNetSpec,
    LayerSpec,
    MLPSpec,
    ModularCouplingSpec,
    NetSpec,
    OrderedSplitSpec,
    ShuffleSpec,
    SplitPriorSpec,
    SqueezeSpec,
)

_HALVES = ChannelSplit()


def eight_gaussians(
    coupling: str = "denoising",
    couplings: int = 1,
    net: NetSpec | None = None,
    scale: bool = True,
    temperature: float = 0.1,
) -> FlowSpec:
    """Return the spec of the paper's toy flow: pairs of symbols with 91 classes, and one coupling.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        couplings: The number of couplings; the paper uses one. They transform the two symbols alternately.
        net: The net to use instead of the paper's MLP.
        scale: Whether modular couplings scale as well as shift.
        temperature: The temperature of modular couplings.

    Examples:
        >>> eight_gaussians(couplings=2).build()
        Flow of 91 classes, shape 2, 362,358 parameters
             0  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
             1  Shuffle(permutation=(1, 0)) → 2
             2  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
          base  FactorizedCategorical(shared=False) → 2
    """
    if couplings < 1:
        raise ValueError(f"couplings={couplings} must be at least 1")
    layers: list[LayerSpec] = []
    for i in range(couplings):
        layers += [ShuffleSpec(permutation=(1, 0))] if i else []
        layers += [_coupling(coupling, net or MLPSpec(), top=91, scale=scale, temperature=temperature)]
    return FlowSpec(num_classes=91, shape=(2,), layers=tuple(layers))


def binary_mnist(
    coupling: str = "denoising",
    split_priors: bool = True,
    factor_out: str = "b",
    net: NetSpec | None = None,
    shuffles: str = "random",
    temperature: float = 0.1,
) -> FlowSpec:
    """Return the spec of a flow of binary maps of 28 × 28 with four couplings.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow, `"split"` for a
            denoising split in place of each coupling and its split prior, `"none"` for split priors without couplings,
            or `"none, one by one"` for split priors without couplings that each factor out one channel.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: The net to use instead of the paper's DenseNet of 8 blocks.
        shuffles: The order of the channels: `"random"`, drawn from the seed of the flow as in the paper; `"lattice"`
            (see `lattice_split`); or `"lattice, halves"`, in which each coupling transforms half of the channels.
        temperature: The temperature of modular couplings.
    """
    return _multiscale(
        num_classes=2,
        shape=(1, 28, 28),
        couplings=(2, 2),
        top=2,
        coupling=coupling,
        factor_out=factor_out if split_priors else None,
        net=net or DenseNetSpec(blocks=8),
        shuffles=shuffles,
        temperature=temperature,
    )


def cityscapes(
    coupling: str = "denoising",
    split_priors: bool = True,
    factor_out: str = "b",
    net: NetSpec | None = None,
    top: int = 4,
    shuffles: str = "random",
    temperature: float = 0.1,
    couplings: tuple[int, ...] | None = None,
) -> FlowSpec:
    """Return the spec of a flow of 32 × 64 maps of 8 classes, with six couplings, or five without split priors.

    Arguments:
        coupling: The kind of coupling; see `binary_mnist`.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: The net to use instead of the paper's DenseNet of 15 blocks.
        top: The number of classes that each coupling ranks, the paper's h. The last coupling ranks all classes.
        shuffles: The order of the channels; see `binary_mnist`.
        temperature: The temperature of modular couplings.
        couplings: The number of couplings after each squeeze; None for those of the paper.
    """
    return _multiscale(
        num_classes=8,
        shape=(1, 32, 64),
        couplings=couplings or ((2, 2, 2) if split_priors else (1, 2, 2)),
        top=top,
        coupling=coupling,
        factor_out=factor_out if split_priors else None,
        net=net or DenseNetSpec(blocks=15),
        shuffles=shuffles,
        temperature=temperature,
    )


def vectors(
    num_classes: int,
    columns: int,
    net: NetSpec | None = None,
    limits: tuple[int, ...] | None = None,
    kind: str = "priors",
) -> FlowSpec:
    """Return the spec of an autoregressive flow of vectors, such as the rows of a table.

    It consists of split priors, which predict each symbol from those before it. Long vectors are split into at most
    24 pieces; the symbols of a piece are predicted independently of each other.

    Arguments:
        num_classes: The number of classes K: the largest number in any column.
        columns: The number of symbols in each vector.
        net: The net to use instead of an MLP.
        limits: The number of classes of each column; None if all have K.
        kind: `"priors"` for split priors, `"splits"` for denoising splits.

    Examples:
        >>> vectors(4, 3).build()
        Flow of 4 classes, shape 3, 271,892 parameters
             0  SplitPrior(MLP(hidden=256, layers=4), ChannelSplit(index=2), factor_out='b') → 2
             1  SplitPrior(MLP(hidden=256, layers=4), ChannelSplit(index=1), factor_out='b') → 1
          base  FactorizedCategorical(shared=False) → 1
    """
    if kind not in ("priors", "splits"):
        raise ValueError(f"kind={kind!r} must be 'priors' or 'splits'")
    limits = checked_limits(limits, num_classes)
    if limits is not None and len(limits) != columns:
        raise ValueError(f"limits={limits} must have one number for each of {columns} columns")
    layers: list[LayerSpec] = []
    left, piece = columns, -(-columns // 24)
    while left > 1:
        kept = max(1, left - piece)
        some = None if limits is None else limits[kept:left]
        cut = ChannelSplit(kept)
        make = SplitPriorSpec if kind == "priors" else DenoisingSplitSpec
        layers.append(make(net or MLPSpec(), partition=cut, limits=some))
        left = kept
    base = FactorizedCategoricalSpec(limits=None if limits is None else limits[:1])
    return FlowSpec(num_classes, (columns,), tuple(layers), base)


def ordered(
    num_classes: int,
    shape: tuple[int | None, ...],
    net: LatticeNetSpec | None = None,
    order: LatticeOrder | None = None,
    ranks: bool = False,
    given: float = 0.0,
) -> FlowSpec:
    """Return the spec of an ordered flow of maps: many steps from coarse to fine, and one net for all of them.

    Arguments:
        num_classes: The number of classes K.
        shape: (channels, height, width), with None for any multiple of the order's stride.
        net: The net to use instead of the default `LatticeNet`; its levels, cell and hints are set to what the order
            and `given` require.
        order: The order to use instead of `LatticeOrder()`.
        ranks: Whether ranks are coded instead of symbols; see `OrderedSplit`.
        given: The share of training samples in which additional random pixels are known, so that the flow can complete
            maps; see `OrderedSplit`.

    Examples:
        >>> ordered(2, (1, 28, 28), LatticeNetSpec(planes=(64,), blocks=(1,), width=8)).build()
        Flow of 2 classes, shape 1 × 28 × 28, 498,650 parameters
             0  OrderedSplit(LatticeNet(planes=(64,), blocks=(1,), width=8, depth=2), ...) → 1 × 1 × 1
          base  FactorizedCategorical(shared=False) → 1 × 1 × 1
    """
    order = order or LatticeOrder()
    if not isinstance(order, LatticeOrder):
        raise TypeError(
            f"the order must be a LatticeOrder, not {order!r}; for other orders, combine the layers yourself"
        )
    if not isinstance(net, LatticeNetSpec | None):
        raise TypeError(f"the net must be a LatticeNetSpec, not {net!r}; for other nets, combine the layers yourself")
    net = replace(net or LatticeNetSpec(), levels=order.levels, cell=order.cell, hints=given > 0)
    shared = None in shape
    layer = OrderedSplitSpec(net, order, ranks, given)
    return FlowSpec(num_classes, shape, (layer,), FactorizedCategoricalSpec(shared=shared))


def _multiscale(
    num_classes: int,
    shape: tuple[int, ...],
    couplings: Sequence[int],
    top: int,
    coupling: str,
    factor_out: str | None,
    net: NetSpec,
    shuffles: str,
    temperature: float,
) -> FlowSpec:
    """For each n in `couplings`, add a squeeze and, n times, a shuffle, a coupling and an optional split prior."""
    if shuffles not in ("random", "lattice", "lattice, halves"):
        raise ValueError(f"shuffles={shuffles!r} must be 'random', 'lattice' or 'lattice, halves'")
    layers: list[LayerSpec] = []
    number, last = 0, sum(couplings) - 1
    channels = [Channel(0, 0)]
    cell = 1
    for count in couplings:
        layers += [SqueezeSpec()]
        offsets = [(i, j) for i in (0, cell) for j in (0, cell)]
        channels = [replace(c, row=c.row + i, column=c.column + j) for c in channels for i, j in offsets]
        cell *= 2
        for _ in range(count):
            given, moved = list(range(len(channels) // 2)), list(range(len(channels) // 2, len(channels)))
            if shuffles == "random":
                layers += [ShuffleSpec()]
            else:
                given, moved = lattice_split(channels)
                if shuffles == "lattice, halves":
                    given, moved = _halved(channels, given, moved)
                layers += [ShuffleSpec(permutation=(*given, *moved))]
            choices = num_classes if number == last else top
            layers += _step(coupling, net, len(given), len(moved), choices, temperature, factor_out)
            transformed = [replace(channels[i], transformed=channels[i].transformed + 1) for i in moved]
            kept = [channels[i] for i in given]
            leaves = factor_out or ("b" if coupling in ("split", "none", "none, one by one") else None)
            channels = {None: [*kept, *transformed], "b": kept, "a": transformed}[leaves]
            number += 1
    return FlowSpec(num_classes, shape, tuple(layers))


def _step(
    coupling: str, net: NetSpec, given: int, moved: int, top: int, temperature: float, factor_out: str | None
) -> list[LayerSpec]:
    """Return the layers after a shuffle: a coupling and an optional split prior, or what replaces them."""
    partition = _HALVES if given == moved else ChannelSplit(given)
    if coupling == "split":
        return [DenoisingSplitSpec(net, partition)]
    if coupling == "none":
        return [SplitPriorSpec(net, partition=partition)]
    if coupling == "none, one by one":
        return [SplitPriorSpec(net, partition=ChannelSplit(given + i)) for i in reversed(range(moved))]
    layers = [_coupling(coupling, net, top, temperature=temperature, partition=partition)]
    return layers if factor_out is None else [*layers, SplitPriorSpec(net, factor_out)]


@dataclass(frozen=True)
class Channel:
    """The pixel of a squeezed cell that a channel holds, and how often couplings have transformed it."""

    row: int
    column: int
    transformed: int = 0


def lattice_split(channels: Sequence[Channel]) -> tuple[list[int], list[int]]:
    """Split channels so that a coupling predicts every other untransformed pixel from its nearest neighbors.

    The untransformed pixels form a lattice. Every other one is predicted, as on a chessboard, so that its nearest
    neighbors are given; these form a lattice again, rotated by 45 degrees. Channels that are already transformed are
    given as well: they indicate where the map was hard to predict, and ranking them again would gain almost nothing.
    (A random split often predicts transformed channels, or withholds them.)

    Returns:
        The indices of the given channels, and of those to predict.

    Examples:
        >>> lattice_split([Channel(0, 0), Channel(0, 1), Channel(1, 0), Channel(1, 1)])
        ([0, 3], [1, 2])
        >>> lattice_split([Channel(0, 0), Channel(1, 1), Channel(0, 1, transformed=1), Channel(1, 0, transformed=1)])
        ([0, 2, 3], [1])
    """
    least = min(channel.transformed for channel in channels)
    raw = [i for i, channel in enumerate(channels) if channel.transformed == least]
    if len(raw) == 1:
        raise ValueError("cannot split a single channel; squeeze first")
    row, column = channels[raw[0]].row, channels[raw[0]].column
    step = gcd(*(channels[i].row - row for i in raw), *(channels[i].column - column for i in raw))
    fields = {i: (channels[i].row - row + channels[i].column - column) // step % 2 for i in raw}
    if len(set(fields.values())) == 1:  # a rotated lattice: take every other row
        fields = {i: (channels[i].row - row) // step % 2 for i in raw}
    moved = [i for i in raw if fields[i]]
    return [i for i in range(len(channels)) if i not in moved], moved


def _halved(channels: Sequence[Channel], given: list[int], moved: list[int]) -> tuple[list[int], list[int]]:
    """Predict the least transformed of the given channels as well, until half of all channels are predicted."""
    others = [i for i in given if channels[i].transformed > channels[moved[0]].transformed]
    others.sort(key=lambda i: (channels[i].transformed, i))
    moved = [*moved, *others[: len(channels) // 2 - len(moved)]]
    return [i for i in given if i not in moved], moved


def _coupling(
    kind: str,
    net: NetSpec,
    top: int,
    scale: bool = True,
    temperature: float = 0.1,
    partition: Partition = _HALVES,
) -> LayerSpec:
    if kind == "denoising":
        return DenoisingCouplingSpec(net, top, partition)
    if kind == "modular":
        return ModularCouplingSpec(net, scale, temperature, partition)
    raise ValueError(f"coupling={kind!r} must be 'denoising', 'modular', 'split', 'none' or 'none, one by one'")
