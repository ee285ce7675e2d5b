"""The settings of a training run."""

__all__ = ["PAPER", "TrainingConfig"]

from dataclasses import dataclass, fields
from math import inf
from typing import Any


@dataclass(frozen=True)
class TrainingConfig:
    """How to train. The defaults are those of the paper, where it states them (Adam, 0.001, batches of 64).

    Arguments:
        batch_size: Samples per step, over all processes.
        learning_rate: Learning rate.
        base_learning_rate: Learning rate of the base in joint training; None for the same one.
        max_epochs: Maximum number of epochs for each layer.
        patience: Number of epochs without improvement in validation after which the training of a layer stops. It is
            checked after each validation.
        ema: Decay of an exponential moving average of the weights, which is then validated and kept; None for none.
        warmup_steps: Number of steps over which the learning rate rises from 0.
        weight_decay: Decoupled weight decay, as in AdamW.
        clip: Maximum norm of the gradient, to which it is clipped; None for no clipping.
        optimizer: `"adam"`, or `"muon"`: Muon for linear layers and convolutions with at least 64 inputs and 64
            outputs, which are mostly hidden layers, and Adam for all other parameters.
        validate_every: Number of epochs between validations.
        cosine: Whether the learning rate decays to 0 along a cosine over `max_epochs`.
        validation_fraction: Fraction of the data that is held out for validation if no validation data is given.
        relaxation: For flows that are trained end to end: the power in `relaxed_log_prob`.
        draws: For data that is resampled: number of draws of each sample to keep, which epochs use in turn.
        smoothing: Added to each count when the base is fitted.
        precision: `"bfloat16"` (autocast), `"float32"`, or `"auto"`: bfloat16 on a GPU, float32 otherwise.
        memory_cap: Maximum bytes of data in main memory, and again on the device; larger data is kept on disk.
        seed: Random seed for the order of the samples, the held-out part, the resampling, and the random numbers of
            training steps (dropout, the pixels that ordered splits are given).
    """

    batch_size: int = 64
    learning_rate: float = 1e-3
    base_learning_rate: float | None = None
    max_epochs: int = 100
    patience: int = 10
    ema: float | None = None
    warmup_steps: int = 0
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer: str = "adam"
    validate_every: int = 1
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
            *((name, 1) for name in ("batch_size", "max_epochs", "patience", "validate_every", "draws")),
            *((name, 0) for name in ("warmup_steps", "memory_cap", "seed")),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} must be an integer of at least {least}")
        for name in ("learning_rate", "smoothing", "base_learning_rate", "clip"):
            if name in ("base_learning_rate", "clip") and getattr(self, name) is None:
                continue
            if not 0 < _number(self, name) < inf:
                raise ValueError(f"{name}={getattr(self, name)!r} must be positive and finite")
        if self.ema is not None and not 0 < _number(self, "ema") < 1:
            raise ValueError(f"ema={self.ema!r} must be between 0 and 1")
        if not 0 <= _number(self, "weight_decay") < inf:
            raise ValueError(f"weight_decay={self.weight_decay!r} must be finite and not negative")
        if not 0 < _number(self, "validation_fraction") < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction!r} must be between 0 and 1")
        if not 0 <= _number(self, "relaxation") <= 1:
            raise ValueError(f"relaxation={self.relaxation!r} must be between 0 and 1")
        if not isinstance(self.cosine, bool):
            raise ValueError(f"cosine={self.cosine!r} must be True or False")
        if self.optimizer not in ("adam", "muon"):
            raise ValueError(f"optimizer={self.optimizer!r} must be 'adam' or 'muon'")
        if self.precision not in ("auto", "bfloat16", "float32"):
            raise ValueError(f"precision={self.precision!r} must be 'auto', 'bfloat16' or 'float32'")

    def to_plain(self) -> dict[str, Any]:
        """Return the settings as a dictionary."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _number(config: TrainingConfig, name: str) -> float:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} must be a number")
    return value


PAPER = TrainingConfig()
"""The settings of the paper: Adam with a learning rate of 0.001 and batches of 64, until validation stops improving."""
