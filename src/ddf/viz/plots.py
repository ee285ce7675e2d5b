"""Histograms of pairs of symbols, learning curves, groups of dots, and scores against times."""

__all__ = ["Comparison", "Curves", "comparisons", "dots", "learning_curves", "pair_histograms"]

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np

from ddf.shapes import Array
from ddf.viz.figures import new_figure, save_figure

_LEAST_SPAN = 0.1  # of an axis of scores, as a fraction of the scores


def pair_histograms(samples: Mapping[str, Array], num_classes: int, path: str | PathLike[str]) -> None:
    """Draw two-dimensional histograms of pairs of symbols side by side, all on the same scale.

    Arguments:
        samples: Title → pairs (samples, 2).
        num_classes: The number of classes K.
        path: The PNG file to write.
    """
    figure = new_figure(3.4 * len(samples), 3.7)
    cells = {title: pairs.astype(np.int64) @ (num_classes, 1) for title, pairs in samples.items()}
    tables = {
        title: np.bincount(cell, minlength=num_classes**2).reshape(num_classes, num_classes) / len(cell)
        for title, cell in cells.items()
    }
    brightest = max(float(table.max()) for table in tables.values())
    for axes, (title, table) in zip(figure.subplots(1, len(samples), squeeze=False)[0], tables.items(), strict=True):
        # The square root keeps rare pairs visible.
        axes.imshow(np.sqrt(table.T), origin="lower", cmap="magma", vmin=0, vmax=brightest**0.5)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("first symbol", fontsize=9)
        axes.set_ylabel("second symbol", fontsize=9)
        axes.set_xticks([0, num_classes // 2, num_classes - 1])
        axes.set_yticks([0, num_classes // 2, num_classes - 1])
        axes.tick_params(labelsize=8)
    save_figure(figure, path)


def dots(values: Mapping[str, Sequence[float]], title: str, label: str, path: str | PathLike[str]) -> None:
    """Draw groups of values as dots, one group below the other, each with its mean.

    Arguments:
        values: Name of a group → its values.
        title: The title.
        label: The label of the axis.
        path: The PNG file to write.
    """
    names = [textwrap.fill(name, 44) for name in values]
    figure = new_figure(7, 1 + 0.17 * sum(1 + len(name.splitlines()) for name in names))
    axes = figure.subplots()
    for row, group in enumerate(values.values()):
        mean = sum(group) / len(group)
        axes.plot(group, [row] * len(group), "o", color="#4c72b0", markersize=4, alpha=0.5, linewidth=0)
        axes.plot([mean], [row], "|", color="black", markersize=13)
        axes.annotate(f"{mean:.4f}", (max(group), row), (7, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.2, y=0.1)  # room for the last number
    axes.grid(axis="x", linewidth=0.4)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


@dataclass(frozen=True)
class Curves:
    """A panel of learning curves.

    Arguments:
        title: Its title.
        label: The label of the vertical axis.
        curves: Name → values by epoch. Names that differ only in a number at the end, such as "coupling 1" and
            "coupling 2", share a line style; those with the same number share a color.
        reference: The name and the value of a horizontal line.
        every: The number of epochs between values.
    """

    title: str
    label: str
    curves: Mapping[str, Sequence[float]]
    reference: tuple[str, float] | None = None
    every: int = 1


def learning_curves(panels: Sequence[Curves], path: str | PathLike[str]) -> None:
    """Draw scores by epoch, one panel per model.

    Arguments:
        panels: The panels.
        path: The PNG file to write.
    """
    lines = -(-max((len(panel.curves) + 1 for panel in panels), default=0) // 2)
    figure = new_figure(4.6 * len(panels), 3.3 + 0.2 * lines)
    styles = ("-", "--", "-.", ":")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        kinds = list(dict.fromkeys(name.rstrip("0123456789") for name in panel.curves))
        for name, values in panel.curves.items():
            kind = name.rstrip("0123456789")
            style = {"linestyle": styles[kinds.index(kind) % 4], "color": f"C{int(name.removeprefix(kind) or 1) - 1}"}
            epochs = [panel.every * (i + 1) for i in range(len(values))]
            axes.plot(epochs, values, linewidth=1.2, label=name, **style)
        if panel.reference:
            axes.axhline(panel.reference[1], color="black", linewidth=0.8, linestyle=":", label=panel.reference[0])
        low, high = axes.get_ylim()
        middle = (low + high) / 2
        if high - low < _LEAST_SPAN * abs(middle):  # a flat line should look flat
            axes.set_ylim(middle * (1 - _LEAST_SPAN / 2), middle * (1 + _LEAST_SPAN / 2))
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel(panel.label, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    save_figure(figure, path)


@dataclass(frozen=True)
class Comparison:
    """A panel of the scores of models against their training times.

    Arguments:
        title: Its title.
        points: Name → training time in minutes, bits per dimension, number of parameters.
        lines: Name → bits per dimension, for models whose training time is not known.
    """

    title: str
    points: Mapping[str, tuple[float, float, int]]
    lines: Mapping[str, float]


def comparisons(panels: Sequence[Comparison], path: str | PathLike[str]) -> None:
    """Draw scores against training times, one panel per data set; areas show numbers of parameters.

    Arguments:
        panels: The panels.
        path: The PNG file to write.
    """
    from matplotlib.ticker import LogLocator

    lines = max((len(panel.points) + len(panel.lines) for panel in panels), default=0)
    figure = new_figure(5.6 * len(panels), 3.8 + 0.21 * lines)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        colors = (f"C{number}" for number in range(len(panel.points)))
        for color, (name, (minutes, bits, parameters)) in zip(colors, panel.points.items(), strict=True):
            axes.scatter(minutes, bits, s=parameters / 1e5, color=color, alpha=0.6, linewidths=0)
            label = f"{name}: {bits:.4f}, {minutes:.2g} min, {parameters / 1e6:.1f} M parameters"
            axes.plot(minutes, bits, "o", color=color, markersize=3, label=label)
        for (name, bits), style in zip(panel.lines.items(), itertools.cycle(("--", ":", "-.")), strict=False):
            axes.axhline(bits, color="grey", linestyle=style, linewidth=0.9, label=f"{name}: {bits:.4f}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(x=0.15, y=0.1)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter("{x:.2f}")
        axes.yaxis.set_minor_formatter("{x:.2f}")
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel("training time, minutes", fontsize=9)
        axes.set_ylabel("bits per dimension on the test set", fontsize=9)
        axes.tick_params(labelsize=8, which="both")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    save_figure(figure, path)
