"""A one-minute tour: train, score, sample, compress and decompress.

python -m ddf.cli.tour [FOLDER]
"""

__all__ = ["main"]

import io
import lzma
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ddf import architectures, viz
from ddf.archive import Archive, ArchiveWriter, FileReader, FileWriter, files_in
from ddf.data import EightGaussians
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.labelmaps import CausalFlow, pretrained, train
from ddf.spec import MLPSpec
from ddf.training import TrainingConfig, fit

SAMPLES = 60_000
CONFIGS = {
    "denoising": TrainingConfig(batch_size=512, max_epochs=10, cosine=True, ema=0.99),
    "modular": TrainingConfig(batch_size=512, max_epochs=6, cosine=True, base_learning_rate=1e-2, relaxation=0.2),
}
FLOWS = {
    "denoising": architectures.eight_gaussians(),
    "modular": architectures.eight_gaussians("modular", net=MLPSpec(activation="tanh"), scale=False),
}
NAMES = {"denoising": "Discrete Denoising Flow", "modular": "Discrete Flow"}
SCENES, UNSEEN, STEPS = 120, 24, 2500

Rows = list[tuple[str, float]]


def main(folder: str = "demo") -> dict[str, dict[str, float]]:
    """Run the tour.

    Arguments:
        folder: The folder for pictures, models and archives.

    Returns:
        The two tables, in bits per dimension and bits per pixel.
    """
    start = time.monotonic()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    toy = _eight_gaussians(target)
    codec = _scenes(target)
    print("\nEight Gaussians in 91 × 91 bins: bits per dimension of held-out data (lower is better)")
    for name, bits in sorted(toy, key=lambda row: -row[1]):
        print(f"  {bits:7.4f}  {name}")
    print(f"\n{UNSEEN} held-out street scenes: bits per pixel of the compressed files (lower is better)")
    for name, bits in sorted(codec, key=lambda row: -row[1]):
        print(f"  {bits:7.4f}  {name}")
    seconds = time.monotonic() - start
    print(f"\nAll {UNSEEN} scenes were decompressed to identical pixels and palettes. The tour took {seconds:.0f} s.")
    print(f"\nPictures in {target}:")
    print("  eight-gaussians.png  the data, and samples of both flows")
    print("  samples.png          samples of the codec's model after a few seconds of training")
    print("  explanation.png      a scene, the prediction errors, the model's confidence, and the bits of each pixel")
    print("\nNext steps, with your own label maps in place of these:")
    scenes, archive = (shlex.quote(str(target / name)) for name in ("scenes", "scenes.ddf"))
    print(f"  ddf train {scenes} -o run")
    print(f"  ddf compress {scenes} -o scenes.ddf --model run/model.safetensors")
    print("  ddf decompress scenes.ddf -o again --model run/model.safetensors")
    print(f"  ddf inspect {archive}")
    return {"eight_gaussians": dict(toy), "scenes": dict(codec)}


def _eight_gaussians(target: Path) -> Rows:
    print(f"1. Training two flows on {SAMPLES:,} points around eight centers, in 91 × 91 bins", flush=True)
    data, test = EightGaussians.sample(SAMPLES, seed=0), EightGaussians.sample(SAMPLES, seed=1)
    rows = [
        ("optimum without a coupling (exact)", EightGaussians.factorized_optimum()),
        ("optimum of one denoising coupling (exact)", EightGaussians.coupling_optimum()),
        ("entropy of the data: optimum of any model (exact)", EightGaussians.entropy()),
    ]
    samples = {"data": test[:20_000].numpy()}
    for kind, config in CONFIGS.items():
        flow = FLOWS[kind].build(seed=0)
        start = time.monotonic()
        fit(flow, data, config=config, device="cpu")
        bits = flow.bits_per_dim(test, batch_size=10_000)
        error = float(bits.std()) / SAMPLES**0.5
        print(f"   {NAMES[kind]}, one coupling, trained in {time.monotonic() - start:.0f} s", flush=True)
        rows.append((f"{NAMES[kind]}, one coupling (± {error:.4f})", float(bits.mean())))
        drawn = flow.sample(20_000, generator=torch.Generator().manual_seed(0), batch_size=5000)
        samples[f"{NAMES[kind]}\n{float(bits.mean()):.3f} bits per dimension"] = drawn.numpy()
        flow.about = _about(NAMES[kind], f"{SAMPLES:,} points of eight Gaussians", float(bits.mean()), "dimension")
        flow.save(target / f"{kind}.safetensors")
    viz.pair_histograms(samples, EightGaussians.num_classes, target / "eight-gaussians.png")
    return rows


def _about(what: str, data: str, bits: float, unit: str) -> dict[str, Any]:
    return {"what": what, "trained_on": data, "score": round(bits, 4), "unit": f"bits per {unit}"}


def _scenes(target: Path) -> Rows:
    print(f"2. Training a codec on {SCENES} generated street scenes of 5 classes", flush=True)
    start = time.monotonic()
    scenes = draw_scenes(SCENES, seed=0)
    unseen = draw_scenes(UNSEEN, seed=1)
    model = train(scenes, "fast", SCENE_CLASSES, mirrored=True, steps=STEPS, progress=False)
    print(f"   trained in {time.monotonic() - start:.0f} s", flush=True)
    print(f"3. Compressing and decompressing {UNSEEN} other scenes", flush=True)
    folder = target / "scenes"
    folder.mkdir(exist_ok=True)
    palette = [value for color in SCENE_CLASSES.colors for value in color]
    png = 0
    for i, scene in enumerate(unseen):
        image = Image.frombytes("P", scene.shape[::-1], scene.tobytes())
        image.putpalette(palette)
        image.save(folder / f"{i:03}.png", optimize=True)
        png += (folder / f"{i:03}.png").stat().st_size
    pixels = sum(scene.size for scene in unseen)
    bits = _archived(unseen, model)
    model.about = _about("fast codec", f"{SCENES} generated street scenes", bits, "pixel")
    model.save(target / "codec.safetensors")
    rows = [
        ("PNG, optimized", 8 * png / pixels),
        ("xz, each scene on its own", 8 * sum(len(lzma.compress(scene.tobytes())) for scene in unseen) / pixels),
        (
            "ddf, the pretrained model (its training data includes similar scenes)",
            _archived(unseen, pretrained()),
        ),
        (f"ddf, a model trained on {SCENES} other scenes for {STEPS:,} steps", bits),
    ]
    archive = target / "scenes.ddf"
    with ArchiveWriter(archive, model, embed_model=True, overwrite=True) as writer:
        files = FileWriter(writer)
        for name, path in files_in([folder]).files:
            files.add(path, name)
    again = target / "again"
    with Archive(archive) as reader:
        for path in FileReader(reader).write_all(again, overwrite=True):
            with Image.open(path) as one, Image.open(folder / path.name) as two:
                if one.tobytes() != two.tobytes() or one.getpalette() != two.getpalette():
                    raise RuntimeError(f"{path} differs from {folder / path.name}; please report this bug")
    drawn = SCENE_CLASSES.to_symbols(model.sample(12, (96, 144)))
    viz.sheet(drawn, viz.colors_of(SCENE_CLASSES), target / "samples.png")
    largest = max(unseen, key=lambda scene: scene.size)
    viz.causal_explanation(largest, model.explain(largest), SCENE_CLASSES, target / "explanation.png")
    return rows


def _archived(maps: list[np.ndarray[Any, Any]], model: CausalFlow) -> float:
    """Return the bits per pixel of maps in one archive."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model) as writer:
        for part in maps:
            writer.add(part)
    return 8 * len(buffer.getvalue()) / sum(part.size for part in maps)


if __name__ == "__main__":
    main(*sys.argv[1:2])
