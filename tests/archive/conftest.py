"""What tests of the codec share."""

import numpy as np
import pytest

from ddf.codec import Archive, IntegerFlow
from tests.zoo import GOLDEN, draw_maps


@pytest.fixture(scope="module")
def model() -> IntegerFlow:
    """An integer flow that has learned what discs look like."""
    found = Archive(GOLDEN / "label-maps-1.ddf").model
    assert found is not None
    return found


@pytest.fixture(scope="module")
def maps() -> list[np.ndarray]:
    """Maps that it knows how to code."""
    return draw_maps(20, (43, 38), 4, seed=5)
