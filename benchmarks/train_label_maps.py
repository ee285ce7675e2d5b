"""Train a codec on a folder of label maps or an npy file, and report the training time.

python benchmarks/train_label_maps.py MAPS PRESET OUTPUT [--mirrored] [--steps N]
python benchmarks/train_label_maps.py drawn ships src/ddf/labelmaps/pretrained.safetensors   the pretrained model
"""

import argparse
import time

import numpy as np

from benchmarks.label_maps import read
from ddf.classes import Classes
from ddf.data.drawn import draw_maps
from ddf.labelmaps import PRESETS, Preset, train

SHIPS = Preset(pixels=64, hidden=(128, 64), steps=45_000)
"""The preset of the pretrained model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps")
    parser.add_argument("preset", choices=(*PRESETS, "ships"))
    parser.add_argument("output")
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.maps == "drawn":
        maps, classes = draw_maps(1800, seed=0), None
    else:
        maps = read(options.maps)
        classes = Classes(tuple(np.unique(np.concatenate([np.unique(one) for one in maps])).tolist()))
    preset = SHIPS if options.preset == "ships" else options.preset
    model = train(maps, preset, classes, mirrored=options.mirrored, steps=options.steps)
    model.about = {"what": f"{options.preset} codec", "trained_on": f"{len(maps)} maps"}
    if classes is None:
        model.about = {"what": "codec for any label maps", "trained_on": f"{len(maps):,} drawn maps"}
    model.save(options.output)
    print(f"{options.output}: {time.perf_counter() - start:.0f} s, {len(model.to_bytes()):,} bytes")


if __name__ == "__main__":
    main()
