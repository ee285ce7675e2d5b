"""Train a small flow, alone or under torchrun, and write its bits on held-out data."""

import json
import os
import sys
from pathlib import Path

import torch

from ddf.training import fit
from tests.test_training import FAST, SMALL, draw, expected_bits, joint_distribution


def main(run: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    flow = SMALL.build(seed=rank)  # all processes use the weights of the first
    fit(flow, draw(joint_distribution(), 10_000, seed=1), config=FAST, device="cpu", run=run)
    (run / f"test-{rank}.json").write_text(json.dumps(expected_bits(flow, joint_distribution())))
    flow.save(run / f"flow-{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
