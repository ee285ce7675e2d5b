"""Compile the kernel with numba on first use and cache the result."""

__all__ = ["announce", "code_folder", "jit"]

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba as nb

from ddf.files import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

_SOURCES = ("arithmetic.py", "context.py", "state.py", "kernel.py", "compiling.py")


@cache
def code_folder() -> Path:
    """Return the folder for compiled code.

    Its name includes a hash of the sources, because numba does not detect changes to a callee in another file.
    """
    sha = hashlib.sha256(nb.__version__.encode())
    for name in _SOURCES:
        sha.update(Path(__file__).with_name(name).read_bytes())
    return cache_folder() / f"numba-{sha.hexdigest()[:16]}"


def jit(function: Function) -> Function:
    """Compile a function on first use.

    Compiled functions release the GIL and do not count references to arrays, which would cost more than the arithmetic;
    they must not allocate memory.
    """
    if nb.config.DISABLE_JIT:
        return function
    before = nb.config.CACHE_DIR
    if not before and _usable(code_folder()):
        nb.config.CACHE_DIR = str(code_folder())
    try:
        return nb.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function)
    finally:
        nb.config.CACHE_DIR = before


@cache
def _usable(folder: Path) -> bool:
    """Return whether compiled code can be written to a folder; if not, numba chooses another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@cache
def announce() -> None:
    """Print a notice, once, that the first use takes a few seconds, if nothing is cached and stderr is a terminal."""
    if not nb.config.DISABLE_JIT and not any(code_folder().rglob("*.nbi")) and sys.stderr.isatty():
        print("ddf: compiling the codec for this machine, once (a few seconds) …", file=sys.stderr)
