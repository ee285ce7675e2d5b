"""Trains a codec preset on CamVid's training maps: `python benchmarks/train_camvid.py CAMVID fast RUN`.

CAMVID holds `trainannot` and `valannot` (label maps as PNG). The model is RUN/model.safetensors.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image

from ddf.codec import train_codec


def read(folder: Path) -> list[np.ndarray]:
    return [np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("camvid", type=Path)
    parser.add_argument("preset")
    parser.add_argument("run", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=4400)
    parser.add_argument("--batch", type=int)
    options = parser.parse_args()
    start = time.monotonic()
    train, validation = read(options.camvid / "trainannot"), read(options.camvid / "valannot")
    settings = {"steps": options.steps, "batch_size": options.batch, "run": options.run, "device": options.device}
    model = train_codec(train, options.preset, validation, mirrored=True, **settings)
    print(f"{model.fingerprint.hex()} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
