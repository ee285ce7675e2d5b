"""The classifiers n(x_a) → logits."""

__all__ = ["MLP", "DenseNet", "DenseNetSpec", "LatticeNet", "LatticeNetSpec", "MLPSpec", "Net", "NetSpec"]

from ddf.nets.densenet import DenseNet, DenseNetSpec
from ddf.nets.lattice_net import LatticeNet, LatticeNetSpec
from ddf.nets.mlp import MLP, MLPSpec
from ddf.nets.net import Net, NetSpec
