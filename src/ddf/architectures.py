"""The paper's architectures (appendices C and D), each a few lines of plain data."""

__all__ = ["binary_mnist", "cityscapes", "eight_gaussians", "label_maps", "lattice_split", "vectors"]

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from ddf.layers import ChannelSplit, Partition
from ddf.spec import (
    ContextNetSpec,
    DenoisingCouplingSpec,
    DenseNetSpec,
    FactorizedCategoricalSpec,
    FlowSpec,
    LayerSpec,
    MLPSpec,
    ModularCouplingSpec,
    NetSpec,
    ShuffleSpec,
    SplitPriorSpec,
    SqueezeSpec,
)

_HALVES = ChannelSplit()


def eight_gaussians(
    coupling: str = "denoising", couplings: int = 1, net: NetSpec | None = None, scale: bool = True
) -> FlowSpec:
    """Vectors of two symbols of 91 classes, one coupling: the toy of the paper.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        couplings: The number of couplings; the paper has one. Each next one transforms the other symbol.
        net: Another net than the paper's MLP.
        scale: Whether modular couplings scale as well as shift.

    Examples:
        >>> eight_gaussians(couplings=2).build()
        Flow of 91 classes, shape 2, 362,358 parameters
             0  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
             1  Shuffle(permutation=(1, 0)) → 2
             2  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
          base  FactorizedCategorical(shared=False) → 2
    """
    if couplings < 1:
        raise ValueError(f"couplings={couplings}, but it takes at least 1")
    layers: list[LayerSpec] = []
    for i in range(couplings):
        layers += [ShuffleSpec(permutation=(1, 0))] if i else []
        layers += [_coupling(coupling, net or MLPSpec(), top=91, scale=scale)]
    return FlowSpec(num_classes=91, shape=(2,), layers=tuple(layers))


def binary_mnist(
    coupling: str = "denoising",
    split_priors: bool = True,
    factor_out: str = "b",
    net: NetSpec | None = None,
    shuffles: str = "random",
    temperature: float = 0.1,
) -> FlowSpec:
    """Maps of 28 × 28 binary symbols, four couplings.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: Another net than the paper's DenseNet of 8 blocks.
        shuffles: `"random"` as in the paper, or `"lattice"`; see `lattice_split`.
        temperature: That of modular couplings.
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
) -> FlowSpec:
    """Maps of 32 × 64 symbols of 8 classes: six couplings with split priors, five without.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: Another net than the paper's DenseNet of 15 blocks.
        top: How many classes each coupling sorts, but for the last, which sorts all: the paper's h.
        shuffles: `"random"` as in the paper, or `"lattice"`; see `lattice_split`.
        temperature: That of modular couplings.
    """
    return _multiscale(
        num_classes=8,
        shape=(1, 32, 64),
        couplings=(2, 2, 2) if split_priors else (1, 2, 2),
        top=top,
        coupling=coupling,
        factor_out=factor_out if split_priors else None,
        net=net or DenseNetSpec(blocks=15),
        shuffles=shuffles,
        temperature=temperature,
    )


def label_maps(
    num_classes: int,
    levels: int = 7,
    pixels: int = 24,
    near: int = 16,
    hidden: Sequence[int] = (64, 48),
    fine: int = 0,
) -> FlowSpec:
    """Label maps of any size, for the codec: split priors alone, from the finest pixels to the coarsest.

    At every level three of the four pixels of a cell leave the flow, one after the other, each predicted from the
    nearest of those that stay: (1, 0) from the other three and their likes around, (0, 1) from (0, 0) and (1, 1),
    (1, 1) from (0, 0). There are no couplings: a coupling would sort by a prediction what the split prior after it
    codes by the same prediction.

    What leaves together is coded as if nobody knew of its neighbours that leave with it. In fine levels each of the
    three therefore leaves in four steps, the pixels of cells of 4 × 4 one after the other: four times as many nets,
    each for a quarter of the pixels.

    Arguments:
        num_classes: The number of classes K.
        levels: The number of squeezes; what is left to the base is one pixel of 4^levels.
        pixels: How many pixels each net looks at.
        near: How many of them, the nearest, must be of one class for the net not to be asked.
        hidden: The widths of its hidden layers.
        fine: How many of the finest levels leave in twelve steps; fewer than there are levels.

    Examples:
        >>> label_maps(12, levels=1).build()
        Flow of 12 classes, shape 1 × any × any, 67,092 parameters
             0  Squeeze() → 4 × any × any
             1  Shuffle(permutation=(0, 3, 1, 2)) → 4 × any × any
             2  SplitPrior(ContextNet(24 pixels, near=16, hidden=(64, 48)), ChannelSplit(index=3), factor_out='b') → ...
             3  SplitPrior(ContextNet(24 pixels, near=16, hidden=(64, 48)), ChannelSplit(index=2), factor_out='b') → ...
             4  SplitPrior(ContextNet(24 pixels, near=16, hidden=(64, 48)), ChannelSplit(index=1), factor_out='b') → ...
          base  FactorizedCategorical(shared=True) → 1 × any × any
    """
    if not 0 <= fine < max(levels, 1):
        raise ValueError(f"fine={fine}, but of {levels} levels at least one is not fine")
    layers: list[LayerSpec] = [SqueezeSpec()] if fine else []
    for level in range(levels):
        is_fine = level < fine
        order = _fine_order() if is_fine else list(_ORDER)
        stays = len(order) // 4
        layers += [] if level == fine > 0 else [SqueezeSpec()]  # after fine levels the next cell is there already
        channels = [_channel_of(place, is_fine) for place in order]
        layers += [ShuffleSpec(permutation=tuple(channels))]
        for count in reversed(range(stays, len(order))):
            net = ContextNetSpec(
                _nearest(order[:count], order[count], pixels, 4 if is_fine else 2), near, tuple(hidden)
            )
            layers += [SplitPriorSpec(net, partition=ChannelSplit(count))]
    return FlowSpec(num_classes, (1, None, None), tuple(layers), FactorizedCategoricalSpec(shared=True))


_ORDER = ((0, 0), (1, 1), (0, 1), (1, 0))
"""In which order the pixels of a cell become known."""


def _fine_order() -> list[tuple[int, int]]:
    """The same for a cell of 4 × 4: first the pixels that stay, then every other in turn."""
    first = [(0, 0), (0, 2), (2, 0), (2, 2)]
    return first + [(i + 2 * p, j + 2 * q) for i, j in _ORDER[1:] for p, q in _ORDER]


def _channel_of(place: tuple[int, int], is_fine: bool) -> int:
    """The channel that a pixel of a cell is in after one squeeze, or two."""
    i, j = place
    return 8 * (i % 2) + 4 * (j % 2) + 2 * (i // 2) + j // 2 if is_fine else 2 * i + j


def vectors(num_classes: int, columns: int, net: NetSpec | None = None) -> FlowSpec:
    """Vectors of symbols, such as the rows of a table: split priors alone, one symbol after the other.

    Each is predicted from those before it, so nothing is taken for independent that is not. Long vectors leave in up to
    24 pieces.

    Arguments:
        num_classes: The number of classes K, that of the column with the most.
        columns: The number of symbols in each vector.
        net: Another net than an MLP.

    Examples:
        >>> vectors(4, 3).build()
        Flow of 4 classes, shape 3, 271,892 parameters
             0  SplitPrior(MLP(hidden=256, layers=4), ChannelSplit(index=2), factor_out='b') → 2
             1  SplitPrior(MLP(hidden=256, layers=4), ChannelSplit(index=1), factor_out='b') → 1
          base  FactorizedCategorical(shared=False) → 1
    """
    layers: list[LayerSpec] = []
    left, piece = columns, -(-columns // 24)
    while left > 1:
        kept = max(1, left - piece)
        layers.append(SplitPriorSpec(net or MLPSpec(), partition=ChannelSplit(kept)))
        left = kept
    return FlowSpec(num_classes, (columns,), tuple(layers))


def _nearest(
    given: Sequence[tuple[int, int]], target: tuple[int, int], count: int, cell: int
) -> tuple[tuple[int, ...], ...]:
    """The pixels nearest to the target among those of square cells that are given: (channel, row, column)."""
    reach = range(-count, count + 1) if count < 8 else range(-8, 9)
    found = [
        ((cell * row + i - target[0]) ** 2 + (cell * column + j - target[1]) ** 2, channel, row, column)
        for channel, (i, j) in enumerate(given)
        for row in reach
        for column in reach
    ]
    return tuple(place[1:] for place in sorted(found)[:count])


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
    """For each number in `couplings`: a squeeze, then so many times {shuffle, coupling, split prior if any}."""
    if shuffles not in ("random", "lattice"):
        raise ValueError(f"shuffles={shuffles!r}, but it must be 'random' or 'lattice'")
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
            partition = _HALVES
            if shuffles == "random":
                layers += [ShuffleSpec(seed=number)]
            else:
                given, moved = lattice_split(channels)
                layers += [ShuffleSpec(permutation=(*given, *moved))]
                if len(given) != len(moved):
                    partition = ChannelSplit(len(given))
                transformed = [replace(channels[i], transformed=channels[i].transformed + 1) for i in moved]
                kept = [channels[i] for i in given]
                channels = {None: [*kept, *transformed], "b": kept, "a": transformed}[factor_out]
            choices = num_classes if number == last else top
            layers += [_coupling(coupling, net, choices, temperature=temperature, partition=partition)]
            layers += [] if factor_out is None else [SplitPriorSpec(net, factor_out)]
            number += 1
    return FlowSpec(num_classes, shape, tuple(layers))


@dataclass(frozen=True)
class Channel:
    """Where in its cell of pixels a channel comes from, and how often couplings have transformed it."""

    row: int
    column: int
    transformed: int = 0


def lattice_split(channels: Sequence[Channel]) -> tuple[list[int], list[int]]:
    """The cut of channels that gives a coupling most to predict from, and most to predict.

    The pixels that no coupling has transformed yet lie on a lattice. Every other of them is predicted, like the fields
    of a chessboard, so that each has its nearest neighbours among those that are given; those form a lattice again,
    turned by 45 degrees. What is transformed already is given, too: it tells where the picture was hard to predict,
    and there is next to nothing left to gain from sorting it again. (A random order as often as not asks for what is
    transformed already, or withholds it.)

    Returns:
        The numbers of the channels that are given, and of those to predict.

    Examples:
        >>> lattice_split([Channel(0, 0), Channel(0, 1), Channel(1, 0), Channel(1, 1)])
        ([0, 3], [1, 2])
        >>> lattice_split([Channel(0, 0), Channel(1, 1), Channel(0, 1, transformed=1), Channel(1, 0, transformed=1)])
        ([0, 2, 3], [1])
    """
    least = min(channel.transformed for channel in channels)
    raw = [i for i, channel in enumerate(channels) if channel.transformed == least]
    if len(raw) == 1:
        raise ValueError("one channel cannot be split; squeeze first")
    row, column = channels[raw[0]].row, channels[raw[0]].column
    step = gcd(*(channels[i].row - row for i in raw), *(channels[i].column - column for i in raw))
    fields = {i: (channels[i].row - row + channels[i].column - column) // step % 2 for i in raw}
    if len(set(fields.values())) == 1:  # a turned lattice: every other row of it
        fields = {i: (channels[i].row - row) // step % 2 for i in raw}
    moved = [i for i in raw if fields[i]]
    return [i for i in range(len(channels)) if i not in moved], moved


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
    raise ValueError(f"coupling={kind!r}, but it must be 'denoising' or 'modular'")
