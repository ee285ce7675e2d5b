"""Work in several processes, whose results come in the order in which it was given out."""

__all__ = ["LostProcessError", "Pool", "usual_batch"]

import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from ddf.codec.flow import IntegerFlow

_AHEAD = 4  # jobs for each process that are given out at most
_THREADS = 2  # with a GPU: while it works for one of them, the other one codes

_BATCH = 16
_BATCH_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 24}

_model: IntegerFlow | None = None  # in a worker: the model of all jobs


def usual_batch(model: IntegerFlow | None, pixels: int) -> int:
    """How many arrays of so many pixels are worked on together if nobody says: nets are faster on several."""
    if model is None:
        return 1
    return max(1, min(_BATCH, _BATCH_PIXELS.get(model.device.type, _BATCH_PIXELS["cpu"]) // max(1, pixels)))


class LostProcessError(RuntimeError):
    """A process that was to do some of the work, and is gone."""


class Pool:
    """Calls `function(model, *arguments)`, here or in other processes, on the device that the model is on.

    Arguments:
        model: What every call is given first.
        processes: How many processes work at once; 1 for this one alone.
    """

    def __init__(self, model: IntegerFlow | None, processes: int = 1) -> None:
        self.model = model
        self._limit = _AHEAD * processes
        self._jobs: deque[Any] = deque()
        self._executor: Executor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._call: Callable[..., Any] = _call
        if processes == 1 and model is not None and model.device.type == "cuda":
            self._limit = _AHEAD
            self._executor = ThreadPoolExecutor(_THREADS)
            self._call = self._call_here
        elif processes > 1:
            path, device = None, "cpu"
            if model is not None:
                # What is handed over as an argument keeps the next process from being started until this one reads it.
                self._folder = tempfile.TemporaryDirectory(prefix="ddf-")
                path, device = Path(self._folder.name) / "model", str(model.device)
                model.save(path)
            # Forked processes would inherit threads of PyTorch in the middle of their work.
            self._executor = ProcessPoolExecutor(processes, get_context("spawn"), _start, (path, device))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Gives out a call."""
        if self._executor is None:
            self._jobs.append(function(self.model, *arguments))
        else:
            with _undisturbed():  # by Ctrl-C, which processes that are started here would not be ready for
                self._jobs.append(self._executor.submit(self._call, function, *arguments))

    def _call_here(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """In a thread: on a stream of its own, so that no thread waits for what another has given to the GPU."""
        import torch

        assert self.model is not None
        with torch.cuda.device(self.model.device), torch.cuda.stream(torch.cuda.Stream()):
            return function(self.model, *arguments)

    def ready(self) -> Iterator[Any]:
        """Results that are there; waits only if too many calls are out."""
        while self._jobs and (self._executor is None or len(self._jobs) > self._limit or self._jobs[0].done()):
            yield self._result()

    def rest(self) -> Iterator[Any]:
        """All other results."""
        while self._jobs:
            yield self._result()

    def _result(self) -> Any:
        job = self._jobs.popleft()
        try:
            return job.result() if isinstance(job, Future) else job
        except BrokenProcessPool as error:
            raise LostProcessError(
                "one of the processes at work was ended by something else, perhaps for want of memory; "
                "try fewer of them (--processes, in Python processes=)"
            ) from error

    def close(self, at_once: bool = False) -> None:
        """Ends the processes.

        Arguments:
            at_once: Whether nobody wants what they are at.
        """
        if self._executor is not None:
            with _undisturbed():
                if at_once:
                    for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                        process.terminate()
                self._executor.shutdown(wait=True, cancel_futures=True)
                if self._folder is not None:
                    self._folder.cleanup()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Lets Ctrl-C wait; processes that are started meanwhile never hear of it."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of it
        yield
        return
    waiting: list[FrameType | None] = []
    # Another thread may be the one that is told, and Python has the handler run here all the same.
    handler = signal.signal(signal.SIGINT, lambda _, frame: waiting.append(frame))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)  # None: of another language
        if waiting and callable(handler):
            handler(signal.SIGINT, waiting[0])


def _start(path: Path | None, device: str) -> None:
    import torch

    global _model
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gave out the work
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _model = None if path is None else IntegerFlow.load(path).to(device)


def _end_with_parent() -> None:
    """In a worker: whose work is for nobody once the process that gave it out is gone."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_model, *arguments)
