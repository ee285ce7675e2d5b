"""What integer arithmetic costs a codec: the float flow and the integer flow of one training, on the same maps.

    python benchmarks/exactness.py RUN MAPS.npy

RUN is the run directory of `train_codec` (or `ddf train`). A float flow takes sizes that its squeezes divide, so both
see the middle of each map.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from ddf.checkpoint import load_flow
from ddf.codec import IntegerFlow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("maps", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    flow = load_flow(options.run / "float" / "flow.safetensors", options.device)
    model = IntegerFlow.load(options.run / "model.safetensors").to(options.device)
    maps = np.load(options.maps)
    cell = 1 << model.squeezes
    size = [side // cell * cell for side in maps.shape[1:]]
    top, left = ((side - kept) // 2 for side, kept in zip(maps.shape[1:], size, strict=True))
    symbols = model.classes.to_symbols(maps[:, top : top + size[0], left : left + size[1]])[:, None]
    found = {}
    for name, scorer in (("float", flow), ("integer", model)):
        bits = [
            scorer.bits_per_dim(torch.from_numpy(np.ascontiguousarray(symbols[i : i + 4])).to(options.device))
            for i in range(0, len(symbols), 4)
        ]
        found[name] = float(torch.cat(bits).mean())
    print(
        f"{len(maps)} maps of {size[0]} × {size[1]}, bits per pixel: float flow {found['float']:.5f}, integer flow "
        f"{found['integer']:.5f} ({found['integer'] / found['float'] - 1:+.2%})"
    )


if __name__ == "__main__":
    main()
