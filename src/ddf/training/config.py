"""What a training run is told."""

__all__ = ["PAPER", "TrainingConfig"]

from dataclasses import dataclass, fields
from math import inf
from typing import Any


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. The defaults are the paper's where the paper says (Adam, 0.001, batches of 64).

    Arguments:
        batch_size: Samples per step, over all processes together.
        learning_rate: Adam's.
        base_learning_rate: Adam's for the base, where that is trained with the layers; None for the same.
        max_epochs: The most passes over the data that any layer gets.
        patience: Stop a layer after so many epochs without a lower validation figure.
        ema: Decay of an exponential moving average of the weights, which is then what is validated and kept; None for
            none.
        warmup_steps: Steps over which the learning rate rises from 0.
        cosine: Whether the learning rate falls to 0 along a cosine over `max_epochs`.
        validation_fraction: How much of the data is held out to validate on where no validation data is given.
        relaxation: For flows that are trained end to end: the power in `Flow.relaxed_log_prob`.
        draws: For data with fresh randomness: how many draws of it are kept at a time; epochs take turns.
        smoothing: Added to each count when the base is fitted.
        precision: `"bfloat16"` (autocast), `"float32"`, or `"auto"`: bfloat16 on a GPU, float32 elsewhere.
        memory_cap: Bytes of data to keep in main memory, and as many on the device; what is larger goes to disk.
        seed: Draws the order of the samples, the held-out part and the fresh randomness.
    """

    batch_size: int = 64
    learning_rate: float = 1e-3
    base_learning_rate: float | None = None
    max_epochs: int = 100
    patience: int = 10
    ema: float | None = None
    warmup_steps: int = 0
    cosine: bool = False
    validation_fraction: float = 0.1
    relaxation: float = 0.5
    draws: int = 16
    smoothing: float = 0.5
    precision: str = "auto"
    memory_cap: int = 8 << 30
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            *((name, 1) for name in ("batch_size", "max_epochs", "patience", "draws")),
            *((name, 0) for name in ("warmup_steps", "memory_cap", "seed")),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}, but it must be an integer of {least} at least")
        for name in ("learning_rate", "smoothing", "base_learning_rate"):
            if name == "base_learning_rate" and self.base_learning_rate is None:
                continue
            if not 0 < _number(self, name) < inf:
                raise ValueError(f"{name}={getattr(self, name)!r}, but it must be positive and finite")
        if self.ema is not None and not 0 < _number(self, "ema") < 1:
            raise ValueError(f"ema={self.ema!r}, but a decay is between 0 and 1")
        if not 0 < _number(self, "validation_fraction") < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction!r}, but it must be between 0 and 1")
        if not 0 <= _number(self, "relaxation") <= 1:
            raise ValueError(f"relaxation={self.relaxation!r}, but it must be between 0 and 1")
        if not isinstance(self.cosine, bool):
            raise ValueError(f"cosine={self.cosine!r}, but it must be True or False")
        if self.precision not in ("auto", "bfloat16", "float32"):
            raise ValueError(f"precision={self.precision!r}, but it must be 'auto', 'bfloat16' or 'float32'")

    def to_plain(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _number(config: TrainingConfig, name: str) -> float:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r}, but it must be a number")
    return value


PAPER = TrainingConfig()
"""The paper's settings: Adam with a learning rate of 0.001 and batches of 64, until validation no longer improves."""
