"""Other lossless codecs to compare with: those of the standard library and Pillow, and others if installed."""

__all__ = ["peers"]

import io
import lzma
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def peers(pictures: bool = True, slow: bool = False) -> dict[str, Callable[[Array], bytes]]:
    """Return the available codecs by name: functions from an array of uint8 to bytes.

    Arguments:
        pictures: Whether the arrays are label maps (height, width), so that image formats apply.
        slow: Whether to include codecs that take seconds per map.

    Examples:
        >>> {"xz", "zlib"} <= set(peers(pictures=False))
        True
        >>> flat = np.zeros((64, 64), np.uint8)
        >>> 8 * len(peers()["PNG"](flat)) / flat.size < 0.2
        True
    """
    found: dict[str, Callable[[Array], bytes]] = {}
    if pictures:
        found["PNG"] = _png
        if slow and find_spec("oxipng"):
            found["PNG, oxipng 6"] = _oxipng
        found["WebP"] = lambda part: _saved(_picture(part).convert("RGB"), "WEBP", lossless=True, quality=100, method=6)
        if find_spec("pillow_jxl"):
            for effort in (7, 9, 10) if slow else (7,):
                found[f"JPEG XL {effort}"] = _jpeg_xl(effort)
    found["zlib"] = lambda part: zlib.compress(part.tobytes(), 9)
    if find_spec("zstandard"):
        import zstandard

        found["zstd 19"] = lambda part: zstandard.ZstdCompressor(level=19).compress(part.tobytes())
    if find_spec("brotli"):
        import brotli

        found["brotli 11"] = lambda part: brotli.compress(part.tobytes(), quality=11)
    found["xz"] = lambda part: lzma.compress(part.tobytes(), preset=9 | lzma.PRESET_EXTREME)
    return found


def _picture(part: Array) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(part))


def _saved(picture: Any, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **settings)
    return buffer.getvalue()


def _png(part: Array) -> bytes:
    """Use a palette and only as many bits as needed."""
    from PIL import Image

    bits = next(bits for bits in (1, 2, 4, 8) if part.max(initial=0) < 1 << bits)
    height, width = part.shape
    picture = Image.frombytes("P", (width, height), part.tobytes())
    picture.putpalette([value for value in range(1 << bits) for _ in range(3)])
    return _saved(picture, "PNG", optimize=True, bits=bits)


def _oxipng(part: Array) -> bytes:
    import oxipng

    return bytes(oxipng.optimize_from_memory(_png(part), level=6, strip=oxipng.StripChunks.all()))


def _jpeg_xl(effort: int) -> Callable[[Array], bytes]:
    def encode(part: Array) -> bytes:
        import pillow_jxl  # noqa: F401  (which registers the format with Pillow)

        return _saved(_picture(part), "JXL", lossless=True, effort=effort)

    return encode
