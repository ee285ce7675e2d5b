"""How a flow transforms one sample, and where its bits are spent."""

__all__ = ["causal_explanation", "explanation", "share_of_half"]

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ddf.classes import Classes, Color
from ddf.extras import needed_for
from ddf.shapes import Array
from ddf.viz.figures import new_figure, save_figure
from ddf.viz.sheets import colors_of

if TYPE_CHECKING:
    from ddf.analysis import State
    from ddf.labelmaps import Explanation

_COLOR_OF_LEFT = (205, 205, 205)  # symbols that have left the flow
_FIRST_RANK, _LAST_RANK = np.array([[250, 170, 90], [90, 0, 20]])  # the colors of rank 1 and of the last rank


def explanation(states: Sequence["State"], bits: Array, colors: Sequence[Color], path: str | PathLike[str]) -> None:
    """Draw a sample after each layer of a flow, and below it the bits of each pixel.

    Classes have their colors. Ranks are white where the prediction was right, and darker the larger the error was.

    Arguments:
        states: The result of `ddf.analysis.states_of`.
        bits: The bits of each pixel (height, width).
        colors: Red, green and blue of each class.
        path: The PNG file to write.
    """
    with needed_for("pictures"):
        from matplotlib.colors import LogNorm
        from matplotlib.layout_engine import ConstrainedLayoutEngine

    few, many = (4, 3), (6, 5, 4)
    columns = min(few if len(states) <= 12 else many, key=lambda count: -len(states) % count)
    columns = min(columns, len(states))
    rows = -(-len(states) // columns)
    height, width = bits.shape
    ratio = min(max(height / width, 0.4), 1.2)  # of the panels, within what fits on a page
    figure = new_figure(
        12,
        12 / columns * ratio * rows + 0.35 * rows + 12 * ratio * 0.62 + 0.8,
        ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08),
    )
    parts: Any = figure.subfigures(2, 1, height_ratios=[rows * (12 / columns * ratio + 0.35), 12 * ratio * 0.62 + 0.5])
    above, below = parts
    panels = above.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(states) :]:
        axes.axis("off")
    for axes, state in zip(panels, states, strict=False):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("lightgrey")
        picture = _painted(state, colors)
        axes.imshow(picture, interpolation="nearest", aspect="auto" if state.symbols.size < 2 else "equal")
        number, _, name = state.layer.partition(" ")
        remaining = "gray is coded" if (state.symbols < 0).any() else "the remaining symbols"
        caption = {"DenoisingCoupling": "ranks (white: 0)", "SplitPrior": remaining}.get(name, name)
        title = "the map" if state.layer == "data" else f"after layer {number}: {caption}"
        axes.set_title(f"{title}\n{state.left:,} symbol{'s' * (state.left != 1)} left", fontsize=9)
    axes = below.subplots()
    least = 0.01
    most = max(1.0, float(bits.max()))
    image = axes.imshow(bits.clip(min=least), norm=LogNorm(least, most), cmap="inferno")
    axes.set_title(
        f"bits of each pixel: {bits.sum():,.0f} bits, {bits.mean():.4f} per pixel; half of them in "
        f"{share_of_half(bits):.1%} of the pixels",
        fontsize=11,
    )
    axes.axis("off")
    bar = below.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.03, 1)), label="bits of a pixel")
    ticks = [tick for tick in (0.01, 0.1, 1.0, 10.0) if tick < 0.7 * most]
    bar.set_ticks([*ticks, most], labels=[*(f"{tick:g}" for tick in ticks), f"{most:.1f}"])
    bar.ax.minorticks_off()
    save_figure(figure, path)


def causal_explanation(labels: Array, found: "Explanation", classes: Classes | None, path: str | PathLike[str]) -> None:
    """Draw how a causal flow predicts a map: the map, its ranks, the margins and the bits.

    Arguments:
        labels: The map (height, width).
        found: The result of `CausalFlow.explain`.
        classes: The classes of the labels, for their colors; None if they are not known.
        path: The PNG file to write.
    """
    with needed_for("pictures"):
        from matplotlib.colors import LogNorm

    values, symbols = np.unique(labels, return_inverse=True)
    known = classes is not None and set(values.tolist()) <= set(classes.values)
    if known and classes is not None:
        symbols, table = classes.to_symbols(labels), np.array(colors_of(classes), np.uint8)
    else:
        table = np.array(colors_of(Classes.plain(max(2, len(values)))), np.uint8)
    ratio = min(max(labels.shape[0] / labels.shape[1], 0.3), 1.6)
    figure = new_figure(12, 2 * (5.05 * ratio + 0.4))
    panels = figure.subplots(2, 2)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("lightgrey")
    panels[0, 0].imshow(table[symbols.reshape(labels.shape)], interpolation="nearest")
    panels[0, 0].set_title(f"the map: {len(values)} label{'s' * (len(values) != 1)}", fontsize=10)
    steps = np.linspace(0, 1, 7)[:, None]
    ranks = np.round((1 - steps) * _FIRST_RANK + steps * _LAST_RANK).astype(np.uint8)
    ranks[0] = 255
    panels[0, 1].imshow(ranks[found.ranks.clip(max=6)], interpolation="nearest")
    right = (found.ranks == 0).mean()
    panels[0, 1].set_title(f"ranks: white where the prediction is correct ({right:.2%} of the pixels)", fontsize=10)
    image = panels[1, 0].imshow(found.margins.clip(0, 10), cmap="Blues", vmin=0, vmax=10, interpolation="nearest")
    panels[1, 0].set_title("margin of the most likely label over the second", fontsize=10)
    figure.colorbar(image, cax=panels[1, 0].inset_axes((1.02, 0, 0.03, 1)), label="nats", extend="max")
    least, most = 0.01, max(1.0, float(found.bits.max()))
    image = panels[1, 1].imshow(
        found.bits.clip(min=least), norm=LogNorm(least, most), cmap="inferno", interpolation="nearest"
    )
    panels[1, 1].set_title(
        f"{found.bits.sum():,.0f} bits, {found.bits.mean():.4f} per pixel; half of them in "
        f"{share_of_half(found.bits):.1%} of the pixels",
        fontsize=10,
    )
    bar = figure.colorbar(image, cax=panels[1, 1].inset_axes((1.02, 0, 0.03, 1)), label="bits of a pixel")
    ticks = [tick for tick in (0.01, 0.1, 1.0, 10.0) if tick <= most]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    save_figure(figure, path)


def _painted(state: "State", colors: Sequence[Color]) -> Array:
    """Return red, green and blue of every place of a state."""
    table = np.array([*colors, _COLOR_OF_LEFT], dtype=np.uint8)
    steps = np.linspace(0, 1, max(2, len(colors)))[:, None]  # from light to dark; rank 0 is white
    ranks = np.round((1 - steps) * _FIRST_RANK + steps * _LAST_RANK).astype(np.uint8)
    ranks[0] = 255
    return np.where(((state.symbols >= 0) & state.changed)[..., None], ranks[state.symbols], table[state.symbols])


def share_of_half(bits: Array) -> float:
    """Return the smallest share of the pixels that holds half of the bits."""
    order = np.sort(bits, axis=None)[::-1].cumsum()
    return float((np.searchsorted(order, order[-1] / 2) + 1) / bits.size)
