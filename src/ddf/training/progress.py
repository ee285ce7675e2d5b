"""What a person sees of a run."""

__all__ = ["Progress"]

import shutil
import sys
import time
from typing import Any


class Progress:
    """A bar over the parts of a flow and one over the steps of the current part. Silent away from a terminal.

    The times that remain are what is left if every part takes all its epochs: patience may end it sooner.

    Arguments:
        parts: How many parts will be trained.
        shown: Whether to show anything; None for: on a terminal.
    """

    def __init__(self, parts: int, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.outer: Any = None
        self.inner: Any = None
        self.done = 0
        self.validation = ("", "")
        self.last = 0.0
        if self.shown:
            self.outer = _bar(parts, "flow")
            self.outer.set_postfix_str(f"layer 1 of {parts}")

    def begin(self, label: str, steps: int, done: int) -> None:
        """A part begins, or goes on after `done` of at most `steps` steps."""
        self.validation = ("", "")
        if self.shown:
            self.inner = _bar(steps, label, initial=done, position=1, leave=False)

    def due(self) -> bool:
        """Whether it is time to show another figure."""
        return self.shown and time.monotonic() - self.last > 0.5

    def step(self, steps: int, bits: float, samples_per_second: float) -> None:
        """Some steps are done since the last call; their mean loss is `bits` per dimension."""
        if self.shown:
            self.last = time.monotonic()
            self.inner.update(steps)
            wide = shutil.get_terminal_size().columns >= 110
            text = f"{bits:.4f} bits{self.validation[wide]}, {samples_per_second:,.0f}{' samples' * wide}/s"
            self.inner.set_postfix_str(text)
            self.outer.n = self.done + self.inner.n / max(1, self.inner.total)
            self.outer.refresh()

    def validated(self, bits: float, best: float) -> None:
        """A pass over the data is done."""
        self.validation = (f", val {bits:.4f}", f", validation {bits:.4f} (best {best:.4f})")

    def end(self) -> None:
        """A part is done."""
        self.done += 1
        if self.shown:
            if self.inner is not None:
                self.inner.close()
                self.inner = None
            self.outer.n = self.done
            self.outer.set_postfix_str(f"layer {min(self.done + 1, self.outer.total)} of {self.outer.total}")

    def close(self) -> None:
        """All is done, or given up."""
        for bar in (self.inner, self.outer):
            if bar is not None:
                bar.close()


def _bar(total: int, label: str, **options: Any) -> Any:
    from tqdm import tqdm

    layout = "{desc}{percentage:3.0f}%|{bar:5}| {elapsed}<{remaining}{postfix}"
    return tqdm(bar_format=layout, total=total, desc=f"{label:<20}", dynamic_ncols=True, file=sys.stderr, **options)
