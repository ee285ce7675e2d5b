"""Compare ways to store label maps: zarr arrays with several codecs, folders of PNG files, and archives.

    python benchmarks/stores.py --maps ~/camvid/testannot --model model.safetensors

One chunk is one map. Prints the size, the speed of writing and reading everything with all cores, and the time to read
a single random chunk. Every store is read back and compared with the maps.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from PIL import Image
from zarr.codecs import BloscCodec, ZstdCodec

import ddf
import ddf.pillow
from ddf.data.drawn import draw_scenes
from ddf.numcodecs import LabelCodec as LabelCodec2
from ddf.registry import add_model, codec_of
from ddf.shapes import Array
from ddf.zarr import LabelCodec

CHUNKS = 50  # random chunks read


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


class Zarr:
    def __init__(self, **options: Any) -> None:
        self.options = options

    def write(self, path: Path, maps: Array) -> None:
        zarr.create_array(path, data=maps, chunks=(1, *maps.shape[1:]), **self.options)

    def read(self, path: Path) -> Array:
        return np.asarray(zarr.open_array(path)[:])

    def opened(self, path: Path) -> Callable[[int], Array]:
        array = zarr.open_array(path)
        return lambda number: np.asarray(array[number])


class Folder:
    """One file per map, written and read by a pool of threads."""

    def __init__(self, suffix: str, encode: Callable[[Array, Path], object], decode: Callable[[Path], Array]) -> None:
        self.suffix, self.encode, self.decode = suffix, encode, decode

    def write(self, path: Path, maps: Array) -> None:
        path.mkdir()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda i: self.encode(maps[i], path / f"{i}{self.suffix}"), range(len(maps))))

    def read(self, path: Path) -> Array:
        with ThreadPoolExecutor() as pool:
            numbers = range(len(list(path.iterdir())))
            return np.stack(list(pool.map(lambda i: self.decode(path / f"{i}{self.suffix}"), numbers)))

    def opened(self, path: Path) -> Callable[[int], Array]:
        return lambda number: self.decode(path / f"{number}{self.suffix}")


class Archive:
    def __init__(self, model: Any) -> None:
        self.model = model

    def write(self, path: Path, maps: Array) -> None:
        with ddf.ArchiveWriter(path, self.model) as archive:
            for one in maps:
                archive.add(one, copy=False)

    def read(self, path: Path) -> Array:
        return np.stack(list(ddf.Archive(path, self.model).values()))

    def opened(self, path: Path) -> Callable[[int], Array]:
        return ddf.Archive(path, self.model).__getitem__


def save_png(array: Array, path: Path) -> None:
    Image.fromarray(array).save(path, optimize=True)


def read_image(path: Path) -> Array:
    with Image.open(path) as image:
        return np.array(image)


def stores(model: Any) -> dict[str, Any]:
    ours: dict[str, Any] = {"compressors": None}
    found = {
        "zarr, uncompressed": Zarr(compressors=None),
        "zarr, default (zstd, level 0)": Zarr(),
        "zarr, zstd, level 19": Zarr(compressors=ZstdCodec(level=19)),
        "zarr, blosc (zstd, level 9, bit shuffle)": Zarr(
            compressors=BloscCodec(cname="zstd", clevel=9, shuffle="bitshuffle")
        ),
        "zarr format 2, blosc (lz4)": Zarr(zarr_format=2, compressors=Blosc()),
        "zarr, ddf, pretrained": Zarr(serializer=LabelCodec(), **ours),
        "zarr, ddf": Zarr(serializer=LabelCodec(model), **ours),
        "zarr, ddf, not verified": Zarr(serializer=LabelCodec(model, verify=False), **ours),
        "zarr format 2, ddf": Zarr(zarr_format=2, compressors=LabelCodec2(model)),
        "ddf archive": Archive(model),
        "folder of PNG files": Folder(".png", save_png, read_image),
        "folder of .ddfm files": Folder(".ddfm", lambda a, p: Image.fromarray(a).save(p, model=model), read_image),
    }
    try:
        import crackle

        found["folder of crackle files"] = Folder(
            ".ckl",
            lambda a, p: p.write_bytes(crackle.compress(a)),
            lambda p: crackle.decompress(p.read_bytes())[..., 0],
        )
    except ImportError:
        print("crackle is not installed: pip install crackle-codec")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, help="folder of PNG files of the same size (default: synthetic scenes)")
    parser.add_argument("--model", help="model file or fingerprint (default: the pretrained model)")
    options = parser.parse_args()
    if options.maps is None:
        maps = np.stack([np.resize(scene, (360, 480)) for scene in draw_scenes(100, seed=0)])
    else:
        maps = np.stack([np.asarray(Image.open(path)) for path in sorted(options.maps.glob("*.png"))])
    _, model = codec_of(options.model)
    if model is not None and options.model is not None:
        add_model(model)
    rng = np.random.default_rng(0)
    numbers = rng.integers(len(maps), size=CHUNKS).tolist()
    pixels = maps.size
    print(f"{len(maps)} maps of {maps.shape[1:]}, {maps.dtype}; {model}\n")
    print("| | bytes | bits per pixel | write, Mpixel/s | read, Mpixel/s | one random chunk, ms |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        warm = Zarr(serializer=LabelCodec(model), compressors=None)
        warm.write(Path(name) / "warm", maps[:2])  # load the compiled code
        for title, store in stores(model).items():
            path = Path(name) / "store"
            start = time.perf_counter()
            store.write(path, maps)
            write = time.perf_counter() - start
            start = time.perf_counter()
            again = store.read(path)
            read = time.perf_counter() - start
            assert np.array_equal(again, maps), title
            one = store.opened(path)
            one(0)
            start = time.perf_counter()
            for number in numbers:
                one(number)
            chunk = (time.perf_counter() - start) / CHUNKS
            size = size_of(path)
            print(
                f"| {title} | {size:,} | {8 * size / pixels:.4f} | {pixels / write / 1e6:.1f} "
                f"| {pixels / read / 1e6:.1f} | {1000 * chunk:.2f} |",
                flush=True,
            )
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
