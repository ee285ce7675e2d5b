"""Time the optimizer steps and the sampling of flows of `ddf reproduce`, one flow at a time.

    python benchmarks/flow_times.py mnist-split cityscapes-split cityscapes/ds --runs docs/results/runs

Writes times.json to the folder of the runs, from which the report takes its times. The symbols are random and the nets
untrained, because neither affects the times.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from ddf.experiments.results import Times, read_times, timed_samples
from ddf.experiments.rows import EXPERIMENTS, Experiment
from ddf.layers import NetLayer
from ddf.training.cache import Cache
from ddf.training.joint import Relaxed, joint_loss
from ddf.training.processes import Processes
from ddf.training.steps import LossOf, make_stepper

ROWS = 2048
STEPS = 40


def step_seconds(experiment: Experiment, device: torch.device) -> list[float]:
    """Return the seconds of an optimizer step of each part of a flow."""
    flow = experiment.spec.build().to(device)

    def seconds(module: nn.Module, loss: LossOf, size: tuple[int, ...]) -> float:
        rows = Cache(ROWS, size, flow.num_classes, device, 1 << 32, Path(), "")
        rows.write(0, torch.randint(flow.num_classes, (ROWS, *size), dtype=torch.uint8))
        stepper = make_stepper(loss, module, rows, experiment.config, Processes(0, 1, device))
        order = torch.randperm(ROWS, device=device)[: experiment.config.batch_size]
        for step in range(10 + STEPS):
            if step == 10:
                synchronize(device)
                start = time.perf_counter()
            stepper.step(order)
        synchronize(device)
        return (time.perf_counter() - start) / STEPS

    if experiment.model == "df":
        return [seconds(Relaxed(flow, experiment.config.relaxation), joint_loss, sizes(flow.shape))]
    shape = flow.shape
    found = []
    for layer in flow.layer_list():
        if isinstance(layer, NetLayer):
            found.append(seconds(layer.net, layer.loss, sizes(shape)))
        shape = layer.output_shape(shape)
    return found


def sizes(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side is not None)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", metavar="ROW[/MODEL]", help="the experiments to time")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    times = read_times(options.runs)
    if times is None or times.device != name:
        times = Times(name, {}, {})
    for (row, model), experiment in EXPERIMENTS.items():
        if not {row, f"{row}/{model}"} & set(options.experiments) or model == "base":
            continue
        key = f"{row} {model}"
        times.steps[key] = [round(seconds, 7) for seconds in step_seconds(experiment, device)]
        _, times.samples[key] = timed_samples(experiment.spec.build().to(device).freeze(), 0)
        steps = ", ".join(f"{1000 * seconds:.2f}" for seconds in times.steps[key])
        print(f"{key}: {steps} ms per step, {1000 * times.samples[key]:.2f} ms per sample", flush=True)
        options.runs.mkdir(parents=True, exist_ok=True)
        (options.runs / "times.json").write_text(json.dumps(asdict(times), indent=1) + "\n")


if __name__ == "__main__":
    main()
