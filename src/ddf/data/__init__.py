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

from ddf.data.cityscapes import cityscapes
from ddf.data.classes import Classes, Columns
from ddf.data.dataset import DataError, DataSet
from ddf.data.download import DownloadError
from ddf.data.eight_gaussians import EightGaussians
from ddf.data.label_maps import LabelMaps, crop, read_label_maps
from ddf.data.mnist import mnist, static_mnist
from ddf.data.redrawn import Redrawn
from ddf.data.tables import read_table
