"""The optimization loop: steps, epochs, validation, patience, and the best weights at the end."""

__all__ = ["Session", "Task", "TrainingError", "optimize"]

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, inf, isfinite, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ddf.errors import TrainingError
from ddf.layers.net_layer import Loss
from ddf.training.cache import Cache
from ddf.training.config import TrainingConfig
from ddf.training.display import TrainingDisplay
from ddf.training.processes import Processes
from ddf.training.run import Run
from ddf.training.steps import make_stepper

_SECONDS_BETWEEN_STATES = 5.0
_TIMES_LONGER = 50  # than saving a state, before the next one is saved


@dataclass(frozen=True)
class Task:
    """A module to train.

    Arguments:
        number: Its position in the flow.
        label: Its name in the progress display.
        module: The module with the weights.
        loss: `loss(module, batch)`: the mean bits of a batch of symbols, and the objective to minimize. The module
            passed to it may be wrapped.
        score: `score(module, batch)`: the mean bits of a batch, for validation.
    """

    number: int
    label: str
    module: nn.Module
    loss: Callable[[nn.Module, Tensor], Loss]
    score: Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Session:
    """What all tasks of a training run share.

    Arguments:
        config: How to train.
        processes: The processes that train together.
        run: The run directory.
        progress: The progress display.
    """

    config: TrainingConfig
    processes: Processes
    run: Run
    progress: TrainingDisplay


@dataclass
class TaskState:
    """The progress of a task."""

    epoch: int = 0
    step: int = 0  # within the epoch
    bits: float = 0.0  # summed over those steps
    best: float = inf
    best_epoch: int = -1
    seconds: float = 0.0


def optimize(task: Task, train: Cache, validation: Cache, session: Session) -> dict[str, Any]:
    """Train a task until its validation score stops improving, and leave the module with the best weights.

    Arguments:
        task: The module to train, and its loss.
        train: The training data of this process.
        validation: The validation data of this process.
        session: The settings, processes, run directory and progress display.

    Returns:
        The best validation score, epochs, steps and seconds.
    """
    config, processes, run, progress = session.config, session.processes, session.run, session.progress
    samples = len(train) // train.draws
    batch_size = max(1, min(config.batch_size // processes.count, samples))
    steps = samples // batch_size
    state = TaskState()
    weights: list[Tensor] = list(task.module.parameters())
    stepper = make_stepper(task.loss, task.module, train, config, processes)  # all processes now have the same weights
    averaged = None if config.ema is None else _averaged(task.module, lambda: _decay(config, state, steps))
    average: list[Tensor] = weights if averaged is None else list(averaged.module.parameters())
    best = [weight.detach().clone() for weight in weights]
    groups = {"weight": weights, "best": best} | ({} if averaged is None else {"average": average})

    saved = run.state(task.number)
    if saved is not None:
        tensors, facts = saved
        vars(state).update(facts["state"])
        for name, group in groups.items():
            for i, tensor in enumerate(group):
                tensor.data.copy_(tensors[f"{name}.{i}"])
        stepper.load_moments(tensors)

    def save_state() -> None:
        tensors = stepper.moments()
        for name, group in groups.items():
            tensors |= {f"{name}.{i}": tensor for i, tensor in enumerate(group)}
        state.bits = float(stepper.bits)
        run.save_state(task.number, tensors, {"state": vars(state)})

    def check(bits: float) -> float:
        if not isfinite(bits):
            raise TrainingError(
                f"{task.label}: the loss is {bits} in epoch {state.epoch}; try a learning rate below "
                f"{config.learning_rate} (in the same run directory, with change_settings=True)"
            )
        return bits

    stepper.bits.fill_(state.bits)
    progress.begin(task.label, steps * config.max_epochs, state.epoch * steps + state.step)
    clock = last_state = last_shown = time.monotonic()
    new_steps, new_bits = -state.step, -state.bits  # since the last display, without those of this epoch
    try:
        while state.epoch < config.max_epochs and not _out_of_patience(config, state):
            order = _order(samples, config.seed, task.number, state.epoch, processes.rank)
            order = (order + state.epoch % train.draws * samples).to(train.device)
            while state.step < steps:
                done = state.epoch * steps + state.step
                _seed(processes.device, _mixed(config.seed, task.number, done, processes.rank))
                stepper.set_rate(_rate(config, done, done / (steps * config.max_epochs)))
                stepper.step(order[state.step * batch_size : (state.step + 1) * batch_size])
                state.step += 1
                if averaged is not None:
                    averaged.update_parameters(task.module)
                stepper.updating = False
                now = time.monotonic()
                if progress.due():
                    bits = float(stepper.bits)
                    count = new_steps + state.step
                    rate = count * batch_size * processes.count / max(1e-9, now - last_shown)
                    progress.step(count, check((new_bits + bits) / count), rate)
                    new_steps, new_bits, last_shown = -state.step, -bits, now
                if now - last_state > _SECONDS_BETWEEN_STATES and run.writes:
                    state.seconds += now - clock
                    save_state()
                    clock = time.monotonic()
                    last_state = clock + _TIMES_LONGER * (clock - now)
            new_steps, new_bits = new_steps + steps, new_bits + float(stepper.bits)
            mean = check(float(processes.sum(stepper.bits.clone())) / (steps * processes.count))
            facts = {"part": task.number, "layer": task.label, "epoch": state.epoch + 1, "train_bits": mean}
            validated = (state.epoch + 1) % config.validate_every == 0 or state.epoch + 1 == config.max_epochs
            if validated:
                with _exchanged(weights, average):
                    bits = facts["validation_bits"] = check(_validate(task, validation, processes))
                    if bits < state.best:
                        state.best, state.best_epoch = bits, state.epoch
                        for best_weight, weight in zip(best, weights, strict=True):
                            best_weight.copy_(weight.detach())
            state.epoch, state.step = state.epoch + 1, 0
            stepper.bits.zero_()
            run.log(**facts)
            if validated:
                progress.validated(bits, state.best)
    except KeyboardInterrupt:
        if not stepper.updating:  # otherwise the weights may be those of half a step
            save_state()
        raise
    state.seconds += time.monotonic() - clock
    with torch.no_grad():
        for weight, best_weight in zip(weights, best, strict=True):
            weight.copy_(best_weight)
    progress.end()
    return {
        "layer": task.label,
        "validation_bits": state.best,
        "epochs": state.epoch,
        "steps": state.epoch * steps,
        "seconds": round(state.seconds, 3),
        "samples": state.epoch * steps * batch_size * processes.count,
    }


def _out_of_patience(config: TrainingConfig, state: TaskState) -> bool:
    validated = state.epoch % config.validate_every == 0
    return validated and state.epoch - state.best_epoch > config.patience


def _averaged(module: nn.Module, decay: Callable[[], float]) -> AveragedModel:
    """Return the exponential moving average of a module, which starts at its current weights."""

    def update(average: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        torch._foreach_lerp_(list(average), list(current), 1 - decay())

    averaged = AveragedModel(module, multi_avg_fn=update)
    averaged.n_averaged += 1  # otherwise the first update would copy the weights
    return averaged


def _decay(config: TrainingConfig, state: TaskState, steps: int) -> float:
    """Return the decay of the moving average, which is short at first, so that it forgets the initial weights."""
    assert config.ema is not None
    done = state.epoch * steps + state.step
    return min(config.ema, done / (9 + done))


@torch.no_grad()
def _validate(task: Task, validation: Cache, processes: Processes) -> float:
    """Return the mean score over the validation data of all processes, without autocast."""
    total = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for batch in validation.batches(256):
        total[0] += task.score(task.module, batch).double() * len(batch)
        total[1] += len(batch)
    total = processes.sum(total)
    return float(total[0] / total[1])


@contextlib.contextmanager
def _exchanged(weights: list[Tensor], average: list[Tensor]) -> Iterator[None]:
    """Replace the current weights by the averaged ones for a while."""
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
    """Return the order of the samples in an epoch, which is the same for the same seeds on every device."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(_mixed(*seeds)))


def _seed(device: torch.device, seed: int) -> None:
    """Seed the random numbers of a step (dropout, pixels given in advance), so that a run can resume at any step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def _mixed(*seeds: int) -> int:
    """Combine several seeds into one."""
    seed = 0
    for number in seeds:
        seed = (seed * 1_000_003 + number) % (1 << 62)
    return seed


def _rate(config: TrainingConfig, done: int, share: float) -> float:
    """Return the learning rate after `done` steps, which are `share` of all steps."""
    rate = config.learning_rate
    if config.cosine:
        rate *= 0.5 * (1 + cos(pi * share))
    if done < config.warmup_steps:
        rate *= (done + 1) / config.warmup_steps
    return rate
