"""Data sets: arrays of symbols. Nothing here knows of flows."""

__all__ = ["EightGaussians", "Redrawn"]

from ddf.data.eight_gaussians import EightGaussians
from ddf.data.redrawn import Redrawn
