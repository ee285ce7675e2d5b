"""Files of label maps as arrays: PNG and TIFF images with one channel, and npy files."""

__all__ = ["Loaded", "file_from_bytes", "read_file", "to_file"]

import io
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ddf.archive.formats import FileFormat
from ddf.errors import DdfError, NotLabelMapError
from ddf.label_files import MODES, image_from_bytes, npy_from_bytes, without_pixel_limit
from ddf.shapes import Array, check_bytes

_IMAGES = {".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF"}
_NPY_HEADER = 1 << 16  # bytes, at most


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
    return _load(str(path), path.read_bytes, lambda: path.stat().st_size, max_bytes)


def file_from_bytes(data: bytes, name: str, max_bytes: int) -> Loaded:
    """Convert the contents of a file to an array; see `read_file`.

    Arguments:
        data: The contents.
        name: The name of the file.
        max_bytes: The largest array to accept, in bytes.
    """
    return _load(name, lambda: data, lambda: len(data), max_bytes)


def _load(name: str, read: Callable[[], bytes], size: Callable[[], int], max_bytes: int) -> Loaded:
    suffix = PurePath(name).suffix.lower()
    problem = ""
    try:
        if suffix == ".npy" and size() <= max_bytes + _NPY_HEADER:
            return _load_npy(read())
        if suffix in _IMAGES:
            found = _load_image(read(), name, _IMAGES[suffix], max_bytes)
            if found is not None:
                return found
    except NotLabelMapError:
        pass
    except MemoryError:
        problem = "it does not fit into memory"
    except Exception as error:  # Pillow and NumPy raise all kinds of errors for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        problem = (
            str(error) if isinstance(error, DdfError) else f"it is not a valid {suffix} file ({_first_line(error)})"
        )
    check_bytes(name, size(), max_bytes)
    return Loaded(np.frombuffer(read(), np.uint8), FileFormat("file"), problem=problem)


def _load_npy(data: bytes) -> Loaded:
    array, fortran = npy_from_bytes(data)
    return Loaded(array, FileFormat("npy", fortran=fortran, big_endian=array.dtype.byteorder == ">"))


def _load_image(data: bytes, name: str, type_: str, max_bytes: int) -> Loaded | None:
    """Read an image with one channel; return None if it would not be restored exactly."""
    image = image_from_bytes(data, name, max_bytes)
    format_ = FileFormat(type_, image.mode, image.palette, image.transparency)
    if image.format != type_ or not format_.suits(image.array) or not _comes_back(format_):
        return None
    if _beyond_palette(image.array, format_) and not _reads_back(image.array, format_):
        return None
    return Loaded(image.array, format_, image.has_metadata)


def _first_line(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":  # whose message names an object in memory
        return "its contents are not an image"
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

    with without_pixel_limit(), Image.open(io.BytesIO(to_file(array, format_))) as image:
        same = np.array_equal(np.asarray(image), array) and image.mode.startswith(format_.mode)
        same = same and image.info.get("transparency") == format_.transparency
        return bool(same and (format_.mode != "P" or bytes(image.getpalette("RGB") or b"") == format_.palette))


def _beyond_palette(array: Array, format_: FileFormat) -> bool:
    """Return whether an image has values that need more bits than Pillow uses for this palette."""
    colors = len(format_.palette) // 3
    fits = next(limit for limit in (2, 4, 16, 256) if colors <= limit)
    return format_.type == "PNG" and format_.mode == "P" and bool(array.max() >= fits)


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
