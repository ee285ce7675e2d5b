"""Compress maps on one machine and decode them on another.

    python benchmarks/cross_decode.py make MAPS.npy --model MODEL --archive A.ddf [--device cuda] [--block 500]
    python benchmarks/cross_decode.py check MAPS.npy --model MODEL --archive A.ddf [--device cuda]

`make` compresses the maps (maps, height, width) without verification; `check` decodes an archive from any machine and
counts the maps that differ from the originals. Both print the hash of the archive, which must be the same on all
machines.
"""

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
import torch

from ddf.archive import Archive, ArchiveWriter
from ddf.exact import IntegerFlow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "check"])
    parser.add_argument("maps", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    maps = np.load(options.maps)
    model = IntegerFlow.from_bytes(options.model.read_bytes()).to(options.device)
    start = time.perf_counter()
    wrong = 0
    if options.action == "make":
        settings = {"maps_per_block": options.block, "threads": options.threads}
        with ArchiveWriter(options.archive, model, verify=False, overwrite=True, **settings) as archive:
            for part in maps:
                archive.add(part)
        result = f"{len(maps)} maps, {options.archive.stat().st_size} bytes"
    else:
        decoded = Archive(options.archive, model, threads=options.threads).items()
        for part, (_, array) in zip(maps, decoded, strict=True):
            wrong += not (np.array_equal(array, part) and array.dtype == part.dtype)
        result = f"{len(maps)} maps, {wrong} wrong"
    seconds = time.perf_counter() - start
    where = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    digest = hashlib.sha256(options.archive.read_bytes()).hexdigest()[:16]
    print(
        f"{options.action} {options.archive.name} on {where}, torch {torch.__version__}, "
        f"{options.threads} threads: {result}, "
        f"sha256 {digest}, {seconds:.1f} s, {maps.size / seconds / 1e6:.2f} Mpixel/s",
        flush=True,
    )
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
