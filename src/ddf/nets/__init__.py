"""The classifiers n(x_a) → logits."""

__all__ = ["MLP", "ContextNet", "DenseNet", "Net"]

from ddf.nets.context import ContextNet
from ddf.nets.densenet import DenseNet
from ddf.nets.mlp import MLP
from ddf.nets.net import Net
