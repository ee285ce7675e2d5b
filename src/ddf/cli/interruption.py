"""Handle Ctrl-C and other termination signals at any moment.

This module runs before all others and imports only what Python has already loaded.
"""

__all__ = ["code", "forget", "happened", "prepare"]

import signal
import sys
from types import FrameType
from typing import Any

_SIGNALS = "SIGINT", "SIGTERM", "SIGHUP"  # not every system has all of them
_AGAIN = 0.02  # seconds until a delayed interruption is retried

_waiting = False  # whether an interruption is delayed
_happened = False
_number = signal.SIGINT  # the signal received


def prepare() -> None:
    """Turn Ctrl-C and other termination signals into a `KeyboardInterrupt` that is raised when it is safe."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise the parent process disabled Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)
    for name in _SIGNALS[1:]:
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            signal.signal(getattr(signal, name), _end)
    sys.unraisablehook = _ignored


def forget() -> None:
    """Ignore signals from here on: only Python's own cleanup is left."""
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def code() -> int:
    """Return the exit code of an interrupted process."""
    return 128 + _number


def happened() -> bool:
    """Return whether a signal was received: C code may turn the `KeyboardInterrupt` into another error."""
    return _happened


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _happened
    if _importing(frame):
        _try_later()
    else:
        _happened = True
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    global _number
    _number = signal.Signals(number)
    _interrupt(number, frame)


def _ignored(unraisable: Any) -> None:
    """Retry an interruption that Python ignored, because it was raised while an object was deleted."""
    if unraisable.exc_type is KeyboardInterrupt:
        _try_later()
    elif not _happened:  # an interrupted constructor leaves an object that cannot be deleted properly
        sys.__unraisablehook__(unraisable)


def _importing(frame: FrameType | None) -> bool:
    """Return whether an import is in progress: an exception while a C++ extension loads aborts the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _try_later() -> None:
    global _waiting
    if _waiting:
        return
    import _thread
    import threading

    def again() -> None:
        global _waiting
        _waiting = False
        _thread.interrupt_main(_number)

    timer = threading.Timer(_AGAIN, again)
    timer.daemon = True
    _waiting = True
    timer.start()
