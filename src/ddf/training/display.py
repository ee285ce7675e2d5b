"""The progress display of the training of a flow."""

__all__ = ["TrainingDisplay"]

from ddf.progress import Progress


class TrainingDisplay:
    """Shows the progress of a training run.

    The remaining time assumes that every part is trained for all of its epochs; early stopping shortens it.

    Arguments:
        parts: The number of parts to train.
        shown: Whether to show anything; None for the default, True.
    """

    def __init__(self, parts: int, shown: bool | None = None) -> None:
        self.progress = Progress("training", parts, shown=shown is not False)
        self.label = ""  # of the current part
        self.finished = 0  # parts
        self.steps = self.step_count = 0
        self.validation = ""

    def begin(self, label: str, steps: int, done: int) -> None:
        """Begin or resume a part.

        Arguments:
            label: The name of the part.
            steps: The largest number of its steps.
            done: The number of steps that were completed earlier.
        """
        self.label, self.steps, self.step_count, self.validation = label, steps, done, ""
        if done:
            self.progress.resume(self.finished + done / max(1, steps))

    def due(self) -> bool:
        """Return whether it is time to report the loss, which takes a moment to compute."""
        return self.progress.due()

    def step(self, steps: int, bits: float, samples_per_second: float) -> None:
        """Report some steps.

        Arguments:
            steps: The number of steps since the last report.
            bits: Their mean loss in bits per dimension.
            samples_per_second: Their speed.
        """
        self.step_count += steps
        share = self.step_count / max(1, self.steps)
        note = f"{self.label} {share:.0%}, {bits:.4f} bits{self.validation}, {samples_per_second:,.0f} samples/s"
        self.progress.update(self.finished + share, note)

    def validated(self, bits: float, best: float) -> None:
        """Report a validation score, and the best one so far."""
        self.validation = f", validation {bits:.4f} (best {best:.4f})"

    def end(self) -> None:
        """End a part, or skip one that was finished earlier."""
        self.finished += 1
        if not self.label:
            self.progress.resume(self.finished)
        self.label = ""

    def close(self) -> None:
        """Remove the display."""
        self.progress.close()
