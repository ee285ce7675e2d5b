"""Time the training steps of the paper's couplings in ddf's loop and in a plain one.

    python benchmarks/training_steps.py                         # both data sets, on the default device
    python benchmarks/training_steps.py mnist --batch 64 512      # with larger batches
    python benchmarks/training_steps.py --split-priors            # flows with split priors, including their nets
    python benchmarks/training_steps.py --small                   # small nets, for a CPU

The symbols are random, because they do not affect the times.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from ddf import architectures
from ddf.layers import Conditional
from ddf.spec import DenseNetSpec, FlowSpec
from ddf.training.cache import Cache
from ddf.training.config import TrainingConfig
from ddf.training.processes import Processes
from ddf.training.steps import make_stepper

ROWS = 4096


def architecture(data: str, split_priors: bool, small: bool) -> FlowSpec:
    net = DenseNetSpec(blocks=4, hidden=64) if small else None
    make = architectures.binary_mnist if data == "mnist" else architectures.cityscapes
    return make(split_priors=split_priors, net=net)


def milliseconds(step: Callable[[int], None], device: torch.device, steps: int) -> float:
    """Return the mean time of `steps` steps, after a warm-up."""
    for i in range(10 if device.type == "cuda" else 2):
        step(i)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(steps):
        step(i)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1000


def ours(layer: Conditional, rows: Cache, batch: int, precision: str) -> Callable[[int], None]:
    config = TrainingConfig(batch_size=batch, precision=precision)
    processes = Processes(0, 1, rows.device)
    stepper = make_stepper(layer.loss, layer.net, rows, config, processes)
    order = torch.randperm(ROWS, device=rows.device)
    return lambda i: stepper.step(order[i * batch % (ROWS - batch) :][:batch])


def plain(layer: Conditional, rows: Cache, batch: int) -> Callable[[int], None]:
    """Return a step of a plain loop: float32, eager, default Adam."""
    adam = torch.optim.Adam(layer.net.parameters(), lr=1e-3)

    def step(i: int) -> None:
        x = rows.symbols[torch.randint(ROWS, (batch,), device=rows.device)]
        given, target = layer.split(x)
        adam.zero_grad()
        F.cross_entropy(layer.net(given), target.long()).backward()
        adam.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["mnist", "cityscapes"], help="mnist, cityscapes, or both")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--steps", type=int, default=None, help="steps to time (default: 100 on a GPU, 5 on a CPU)")
    parser.add_argument("--split-priors", action="store_true", help="use the flows with split priors")
    parser.add_argument("--small", action="store_true", help="use nets of 4 blocks and 64 hidden planes")
    parser.add_argument("--precision", default="auto", help="bfloat16, float32 or auto")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = options.steps or (100 if device.type == "cuda" else 5)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {name}")
    for data in options.data:
        spec = architecture(data, options.split_priors, options.small)
        for batch in options.batch:
            times = []
            flow = spec.build().to(device)
            shape = flow.shape
            for layer in flow.layer_list():
                if isinstance(layer, Conditional):
                    size = tuple(side for side in shape if side is not None)
                    rows = Cache(ROWS, size, flow.num_classes, device, 1 << 32, Path(), "")
                    rows.write(0, torch.randint(flow.num_classes, (ROWS, *size), dtype=torch.uint8))
                    slow = milliseconds(plain(layer, rows, batch), device, steps)
                    fast = milliseconds(ours(layer, rows, batch, options.precision), device, steps)
                    times.append((slow, fast))
                    print(
                        f"  {data} {type(layer).__name__} {size}, {batch}: plain {slow:.2f} ms, ddf {fast:.2f} ms",
                        flush=True,
                    )
                shape = layer.output_shape(shape)
            slow, fast = (sum(column) / len(times) for column in zip(*times, strict=True))
            print(
                f"{data}, batch {batch}, mean of {len(times)} nets: plain {slow:.2f} ms, ddf {fast:.2f} ms, "
                f"{slow / fast:.1f}× faster, {batch / fast * 1000:,.0f} samples/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
