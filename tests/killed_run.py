"""Train in child processes that are killed ten times at random moments.

Prints the number of kills, the bits of the killed run, and the bits of an uninterrupted run.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from ddf.training import TrainingConfig, fit
from ddf.training import loop as internals
from tests.test_training import SMALL, draw, expected_bits, joint_distribution

CONFIG = TrainingConfig(batch_size=20, max_epochs=6, ema=0.9)


def train(run: Path) -> float:
    torch.set_num_threads(1)
    internals._SECONDS_BETWEEN_STATES, internals._TIMES_LONGER = 0.05, 10
    flow = SMALL.build(seed=0)
    fit(flow, draw(joint_distribution(), 6000, seed=1), config=CONFIG, device="cpu", run=run)
    return expected_bits(flow, joint_distribution())


def main(run: Path) -> None:
    moments = random.Random(0)
    kills = 0
    while kills < 10:
        child = os.fork()
        if child == 0:
            train(run)
            os._exit(0)
        time.sleep(moments.uniform(0.05, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    print(kills, train(run), train(run.with_name("uninterrupted")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
