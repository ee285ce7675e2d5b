"""Compare the compressed size and the speed of ddf and other codecs on label maps, with one thread each.

    python benchmarks/label_maps.py MAPS [--model MODEL …] [--train MAPS] [--peer "NAME=COMMAND"] [--only NAME]

MAPS is a folder of PNG files, an npy file (maps, height, width), or `drawn` for synthetic maps with many instances. The
pretrained model is always measured. A peer is any command; `{test}`, `{train}` and `{classes}` in it are replaced by
npy files and the number of classes, and its output is printed. Needs the extra `bench`; codecs that are not installed
are skipped. Every code is decoded and compared with the original. Each map is coded independently; for ddf, a second
row gives the size of an archive of all maps, including everything except names.
"""

import argparse
import io
import lzma
import shlex
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ddf.archive import ArchiveWriter
from ddf.data.drawn import draw_maps
from ddf.labelmaps import CausalFlow, pretrained
from ddf.peers import peers

Array = np.ndarray[Any, Any]


def read(path: str) -> list[Array]:
    if path == "drawn":
        maps = [one for one in draw_maps(400, seed=12345) if len(np.unique(one)) > 40]
        return [np.unique(one, return_inverse=True)[1].reshape(one.shape).astype(np.uint16) for one in maps]
    if path.endswith(".npy"):
        return list(np.load(path))
    return [np.asarray(Image.open(file)) for file in sorted(Path(path).glob("*.png"))]


def decoder(name: str) -> Callable[[bytes], Any]:
    """Return the decoder of a codec in `peers`."""
    if name.startswith(("PNG", "WebP", "JPEG")):  # label v is gray v; oxipng may reorder the palette
        return lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    if name == "xz":
        return lzma.decompress
    if name == "zlib":
        return zlib.decompress
    if name.startswith("zstd"):
        import zstandard

        return zstandard.ZstdDecompressor().decompress
    if name.startswith("brotli"):
        import brotli

        return brotli.decompress
    raise KeyError(name)


def row(name: str, bits: float, encode: float, decode: float) -> None:
    print(f"| {name} | {bits:.4f} | {encode:.2f} | {decode:.2f} |", flush=True)


def encoded(model: CausalFlow, one: Array) -> bytes:
    return model.compress(one) or b""


def decoded(model: CausalFlow, code: bytes, one: Array) -> Array:
    return model.decompress(code, one.shape, one.dtype)


def unpacked(decode: Callable[[bytes], Any], code: bytes, _: Array) -> Any:
    return decode(code)


def timed(
    name: str, maps: list[Array], encode: Callable[[Array], bytes], decode: Callable[[bytes, Array], Any]
) -> float:
    """Measure one codec; return the total size of all codes in bytes."""
    pixels = sum(one.size for one in maps)
    decode(encode(maps[0]), maps[0])  # warm up, so that one-time costs are not timed
    start = time.perf_counter()
    codes = [encode(one) for one in maps]
    middle = time.perf_counter()
    back = [decode(code, one) for code, one in zip(codes, maps, strict=True)]
    end = time.perf_counter()
    for one, two in zip(maps, back, strict=True):
        if isinstance(two, bytes):
            two = np.frombuffer(two, one.dtype).reshape(one.shape)
        if two.ndim == 3 and one.ndim == 2:
            two = two[..., 0]
        assert np.array_equal(one, two), name
    size = sum(map(len, codes))
    row(name, 8 * size / pixels, pixels / (middle - start) / 1e6, pixels / (end - middle) / 1e6)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--train")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--only", default="", help="run only the other codecs whose name contains this text")
    options = parser.parse_args()
    maps = read(options.maps)
    pixels = sum(one.size for one in maps)
    print(f"{len(maps)} maps, {pixels} pixels; bits per pixel of the actual bytes, Mpixel/s with one thread\n")
    print("| codec | bits per pixel | encode | decode |\n|---|---|---|---|")
    for path in (*options.model, None):
        model = CausalFlow.from_bytes(Path(path).read_bytes()) if path else pretrained()
        name = f"ddf, {Path(path).stem}" if path else "ddf, pretrained model"
        timed(name, maps, partial(encoded, model), partial(decoded, model))
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, model, verify=False) as archive:
            for one in maps:
                archive.add(one)
        print(f"| {name}, in one archive | {8 * len(buffer.getvalue()) / pixels:.4f} | | |", flush=True)
    wide = max(int(one.max()) for one in maps) > 255
    for name, encode in peers(pictures=not wide, slow=True).items():
        if options.only in name:
            ready = maps if wide else [one.astype(np.uint8) for one in maps]
            timed(name, ready, encode, partial(unpacked, decoder(name)))
    if find_spec("crackle"):
        import crackle

        as3d = [np.asfortranarray(one[:, :, None]) for one in maps]
        timed("crackle", as3d, crackle.compress, lambda code, _: crackle.decompress(code))
    with tempfile.TemporaryDirectory() as folder:
        names = {"test": f"{folder}/test.npy", "train": f"{folder}/train.npy"}
        names["classes"] = str(max(int(one.max()) for one in maps) + 1)
        if options.peer:
            np.save(names["test"], np.stack(maps))
            np.save(names["train"], np.stack(read(options.train or options.maps)))
        for peer in options.peer:
            name, command = peer.split("=", 1)
            done = subprocess.run(shlex.split(command.format(**names)), capture_output=True, text=True, check=False)
            print(f"\n{name}:\n{done.stdout}{done.stderr if done.returncode else ''}")


if __name__ == "__main__":
    main()
