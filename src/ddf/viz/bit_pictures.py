"""The bits of every pixel of a map as an image, and its scale. Needs no matplotlib."""

__all__ = ["MOST_BITS", "bit_picture", "pooled", "scale_colors", "scale_position"]

from typing import TYPE_CHECKING, Any

import numpy as np

from ddf.shapes import Array

if TYPE_CHECKING:
    from PIL import Image

MOST_BITS = 10.0
"""The end of the scale: pixels that take more bits have the same color."""

_LINEAR = 0.05  # bits; above, the scale is almost logarithmic
_STOPS = np.array([(255, 255, 255), (253, 212, 158), (239, 101, 72), (153, 10, 30), (35, 0, 25)])
_STEPS = 256


def scale_position(bits: Any) -> Any:
    """Return where a number or an array of bits lies on the scale, from 0 for none to 1 for `MOST_BITS` and more."""
    return np.log1p(np.clip(bits, 0, MOST_BITS) / _LINEAR) / np.log1p(MOST_BITS / _LINEAR)


def scale_colors(steps: int = _STEPS) -> Array:
    """Return the colors of the scale, from white to almost black, as uint8 (steps, 3)."""
    places = np.linspace(0, len(_STOPS) - 1, steps)
    return np.stack([np.interp(places, range(len(_STOPS)), part) for part in _STOPS.T], axis=1).round().astype(np.uint8)


def bit_picture(bits: Array, size: int | None = None) -> "Image.Image":
    """Return the bits of every pixel as an image: white where a pixel is free, dark where it is expensive.

    Arguments:
        bits: The bits of each pixel (height, width); see `CausalFlow.explain`.
        size: The largest side of the image, in pixels, each of which shows the average of its area; None for that of
            the map.

    Examples:
        >>> image = bit_picture(np.array([[0.0, 12.0]])).convert("RGB")
        >>> image.getpixel((0, 0)), image.getpixel((1, 0))
        ((255, 255, 255), (35, 0, 25))
    """
    from PIL import Image

    shown = bits if size is None else pooled(bits, size)
    image = Image.fromarray((scale_position(shown) * (_STEPS - 1)).round().astype(np.uint8))
    image.putpalette(scale_colors().tobytes())
    return image


def pooled(values: Array, size: int) -> Array:
    """Return the averages of the cells of a grid, so that the larger side has at most the given size.

    Arguments:
        values: Values (height, width).
        size: The largest side.

    Examples:
        >>> pooled(np.array([[1.0, 3.0, 0.0, 8.0]]), 2)
        array([[2., 4.]])
    """
    longest = max(values.shape)
    if longest <= size:
        return values
    edges = []
    for side in values.shape:
        cells = max(1, round(side * size / longest))
        edges.append(np.arange(cells + 1) * side // cells)
    sums = np.add.reduceat(np.add.reduceat(values, edges[0][:-1], axis=0, dtype=np.float64), edges[1][:-1], axis=1)
    return sums / np.outer(np.diff(edges[0]), np.diff(edges[1]))
