"""Progress of long tasks on standard error: a bar on a terminal, a line now and then in a log."""

__all__ = ["Progress"]

import sys
import time
from typing import Any

INTERVAL = 15.0
"""Seconds between lines in a log."""


class Progress:
    """The progress of a task.

    Arguments:
        label: The name of the task.
        total: The number of its steps; None if unknown.
        unit: The name of a step.
        done: The number of steps that an earlier process completed. They do not count in the estimate of the time left.
        shown: Whether to show anything.
        row: The row of the bar on a terminal, for several tasks at a time.

    Examples:
        >>> with Progress("compressing", total=3, unit="file") as progress:
        ...     for i in range(3):
        ...         progress.update(i + 1)
    """

    def __init__(
        self, label: str, total: int | None = None, unit: str = "step", done: int = 0, shown: bool = True, row: int = 0
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._begun = done
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        self._prints = shown and not sys.stderr.isatty()
        if shown and not self._prints:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=label,
                total=total,
                unit=unit,
                initial=done,
                position=row,
                leave=False,
                dynamic_ncols=True,
                file=sys.stderr,
                bar_format=None if total is None else "{desc} {percentage:3.0f}%|{bar:10}| {elapsed}<{remaining}{postfix}",
            )

    def update(self, done: float, note: str = "") -> None:
        """Report progress.

        Arguments:
            done: The number of steps that are completed, in total.
            note: Other information, such as the current score.
        """
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._prints and time.monotonic() - self._last > INTERVAL:
            self._last = time.monotonic()
            print(self._line(done, note), file=sys.stderr, flush=True)

    def _line(self, done: float, note: str) -> str:
        seconds = time.monotonic() - self._start
        parts = [f"{done:,.0f} {self.unit}s" if self.total is None else f"{self.unit} {done:,.0f} of {self.total:,}"]
        parts += [note] if note else []
        parts.append(f"{_clock(seconds)} elapsed")
        if self.total is not None and done > self._begun:
            parts.append(f"{_clock(seconds * (self.total - done) / (done - self._begun))} left")
        return f"{self.label}: {', '.join(parts)}"

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _clock(seconds: float) -> str:
    """Format a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
