"""Two small trained models from the golden archives, which need neither torch nor training."""

import numpy as np
import pytest

from ddf.archive import Archive
from ddf.data.drawn import draw_maps, draw_scenes
from ddf.labelmaps import CausalFlow
from tests.zoo import GOLDEN


def golden_model(name: str) -> CausalFlow:
    model = Archive(GOLDEN / f"{name}-1.ddf").model
    assert isinstance(model, CausalFlow)
    return model


@pytest.fixture(scope="session")
def any_labels() -> CausalFlow:
    """Return a model that accepts any labels."""
    return golden_model("labels-any")


@pytest.fixture(scope="session")
def known() -> CausalFlow:
    """Return a model with the five classes 7, 0, 255, −1 and 300, in this order."""
    return golden_model("labels-known")


@pytest.fixture(scope="session", params=["labels-any", "labels-known"])
def model(request: pytest.FixtureRequest) -> CausalFlow:
    return golden_model(request.param)


@pytest.fixture(scope="session")
def maps() -> list[np.ndarray]:
    """Return label maps that no model was trained on."""
    return draw_maps(12, seed=7, sizes=(40, 60))


@pytest.fixture(scope="session")
def scenes(known: CausalFlow) -> list[np.ndarray]:
    """Return maps of the classes of `known`."""
    return [known.classes.to_values(scene) for scene in draw_scenes(8, seed=7, sizes=(40, 60))]
