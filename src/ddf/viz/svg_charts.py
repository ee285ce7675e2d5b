"""Small charts as SVG, for web pages: bars, histograms and color scales."""

__all__ = ["Bar", "bars", "bin_edges", "color_scale", "histogram"]

import html
from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

from ddf.shapes import Array
from ddf.viz.number_texts import count as count_text

WIDTH = 440
"""The width of all charts in SVG units, which are close to CSS pixels on a phone."""

_ACCENT, _PLAIN, _INK, _MUTED, _LINE = "#0b5cad", "#b3bdc9", "#1b1f24", "#59636e", "#d5dae0"
_LABELS, _VALUES = 100, 142  # space for text on both sides of bars
_MARGIN = 30  # to the right of a histogram, for half a number
_CHARACTER = 8  # the width of a character
_MOST_BINS = 24


class Bar(NamedTuple):
    """A horizontal bar.

    Arguments:
        name: The text before it.
        value: Its length.
        text: The text after it.
        emphasized: Whether it stands out.
    """

    name: str
    value: float
    text: str
    emphasized: bool = False


def bars(rows: Sequence[Bar], title: str) -> str:
    """Return horizontal bars, one below the other.

    Arguments:
        rows: The bars; at least one of them longer than 0.
        title: A description for readers who cannot see the chart.
    """
    longest = max(row.value for row in rows)
    lines = []
    for i, row in enumerate(rows):
        y, width = 26 * i + 4, (WIDTH - _LABELS - _VALUES) * row.value / longest
        weight = ' font-weight="600"' if row.emphasized else ""
        lines += [
            _text(_LABELS - 8, y + 14, row.name, f'text-anchor="end"{weight}'),
            f'<rect x="{_LABELS}" y="{y}" width="{max(width, 1):.1f}" height="19" rx="2" '
            f'fill="{_ACCENT if row.emphasized else _PLAIN}"/>',
            _text(_LABELS + width + 7, y + 14, row.text, weight.strip()),
        ]
    return _svg(26 * len(rows) + 4, title, lines)


def histogram(values: Array, label: str, unit: str, title: str) -> str:
    """Return a histogram whose last bin also counts the few values that are far above all others.

    Arguments:
        values: At least one value, all positive.
        label: The label of the axis of values.
        unit: What is counted, in the singular.
        title: A description for readers who cannot see the chart.
    """
    edges = bin_edges(values)
    step = edges[1] - edges[0]
    counts = np.histogram(values.clip(max=edges[-1]), edges)[0]
    beyond = bool(values.max() > edges[-1])
    highest = int(counts.max())
    ticks = _count_ticks(highest)
    left, top, bottom, height = max(44, 16 + _CHARACTER * len(f"{ticks[-1]:,}")), 30, 170, 216
    width = (WIDTH - left - _MARGIN) / len(counts)
    lines = []
    for tick in ticks:
        y = bottom - (bottom - top) * tick / highest
        lines += [
            f'<line x1="{left}" y1="{y:.1f}" x2="{WIDTH - _MARGIN}" y2="{y:.1f}" stroke="{_LINE}"/>',
            _text(left - 7, y + 4.5, f"{tick:,}", f'text-anchor="end" fill="{_MUTED}"'),
        ]
    for i, count in enumerate(counts.tolist()):
        size = (bottom - top) * count / highest
        name = f"{edges[i]:.{_decimals(step)}f} to {edges[i + 1]:.{_decimals(step)}f}"
        name = f"{edges[i]:.{_decimals(step)}f} or more" if beyond and i == len(counts) - 1 else name
        lines.append(
            f'<rect x="{left + width * i + 0.75:.1f}" y="{bottom - size:.1f}" width="{width - 1.5:.1f}" '
            f'height="{size:.1f}" fill="{_ACCENT}"><title>{name}: {count_text(count, unit)}</title></rect>'
        )
    lines.append(f'<line x1="{left}" y1="{bottom}" x2="{WIDTH - _MARGIN}" y2="{bottom}" stroke="{_INK}"/>')
    every = ceil(len(counts) / 5)
    for i in range(0, len(edges), every):
        lines.append(_text(left + width * i, bottom + 18, f"{edges[i]:.{_decimals(step)}f}", 'text-anchor="middle"'))
    median = float(np.median(values))
    x = left + width * min(max((median - edges[0]) / step, 0), len(counts))
    side = "end" if x > WIDTH / 2 else "start"
    lines += [
        f'<line x1="{x:.1f}" y1="{top - 14}" x2="{x:.1f}" y2="{bottom}" stroke="{_INK}" stroke-dasharray="3 3"/>',
        _text(x + (-6 if side == "end" else 6), top - 5, f"median {median:.4f}", f'text-anchor="{side}"'),
        _text((left + WIDTH - _MARGIN) / 2, bottom + 40, label, 'text-anchor="middle"'),
        _text(left - 7, top - 12, f"{unit}s", f'text-anchor="end" fill="{_MUTED}"'),
    ]
    return _svg(height, title, lines)


def bin_edges(values: Array) -> Array:
    """Return the edges of at most 24 bins of equal, round width that hold all values but a few very high ones.

    Examples:
        >>> bin_edges(np.array([0.031, 0.048, 0.052]))[[0, 1, -1]]
        array([0.031, 0.032, 0.052])
        >>> float(bin_edges(np.array([0.1] * 50 + [0.2] * 50 + [7.0]))[-1])
        0.2
    """
    low, high = float(values.min()), float(values.max())
    most = float(np.quantile(values, 0.95))
    if high > 2 * most - low:  # far above most values
        high = most
    span = max(high - low, 0.02 * high)
    for power in range(floor(log10(span)) - 2, floor(log10(span)) + 1):
        for factor in (1, 2, 5):
            step = factor * 10.0**power
            first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
            if last - first <= _MOST_BINS and step * _MOST_BINS >= span:
                numbers = np.arange(first, max(last, first + 1) + 1)
                return np.round(numbers * step, max(0, -power))
    raise AssertionError("a step of a tenth of the span is always large enough")


def color_scale(colors: Array, ticks: Sequence[tuple[float, str]], title: str) -> str:
    """Return a horizontal color scale with ticks below it.

    Arguments:
        colors: Red, green and blue of equal steps, from left to right.
        ticks: The position (from 0 to 1) and the text of each tick.
        title: A description for readers who cannot see the scale.
    """
    left, width = 16, WIDTH - 32
    step = width / len(colors)
    lines = [
        f'<rect x="{left + i * step:.2f}" y="2" width="{step + 0.5:.2f}" height="14" fill="#{bytes(color).hex()}"/>'
        for i, color in enumerate(colors)
    ]
    lines.append(f'<rect x="{left}" y="2" width="{width + 0.5}" height="14" fill="none" stroke="{_PLAIN}"/>')
    for place, text in ticks:
        x = left + width * place
        lines += [
            f'<line x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="21" stroke="{_INK}"/>',
            _text(x, 35, text, 'text-anchor="middle"'),
        ]
    return _svg(40, title, lines)


def _count_ticks(highest: int) -> list[int]:
    """Return round numbers from 0 to at most the highest count."""
    step = next(factor * 10**power for power in range(10) for factor in (1, 2, 5) if factor * 10**power * 4 >= highest)
    return list(range(0, highest + 1, step))


def _decimals(step: float) -> int:
    return max(0, -floor(log10(step) + 1e-9))


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(text)}</text>'


def _svg(height: float, title: str, lines: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}" font-size="13" '
            f'fill="{_INK}">',
            *lines,
            "</svg>",
        ]
    )
