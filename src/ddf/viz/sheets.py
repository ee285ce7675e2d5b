"""Many label maps in one picture, and the colors of classes."""

__all__ = ["colors_of", "map_grids", "sheet"]

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from ddf.archive.pictures import automatic_colors
from ddf.classes import Classes, Color
from ddf.files import atomic_write
from ddf.shapes import Array
from ddf.viz.figures import new_figure, save_figure


def map_grids(
    maps: Mapping[str, Array],
    colors: Sequence[Color],
    path: str | PathLike[str],
    names: Sequence[str] = (),
    columns: int = 4,
) -> None:
    """Draw grids of label maps side by side, in the colors of their classes.

    Arguments:
        maps: Title → symbols (samples, 1, height, width).
        colors: Red, green and blue of each class, from 0 to 255.
        path: The PNG file to write.
        names: The names of the classes, for a legend; empty for no legend.
        columns: The number of columns of each grid.
    """
    from matplotlib.patches import Patch

    first = next(iter(maps.values()))
    rows = -(-max(len(group) for group in maps.values()) // columns)
    height, width = first.shape[-2:]
    per_line = 4 * len(maps)  # of the legend
    lines = -(-len(names) // per_line)
    figure = new_figure(3.6 * len(maps), 3.6 * rows * (height + 2) / (columns * (width + 2)) + 0.35 + 0.25 * lines)
    table = np.array([*colors, (255, 255, 255)], dtype=np.uint8)
    for axes, (title, group) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        grid = np.full((rows * (height + 2) - 2, columns * (width + 2) - 2), len(colors), dtype=np.int64)
        for i, part in enumerate(group[: rows * columns]):
            row, column = i // columns * (height + 2), i % columns * (width + 2)
            grid[row : row + height, column : column + width] = part[0]
        axes.imshow(table[grid], interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    if names:
        patches = [
            Patch(facecolor=(red / 255, green / 255, blue / 255), edgecolor="grey", label=name)
            for name, (red, green, blue) in zip(names, colors, strict=True)
        ]
        figure.legend(
            handles=patches, loc="outside lower center", ncols=min(per_line, len(names)), fontsize=8, frameon=False
        )
    save_figure(figure, path)


def colors_of(classes: Classes) -> list[Color]:
    """Return the colors of classes; for classes without colors, some that are easy to tell apart."""
    if classes.colors:
        return list(classes.colors)
    if classes.num_classes == 2:
        return [(0, 0, 0), (255, 255, 255)]
    return [(red, green, blue) for red, green, blue in automatic_colors(np.arange(classes.num_classes)).tolist()]


def sheet(maps: Array, colors: Sequence[Color], path: str | PathLike[str], gap: int = 4) -> None:
    """Draw maps (samples, height, width) side by side, pixel by pixel, without titles. Needs no matplotlib."""
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
    """Return a number of columns that is close to the ideal one and, if possible, fills the last row."""

    def cost(columns: int) -> float:
        empty = -count % columns
        return abs(np.log(columns / ideal)) + 4 * empty / count

    return min(range(count, 0, -1), key=cost) if count else 1
