"""The classifiers n(x_a) → logits."""

__all__ = ["MLP", "DenseNet", "DenseNetSpec", "MLPSpec", "Net", "NetSpec", "UNet", "UNetSpec"]

from ddf.nets.densenet import DenseNet, DenseNetSpec
from ddf.nets.mlp import MLP, MLPSpec
from ddf.nets.net import Net, NetSpec
from ddf.nets.unet import UNet, UNetSpec
