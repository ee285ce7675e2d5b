"""Draw completed label maps: `python benchmarks/draw_completion.py docs/images/completion.png --run runs/completion`.

An ordered flow learns synthetic street scenes, with additional known pixels at random places, and completes held-out
scenes of which a part is hidden. Training takes five minutes on two CPU cores.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from ddf import architectures, viz
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.flow import Flow
from ddf.spec import LatticeNetSpec
from ddf.training import TrainingConfig, fit

HEIGHT, WIDTH = 32, 64
CONFIG = TrainingConfig(
    batch_size=16,
    max_epochs=4,
    patience=4,
    ema=0.995,
    warmup_steps=50,
    weight_decay=0.02,
    clip=1.0,
    optimizer="muon",
    cosine=True,
)


def scenes(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return scenes (count, 1, 32, 64): every second row and column of the center of larger ones."""
    drawn = draw_scenes(count, seed, sizes=(2 * WIDTH, 2 * WIDTH))
    return np.stack([part[HEIGHT : 3 * HEIGHT : 2, ::2] for part in drawn])[:, None]


def trained(run: Path | None) -> Flow:
    """Return the trained flow."""
    net = LatticeNetSpec(planes=(64, 128), blocks=(1, 2), width=16, depth=1)
    flow = architectures.ordered(5, (1, HEIGHT, WIDTH), net, given=0.5).build(seed=0)
    flow.classes = SCENE_CLASSES
    fit(flow, scenes(6000, seed=0), scenes(100, seed=1), CONFIG, run=run)
    return flow


def hidden_parts() -> torch.Tensor:
    """Return which pixels are known in each of four maps."""
    known = torch.ones(4, HEIGHT, WIDTH, dtype=torch.bool)
    known[0, :, WIDTH // 2 :] = False
    known[1, 8:28, 16:48] = False
    known[2] = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)) < 0.05
    known[3, HEIGHT // 2 :] = False
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--run", type=Path, help="run directory, to resume from")
    options = parser.parse_args()
    flow = trained(options.run).cpu()
    x, known = torch.from_numpy(scenes(4, seed=5)), hidden_parts()
    hidden = len(SCENE_CLASSES.values)
    groups = {"map": x.numpy(), "known": torch.where(known[:, None], x, hidden).numpy()}
    for seed in range(3):
        found = flow.complete(x, known, torch.Generator().manual_seed(seed))
        groups[f"completed, seed {seed}"] = found.numpy()
    colors = [*SCENE_CLASSES.colors, (235, 235, 235)]
    viz.map_grids(groups, colors, options.picture, [*SCENE_CLASSES.names, "unknown"], columns=1)


if __name__ == "__main__":
    main()
