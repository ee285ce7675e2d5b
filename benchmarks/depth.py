"""Check that deeper layers do not cost more to train: 2 and 8 couplings of equal shape, one epoch each.

python benchmarks/depth.py
"""

import torch

from ddf.spec import DenoisingCouplingSpec, DenseNetSpec, FlowSpec, LayerSpec, ShuffleSpec
from ddf.training import TrainingConfig, fit

SAMPLES = 4000


def main() -> None:
    x = torch.randint(4, (SAMPLES, 4, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for couplings in (2, 8):
        layers: list[LayerSpec] = []
        for i in range(couplings):
            layers += [ShuffleSpec(seed=i), DenoisingCouplingSpec(DenseNetSpec(blocks=4, hidden=64), top=4)]
        flow = FlowSpec(num_classes=4, shape=(4, 8, 8), layers=tuple(layers)).build()
        fitted = fit(flow, x, config=TrainingConfig(max_epochs=3))
        steps = [part["seconds"] / part["steps"] * 1000 for part in fitted.parts]
        passes = [part["push_seconds"] for part in fitted.parts]
        print(f"{couplings} couplings")
        print("  ms per step, including validation:", " ".join(f"{time:.2f}" for time in steps))
        print("  seconds to pass the data through: ", " ".join(f"{time:.2f}" for time in passes))
        print(f"  last / first, per step: {steps[-1] / steps[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
