"""Pictures."""

__all__ = [
    "causal_explanation",
    "colors_of",
    "explanation",
    "learning_curves",
    "map_grids",
    "pair_histograms",
    "share_of_half",
    "sheet",
]

from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddf.analysis import State
from ddf.classes import Classes, Color
from ddf.files import atomic_write

if TYPE_CHECKING:
    from ddf.labelmaps import Explanation


def pair_histograms(samples: Mapping[str, Tensor], num_classes: int, path: str | PathLike[str]) -> None:
    """Draws two-dimensional histograms of pairs of symbols side by side, on one scale.

    Arguments:
        samples: Title → pairs (samples, 2).
        num_classes: The number of classes K.
        path: The picture to write, a PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(samples), 3.7), layout="constrained")
    tables = {
        title: torch.bincount(pairs[:, 0].long() * num_classes + pairs[:, 1].long(), minlength=num_classes**2)
        .view(num_classes, num_classes)
        .div(len(pairs))
        for title, pairs in samples.items()
    }
    brightest = max(float(table.max()) for table in tables.values())
    for axes, (title, table) in zip(figure.subplots(1, len(samples), squeeze=False)[0], tables.items(), strict=True):
        # The square root keeps what is rare in sight.
        axes.imshow(table.t().sqrt().numpy(), origin="lower", cmap="magma", vmin=0, vmax=brightest**0.5)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("first symbol", fontsize=9)
        axes.set_ylabel("second symbol", fontsize=9)
        axes.set_xticks([0, num_classes // 2, num_classes - 1])
        axes.set_yticks([0, num_classes // 2, num_classes - 1])
        axes.tick_params(labelsize=8)
    _save(figure, path)


def map_grids(
    maps: Mapping[str, np.ndarray[Any, Any]],
    colors: Sequence[tuple[int, int, int]],
    path: str | PathLike[str],
    names: Sequence[str] = (),
    columns: int = 4,
) -> None:
    """Draws grids of label maps side by side, in the colours of their classes.

    Arguments:
        maps: Title → symbols (samples, 1, height, width).
        colors: Red, green and blue of each class, from 0 to 255.
        path: The picture to write, a PNG.
        names: What the classes are called, for a legend; none for no legend.
        columns: How many maps stand beside each other in a grid.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    first = next(iter(maps.values()))
    rows = -(-max(len(group) for group in maps.values()) // columns)
    height, width = first.shape[-2:]
    in_a_line = 4 * len(maps)  # of the legend
    lines = -(-len(names) // in_a_line)
    inches = 3.6 * len(maps), 3.6 * rows * (height + 2) / (columns * (width + 2)) + 0.35 + 0.25 * lines
    figure = Figure(figsize=inches, layout="constrained")
    table = np.array([*colors, (255, 255, 255)], dtype=np.uint8)
    for axes, (title, group) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        sheet = np.full((rows * (height + 2) - 2, columns * (width + 2) - 2), len(colors), dtype=np.int64)
        for i, part in enumerate(group[: rows * columns]):
            row, column = i // columns * (height + 2), i % columns * (width + 2)
            sheet[row : row + height, column : column + width] = part[0]
        axes.imshow(table[sheet], interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    if names:
        patches = [
            Patch(facecolor=(red / 255, green / 255, blue / 255), edgecolor="grey", label=name)
            for name, (red, green, blue) in zip(names, colors, strict=True)
        ]
        figure.legend(
            handles=patches, loc="outside lower center", ncols=min(in_a_line, len(names)), fontsize=8, frameon=False
        )
    _save(figure, path)


def learning_curves(curves: Mapping[str, Mapping[str, Sequence[float]]], path: str | PathLike[str]) -> None:
    """Draws validation figures by epoch, a panel for each model.

    Arguments:
        curves: Title of a panel → name of a net → its bits by epoch.
        path: The picture to write, a PNG.
    """
    from matplotlib.figure import Figure

    lines = -(-max((len(group) for group in curves.values()), default=0) // 2)
    figure = Figure(figsize=(4.6 * len(curves), 3.3 + 0.2 * lines), layout="constrained")
    styles = ("-", "--", "-.", ":")
    for axes, (title, group) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for number, (name, values) in enumerate(group.items()):
            axes.plot(range(1, len(values) + 1), values, styles[number % 4], linewidth=1.2, label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel("validation bits per symbol", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    _save(figure, path)


def colors_of(classes: Classes) -> list[Color]:
    """The colours of classes; those that have none get some that are easy to tell apart."""
    if classes.colors:
        return list(classes.colors)
    if classes.num_classes == 2:
        return [(0, 0, 0), (255, 255, 255)]
    # The hue goes round by the golden section, and the brightness up and down.
    found = []
    for i in range(classes.num_classes):
        red, green, blue = hsv_to_rgb(
            (i * 0.618034 + 0.58) % 1, (0.55, 0.75, 0.4)[i % 3], (0.85, 0.6, 0.95)[i // 2 % 3]
        )
        found.append((round(255 * red), round(255 * green), round(255 * blue)))
    return found


def sheet(maps: np.ndarray[Any, Any], colors: Sequence[Color], path: str | PathLike[str], gap: int = 4) -> None:
    """Draws maps (samples, height, width) side by side, pixel by pixel, and nothing else."""
    from PIL import Image

    count, height, width = maps.shape
    columns = _columns(count, (count * height / width) ** 0.5)
    rows = -(-count // columns)
    zoom = max(1, 320 // max(height, width))
    high, wide = height * zoom + gap, width * zoom + gap
    picture = np.full((rows * high + gap, columns * wide + gap, 3), 255, dtype=np.uint8)
    table = np.array(colors, dtype=np.uint8)
    for i, part in enumerate(maps):
        row, column = i // columns * high + gap, i % columns * wide + gap
        large = table[part].repeat(zoom, axis=0).repeat(zoom, axis=1)
        picture[row : row + height * zoom, column : column + width * zoom] = large
    with atomic_write(Path(path)) as temporary:
        Image.fromarray(picture).save(temporary, "PNG")


def _columns(count: int, ideal: float) -> int:
    """How many columns: near the ideal, and such that the last row is full if that can be."""

    def cost(columns: int) -> float:
        empty = -count % columns
        return abs(np.log(columns / ideal)) + 4 * empty / count

    return min(range(count, 0, -1), key=cost) if count else 1


def explanation(
    states: Sequence[State], bits: np.ndarray[Any, Any], colors: Sequence[Color], path: str | PathLike[str]
) -> None:
    """Draws what a sample becomes layer by layer, and below it where its bits go.

    Classes have their colours. Ranks are white where the prediction was right, and the darker the more wrong it was.

    Arguments:
        states: What `states_of` returns.
        bits: The bits of each pixel (height, width).
        colors: Red, green and blue of each class.
        path: The picture to write, a PNG.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    few, many = (4, 3), (6, 5, 4)
    columns = min(few if len(states) <= 12 else many, key=lambda count: -len(states) % count)
    columns = min(columns, len(states))
    rows = -(-len(states) // columns)
    height, width = bits.shape
    ratio = min(max(height / width, 0.4), 1.2)  # of what there is room for, if not of the map
    figure = Figure(
        figsize=(12, 12 / columns * ratio * rows + 0.35 * rows + 12 * ratio * 0.62 + 0.8),
        layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08),
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
        goes_on = "grey is coded" if (state.symbols < 0).any() else "what goes on"
        words = {"DenoisingCoupling": "ranks (white: 0)", "SplitPrior": goes_on}.get(name, name)
        title = "the map" if state.layer == "data" else f"after layer {number}: {words}"
        axes.set_title(f"{title}\n{state.left:,} symbol{'s' * (state.left != 1)} left", fontsize=9)
    axes = below.subplots()
    least = 0.01
    most = max(1.0, float(bits.max()))
    image = axes.imshow(bits.clip(min=least), norm=LogNorm(least, most), cmap="inferno")
    axes.set_title(
        f"where the bits go: {bits.sum():,.0f} bits, {bits.mean():.4f} per pixel; half of them in "
        f"{share_of_half(bits):.1%} of the pixels",
        fontsize=11,
    )
    axes.axis("off")
    bar = below.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.03, 1)), label="bits of a pixel")
    ticks = [tick for tick in (0.01, 0.1, 1.0, 10.0) if tick < 0.7 * most]
    bar.set_ticks([*ticks, most], labels=[*(f"{tick:g}" for tick in ticks), f"{most:.1f}"])
    bar.ax.minorticks_off()
    _save(figure, path)


def causal_explanation(
    labels: np.ndarray[Any, Any], found: "Explanation", classes: Classes | None, path: str | PathLike[str]
) -> None:
    """Draw how a causal flow predicts a map: the map, its ranks, the margins and the bits.

    Arguments:
        labels: The map (height, width).
        found: What `CausalFlow.explain` returned for it.
        classes: The classes of the labels, for their colors; None if they are not known.
        path: The picture to write, a PNG.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    values, symbols = np.unique(labels, return_inverse=True)
    known = classes is not None and set(values.tolist()) <= set(classes.values)
    if known and classes is not None:
        symbols, table = classes.to_symbols(labels), np.array(colors_of(classes), np.uint8)
    else:
        table = np.array(colors_of(Classes.plain(max(2, len(values)))), np.uint8)
    ratio = min(max(labels.shape[0] / labels.shape[1], 0.3), 1.6)
    figure = Figure(figsize=(12, 2 * (5.05 * ratio + 0.4)), layout="constrained")
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
    _save(figure, path)


def _painted(state: State, colors: Sequence[Color]) -> np.ndarray[Any, Any]:
    """Red, green and blue of every place of a state."""
    table = np.array([*colors, _NOTHING], dtype=np.uint8)
    steps = np.linspace(0, 1, max(2, len(colors)))[:, None]  # from light to dark, after the white of rank 0
    ranks = np.round((1 - steps) * _FIRST_RANK + steps * _LAST_RANK).astype(np.uint8)
    ranks[0] = 255
    return np.where(((state.symbols >= 0) & state.changed)[..., None], ranks[state.symbols], table[state.symbols])


_NOTHING = (205, 205, 205)  # the colour of what has left
_FIRST_RANK, _LAST_RANK = np.array([[250, 170, 90], [90, 0, 20]])


def share_of_half(bits: np.ndarray[Any, Any]) -> float:
    """The smallest part of the pixels that takes half of the bits."""
    order = np.sort(bits, axis=None)[::-1].cumsum()
    return float((np.searchsorted(order, order[-1] / 2) + 1) / bits.size)


def _save(figure: Any, path: str | PathLike[str]) -> None:
    with atomic_write(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
