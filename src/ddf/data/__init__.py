"""Data sets: arrays of symbols. Nothing here knows of flows."""

__all__ = [
    "Classes",
    "Columns",
    "DataError",
    "DataSet",
    "DownloadError",
    "EightGaussians",
    "LabelMaps",
    "Redrawn",
    "cityscapes",
    "crop",
    "mnist",
    "read_label_maps",
    "read_table",
    "static_mnist",
]

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddf.classes import Classes, Columns
    from ddf.data.cityscapes import cityscapes
    from ddf.data.dataset import DataError, DataSet
    from ddf.data.download import DownloadError
    from ddf.data.eight_gaussians import EightGaussians
    from ddf.data.label_maps import LabelMaps, crop, read_label_maps
    from ddf.data.mnist import mnist, static_mnist
    from ddf.data.redrawn import Redrawn
    from ddf.data.tables import read_table

_HOMES = {  # imported when first used: most need torch, and codecs do not
    "cityscapes": ("cityscapes",),
    "classes": ("Classes", "Columns"),
    "dataset": ("DataError", "DataSet"),
    "download": ("DownloadError",),
    "eight_gaussians": ("EightGaussians",),
    "label_maps": ("LabelMaps", "crop", "read_label_maps"),
    "mnist": ("mnist", "static_mnist"),
    "redrawn": ("Redrawn",),
    "tables": ("read_table",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ddf.data' has no attribute {name!r}")
    value = getattr(import_module(f"ddf.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps `mnist` and `cityscapes` functions: importing the modules of these names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
