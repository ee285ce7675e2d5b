"""What a person sees of a run."""

__all__ = ["Progress"]

import sys
import time
from typing import Any


class Progress:
    """A bar over the parts of a flow and one over the steps of the current part. Silent away from a terminal.

    Arguments:
        parts: How many parts will be trained.
        shown: Whether to show anything; None for: on a terminal.
    """

    def __init__(self, parts: int, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.outer: Any = None
        self.inner: Any = None
        self.validation = ""
        self.last = 0.0
        if self.shown:
            self.outer = _bar(total=parts, unit="layer", position=0, desc="flow")

    def begin(self, label: str, steps: int, done: int) -> None:
        """A part begins, or goes on after `done` of at most `steps` steps."""
        self.validation = ""
        if self.shown:
            self.inner = _bar(total=steps, initial=done, unit="step", position=1, leave=False, desc=label)

    def due(self) -> bool:
        """Whether it is time to show another figure."""
        return self.shown and time.monotonic() - self.last > 0.5

    def step(self, steps: int, bits: float | None = None, samples_per_second: float = 0.0) -> None:
        """Some steps are done; the mean loss of late is `bits` per dimension."""
        if self.shown:
            self.inner.update(steps)
            if bits is not None:
                self.last = time.monotonic()
                text = f"{bits:.4f} bits{self.validation}, {samples_per_second:,.0f} samples/s"
                self.inner.set_postfix_str(text, refresh=True)

    def validated(self, bits: float, best: float) -> None:
        """A pass over the data is done."""
        self.validation = f", validation {bits:.4f} (best {best:.4f})"

    def end(self) -> None:
        """A part is done."""
        if self.shown:
            if self.inner is not None:
                self.inner.close()
                self.inner = None
            self.outer.update(1)

    def close(self) -> None:
        """All is done, or given up."""
        for bar in (self.inner, self.outer):
            if bar is not None:
                bar.close()


def _bar(**options: Any) -> Any:
    from tqdm import tqdm

    return tqdm(dynamic_ncols=True, file=sys.stderr, **options)
