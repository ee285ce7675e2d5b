"""Create and save matplotlib figures, without its global state."""

__all__ = ["new_figure", "save_figure"]

from os import PathLike
from pathlib import Path
from typing import Any

from ddf.extras import needed_for
from ddf.files import atomic_write


def new_figure(width: float, height: float, layout: Any = "constrained") -> Any:
    """Return an empty figure.

    Arguments:
        width: Its width in inches.
        height: Its height in inches.
        layout: The layout engine; see `matplotlib.figure.Figure`.
    """
    with needed_for("pictures"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def save_figure(figure: Any, path: str | PathLike[str]) -> None:
    """Write a figure as a PNG file, atomically."""
    with atomic_write(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
