"""The base class of layers with a net."""

__all__ = ["Loss", "NetLayer"]

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddf.layers.layer import Layer


class Loss(NamedTuple):
    """The loss of a batch: the mean bits per predicted symbol, which are reported, and the objective to minimize."""

    bits: Tensor
    objective: Tensor


class NetLayer(Layer):
    """A layer with a net.

    Unless the flow is trained end to end, `fit` trains the net on the output of the layers before it, and then freezes
    the layer.

    Arguments:
        net: The net.
        num_classes: The number of classes K, for a net without an attribute of that name.
    """

    def __init__(self, net: nn.Module, num_classes: int | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(net, nn.Module):
            raise TypeError(f"{name}: the net must be a torch.nn.Module, not a {type(net).__name__}")
        classes = getattr(net, "num_classes", num_classes)
        if classes is None or num_classes not in (None, classes):
            raise ValueError(f"{name}: num_classes={num_classes}, but the net has {classes or 'no num_classes'}")
        self.net = net
        self.num_classes = int(classes)

    def logits(self, *given: Any) -> Tensor:
        """Return the logits of the net. If the layer is frozen, gradients reach the inputs, but not the weights."""
        weights = {name: weight.detach() for name, weight in self.net.named_parameters() if weight.requires_grad}
        if self.frozen and weights:
            found: Tensor = functional_call(self.net, weights, given)
        else:
            found = self.net(*given)
        return found

    @abstractmethod
    def loss(self, net: nn.Module, x: Tensor) -> Loss:
        """Return the loss of the net in training.

        Arguments:
            net: The net of the layer, which may be wrapped for distributed training.
            x: The symbols that reach the layer.
        """

    def score(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the mean bits per predicted symbol, for validation."""
        return self.loss(net, x).bits

    def check_data(self, symbols: Iterable[Tensor]) -> None:
        """Raise an error if batches of symbols include symbols that the layer cannot be trained on."""

    # ---- Counts, taken once the net has been trained

    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        """Return the counts that the layer is fitted to, over batches of symbols; an empty tensor if it needs none."""
        return torch.empty(0)

    def set_counts(self, counts: Tensor) -> object:
        """Fit the layer to the result of `count`."""
        return self
