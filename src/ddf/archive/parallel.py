"""Call functions in threads, with results in the order of the calls."""

__all__ = ["Pool", "check_counts", "thread_count", "usable_cores"]

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

Result = TypeVar("Result")

_AHEAD = 2  # jobs in flight for each thread


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Generic[Result]):
    """Calls functions in threads and returns their results in the order of the calls.

    Arguments:
        threads: The number of threads. With one, calls run in the caller's thread.

    Examples:
        >>> pool = Pool(2)
        >>> for number in range(4):
        ...     pool.submit(pow, number, 2)
        >>> list(pool.rest())
        [0, 1, 4, 9]
        >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads) if threads > 1 else None
        self._limit = _AHEAD * threads if threads > 1 else 0
        self._jobs: deque[Future[Result]] = deque()

    def submit(self, function: Callable[..., Result], *arguments: object) -> None:
        """Start a call."""
        if self._executor is not None:
            self._jobs.append(self._executor.submit(function, *arguments))
        else:
            job: Future[Result] = Future()
            job.set_result(function(*arguments))
            self._jobs.append(job)

    def ready(self) -> Iterator[Result]:
        """Yield finished results; wait only while too many calls are in flight."""
        while self._jobs and (len(self._jobs) > self._limit or self._jobs[0].done()):
            yield self._jobs.popleft().result()

    def rest(self) -> Iterator[Result]:
        """Yield the remaining results."""
        while self._jobs:
            yield self._jobs.popleft().result()

    def close(self) -> None:
        """Cancel the calls that have not started and end the threads."""
        self._jobs.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


def check_counts(**counts: int) -> None:
    """Raise an error unless a value is a positive integer."""
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} is out of range: pass a positive integer")


def thread_count(threads: int | None) -> int:
    """Return the number of threads to use: the one passed, or one per core."""
    if threads is None:
        return usable_cores()
    check_counts(threads=threads)
    return threads
