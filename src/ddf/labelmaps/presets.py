"""Presets: the context size, network size and training length of a model."""

__all__ = ["PRESETS", "Preset"]

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """The size of a model and the length of its training.

    Arguments:
        pixels: Number of pixels in the context; must be even.
        hidden: Widths of the two hidden layers; multiples of 8.
        steps: Number of training steps.
        batch: Number of pixels per step.
        learning_rate: Peak learning rate; it decays to zero along a cosine.
        shown: Number of candidates whose class is an input of the net, if classes are known.
    """

    pixels: int
    hidden: tuple[int, int]
    steps: int
    batch: int = 2048
    learning_rate: float = 4e-3
    shown: int = 3

    def __post_init__(self) -> None:
        if not 10 <= self.pixels <= 256 or self.pixels % 2:
            raise ValueError(f"pixels={self.pixels}, but must be an even number from 10 to 256")
        if not 0 <= self.shown <= 5:
            raise ValueError(f"shown={self.shown}, but must be from 0 to 5, the number of candidates")
        if any(width < 8 or width % 8 for width in self.hidden) or len(self.hidden) != 2:
            raise ValueError(f"hidden={self.hidden}, but must be two positive multiples of 8")


PRESETS = {
    "fast": Preset(pixels=40, hidden=(64, 48), steps=25_000),
    "best": Preset(pixels=64, hidden=(192, 96), steps=60_000),
}
"""`fast` is the right choice in most cases; use `best` where every byte counts."""
