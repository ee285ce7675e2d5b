"""Compare the validation bits of one coupling in ddf's loop and in a plain one, on binary MNIST.

    python benchmarks/plain_loop.py train-images-idx3-ubyte.gz --epochs 4 --seeds 3

Both train the paper's first coupling on the first 50,000 images and validate on one binarization of the last 10,000.
"""

import argparse
import gzip
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddf import DenoisingCoupling, Flow, TrainingConfig, architectures, fit
from ddf.data import Resampled


def binarize(gray: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.rand(gray.shape, generator=generator, device=gray.device) < gray / 255).to(torch.uint8)


def plain(gray: Tensor, validation: Tensor, seed: int, epochs: int, device: torch.device) -> float:
    """Train with a plain loop: float32, eager, default Adam, new noise in every batch."""
    squeeze, shuffle, coupling = build(seed).to(device).layer_list()
    assert isinstance(coupling, DenoisingCoupling)
    adam = torch.optim.Adam(coupling.net.parameters(), lr=1e-3)
    generator = torch.Generator(device).manual_seed(seed)

    def loss(x: Tensor) -> Tensor:
        given, target = coupling.partition.split(shuffle.carry(squeeze.carry(x)))
        return F.cross_entropy(coupling.net(given), target.long()) / np.log(2)

    best = np.inf
    for _ in range(epochs):
        for index in torch.randperm(len(gray), generator=generator, device=device)[: len(gray) // 64 * 64].split(64):
            adam.zero_grad()
            loss(binarize(gray[index], generator)).backward()
            adam.step()
        with torch.no_grad():
            best = min(best, float(torch.stack([loss(batch) for batch in validation.split(500)]).mean()))
    return best


def build(seed: int) -> Flow:
    spec = architectures.binary_mnist(split_priors=False)
    return replace(spec, layers=spec.layers[:3]).build(seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="train-images-idx3-ubyte.gz")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pixels = np.frombuffer(gzip.decompress(options.images.read_bytes()), dtype=np.uint8, offset=16)
    gray = torch.from_numpy(pixels.copy()).view(-1, 1, 28, 28)
    validation = binarize(gray[-10_000:], torch.Generator().manual_seed(0))
    for seed in range(options.seeds):
        for way in ("plain", "ddf bfloat16", "ddf float32"):
            start = time.perf_counter()
            if way == "plain":
                bits = plain(gray[:-10_000].to(device), validation.to(device), seed, options.epochs, device)
            else:
                precision = way.split()[1]
                config = TrainingConfig(max_epochs=options.epochs, draws=4, seed=seed, precision=precision)
                fitted = fit(build(seed), Resampled(gray[:-10_000], binarize), validation, config)
                bits = fitted.parts[0]["validation_bits"]
            print(f"seed {seed}, {way}: {bits:.4f} bits per predicted symbol, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
