"""Archives as napari label layers. napari finds this reader through the manifest napari.yaml."""

__all__ = ["get_reader"]

from collections.abc import Callable
from typing import Any

from ddf.archive.reader import Archive
from ddf.errors import DdfError
from ddf.shapes import Array

Layer = tuple[Array, dict[str, Any], str]

_SUFFIXES = (".ddf", ".ddfm")
_MOST = 100  # layers; more would make napari unusable


def get_reader(path: str | list[str]) -> Callable[[str | list[str]], list[Layer]] | None:
    """Return a function that reads layers if every path is that of an archive, otherwise None."""
    paths = [path] if isinstance(path, str) else path
    return read_layers if all(str(one).lower().endswith(_SUFFIXES) for one in paths) else None


def read_layers(path: str | list[str]) -> list[Layer]:
    """Return the first hundred maps of archives as layers; other files and vectors are skipped."""
    layers: list[Layer] = []
    for one in [path] if isinstance(path, str) else path:
        with Archive(one) as archive:
            for number, name in enumerate(archive):
                if len(layers) == _MOST:
                    break
                array = archive[number]
                if array.ndim >= 2 and array.size:
                    layers.append((array, {"name": str(name)}, "labels"))
    if not layers:
        raise DdfError(f"{path} contains no label maps")
    return layers
