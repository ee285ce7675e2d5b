"""Flows as plain data: all specs, which are defined next to the modules that they describe."""

__all__ = [
    "DenoisingCouplingSpec",
    "DenoisingSplitSpec",
    "DenseNetSpec",
    "FactorizedCategoricalSpec",
    "FlowSpec",
    "LatticeNetSpec",
    "LayerSpec",
    "MLPSpec",
    "ModularCouplingSpec",
    "NetSpec",
    "OrderedSplitSpec",
    "ShuffleSpec",
    "SplitPriorSpec",
    "SqueezeSpec",
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
from ddf.nets import DenseNetSpec, LatticeNetSpec, MLPSpec, NetSpec
from ddf.plain import describe
