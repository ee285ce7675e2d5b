"""Read files of label maps as arrays: PNG, TIFF and GIF images with one channel, and npy files."""

__all__ = [
    "MODES",
    "LabelImage",
    "NpyArray",
    "image_from_bytes",
    "npy_from_bytes",
    "read_image",
    "read_npy",
    "without_pixel_limit",
]

import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from ddf.errors import NotLabelMapError
from ddf.shapes import Array, check_bytes

MODES = {"1": "|b1", "L": "|u1", "P": "|u1", "I;16": "<u2", "I": "<i4"}
"""The modes of images with one channel, as Pillow names them, and the dtypes of their arrays."""

_PNG_INFO = {"transparency", "interlace"}
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"}
_TIFF_TAGS = {254, 255, 256, 257, 258, 259, 262, 263, 266, 273, 277, 278, 279, 282, 283, 284, 296, 317, 338, 339}
_TIFF_TAGS |= {320, 322, 323, 324, 325}  # tags that describe the pixels and how they are stored
_UPRIGHT = (274, 1)


class LabelImage(NamedTuple):
    """An image with one channel.

    Arguments:
        array: The pixels, (height, width); bool for mode `"1"`.
        format: `"PNG"`, `"TIFF"` or `"GIF"`.
        mode: A key of `MODES`.
        palette: Red, green, blue, … of an image of mode P.
        transparency: The transparent value, or the opacity of each color of the palette.
        has_metadata: Whether the file also holds metadata, such as text or a color profile.
    """

    array: Array
    format: str
    mode: str
    palette: bytes
    transparency: Any
    has_metadata: bool


class NpyArray(NamedTuple):
    """The array in an npy file, and whether its values are in Fortran order."""

    array: Array
    fortran: bool


def read_image(path: Path, max_bytes: int | None = None, gray_from_rgb: bool = False) -> LabelImage:
    """Read an image with one channel.

    Arguments:
        path: The file.
        max_bytes: The largest array to accept, in bytes; None for no limit.
        gray_from_rgb: Whether to accept RGB images whose channels are equal.

    Raises:
        NotLabelMapError: The image has several channels or frames, or another format.
        LimitError: Its array is larger than the limit.
        Exception: Pillow raises many kinds of errors for damaged files.
    """
    return image_from_bytes(path.read_bytes(), str(path), max_bytes, gray_from_rgb)


def image_from_bytes(data: bytes, name: str, max_bytes: int | None = None, gray_from_rgb: bool = False) -> LabelImage:
    """Read an image with one channel from the contents of its file; see `read_image`.

    Arguments:
        data: The contents.
        name: The name of the file.
        max_bytes: The largest array to accept, in bytes; None for no limit.
        gray_from_rgb: Whether to accept RGB images whose channels are equal.
    """
    from PIL import Image

    other_chunks = data.startswith(b"\x89PNG") and _has_other_chunks(data)
    with without_pixel_limit(), Image.open(io.BytesIO(data)) as image:
        if image.format not in ("PNG", "TIFF", "GIF"):
            raise NotLabelMapError(f"is a {image.format} file with the suffix {PurePath(name).suffix}")
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise NotLabelMapError(f"has {frames} frames, but a label map has one")
        mode = "I;16" if image.mode.startswith("I;16") else image.mode
        if mode not in MODES and not (mode == "RGB" and gray_from_rgb):
            raise NotLabelMapError(f"is an image of mode {mode}, but a label map has one channel")
        if max_bytes is not None:
            check_bytes(name, image.width * image.height * np.dtype(MODES.get(mode, "u1")).itemsize, max_bytes)
        array = np.asarray(image)
        if mode == "RGB":
            if not (array[..., :1] == array).all():
                colors = len(np.unique(array.reshape(-1, 3), axis=0))
                raise NotLabelMapError(f"is an RGB image with {colors} colors, but a label map has one channel")
            mode, array = "L", array[..., 0]
        array = array.view(np.uint8) != 0 if mode == "1" else array.astype(MODES[mode], copy=False)
        return LabelImage(
            array,
            image.format,
            mode,
            bytes(image.getpalette("RGB") or b"") if mode == "P" else b"",
            image.info.get("transparency"),
            other_chunks or _has_metadata(image),
        )


def read_npy(path: Path) -> NpyArray:
    """Read an npy file of integers or truth values.

    Raises:
        NotLabelMapError: The array has another dtype, or too many dimensions.
        ValueError: The file is damaged.
    """
    return npy_from_bytes(path.read_bytes())


def npy_from_bytes(data: bytes) -> NpyArray:
    """Read an npy file of integers or truth values from its contents; see `read_npy`."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except Exception as error:  # whose messages are about Python
        raise ValueError("its header cannot be read") from error
    if dtype.kind not in "iub" or len(shape) > 32:
        raise NotLabelMapError(f"is an array of {dtype} of shape {shape}, but label maps hold integers")
    size = len(data) - file.tell()
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if count * dtype.itemsize != size:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} does not have {size} bytes")
    array = np.frombuffer(data, dtype, count, file.tell())
    if not array.flags.aligned:
        array = array.copy()
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise ValueError("a truth value is neither 0 nor 1")
    return NpyArray(array.reshape(shape, order="F" if fortran else "C"), bool(fortran))


@contextmanager
def without_pixel_limit() -> Iterator[None]:
    """Disable Pillow's own limit on the size of images, which `max_bytes` replaces."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _has_other_chunks(data: bytes) -> bool:
    """Return whether a PNG file has chunks or bytes besides its pixels; reject damaged chunks, which Pillow accepts."""
    position = 8
    types = set()
    while b"IEND" not in types:
        size = int.from_bytes(data[position : position + 4], "big")
        chunk = data[position + 4 : position + 8 + size]
        if len(chunk) < 4 + size or zlib.crc32(chunk) != int.from_bytes(data[position + 8 + size :][:4], "big"):
            raise ValueError("a chunk is truncated or does not match its checksum")
        types.add(chunk[:4])
        position += 12 + size
    return bool(types - _PNG_CHUNKS) or position != len(data)


def _has_metadata(image: Any) -> bool:
    """Return whether an image holds text, color profiles, geographic coordinates or the like."""
    if image.format == "TIFF":
        tags: Mapping[int, Any] = image.tag_v2
        return any(tag not in _TIFF_TAGS and (tag, value) != _UPRIGHT for tag, value in tags.items())
    return bool(set(image.info) - _PNG_INFO or getattr(image, "text", None))
