"""A tour in about a minute: train, score, sample, compress, decompress, look.

python -m ddf.demo [FOLDER]
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
        folder: Where pictures, models and archives go.

    Returns:
        Its two tables, in bits per dimension and bits per pixel.
    """
    start = time.monotonic()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    toy = _eight_gaussians(target)
    codec = _scenes(target)
    print("\nEight Gaussians in 91 bins, bits per dimension of unseen data; lower is better")
    for name, figure in sorted(toy, key=lambda row: -row[1]):
        print(f"  {figure:7.4f}  {name}")
    print(f"\n{UNSEEN} street scenes that no model has seen, bits per pixel in real bytes; lower is better")
    for name, figure in sorted(codec, key=lambda row: -row[1]):
        print(f"  {figure:7.4f}  {name}")
    print(
        f"\nAll {UNSEEN} scenes came back from their archive, pixel by pixel. {time.monotonic() - start:.0f} s in all."
    )
    print(f"\nPictures to look at, in {target}:")
    print("  eight-gaussians.png  samples of two flows beside the data")
    print("  samples.png          street scenes as the codec's model draws them, after a few seconds of training")
    print("  explanation.png      a scene, its ranks, and where its bits go")
    print("\nNext, with label maps of your own in place of these:")
    scenes, archive = (shlex.quote(str(target / name)) for name in ("scenes", "scenes.ddf"))
    print(f"  ddf train {scenes} -o run")
    print(f"  ddf compress {scenes} -o scenes.ddf --model run/model.safetensors")
    print("  ddf decompress scenes.ddf -o again --model run/model.safetensors")
    print(f"  ddf inspect {archive}")
    return {"eight_gaussians": dict(toy), "scenes": dict(codec)}


def _eight_gaussians(target: Path) -> Rows:
    print(f"1. Two flows learn {SAMPLES:,} points around eight centers, in 91 × 91 bins.", flush=True)
    data, test = EightGaussians.sample(SAMPLES, seed=0), EightGaussians.sample(SAMPLES, seed=1)
    rows = [
        ("no coupling, at best (exact)", EightGaussians.factorized_optimum()),
        ("one denoising coupling, at best (exact)", EightGaussians.coupling_optimum()),
        ("any model at all, at best (exact)", EightGaussians.entropy()),
    ]
    samples = {"data": test[:20_000]}
    for kind, config in CONFIGS.items():
        flow = FLOWS[kind].build(seed=0)
        start = time.monotonic()
        fit(flow, data, config=config, device="cpu")
        bits = flow.bits_per_dim(test, batch_size=10_000)
        error = float(bits.std()) / SAMPLES**0.5
        print(f"   {NAMES[kind]}, one coupling, trained in {time.monotonic() - start:.0f} s", flush=True)
        rows.append((f"{NAMES[kind]}, one coupling (± {error:.4f})", float(bits.mean())))
        drawn = flow.sample(20_000, generator=torch.Generator().manual_seed(0), batch_size=5000)
        samples[f"{NAMES[kind]}\n{float(bits.mean()):.3f} bits per dimension"] = drawn
        flow.about = _about(NAMES[kind], f"{SAMPLES:,} points of eight Gaussians", float(bits.mean()), "dimension")
        flow.save(target / f"{kind}.safetensors")
    viz.pair_histograms(samples, EightGaussians.num_classes, target / "eight-gaussians.png")
    return rows


def _about(what: str, data: str, figure: float, unit: str) -> dict[str, Any]:
    return {"what": what, "trained_on": data, "figure": round(figure, 4), "unit": f"bits per {unit}"}


def _scenes(target: Path) -> Rows:
    print(f"2. A codec learns {SCENES} drawn street scenes of 5 classes.", flush=True)
    start = time.monotonic()
    scenes = draw_scenes(SCENES, seed=0)
    unseen = draw_scenes(UNSEEN, seed=1)
    model = train(scenes, "fast", SCENE_CLASSES, mirrored=True, steps=STEPS, progress=False)
    print(f"   trained in {time.monotonic() - start:.0f} s", flush=True)
    print(f"3. It compresses {UNSEEN} others, and gets them back.", flush=True)
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
    figure = _archived(unseen, model)
    model.about = _about("fast codec", f"{SCENES} drawn street scenes", figure, "pixel")
    model.save(target / "codec.safetensors")
    rows = [
        ("PNG, optimized", 8 * png / pixels),
        ("xz, each scene by itself", 8 * sum(len(lzma.compress(scene.tobytes())) for scene in unseen) / pixels),
        (
            "ddf, the model that comes with it (trained on drawn maps, such scenes among them)",
            _archived(unseen, pretrained()),
        ),
        (f"ddf, a model trained for {STEPS} steps", figure),
    ]
    archive = target / "scenes.ddf"
    with ArchiveWriter(archive, model, embed_model=True, overwrite=True) as writer:
        files = FileWriter(writer)
        for name, path in files_in([folder]):
            files.add(path, name)
        files.finish()
    again = target / "again"
    for path in FileReader(Archive(archive)).write_all(again, overwrite=True):
        with Image.open(path) as one, Image.open(folder / path.name) as two:
            if one.tobytes() != two.tobytes() or one.getpalette() != two.getpalette():
                raise RuntimeError(f"{path} is not what it was")
    drawn = SCENE_CLASSES.to_symbols(model.sample(12, (96, 144)))
    viz.sheet(drawn, viz.colors_of(SCENE_CLASSES), target / "samples.png")
    largest = max(unseen, key=lambda scene: scene.size)
    viz.causal_explanation(largest, model.explain(largest), SCENE_CLASSES, target / "explanation.png")
    return rows


def _archived(maps: list[np.ndarray[Any, Any]], model: CausalFlow) -> float:
    """Bits per pixel of maps in one archive."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model) as writer:
        for part in maps:
            writer.add(part)
    return 8 * len(buffer.getvalue()) / sum(part.size for part in maps)


if __name__ == "__main__":
    main(*sys.argv[1:2])
