"""A run directory: everything that is needed to resume after an interruption."""

__all__ = ["Run"]

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from ddf.errors import DamagedFileError, RunConflictError
from ddf.files import atomic_write
from ddf.tensorfile import read_tensors, write_tensors

# Settings in which the remaining layers may differ from the finished ones.
_CHANGEABLE = (
    "training.batch_size",
    "training.learning_rate",
    "training.base_learning_rate",
    "training.optimizer",
    "training.weight_decay",
    "training.clip",
    "training.validate_every",
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


class Run:
    """Stores the progress of a run: its settings, the finished parts, the part in progress, and metrics.

    Every file is written atomically, so a run can be killed at any time and resumes from the last file.

    Arguments:
        folder: The directory; None to store nothing.
        settings: The settings that identify the run, as plain data. A directory with other settings is an error.
        change: Whether settings of the training itself may differ: the finished parts are kept, the others are trained
            with the new settings.
        writes: Whether this process writes. All processes may read.
        tensorboard: Whether to also write metrics for TensorBoard.
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
        self.progressed = False  # whether a part has been finished
        self.board: Any = None
        self._lock: FileLock | None = None
        if folder is None:
            return
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file; pass a directory for the run")
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
        """Make sure that the directory belongs to a run with these settings, or to none yet."""
        assert self.folder is not None
        path = self.folder / "settings.json"
        if path.exists():
            try:
                old = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RunConflictError(f"{path} is damaged ({error}); pass another directory") from error
            differences = _differences(old, settings)
            lines = "\n".join(text for _, text in differences)
            allowed = all(where in _CHANGEABLE for where, _ in differences)
            if differences and not (change and allowed):
                remedy = "pass another directory or the same settings"
                if allowed:
                    remedy += (
                        ", or change_settings=True to keep the finished layers and train the others with the new ones"
                    )
                raise RunConflictError(f"{self.folder} contains a run with other settings; {remedy}:\n{lines}")
            if not differences:
                return
            if self.writes:  # a part in progress cannot be resumed with other settings
                (self.folder / "state.safetensors").unlink(missing_ok=True)
        elif any((self.folder / "parts").glob("*")):
            raise RunConflictError(
                f"{self.folder} contains parts of a run, but not its settings; pass another directory"
            )
        if self.writes:
            with self.writing(), atomic_write(path) as temporary:
                temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def log(self, **metrics: Any) -> None:
        """Append a line to metrics.jsonl."""
        if self.writes:
            assert self.folder is not None
            with self.writing(), (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **metrics}) + "\n")
        if self.board is not None and "epoch" in metrics:
            for name in ("train_bits", "validation_bits"):
                self.board.add_scalar(f"{metrics['layer']}/{name}", metrics[name], metrics["epoch"])
            self.board.flush()

    def finished(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the weights and the facts of a finished part, or None."""
        return self._read(f"parts/{number:03}.safetensors")

    def finish(self, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Store a finished part, and delete its intermediate state."""
        self.progressed = True
        self._write(f"parts/{number:03}.safetensors", tensors, facts)
        if self.writes:
            assert self.folder is not None
            (self.folder / "state.safetensors").unlink(missing_ok=True)

    def state(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the intermediate state of a part whose training was interrupted, or None."""
        saved = self._read("state.safetensors")
        return saved if saved is not None and saved[1]["part"] == number else None

    def save_state(self, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Store the intermediate state of a part."""
        self._write("state.safetensors", tensors, {"part": number, **facts})

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.release()
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
            raise RunConflictError(f"{error}; delete it, and the run resumes from its finished parts") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Name the directory in the message of an error while writing to it."""
        try:
            yield
        except OSError as error:
            message = f"cannot write to {self.folder}: {error.strerror or error}; the finished parts are kept"
            raise OSError(error.errno, message) from error


def _lock(folder: Path) -> FileLock:
    """Lock the directory until the lock is released or the process ends."""
    lock = FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        owner = (folder / "pid").read_text() if (folder / "pid").exists() else "unknown"
        raise RunConflictError(
            f"another process (PID {owner}) is training in {folder}; wait for it or pass another directory"
        ) from None
    (folder / "pid").write_text(str(os.getpid()))
    return lock


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
    """Return the places where two pieces of plain data differ, each with a line that describes the difference."""
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
