"""What all tests share."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _example(
    request: pytest.FixtureRequest,
    doctest_namespace: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Examples in docstrings may use torch without importing it, and write files without leaving them."""
    if isinstance(request.node, pytest.DoctestItem):
        doctest_namespace["torch"] = torch
        monkeypatch.chdir(tmp_path)


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
