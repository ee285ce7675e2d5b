"""Type aliases."""

__all__ = ["Array"]

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
