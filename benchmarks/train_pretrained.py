"""Trains the model that comes with the package: `python benchmarks/train_pretrained.py RUN [--device cuda]`.

It has 16 classes that stand for nothing in particular, and learns the borders of regions: half of its maps are random
regions with more or less winding borders, half are drawn scenes, all with labels dealt out by chance. The model is
RUN/model.safetensors; copy it to src/ddf/pretrained/.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ddf.codec import train_codec
from ddf.data.classes import Classes
from ddf.data.drawn import draw_regions, draw_scenes

CLASSES = 16
SIDE = 256


def draw(seed: int) -> np.ndarray[Any, Any]:
    """A map with labels out of 16."""
    generator = np.random.default_rng(seed)
    if seed % 2:
        found = draw_scenes(1, seed, sizes=(SIDE, 400))[0]
    else:
        found = draw_regions(
            generator, SIDE, SIDE, int(generator.integers(2, CLASSES + 1)), generator.uniform(1.7, 3.5)
        )
    used = int(found.max()) + 1
    labels = generator.permutation(int(generator.integers(used, CLASSES + 1)))
    return labels.astype(np.uint8)[found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--maps", type=int, default=1100)
    parser.add_argument("--steps", type=int, default=4400)
    options = parser.parse_args()
    start = time.monotonic()
    with ProcessPoolExecutor() as pool:
        maps = list(pool.map(draw, range(options.maps + 100), chunksize=10))
    print(f"{len(maps)} maps drawn in {time.monotonic() - start:.0f} s", flush=True)
    model = train_codec(
        maps[:-100], "fast", maps[-100:], Classes.plain(CLASSES), mirrored=True, steps=options.steps,
        run=options.run, device=options.device,
    )  # fmt: skip
    print(f"{model.fingerprint.hex()} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
