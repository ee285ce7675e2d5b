"""Files of label maps as arrays: PNG and TIFF images with one channel, and npy files."""

__all__ = ["Loaded", "read_file", "to_file"]

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ddf.archive.formats import MODES, FileFormat
from ddf.archive.limits import check_size
from ddf.errors import DdfError
from ddf.shapes import Array

_IMAGES = {".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF"}
_PNG_PIXELS = {"transparency", "interlace"}
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"}
_TIFF_PIXELS = {254, 255, 256, 257, 258, 259, 262, 263, 266, 273, 277, 278, 279, 282, 283, 284, 296, 317, 338, 339}
_TIFF_PIXELS |= {320, 322, 323, 324, 325}  # tags that describe the pixels and how they are stored
_UPRIGHT = (274, 1)


class Loaded(NamedTuple):
    """A file as an array.

    Arguments:
        array: The array; the bytes of the file if it is not a label map.
        format: What is needed to restore the file.
        stripped: Whether the file holds metadata that is not kept.
        problem: Why the file is stored as bytes although its name suggests a label map.
    """

    array: Array
    format: FileFormat
    stripped: bool = False
    problem: str = ""


def read_file(path: Path, max_bytes: int) -> Loaded:
    """Read a file as an array.

    Arguments:
        path: The file.
        max_bytes: The largest array to accept, in bytes.

    Raises:
        OSError: The file cannot be read at all.
        LimitError: Its array is larger than the limit.
    """
    suffix = path.suffix.lower()
    problem = ""
    try:
        if suffix == ".npy":
            found = _read_npy(path)
        else:
            found = _read_image(path, _IMAGES[suffix], max_bytes) if suffix in _IMAGES else None
        if found is not None:
            return found
    except MemoryError:
        problem = "it does not fit into memory"
    except Exception as error:  # Pillow and NumPy raise all kinds of errors for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        problem = (
            str(error) if isinstance(error, DdfError) else f"it is not a valid {suffix} file ({_first_line(error)})"
        )
    check_size(str(path), path.stat().st_size, max_bytes)
    return Loaded(np.fromfile(path, dtype=np.uint8), FileFormat("file"), problem=problem)


def _read_npy(path: Path) -> Loaded | None:
    """Read an npy file of integers; return None for other dtypes."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except Exception as error:  # whose messages are about Python
            raise ValueError("its header cannot be read") from error
        if dtype.kind not in "iub" or len(shape) > 32:
            return None
        size = os.fstat(file.fileno()).st_size - file.tell()
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if count * dtype.itemsize != size:
            raise ValueError(f"an array of shape {shape} and dtype {dtype} does not have {size} bytes")
        array = np.fromfile(file, dtype=dtype, count=count)
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise ValueError("a truth value is neither 0 nor 1")
    array = array.reshape(shape, order="F" if fortran else "C")
    return Loaded(array, FileFormat("npy", fortran=bool(fortran), big_endian=dtype.byteorder == ">"))


def _read_image(path: Path, kind: str, max_bytes: int) -> Loaded | None:
    """Read an image with one channel; return None if the file holds anything else."""
    from PIL import Image

    extras = kind == "PNG" and _png_extras(path.read_bytes())
    with _unlimited(Image), Image.open(path) as image:
        mode = "I;16" if image.mode.startswith("I;16") else image.mode
        if image.format != kind or mode not in MODES or getattr(image, "n_frames", 1) > 1:
            return None
        check_size(str(path), image.width * image.height * np.dtype(MODES[mode]).itemsize, max_bytes)
        array = np.asarray(image)
        array = array.astype(MODES[mode], copy=False)
        transparent = image.info.get("transparency")
        palette = bytes(image.getpalette("RGB") or b"") if mode == "P" else b""
        stripped = extras or _holds_more(image)
    if mode == "1":
        array = np.asarray(array.view(np.uint8) != 0)
    format_ = FileFormat(kind, mode, palette, transparent)
    if not format_.suits(array) or not _comes_back(format_):
        return None
    if _beyond_palette(array, format_) and not _reads_back(array, format_):
        return None
    return Loaded(array, format_, stripped)


def _png_extras(data: bytes) -> bool:
    """Return whether a PNG file has chunks or bytes that are not kept; refuse damaged chunks, which Pillow accepts."""
    position = 8
    types = set()
    while b"IEND" not in types:
        size = int.from_bytes(data[position : position + 4], "big")
        chunk = data[position + 4 : position + 8 + size]
        if len(chunk) < 4 + size or zlib.crc32(chunk) != int.from_bytes(data[position + 8 + size :][:4], "big"):
            raise ValueError("a chunk is cut off or does not match its checksum")
        types.add(chunk[:4])
        position += 12 + size
    return bool(types - _PNG_CHUNKS) or position != len(data)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


@lru_cache(maxsize=256)
def _comes_back(format_: FileFormat) -> bool:
    """Return whether Pillow reads back what it writes: unusual transparency can be lost, whatever the pixels are."""
    try:
        if FileFormat.from_bytes(format_.to_bytes()) != format_:
            return False
    except (ValueError, TypeError):
        return False
    return _reads_back(np.zeros((1, 1), MODES[format_.mode]), format_)


def _reads_back(array: Array, format_: FileFormat) -> bool:
    """Return whether Pillow reads back an image that it writes."""
    from PIL import Image

    with _unlimited(Image), Image.open(io.BytesIO(to_file(array, format_))) as image:
        same = np.array_equal(np.asarray(image), array) and image.mode.startswith(format_.mode)
        same = same and image.info.get("transparency") == format_.transparency
        return bool(same and (format_.mode != "P" or bytes(image.getpalette("RGB") or b"") == format_.palette))


def _beyond_palette(array: Array, format_: FileFormat) -> bool:
    """Return whether an image has values for which Pillow's PNG files with this palette have too few bits."""
    colors = len(format_.palette) // 3
    fits = next(limit for limit in (2, 4, 16, 256) if colors <= limit)
    return format_.type == "PNG" and format_.mode == "P" and bool(array.max() >= fits)


@contextmanager
def _unlimited(module: Any) -> Iterator[None]:
    """Disable Pillow's own limit on the size of images, which `max_bytes` replaces."""
    limit, module.MAX_IMAGE_PIXELS = module.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        module.MAX_IMAGE_PIXELS = limit


def _holds_more(image: Any) -> bool:
    """Return whether an image holds metadata that is not kept: text, color profiles, geographic coordinates."""
    if image.format == "TIFF":
        return any(tag not in _TIFF_PIXELS and (tag, value) != _UPRIGHT for tag, value in image.tag_v2.items())
    return bool(set(image.info) - _PNG_PIXELS or getattr(image, "text", None))


def to_file(array: Array, format_: FileFormat) -> bytes:
    """Return the contents of the file of an array; raise a `ValueError` if the format cannot hold it."""
    if not format_.suits(array):
        raise ValueError(f"an array of shape {array.shape} and dtype {array.dtype} cannot be a {format_.type} file")
    if format_.type == "file":
        return array.tobytes()
    buffer = io.BytesIO()
    if format_.type == "npy":
        array = array.astype(array.dtype.newbyteorder(">" if format_.big_endian else "<"), copy=False)
        np.save(
            buffer, np.asfortranarray(array) if format_.fortran else np.ascontiguousarray(array).reshape(array.shape)
        )
        return buffer.getvalue()
    try:
        _save_image(array, format_, buffer)
    except (OSError, ValueError, TypeError, OverflowError, KeyError, SystemError) as error:
        raise ValueError(f"Pillow cannot write a {format_.type} file: {error}") from error
    return buffer.getvalue()


def _save_image(array: Array, format_: FileFormat, file: BinaryIO) -> None:
    from PIL import Image

    image = Image.fromarray(array)
    options: dict[str, Any] = {"compression": "tiff_lzw"} if format_.type == "TIFF" else {}
    padded = False  # whether the palette is completed, so that pixels get 8 bits
    if format_.mode == "P":
        image = Image.frombytes("P", image.size, image.tobytes())
        padded = _beyond_palette(array, format_)
        image.putpalette(format_.palette.ljust(768, b"\0") if padded else format_.palette, "RGB")
    if format_.transparency is not None:
        options["transparency"] = format_.transparency
    if format_.mode == "1" and format_.type == "TIFF":
        options["compression"] = "group4"
    if not padded:
        image.save(file, format_.type, **options)
        return
    buffer = io.BytesIO()
    image.save(buffer, format_.type, **options)
    file.write(_with_palette(buffer.getvalue(), format_.palette))


def _with_palette(data: bytes, palette: bytes) -> bytes:
    """Replace the palette of a PNG file, which keeps the bits of its pixels."""
    start = data.index(b"PLTE")
    size = int.from_bytes(data[start - 4 : start], "big")
    chunk = b"PLTE" + palette
    checksum = zlib.crc32(chunk).to_bytes(4, "big")
    return data[: start - 4] + len(palette).to_bytes(4, "big") + chunk + checksum + data[start + size + 8 :]
