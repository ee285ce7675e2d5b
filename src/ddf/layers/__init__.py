"""The layers of a flow: one contract (`Layer`), one file per idea."""

__all__ = [
    "ChannelSplit",
    "Conditional",
    "DenoisingCoupling",
    "DenoisingCouplingSpec",
    "DenoisingSplit",
    "DenoisingSplitSpec",
    "Draw",
    "Emit",
    "LatticeOrder",
    "Layer",
    "LayerSpec",
    "Loss",
    "ModularCoupling",
    "ModularCouplingSpec",
    "Movement",
    "NetLayer",
    "Order",
    "OrderedSplit",
    "OrderedSplitSpec",
    "Partition",
    "Rearrangement",
    "Shuffle",
    "ShuffleSpec",
    "SplitPrior",
    "SplitPriorSpec",
    "Squeeze",
    "SqueezeSpec",
]

from ddf.layers.conditional import Conditional
from ddf.layers.denoising import DenoisingCoupling, DenoisingCouplingSpec
from ddf.layers.denoising_split import DenoisingSplit, DenoisingSplitSpec
from ddf.layers.layer import Draw, Emit, Layer, LayerSpec, Movement, Rearrangement
from ddf.layers.modular import ModularCoupling, ModularCouplingSpec
from ddf.layers.net_layer import Loss, NetLayer
from ddf.layers.ordered_split import OrderedSplit, OrderedSplitSpec
from ddf.layers.orders import LatticeOrder, Order
from ddf.layers.partition import ChannelSplit, Partition
from ddf.layers.shuffle import Shuffle, ShuffleSpec
from ddf.layers.split_prior import SplitPrior, SplitPriorSpec
from ddf.layers.squeeze import Squeeze, SqueezeSpec
