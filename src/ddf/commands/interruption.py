"""Ctrl-C, at any moment. Nothing is imported here but what Python has loaded anyway: this comes before all else."""

__all__ = ["happened", "prepare"]

import signal
from types import FrameType

_AGAIN = 0.02  # seconds until an interruption that had to wait tries once more

_waiting = False  # whether one does
_happened = False


def prepare() -> None:
    """Makes Ctrl-C a `KeyboardInterrupt` that comes when it can be borne."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants no Ctrl-C
        signal.signal(signal.SIGINT, _interrupt)


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
        _thread.interrupt_main()

    timer = threading.Timer(_AGAIN, again)
    timer.daemon = True
    _waiting = True
    timer.start()
