"""Sizes and speeds of label maps under ddf and under other codecs, in one run.

    python benchmarks/compression.py MAPS --model MODEL [--train MAPS] [--block 500] [--peer "NAME=COMMAND"]

MAPS is a folder of PNG files or an npy file (maps, height, width). A peer is any command; `{test}`, `{train}` and
`{classes}` in it become npy files of symbols and the number of classes, and what it prints is shown. Needs the extra
`bench`; codecs that are missing are left out. Everything of ddf's is decoded again and compared, but with `--quick`,
which is for slow models: archives of maps by themselves and in blocks alone, not decoded.
"""

import argparse
import io
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ddf.archive import Archive, ArchiveWriter, Codec, compress, decompress
from ddf.modelfile import load
from ddf.peers import peers

Array = np.ndarray[Any, Any]


def read(path: Path) -> list[Array]:
    if path.suffix == ".npy":
        return list(np.load(path))
    return [np.asarray(Image.open(file)) for file in sorted(path.glob("*.png"))]


def line(name: str, *cells: float | None) -> None:
    print(f"| {name} | " + " | ".join("" if cell is None else f"{cell:.4f}" for cell in cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", type=Path)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--train", type=Path)
    parser.add_argument("--block", type=int, default=500, help="maps that share a block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="of ddf only the sizes of archives")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument(
        "--only", help="of the other codecs only those whose name contains this; '' for all", default=""
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    maps = read(options.maps)
    pixels = sum(part.size for part in maps)
    print(f"{len(maps)} maps, {pixels} pixels; bits per pixel, real bytes\n")
    print("| codec | each in a file | each in an archive | together | encode, Mpixel/s | decode, Mpixel/s |")
    print("|---|---|---|---|---|---|")
    for path in options.model:
        ours(path, maps, pixels, options)
    small = [part.astype(np.uint8) for part in maps]
    for name, encode in peers(slow=True).items():
        if options.only not in name:
            continue
        start = time.perf_counter()
        single = sum(len(encode(part)) for part in small)
        speed = pixels / (time.perf_counter() - start) / 1e6
        try:
            together: float | None = 8 * len(encode(np.concatenate(small))) / pixels
        except Exception as error:  # too large for the format
            together = None
            print(f"(together, {name}: {error})")
        line(name, 8 * single / pixels, None, together, speed, None)
    values = np.unique(np.concatenate([part.ravel() for part in maps]))
    with tempfile.TemporaryDirectory() as folder:
        names = {"classes": str(int(values.max()) + 1), "test": f"{folder}/test.npy", "train": f"{folder}/train.npy"}
        np.save(names["test"], np.stack(maps))
        if options.train is not None:
            np.save(names["train"], np.stack(read(options.train)))
        for peer in options.peer:
            name, command = peer.split("=", 1)
            done = subprocess.run(shlex.split(command.format(**names)), capture_output=True, text=True, check=False)
            print(f"\n{name}:\n{done.stdout}{done.stderr if done.returncode else ''}")


def ours(path: Path, maps: list[Array], pixels: int, options: argparse.Namespace) -> None:
    model = load(path)
    assert isinstance(model, Codec)
    single = encode = decode = None
    if not options.quick:
        compress(maps[0], model)  # what is done once is not timed
        start = time.perf_counter()
        files = [compress(part, model, verify=False) for part in maps]
        encode = pixels / (time.perf_counter() - start) / 1e6
        start = time.perf_counter()
        back = [decompress(data, model) for data in files]
        decode = pixels / (time.perf_counter() - start) / 1e6
        assert all(np.array_equal(one, two) for one, two in zip(back, maps, strict=True))
        single = 8 * sum(map(len, files)) / pixels
    sizes = {}
    for per_block in (1, options.block):
        buffer = io.BytesIO()
        writer = ArchiveWriter(buffer, model, maps_per_block=per_block, verify=False, threads=options.threads)
        for part in maps:
            writer.add(part)
        writer.close()
        data = buffer.getvalue()
        if not options.quick:
            decoded = Archive(data, model).items(options.threads)
            assert all(np.array_equal(one, two) for (_, one), two in zip(decoded, maps, strict=True))
        sizes[per_block] = 8 * len(data) / pixels
    line(f"ddf, {path.stem}", single, sizes[1], sizes[options.block], encode, decode)


if __name__ == "__main__":
    main()
