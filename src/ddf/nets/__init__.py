"""The classifiers n(x_a) → logits."""

__all__ = ["MLP", "DenseNet", "Net"]

from ddf.nets.densenet import DenseNet
from ddf.nets.mlp import MLP
from ddf.nets.net import Net
