"""Label maps as Pillow images, in their colors."""

__all__ = [
    "Coloring",
    "array_picture",
    "automatic_colors",
    "classes_of",
    "coloring",
    "data_uri",
    "format_of",
    "is_map",
    "picture",
    "thumbnail",
]

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ddf.archive.formats import FileFormat
from ddf.classes import Classes, Color
from ddf.errors import DdfError
from ddf.shapes import Array

if TYPE_CHECKING:
    from PIL import Image

    from ddf.archive.reader import Archive

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 divided by the golden ratio
_FIRST_HUE = 0.962  # that of label 0, so that label 1 is blue
# 13 steps of the golden ratio nearly make a full circle, so the saturation changes every 13 labels.
_SATURATIONS, _SATURATION_STEP = np.array([0.65, 0.4]), np.uint64(13)
_BRIGHTNESSES, _BRIGHTNESS_STEP = np.array([0.9, 0.65, 0.45]), np.uint64(5)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)
_WIDEST = 1 << 16  # ranges of labels up to this size use a lookup table
_CHUNK = 1 << 20  # pixels that are processed at once


@dataclass(frozen=True)
class Coloring:
    """The color of every label: a known one, or else an automatic one.

    Arguments:
        known: Label → its color.
        white: A label that is white unless its color is known; None if there is none.

    Examples:
        >>> Coloring(known={7: (200, 0, 0)}, white=9)(np.array([0, 7, 9]))
        array([[  0,   0,   0],
               [200,   0,   0],
               [255, 255, 255]], dtype=uint8)
    """

    known: Mapping[int, Color] = field(default_factory=dict)
    white: int | None = None

    def __call__(self, labels: Array) -> Array:
        """Return red, green and blue of some integer labels (n), in ascending order, as uint8 (n, 3)."""
        colors = automatic_colors(labels)
        table = {**({} if self.white is None else {self.white: _WHITE}), **self.known}
        low, high = int(labels[0]), int(labels[-1])
        inside = {label: color for label, color in table.items() if low <= label <= high}
        if inside:
            wanted = np.array(list(inside), labels.dtype)
            places = np.searchsorted(labels, wanted)
            occur = labels[places] == wanted
            colors[places[occur]] = np.array(list(inside.values()), np.uint8)[occur]
        return colors

    def of(self, label: int) -> Color:
        """Return the color of one label."""
        red, green, blue = self(np.array([label]))[0].tolist()
        return red, green, blue


def automatic_colors(labels: Array) -> Array:
    """Return colors that are easy to tell apart and depend on nothing but the label: 0 is black, 255 is white.

    Arguments:
        labels: Integers (n).

    Returns:
        Red, green and blue (n, 3), uint8.
    """
    numbers = labels.astype(np.uint64)
    hues = (_FIRST_HUE + (numbers * _GOLDEN >> np.uint64(11)) * 2.0**-53) % 1  # steps of the golden ratio
    saturations = _SATURATIONS[numbers // _SATURATION_STEP % np.uint64(len(_SATURATIONS))]
    brightnesses = _BRIGHTNESSES[numbers // _BRIGHTNESS_STEP % np.uint64(len(_BRIGHTNESSES))]
    sectors = (np.array([5, 3, 1]) + 6 * hues[:, None]) % 6  # from hue, saturation and brightness to red, green, blue
    chroma = np.minimum(sectors, 4 - sectors).clip(0, 1) * saturations[:, None]
    colors = np.round(255 * brightnesses[:, None] * (1 - chroma)).astype(np.uint8)
    colors[labels == 0] = _BLACK
    colors[labels == 255] = _WHITE
    return colors


def coloring(array: Array, file_format: FileFormat | None = None, classes: Classes | None = None) -> Coloring:
    """Return the colors of a label map: those of its file, or else of its classes, or else automatic ones.

    If a map has only two labels, and one of them is 0, the automatic color of the other one is white.

    Arguments:
        array: The map (height, width).
        file_format: The format of the file that the map came from, whose palette is used.
        classes: The classes of the labels.

    Examples:
        >>> coloring(np.array([[0, 7], [7, 0]])).white
        7
    """
    known: dict[int, Color] = {}
    if classes is not None and classes.colors:
        known.update(zip(classes.values, classes.colors, strict=True))
    if file_format is not None:
        parts = iter(file_format.palette)
        known.update(enumerate(zip(parts, parts, parts, strict=False)))
    return Coloring(known, _only_other(array))


def _only_other(array: Array) -> int | None:
    """Return the label x of an array with the labels 0 and x; None for any other array."""
    if array.dtype.kind == "b":
        return 1
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low == high:
        return None
    other = low or high
    return other if all(((part == 0) | (part == other)).all() for part in _chunks(array)) else None


def picture(array: Array, colors: Coloring, size: int | None = None) -> "Image.Image":
    """Return a label map as an image. If it is bool or uint8, the image has a palette, and its pixels are the labels.

    Arguments:
        array: The map (height, width).
        colors: The colors of the labels; see `coloring`.
        size: The largest side of the image, in pixels; None for that of the map.

    Examples:
        >>> mask = np.array([[0, 255], [255, 0]], np.uint8)
        >>> picture(mask, coloring(mask)).convert("RGB").getpixel((1, 0))
        (255, 255, 255)
    """
    from PIL import Image

    shown = array if size is None else thumbnail(array, size)
    if shown.dtype.itemsize == 1 and shown.dtype.kind in "ub":
        labels = np.ascontiguousarray(shown).view(np.uint8)
        image = Image.fromarray(labels)
        image.putpalette(colors(np.arange(int(labels.max()) + 1)).tobytes())
        return image
    painted = np.empty((*shown.shape, 3), np.uint8)
    low, high = int(shown.min()), int(shown.max())
    narrow = high - low < _WIDEST and low > -(1 << 62) and high < 1 << 62
    table = colors(np.arange(low, high + 1)) if narrow else np.empty(0)
    for part, out in zip(_chunks(shown), _chunks(painted), strict=True):
        if narrow:
            out[...] = table[part.astype(np.int64) - low]
        else:
            labels, places = np.unique(part, return_inverse=True)
            out[...] = colors(labels)[places.reshape(part.shape)]
    return Image.fromarray(painted)


def thumbnail(array: Array, size: int) -> Array:
    """Return every n-th pixel of a map, so that its larger side has at most the given size; small maps are unchanged.

    Only the pixels that are returned are read, which is fast for maps of any size.

    Arguments:
        array: The map (height, width).
        size: The largest side.

    Examples:
        >>> thumbnail(np.arange(24).reshape(4, 6), 3)
        array([[ 7,  9, 11],
               [19, 21, 23]])
    """
    longest = max(array.shape)
    if longest <= size:
        return array
    sides = [max(1, round(side * size / longest)) for side in array.shape]
    rows, columns = ((2 * np.arange(n) + 1) * side // (2 * n) for n, side in zip(sides, array.shape, strict=True))
    return array[rows[:, None], columns]


def data_uri(image: "Image.Image") -> str:
    """Return an image as a data URI with a PNG file, for web pages."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# ---- Maps of an archive


def is_map(shape: tuple[int, ...], file_format: FileFormat | None) -> bool:
    """Return whether an array is a map (height, width), rather than a file or an array of other dimensions."""
    return len(shape) == 2 and min(shape) > 0 and (file_format is None or file_format.type != "file")


def format_of(archive: "Archive", key: str | int) -> FileFormat | None:
    """Return the format of the file that an array came from; None for other arrays and for unknown formats."""
    try:
        return archive.format_of(key)
    except ValueError:  # written by a newer version
        return None


def classes_of(archive: "Archive") -> Classes | None:
    """Return the classes of the model of an archive; None if the model is missing or has none."""
    try:
        classes = getattr(archive.model, "classes", None)
    except (DdfError, OSError):
        return None
    return classes if isinstance(classes, Classes) else None


def array_picture(archive: "Archive", key: str | int) -> "Image.Image":
    """Return a map of an archive as an image, in its colors."""
    array, file_format = archive[key], format_of(archive, key)
    if not is_map(array.shape, file_format):
        file = file_format is not None and file_format.type == "file"
        what = "is a file" if file else f"has the shape {array.shape}"
        raise ValueError(f"{archive.name}: {key!r} {what}, but an image shows a map (height, width)")
    return picture(array, coloring(array, file_format, classes_of(archive)))


def _chunks(array: Array) -> Iterator[Array]:
    """Yield the rows of a map, as many at a time as have about a million pixels."""
    step = max(1, _CHUNK // array.shape[1])
    for row in range(0, len(array), step):
        yield array[row : row + step]
