"""What the layers with a net have in common: one part of the symbols is predicted from the other."""

__all__ = ["Conditional"]

import torch
from torch import Tensor
from torch.func import functional_call

from ddf.layers.layer import Layer, Shape, over_classes
from ddf.layers.partition import Partition, as_partition
from ddf.nets.net import Net
from ddf.symbols import check_symbols


class Conditional(Layer):
    """A layer whose net predicts one part of the symbols from the other.

    Arguments:
        net: The classifier, from the shape of the part that is given to the shape of the part that is predicted.
        partition: How the symbols are cut in two: `"channels"`, `"checkerboard"`, or a `Partition`.
    """

    def __init__(self, net: Net, partition: Partition | str = "channels") -> None:
        super().__init__()
        if not isinstance(net, Net):
            raise TypeError(f"{type(self).__name__} needs a Net, but is given a {type(net).__name__}")
        self.net = net
        self.partition = as_partition(partition)

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return self.net.num_classes

    def part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """The shapes of the part that is given and of the part that is predicted."""
        return self.partition.shapes(shape)

    def predicted_shape(self, target: Shape) -> Shape:
        """What the net must predict for a target part of that shape."""
        return target

    def checked_part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """`part_shapes`, after making sure that they can be had and that the net fits them."""
        name = type(self).__name__
        try:
            given, target = self.part_shapes(shape)
            predicted = self.net.output_shape(given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if predicted != self.predicted_shape(target):
            raise ValueError(
                f"{name}: the net predicts symbols of shape {predicted}, but for symbols of shape {shape} "
                f"it has to predict {self.predicted_shape(target)}"
            )
        return given, target

    def output_shape(self, shape: Shape) -> Shape:
        self.checked_part_shapes(shape)
        return shape

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cuts symbols in two, after making sure that they are such as the layer works on."""
        self.checked_part_shapes(tuple(x.shape[1:]))
        return self.partition.split(check_symbols(x, self.num_classes))

    def given_and_target(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the symbols that the net is given, and the part it is to predict; unchecked, for training."""
        return self.partition.split(x)

    def split_vectors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cuts one-hot vectors (batch, K, channels, *spatial) in two."""
        a, b = over_classes(self.partition.split, x)
        return a, b

    def merge_vectors(self, a: Tensor, b: Tensor) -> Tensor:
        """Joins one-hot vectors."""
        return self.partition.merge(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])

    def classify(self, given: Tensor) -> Tensor:
        """The net's logits. Once the layer is frozen, the weights get no gradients, only what is given."""
        if not self.frozen:
            return self.net(given)
        return functional_call(self.net, {name: weight.detach() for name, weight in self._weights()}, (given,))

    def predict(self, given: Tensor) -> Tensor:
        """The net's logits, as probabilities are made of them."""
        return self._finite(self.classify(given))

    @torch.no_grad()
    def decide(self, given: Tensor) -> Tensor:
        """The net's logits as decisions are made of them: whole numbers, in units of 1/1024.

        A coupling acts on the order of the logits. In single precision they move by 1e-6 with the size of the batch
        alone, so that now and then a near tie falls the other way and a sample does not decode. In double precision
        that noise is a billion times smaller, and autocast and TF32 leave it alone. What is left of it would still
        separate logits that are equal but for rounding (those of two classes that never occurred in training are), so
        they are rounded to a grid that is far coarser than the noise, and ties go to the lowest class.
        """
        weights = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in self._weights()}
        training = [module for module in self.net.modules() if module.training]
        try:
            self.net.eval()
            logits = self._finite(functional_call(self.net, weights, (given,)))
        finally:
            for module in training:
                module.training = True
        # Not to the nearest: that would turn where numbers such as 1/2048 are, which nets do produce.
        return (logits * 1024 + 1 / 3).floor()

    def _weights(self) -> list[tuple[str, Tensor]]:
        return [*self.net.named_parameters(), *self.net.named_buffers()]

    def _finite(self, logits: Tensor) -> Tensor:
        if not logits.detach().isfinite().all():
            value = logits.detach()[~logits.detach().isfinite()][0].item()
            raise ValueError(f"{type(self).__name__}: the net's logits contain {value}; are its weights finite?")
        return logits

    def extra_repr(self) -> str:
        return f"{self.net}, {self.partition}"
