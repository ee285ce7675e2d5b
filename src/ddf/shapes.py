"""Shapes of samples, and the arrays that have them."""

__all__ = ["Array", "Shape", "check_bytes", "check_size", "fits", "format_shape"]

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddf.errors import LimitError

Array = np.ndarray[Any, Any]

Shape = tuple[int | None, ...]
"""(channels, *spatial) of one sample, or (D,) for a vector. None stands for any spatial size."""


def check_size(owner: str, **sizes: int) -> None:
    """Raise an error that names `owner` unless all sizes are positive integers."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{owner}: {name}={size!r} must be a positive integer")


def check_bytes(what: str, size: int, max_bytes: int) -> None:
    """Raise an error for an array that is larger than the limit."""
    if size > max_bytes:
        raise LimitError(
            f"{what}: {size:,} bytes, but the limit is {max_bytes:,}; pass a larger one (--max-size, in Python "
            "max_bytes=) if you expect this size"
        )


def fits(shape: Sequence[int | None], expected: Shape) -> bool:
    """Return whether a shape matches another one, in which None matches any size.

    Examples:
        >>> fits((1, 32, 64), (1, None, None)), fits((1, 32), (1, None, None)), fits((2, 32), (1, None))
        (True, False, False)
    """
    return len(shape) == len(expected) and all(
        want is None or have == want for have, want in zip(shape, expected, strict=True)
    )


def format_shape(shape: Sequence[int | None]) -> str:
    """Format a shape for messages.

    Examples:
        >>> format_shape((1, None, 64))
        '1 × any × 64'
    """
    return " × ".join("any" if size is None else str(size) for size in shape)
