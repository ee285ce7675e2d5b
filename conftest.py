"""Fixtures and settings for all tests."""

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
    """Let docstring examples use torch without an import, and run them in a temporary folder."""
    if isinstance(request.node, pytest.DoctestItem):
        doctest_namespace["torch"] = torch
        monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> str:
    """Return every available device in turn."""
    return request.param


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    """Limit each process to one thread, because tests run in parallel."""
    torch.set_num_threads(1)
