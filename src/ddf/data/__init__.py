"""Data sets: arrays of symbols. They are independent of flows."""

__all__ = [
    "Classes",
    "Columns",
    "DataError",
    "DataSet",
    "DownloadError",
    "EightGaussians",
    "LabelMaps",
    "Resampled",
    "cityscapes",
    "cop",
    "crop",
    "mnist",
    "mushrooms",
    "read_label_maps",
    "read_table",
    "static_mnist",
]

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddf.classes import Classes, Columns
from ddf.errors import DataError, DownloadError
from ddf.extras import needed_for

if TYPE_CHECKING:
    from ddf.data.binary_mnist import mnist, static_mnist
    from ddf.data.cityscapes_maps import cityscapes
    from ddf.data.columns import cop, mushrooms
    from ddf.data.dataset import DataSet
    from ddf.data.eight_gaussians import EightGaussians
    from ddf.data.label_maps import LabelMaps, crop, read_label_maps
    from ddf.data.resampled import Resampled
    from ddf.data.tables import read_table

_HOME_OF = {  # imported when first used, because they import torch, which codecs do not need
    "DataSet": "dataset",
    "EightGaussians": "eight_gaussians",
    "LabelMaps": "label_maps",
    "Resampled": "resampled",
    "cityscapes": "cityscapes_maps",
    "cop": "columns",
    "crop": "label_maps",
    "mnist": "binary_mnist",
    "mushrooms": "columns",
    "read_label_maps": "label_maps",
    "read_table": "tables",
    "static_mnist": "binary_mnist",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ddf.data' has no attribute {name!r}")
    with needed_for(f"ddf.data.{name}"):
        value = getattr(import_module(f"ddf.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
