"""Ctrl-C and other signals to end, at any moment.

Nothing is imported here but what Python has loaded anyway: this comes before all else.
"""

__all__ = ["code", "forget", "happened", "prepare"]

import signal
from types import FrameType

_SIGNALS = "SIGINT", "SIGTERM", "SIGHUP"  # not all systems have all
_AGAIN = 0.02  # seconds until an interruption that had to wait tries once more

_waiting = False  # whether one does
_happened = False
_number = signal.SIGINT  # which signal it was


def prepare() -> None:
    """Makes Ctrl-C a `KeyboardInterrupt` that comes when it can be borne, and so what else tells a process to end."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants no Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)
    for name in _SIGNALS[1:]:
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            signal.signal(getattr(signal, name), _end)


def forget() -> None:
    """Has no signal come between any more: all is done, and what is left is Python's own clearing up."""
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def code() -> int:
    """The exit code of a process that was interrupted."""
    return 128 + _number


def happened() -> bool:
    """Whether there was one: an error after it may be all that C code made of the `KeyboardInterrupt`."""
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


def _importing(frame: FrameType | None) -> bool:
    """Whether an import is under way: an exception while a C++ extension is loaded aborts the process."""
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
