"""Score causal flows on the data sets of `ddf reproduce`: `python benchmarks/causal_scores.py docs/results/runs --mnist
FOLDER --cityscapes FILE --cityscapes-128x256 FILE`.

Trains the label-map codec (preset `best`) on each data set that is given, and writes its scores to causal.json in the
folder of the runs, where the report finds them: bits per dimension according to the model, and according to the bytes
of the compressed test set. Training runs on the CPU.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

from ddf.classes import Classes
from ddf.data import Resampled
from ddf.experiments.results import load_data
from ddf.labelmaps import train
from ddf.shapes import Array

NAMES = ("mnist", "static-mnist", "cityscapes", "cityscapes-128x256")


def symbols(data: torch.Tensor | Array | Resampled) -> Array:
    """Return maps (samples, height, width): stored ones, or one draw of each sample."""
    if isinstance(data, Resampled):
        data = data.draw(torch.as_tensor(data.stored), torch.Generator().manual_seed(0))
    return torch.as_tensor(data).numpy()[:, 0].astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    for name in NAMES:
        parser.add_argument(f"--{name}", metavar="PATH")
    options = parser.parse_args()
    path = options.runs / "causal.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in NAMES:
        source = getattr(options, name.replace("-", "_"))
        if source is None:
            continue
        data = load_data(name, {name: source}, augment="")
        start = time.monotonic()
        assert isinstance(data.classes, Classes)
        mirrored = name.startswith("cityscapes")
        model = train(list(symbols(data["train"])), "best", data.classes, mirrored)
        seconds = time.monotonic() - start
        test = symbols(data["test"])
        code = model.compress(test)
        assert code is not None
        bits = float(model.bits_per_dim(test).mean())
        found[name] = {
            "bits": round(bits, 6),
            "actual_bits": round(8 * len(code) / test.size, 6),
            "parameters": sum(array.size for array in model.arrays.values()),
            "train_seconds": round(seconds, 1),
            "device": f"{torch.get_num_threads()} CPU threads ({platform.machine()})",
        }
        print(name, found[name], flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
