"""A run directory: all that it takes to go on after an interruption."""

__all__ = ["Run", "RunConflictError"]

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from ddf.errors import DamagedFileError
from ddf.files import atomic_write
from ddf.tensorfile import read_tensors, write_tensors

# Settings that the layers still to be trained may have otherwise than the finished ones.
_CHANGEABLE = (
    "training.batch_size",
    "training.learning_rate",
    "training.base_learning_rate",
    "training.max_epochs",
    "training.patience",
    "training.ema",
    "training.warmup_steps",
    "training.cosine",
    "training.relaxation",
    "training.smoothing",
    "training.precision",
    "processes",
)


class RunConflictError(ValueError):
    """A run directory that belongs to another run, is in use by one, or is damaged."""


class Run:
    """Keeps what a run has reached: its settings, the finished parts, the part in progress, and metrics.

    Every file is whole at every moment, so a run can be killed at any of them and goes on from the last file.

    Arguments:
        folder: The directory; None to keep nothing.
        settings: What makes the run what it is, as plain data. A directory with others is refused.
        change: Whether settings of the training itself may differ: the finished parts are kept, the others are trained
            with the new settings.
        writes: Whether this process writes. All may read.
        tensorboard: Whether metrics go to TensorBoard as well.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: dict[str, Any],
        change: bool = False,
        writes: bool = True,
        tensorboard: bool = False,
    ) -> None:
        self.folder = folder
        self.writes = writes and folder is not None
        self.progressed = False  # whether a part was finished since
        self.board: Any = None
        self._lock: TextIO | None = None
        if folder is None:
            return
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file; a run needs a directory of its own")
        if self.writes:
            with self.writing():
                (folder / "parts").mkdir(parents=True, exist_ok=True)
                self._lock = _lock(folder)
        try:
            self._agree_on(json.loads(json.dumps(settings)), change)
            if tensorboard and self.writes:
                self.board = _summary_writer(folder / "tensorboard")
        except BaseException:
            self.close()
            raise

    def _agree_on(self, settings: dict[str, Any], change: bool) -> None:
        """Makes sure that the directory belongs to a run with these settings, or to none yet."""
        assert self.folder is not None
        path = self.folder / "settings.json"
        if path.exists():
            try:
                old = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RunConflictError(f"{path} is damaged ({error}); take another directory") from error
            differences = _differences(old, settings)
            lines = "\n".join(text for _, text in differences)
            allowed = all(where in _CHANGEABLE for where, _ in differences)
            if differences and not (change and allowed):
                remedy = "take another directory or the same settings"
                if allowed:
                    remedy += ", or say change_settings=True to keep the finished layers and train the others so"
                raise RunConflictError(f"{self.folder} holds a run with other settings; {remedy}:\n{lines}")
            if not differences:
                return
            if self.writes:  # where a part has come to under the old settings is no beginning under the new
                (self.folder / "state.safetensors").unlink(missing_ok=True)
        elif any((self.folder / "parts").glob("*")):
            raise RunConflictError(f"{self.folder} holds parts of a run, but not its settings; take another directory")
        if self.writes:
            with self.writing(), atomic_write(path) as temporary:
                temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def log(self, **metrics: Any) -> None:
        """Appends a line to metrics.jsonl."""
        if self.writes:
            assert self.folder is not None
            with self.writing(), (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **metrics}) + "\n")
        if self.board is not None and "epoch" in metrics:
            for name in ("train_bits", "validation_bits"):
                self.board.add_scalar(f"{metrics['layer']}/{name}", metrics[name], metrics["epoch"])
            self.board.flush()

    def finished(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The weights of a finished part and what is known of it, or None."""
        return self._read(f"parts/{number:03}.safetensors")

    def finish(self, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keeps a finished part, and forgets the state on the way there."""
        self.progressed = True
        self._write(f"parts/{number:03}.safetensors", tensors, facts)
        if self.writes:
            assert self.folder is not None
            (self.folder / "state.safetensors").unlink(missing_ok=True)

    def state(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """How far a part had come when the run was interrupted, or None."""
        kept = self._read("state.safetensors")
        return kept if kept is not None and kept[1]["part"] == number else None

    def keep_state(self, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keeps how far a part has come."""
        self._write("state.safetensors", tensors, {"part": number, **facts})

    def close(self) -> None:
        """Lets others work in the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self.board is not None:
            self.board.close()

    def _write(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.writes:
            assert self.folder is not None
            with self.writing():
                write_tensors(self.folder / name, tensors, facts)

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if self.folder is None or not (self.folder / name).exists():
            return None
        try:
            return read_tensors(self.folder / name)
        except DamagedFileError as error:
            raise RunConflictError(f"{error}; remove it, and the run goes on from what it had finished") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around everything that is written into the directory: an error says which one."""
        try:
            yield
        except OSError as error:
            message = f"cannot write to {self.folder}: {error.strerror or error}; what was finished there is kept"
            raise OSError(error.errno, message) from error


def _lock(folder: Path) -> TextIO | None:
    """Holds the directory as long as the file that is returned stays open; a killed process lets go of it."""
    try:
        import fcntl
    except ImportError:  # on Windows
        return None
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise RunConflictError(
            f"another process (number {holder}) is training in {folder}; wait for it or take another directory"
        ) from None
    except OSError:  # a file system without locks
        pass
    else:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "metrics for TensorBoard need the package tensorboard: pip install 'discrete-denoising-flows[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder))


_LONGEST = 60  # characters of a value in an error


def _differences(old: Any, new: Any, where: str = "") -> list[tuple[str, str]]:
    """The places where two pieces of plain data differ, each with a line that says how."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = [(f"{where}.{key}" if where else key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        line = f"  {where}: {_brief(old)} in the directory, {_brief(new)} now"
        return [] if old == new else [(where, line)]
    return [difference for key, a, b in pairs for difference in _differences(a, b, key)]


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
