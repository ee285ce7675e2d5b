"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _namespace(doctest_namespace: dict[str, object]) -> None:
    """Examples in docstrings may use torch without importing it."""
    doctest_namespace["torch"] = torch


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> str:
    """Every device there is."""
    return request.param


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    """Tests run in several processes at once: one thread each."""
    torch.set_num_threads(1)
