"""Flows as plain data: all specs, which are defined next to the modules that they describe."""

__all__ = [
    "DenoisingCouplingSpec",
    "DenoisingSplitSpec",
    "DenseNetSpec",
    "FactorizedCategoricalSpec",
    "FlowSpec",
    "LayerSpec",
    "MLPSpec",
    "ModularCouplingSpec",
    "NetSpec",
    "OrderedSplitSpec",
    "ShuffleSpec",
    "SplitPriorSpec",
    "SqueezeSpec",
    "UNetSpec",
    "describe",
]

from ddf.base import FactorizedCategoricalSpec
from ddf.flow import FlowSpec
from ddf.layers import (
    DenoisingCouplingSpec,
    DenoisingSplitSpec,
    LayerSpec,
    ModularCouplingSpec,
    OrderedSplitSpec,
    ShuffleSpec,
    SplitPriorSpec,
    SqueezeSpec,
)
from ddf.nets import DenseNetSpec, MLPSpec, NetSpec, UNetSpec
from ddf.plain import describe
