"""Presets: how much a model looks at, how large its nets are, how long it is trained."""

__all__ = ["PRESETS", "Preset"]

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """The size of a model and the length of its training.

    Arguments:
        pixels: Pixels of the context; an even number.
        hidden: Widths of the two hidden layers; multiples of 8.
        steps: Training steps, of `batch` places each.
        batch: Places in a step.
        learning_rate: At its peak; it falls to zero along a cosine.
        shown: How many candidates show their class to the net, if classes are known.
    """

    pixels: int
    hidden: tuple[int, int]
    steps: int
    batch: int = 2048
    learning_rate: float = 4e-3
    shown: int = 3

    def __post_init__(self) -> None:
        if not 10 <= self.pixels <= 256 or self.pixels % 2:
            raise ValueError(f"pixels={self.pixels}, but a context has an even number of pixels from 10 to 256")
        if not 0 <= self.shown <= 5:
            raise ValueError(f"shown={self.shown}, but there are at most 5 candidates to show the class of")
        if any(width < 8 or width % 8 for width in self.hidden) or len(self.hidden) != 2:
            raise ValueError(f"hidden={self.hidden}, but there are two hidden layers of multiples of 8 units")


PRESETS = {
    "fast": Preset(pixels=40, hidden=(64, 48), steps=25_000),
    "best": Preset(pixels=64, hidden=(192, 96), steps=60_000),
}
"""`fast` for nearly everything, `best` where every byte counts."""
