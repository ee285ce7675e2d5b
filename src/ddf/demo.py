"""The eight Gaussians in under two minutes: a denoising and a modular coupling beside what is possible.

python -m ddf.demo [FOLDER]
"""

__all__ = ["main"]

import sys
import time
from pathlib import Path

import torch

from ddf import architectures
from ddf.data import EightGaussians
from ddf.spec import MLPSpec
from ddf.training import TrainingConfig, fit

SAMPLES = 100_000
CONFIGS = {
    "denoising": TrainingConfig(batch_size=512, max_epochs=12, cosine=True, ema=0.99),
    "modular": TrainingConfig(batch_size=512, max_epochs=10, cosine=True, base_learning_rate=1e-2, relaxation=0.2),
}
FLOWS = {
    "denoising": architectures.eight_gaussians(),
    "modular": architectures.eight_gaussians("modular", net=MLPSpec(activation="tanh"), scale=False),
}
NAMES = {"denoising": "Discrete Denoising Flow", "modular": "Discrete Flow"}


def main(folder: str = "demo") -> None:
    """Trains both flows, prints their bits per dimension on unseen data beside the exact optima, and draws samples.

    Arguments:
        folder: Where the picture and the trained flows go.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    print(f"Eight Gaussians in 91 bins: {SAMPLES:,} pairs to train on, as many others to test on.", flush=True)
    data, test = EightGaussians.sample(SAMPLES, seed=0), EightGaussians.sample(SAMPLES, seed=1)
    rows = [
        ("no coupling, at best (exact)", EightGaussians.factorized_optimum()),
        ("one denoising coupling, at best (exact)", EightGaussians.coupling_optimum()),
        ("two denoising couplings, at best (exact)", EightGaussians.coupling_optimum(couplings=2)),
        ("any model at all, at best (exact)", EightGaussians.entropy()),
    ]
    samples = {"data": test[:20_000]}
    for kind, config in CONFIGS.items():
        flow = FLOWS[kind].build(seed=0)
        start = time.monotonic()
        fit(flow, data, config=config, device="cpu")
        bits = flow.bits_per_dim(test, batch_size=10_000)
        error = float(bits.std()) / SAMPLES**0.5
        print(f"{NAMES[kind]}, one coupling, trained in {time.monotonic() - start:.0f} s", flush=True)
        rows.append((f"{NAMES[kind]}, one coupling, on unseen data (± {error:.4f})", float(bits.mean())))
        generator = torch.Generator().manual_seed(0)
        samples[f"{NAMES[kind]}\n{float(bits.mean()):.3f} bits per dimension"] = flow.sample(
            20_000, generator=generator, batch_size=5000
        )
        flow.save(target / f"{kind}.safetensors")
    print("\nbits per dimension, lower is better")
    for name, bits_per_dim in sorted(rows, key=lambda row: -row[1]):
        print(f"  {bits_per_dim:.4f}  {name}")
    from ddf.viz import pair_histograms

    pair_histograms(samples, EightGaussians.num_classes, target / "eight-gaussians.png")
    print(f"\nSamples of both beside the data: {target / 'eight-gaussians.png'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
