"""Progress of long tasks on standard error: a bar on a terminal, occasional lines in a log."""

__all__ = ["Progress"]

import sys
import time
from typing import Any

SECONDS_PER_LINE = 15.0
SECONDS_PER_REFRESH = 0.25


class Progress:
    """The progress of a task.

    The remaining time is estimated from the average speed so far.

    Arguments:
        label: The name of the task.
        total: The number of its steps; None if unknown.
        unit: The name of a step; "" to show a percentage only.
        shown: Whether to show anything.

    Examples:
        >>> with Progress("compressing", total=3, unit="file") as progress:
        ...     for i in range(3):
        ...         progress.update(i + 1)
    """

    def __init__(self, label: str, total: int | None = None, unit: str = "", shown: bool = True) -> None:
        self.label, self.total, self.unit, self.shown = label, total, unit, shown
        self._before = 0.0
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            layout = "{desc} {percentage:3.0f}%|{bar:10}| {elapsed}<{remaining}{postfix}"
            self._bar = tqdm(
                desc=label,
                total=total,
                unit=unit or "it",
                bar_format=layout if total else None,
                smoothing=0,
                leave=False,
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def resume(self, done: float) -> None:
        """Skip steps that were completed earlier; they do not count in the estimate of the remaining time.

        Arguments:
            done: The number of completed steps.
        """
        self._before = done
        if self._bar is not None:
            self._bar.initial = self._bar.n = done

    def due(self) -> bool:
        """Return whether `update` would show anything now."""
        interval = SECONDS_PER_LINE if self._bar is None else SECONDS_PER_REFRESH
        return self.shown and time.monotonic() - self._last > interval

    def update(self, done: float, note: str = "") -> None:
        """Show the progress, unless it was shown a moment ago.

        Arguments:
            done: The number of completed steps.
            note: Other information, such as the current score.
        """
        if not self.due():
            return
        self._last = time.monotonic()
        if self._bar is None:
            print(self._line(done, note), file=sys.stderr, flush=True)
        else:
            self._bar.n = done
            self._bar.set_postfix_str(note)

    def _line(self, done: float, note: str) -> str:
        count = f"{done:,.0f}" if self.total is None else f"{done:,.0f} of {self.total:,}"
        parts = [] if self.total is None else [f"{done / max(1, self.total):.0%}"]
        parts += [f"{count} {self.unit}s"] if self.unit else []
        parts += [note] if note else []
        seconds = time.monotonic() - self._start
        parts.append(f"{_clock(seconds)} elapsed")
        if self.total is not None and done > self._before:
            parts.append(f"{_clock(seconds * (self.total - done) / (done - self._before))} left")
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
    """Format a duration as m:ss or h:mm:ss.

    Examples:
        >>> _clock(75.2), _clock(3600)
        ('1:15', '1:00:00')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
