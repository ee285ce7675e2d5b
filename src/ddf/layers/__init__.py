"""The layers of a flow: one contract (`Layer`), one file per idea."""

__all__ = [
    "ChannelSplit",
    "Checkerboard",
    "Conditional",
    "DenoisingCoupling",
    "Draw",
    "Emit",
    "Layer",
    "ModularCoupling",
    "Partition",
    "Rearrangement",
    "Shuffle",
    "SplitPrior",
    "Squeeze",
]

from ddf.layers.conditional import Conditional
from ddf.layers.denoising import DenoisingCoupling
from ddf.layers.layer import Draw, Emit, Layer, Rearrangement
from ddf.layers.modular import ModularCoupling
from ddf.layers.partition import ChannelSplit, Checkerboard, Partition
from ddf.layers.shuffle import Shuffle
from ddf.layers.split_prior import SplitPrior
from ddf.layers.squeeze import Squeeze
