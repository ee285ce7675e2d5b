"""Trains a small flow, alone or with others under torchrun, and writes its bits on unseen data."""

import json
import sys
from pathlib import Path

import torch

from ddf.training import fit
from tests.test_training import FAST, SMALL, draw, expected_bits, joint_distribution


def main(run: Path) -> None:
    torch.set_num_threads(1)
    flow = SMALL.build(seed=0)
    fit(flow, draw(joint_distribution(), 10_000, seed=1), config=FAST, device="cpu", run=run)
    if int(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0) == 0:
        (run / "test.json").write_text(json.dumps(expected_bits(flow, joint_distribution())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
