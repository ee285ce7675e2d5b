"""Compare images."""

from pathlib import Path

import numpy as np
from PIL import Image


def same_image(one: Path, two: Path) -> bool:
    """Return whether two image files have the same pixels, mode, palette and transparency."""
    with Image.open(one) as first, Image.open(two) as second:
        return (
            first.mode == second.mode
            and first.getpalette() == second.getpalette()
            and first.info.get("transparency") == second.info.get("transparency")
            and np.array_equal(np.asarray(first), np.asarray(second))
        )
