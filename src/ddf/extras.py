"""Optional dependencies, and the extra of the package that installs each of them."""

__all__ = ["EXTRAS", "needed_for", "require"]

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ddf.errors import MissingExtraError

EXTRAS = {
    "torch": "train",
    "constriction": "train",
    "pooch": "train",
    "matplotlib": "plot",
    "fsspec": "remote",
    "aiohttp": "remote",
    "tensorboard": "tensorboard",
    "zarr": "zarr",
    "numcodecs": "numcodecs",
    "dask": "dask",
    "distributed": "dask",
}
"""Module → the extra that installs it."""


def require(module: str, purpose: str) -> None:
    """Raise an error if an optional module is not installed, without importing it.

    Arguments:
        module: The module.
        purpose: What it is needed for.

    Raises:
        MissingExtraError: It is not installed.
    """
    if find_spec(module) is None:
        raise _missing(module, purpose)


@contextmanager
def needed_for(purpose: str) -> Iterator[None]:
    """Turn a failed import of an optional module into an error that names its extra.

    Arguments:
        purpose: What the imported modules are needed for.

    Raises:
        MissingExtraError: An optional module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        raise _missing(module, purpose) from error


def _missing(module: str, purpose: str) -> MissingExtraError:
    return MissingExtraError(
        f"{module} is not installed; it is needed for {purpose}: "
        f"pip install 'discrete-denoising-flows[{EXTRAS[module]}]'",
        name=module,
    )
