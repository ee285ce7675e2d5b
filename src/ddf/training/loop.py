"""The one optimisation loop: steps, epochs, validation, patience, and the best weights in the end."""

__all__ = ["Task", "TrainingError", "Work", "optimise"]

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, inf, isfinite, pi
from typing import Any

import torch
from torch import Tensor, nn

from ddf.training.cache import Cache
from ddf.training.config import TrainingConfig
from ddf.training.processes import Processes
from ddf.training.progress import Progress
from ddf.training.run import Run
from ddf.training.steps import make_stepper

_SECONDS_BETWEEN_STATES = 5.0


class TrainingError(RuntimeError):
    """Training that cannot go on."""


@dataclass(frozen=True)
class Task:
    """Something to be trained.

    Arguments:
        number: Its place in the flow.
        label: What it is called on the screen.
        module: What holds the weights.
        loss: `loss(module, batch)`: the mean bits per dimension of a batch of symbols, to be made small. It calls the
            module it is given, which may be a wrapped one.
    """

    number: int
    label: str
    module: nn.Module
    loss: Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    """What all tasks of a run share.

    Arguments:
        config: How to train.
        processes: With whom.
        run: Where what was reached is kept.
        progress: Where it is shown.
    """

    config: TrainingConfig
    processes: Processes
    run: Run
    progress: Progress


@dataclass
class Standing:
    """How far a task has come."""

    epoch: int = 0
    step: int = 0  # within the epoch
    bits: float = 0.0  # summed over those steps
    best: float = inf
    best_epoch: int = -1
    seconds: float = 0.0


def optimise(task: Task, train: Cache, validation: Cache, work: Work) -> dict[str, Any]:
    """Trains a task until its validation figure no longer falls, and leaves the module with the best weights.

    Arguments:
        task: What to train.
        train: This process's share of the training data.
        validation: Its share of the validation data.
        work: How, with whom, and where it is kept and shown.

    Returns:
        What is worth knowing of it: the best validation figure, epochs, steps, seconds.
    """
    config, processes, run, progress = work.config, work.processes, work.run, work.progress
    samples = len(train) // train.draws
    batch_size = max(1, min(config.batch_size // processes.count, samples))
    steps = samples // batch_size
    weights: list[Tensor] = list(task.module.parameters())
    stepper = make_stepper(task.loss, task.module, train, config, processes)  # all processes now have the same weights
    average = [weight.detach().clone() for weight in weights] if config.ema else weights
    best = [weight.detach().clone() for weight in weights]
    groups = {"weight": weights, "best": best} | ({"average": average} if config.ema else {})
    standing = Standing()

    kept = run.state(task.number)
    if kept is not None:
        tensors, facts = kept
        standing = Standing(**facts["standing"])
        for name, group in groups.items():
            for i, tensor in enumerate(group):
                tensor.data.copy_(tensors[f"{name}.{i}"])
        stepper.load_moments({key: value for key, value in tensors.items() if key.startswith("adam.")})

    def keep_state() -> None:
        tensors = stepper.moments()
        for name, group in groups.items():
            tensors |= {f"{name}.{i}": tensor for i, tensor in enumerate(group)}
        standing.bits = float(stepper.bits)
        run.keep_state(task.number, tensors, {"standing": vars(standing)})

    def check(bits: float) -> float:
        if not isfinite(bits):
            raise TrainingError(
                f"{task.label}: the loss is {bits} in epoch {standing.epoch}; a lower learning rate may help "
                f"(now {config.learning_rate}; in the same run directory with change_settings=True)"
            )
        return bits

    stepper.bits.fill_(standing.bits)
    progress.begin(task.label, steps * config.max_epochs, standing.epoch * steps + standing.step)
    clock = last_state = last_shown = time.monotonic()
    new_steps, new_bits = -standing.step, -standing.bits  # since figures were last shown, but for this epoch's
    try:
        while standing.epoch < config.max_epochs and standing.epoch - standing.best_epoch <= config.patience:
            order = _order(samples, config.seed, task.number, standing.epoch, processes.rank)
            torch.manual_seed(_mixed(config.seed, task.number, standing.epoch, processes.rank))  # for nets with dropout
            order = (order + standing.epoch % train.draws * samples).to(train.device)
            while standing.step < steps:
                done = standing.epoch * steps + standing.step
                stepper.set_rate(_rate(config, done, steps * config.max_epochs))
                stepper.step(order[standing.step * batch_size : (standing.step + 1) * batch_size])
                standing.step += 1
                if config.ema:
                    # Young averages forget faster, so that they do not remember the beginning.
                    with torch.no_grad():
                        torch._foreach_lerp_(average, weights, 1 - min(config.ema, (1 + done) / (10 + done)))
                now = time.monotonic()
                if progress.due():
                    bits = float(stepper.bits)
                    count = new_steps + standing.step
                    rate = count * batch_size * processes.count / max(1e-9, now - last_shown)
                    progress.step(count, check((new_bits + bits) / count), rate)
                    new_steps, new_bits, last_shown = -standing.step, -bits, now
                if now - last_state > _SECONDS_BETWEEN_STATES and run.writes:
                    standing.seconds += now - clock
                    keep_state()
                    clock = time.monotonic()
                    last_state = clock + 10 * (clock - now)  # saving is to take at most a tenth of the time
            new_steps, new_bits = new_steps + steps, new_bits + float(stepper.bits)
            mean = check(float(processes.sum(stepper.bits.clone())) / (steps * processes.count))
            with _exchanged(weights, average):
                bits = check(_validate(task, validation, processes))
                if bits < standing.best:
                    standing.best, standing.best_epoch = bits, standing.epoch
                    for kept_best, weight in zip(best, weights, strict=True):
                        kept_best.copy_(weight.detach())
            standing.epoch, standing.step = standing.epoch + 1, 0
            stepper.bits.zero_()
            run.log(part=task.number, layer=task.label, epoch=standing.epoch, train_bits=mean, validation_bits=bits)
            progress.validated(bits, standing.best)
    except KeyboardInterrupt:
        keep_state()
        raise
    standing.seconds += time.monotonic() - clock
    with torch.no_grad():
        for weight, kept_best in zip(weights, best, strict=True):
            weight.copy_(kept_best)
    progress.end()
    return {
        "layer": task.label,
        "validation_bits": standing.best,
        "epochs": standing.epoch,
        "steps": standing.epoch * steps,
        "seconds": round(standing.seconds, 3),
        "samples": standing.epoch * steps * batch_size * processes.count,
    }


@torch.no_grad()
def _validate(task: Task, validation: Cache, processes: Processes) -> float:
    """The mean loss over the validation data of all processes, without autocast."""
    total = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for batch in validation.batches(256):
        total[0] += task.loss(task.module, batch).double() * len(batch)
        total[1] += len(batch)
    total = processes.sum(total)
    return float(total[0] / total[1])


@contextlib.contextmanager
def _exchanged(weights: list[Tensor], average: list[Tensor]) -> Iterator[None]:
    """Puts the averaged weights in the place of the current ones for a while."""
    if average is weights:
        yield
        return
    with torch.no_grad():
        current = [weight.detach().clone() for weight in weights]
        torch._foreach_copy_([weight.data for weight in weights], average)
        try:
            yield
        finally:
            torch._foreach_copy_([weight.data for weight in weights], current)


def _order(samples: int, *seeds: int) -> Tensor:
    """The order of the samples in an epoch: the same for the same seeds, on every device."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(_mixed(*seeds)))


def _mixed(*seeds: int) -> int:
    """One seed of several."""
    seed = 0
    for number in seeds:
        seed = (seed * 1_000_003 + number) % (1 << 62)
    return seed


def _rate(config: TrainingConfig, done: int, total: int) -> float:
    """The learning rate after `done` of `total` steps."""
    rate = config.learning_rate
    if config.cosine:
        rate *= 0.5 * (1 + cos(pi * done / total))
    if done < config.warmup_steps:
        rate *= (done + 1) / config.warmup_steps
    return rate
