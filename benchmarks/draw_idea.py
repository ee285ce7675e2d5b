"""Draw the figure that explains the idea: `python benchmarks/draw_idea.py docs/images/idea.png`.

A small Discrete Denoising Flow without split priors learns synthetic street scenes, and transforms a held-out one.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddf import architectures, viz
from ddf.analysis import bits_of, states_of
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.spec import DenoisingCouplingSpec, DenseNetSpec
from ddf.training import TrainingConfig, fit

HEIGHT, WIDTH = 32, 64


def scenes(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return scenes (count, 1, 32, 64): every second row and column of the center of larger ones."""
    drawn = draw_scenes(count, seed, sizes=(2 * WIDTH, 2 * WIDTH))
    return np.stack([part[HEIGHT : 3 * HEIGHT : 2, ::2] for part in drawn])[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--run", type=Path, help="run directory, to resume from")
    parser.add_argument("--scene", type=int, default=9, help="index of the held-out scene")
    options = parser.parse_args()
    spec = architectures.cityscapes(split_priors=False, net=DenseNetSpec(blocks=3, hidden=64), shuffles="lattice")
    layers = (
        replace(layer, top=min(layer.top, 5)) if isinstance(layer, DenoisingCouplingSpec) else layer
        for layer in spec.layers
    )
    flow = replace(spec, num_classes=5, layers=tuple(layers)).build(seed=0)
    flow.classes = SCENE_CLASSES
    config = TrainingConfig(batch_size=32, max_epochs=6, patience=6, cosine=True, ema=0.99)
    fit(flow, scenes(1500, seed=0), scenes(100, seed=1), config, run=options.run)
    scene = scenes(40, seed=2)[options.scene]
    bits = bits_of(flow, scene[None]).by_symbol[0, 0]
    viz.explanation(states_of(flow, scene), bits, SCENE_CLASSES.colors, options.picture)


if __name__ == "__main__":
    main()
