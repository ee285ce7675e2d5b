"""Train on data larger than the memory cap, and compare peak memory with the cap (Linux).

python benchmarks/memory.py
"""

import re
import tempfile
from pathlib import Path

import numpy as np

from ddf.spec import DenoisingCouplingSpec, FlowSpec, MLPSpec
from ddf.training import TrainingConfig, fit

SAMPLES, DIMENSIONS, CAP = 500_000, 2048, 256 << 20


def status(key: str) -> int:
    """Return a value of /proc/self/status, in MiB."""
    match = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) // 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = np.memmap(Path(folder) / "data", dtype=np.uint8, mode="w+", shape=(SAMPLES, DIMENSIONS))
        generator = np.random.default_rng(0)
        for start in range(0, SAMPLES, 10_000):
            data[start : start + 10_000] = generator.integers(4, size=(10_000, DIMENSIONS), dtype=np.uint8)
        del data
        net = MLPSpec(hidden=8, layers=2)
        layers = (DenoisingCouplingSpec(net, top=4), DenoisingCouplingSpec(net, top=4))
        flow = FlowSpec(num_classes=4, shape=(DIMENSIONS,), layers=layers).build()
        small = np.zeros((512, DIMENSIONS), dtype=np.uint8)
        config = TrainingConfig(batch_size=512, max_epochs=1, memory_cap=CAP, validation_fraction=0.02)
        fit(FlowSpec(4, (DIMENSIONS,), layers).build(), small, config=config, device="cpu")  # memory of nets and torch
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        mapped = np.memmap(Path(folder) / "data", dtype=np.uint8, mode="r", shape=(SAMPLES, DIMENSIONS))
        fit(flow, mapped, config=config, device="cpu")
        print(
            f"{mapped.nbytes >> 20} MiB of data on disk, {CAP >> 20} MiB allowed: "
            f"memory rose by {status('VmHWM') - before} MiB over the {before} MiB of torch and the nets"
        )


if __name__ == "__main__":
    main()
