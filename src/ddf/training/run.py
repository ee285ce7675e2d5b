"""A run directory: all that it takes to go on after an interruption."""

__all__ = ["Run", "RunConflictError"]

import json
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from ddf.files import atomic_write


class RunConflictError(ValueError):
    """A run directory that belongs to another run."""


class Run:
    """Keeps what a run has reached: its settings, the finished parts, the part in progress, and metrics.

    Every file is whole at every moment, so a run can be killed at any of them and goes on from the last file.

    Arguments:
        folder: The directory; None to keep nothing.
        settings: What makes the run what it is, as plain data. A directory with others is refused.
        writes: Whether this process writes. All may read.
        tensorboard: Whether metrics go to TensorBoard as well.
    """

    def __init__(
        self, folder: Path | None, settings: dict[str, Any], writes: bool = True, tensorboard: bool = False
    ) -> None:
        self.folder = folder
        self.writes = writes and folder is not None
        self.board: Any = None
        if folder is None:
            return
        path = folder / "settings.json"
        settings = json.loads(json.dumps(settings))
        if path.exists():
            differences = _differences(json.loads(path.read_text()), settings)
            if differences:
                raise RunConflictError(
                    f"{folder} holds a run with other settings; take another directory or the same settings:\n"
                    + "\n".join(differences)
                )
        elif self.writes:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(settings, indent=2) + "\n")
        if tensorboard and self.writes:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"))

    def log(self, **metrics: Any) -> None:
        """Appends a line to metrics.jsonl."""
        if self.writes:
            assert self.folder is not None
            with (self.folder / "metrics.jsonl").open("a") as file:
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

    def _write(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.writes:
            assert self.folder is not None
            plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            try:
                with atomic_write(self.folder / name) as temporary:
                    temporary.write_bytes(serialize(plain, metadata={"ddf": json.dumps(facts)}))
            except OSError as error:
                message = f"cannot write to {self.folder}: {error.strerror or error}; what was finished there is kept"
                raise OSError(error.errno, message) from error

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if self.folder is None or not (self.folder / name).exists():
            return None
        try:
            with safe_open(self.folder / name, framework="pt") as file:
                facts = json.loads(file.metadata()["ddf"])
                return {key: file.get_tensor(key) for key in file.keys()}, facts  # noqa: SIM118 (not a dict)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunConflictError(
                f"{self.folder / name} is damaged ({error}); remove it, and the run goes on from what it had finished"
            ) from error


def _differences(old: Any, new: Any, where: str = "") -> list[str]:
    """The places where two pieces of plain data differ, one line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = [(f"{where}.{key}" if where else key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [f"  {where}: {json.dumps(old)} in the directory, {json.dumps(new)} now"]
    return [line for key, a, b in pairs for line in _differences(a, b, key)]
