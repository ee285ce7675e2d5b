"""The base class of layers whose net predicts one part of the symbols from the other."""

__all__ = ["Conditional"]

from collections.abc import Iterable
from math import log

import torch
from torch import Tensor, nn

from ddf.layers.net_layer import Loss, NetLayer
from ddf.layers.partition import ChannelSplit, Partition
from ddf.logits import check_limits, checked_limits, impossible_classes, mask_classes
from ddf.nets.stable import PER_NAT, evaluation_mode, stable_logits
from ddf.shapes import Shape
from ddf.symbols import one_hot

_ANY_SIZE = 8  # the spatial size at which a net of unknown output shape is tried


class Conditional(NetLayer):
    """A layer whose net predicts one part of the symbols, the target, from the other part, which is given.

    Arguments:
        net: The classifier: a `Net`, or any module that maps given symbols (batch, channels, *spatial), integers of any
            dtype, to logits (batch, K, channels, *spatial) of the target. In flows that are trained end to end, it is
            also given one-hot vectors (batch, K, channels, *spatial) in floating point.
        partition: How the symbols are split in two.
        num_classes: The number of classes K, for a net without an attribute of that name.
        limits: The number of classes of each channel of the target, for tables whose columns have different numbers of
            classes; None if all have K. Classes that a channel lacks are never predicted.
    """

    impossible: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        partition: Partition | None = None,
        num_classes: int | None = None,
        limits: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(net, num_classes)
        name = type(self).__name__
        if partition is not None and not isinstance(partition, Partition):
            raise TypeError(f"{name}: the partition must be a Partition, such as ChannelSplit(), not {partition!r}")
        self.partition = ChannelSplit() if partition is None else partition
        self.limits = checked_limits(limits, self.num_classes)
        self.register_buffer("impossible", impossible_classes(self.limits, self.num_classes), persistent=False)

    # ---- The two parts: what is given, and the target

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split symbols into the given part and the target."""
        return self.partition.split(x)

    def merge(self, given: Tensor, target: Tensor) -> Tensor:
        """Undo `split`."""
        return self.partition.merge(given, target)

    def part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return the shapes of the given part and of the target."""
        return self.partition.shapes(shape)

    def predicted_shape(self, target: Shape) -> Shape:
        """Return the shape that the net must predict for a target of that shape."""
        return target

    def checked_part_shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return `part_shapes`; raise an error if the net does not fit them."""
        name = type(self).__name__
        try:
            given, target = self.part_shapes(shape)
            predicted = self._net_output_shape(given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if self.limits is not None and len(self.limits) != target[0]:
            raise ValueError(f"{name}: limits={self.limits} must have one number for each of {target[0]} channels")
        if predicted != self.predicted_shape(target):
            raise ValueError(
                f"{name}: the net predicts symbols of shape {predicted}, but for symbols of shape {shape} "
                f"it must predict {self.predicted_shape(target)}"
            )
        return given, target

    def output_shape(self, shape: Shape) -> Shape:
        self.checked_part_shapes(shape)
        return shape

    def _net_output_shape(self, given: Shape) -> Shape:
        """Return the shape of the symbols that the net predicts; nets that do not state it are tried on zeros."""
        if hasattr(self.net, "output_shape"):
            shape: Shape = self.net.output_shape(given)  # type: ignore[operator]
            return shape
        sizes = [_ANY_SIZE if size is None else size for size in given]
        weight = next(self.net.parameters(), torch.empty(0))
        with torch.no_grad(), evaluation_mode(self.net):
            logits = self.net(torch.zeros(1, *sizes, dtype=torch.int64, device=weight.device))
        if logits.ndim != len(given) + 2 or logits.shape[:2] != (1, self.num_classes):
            raise ValueError(
                f"the net returns {tuple(logits.shape)} for symbols {(1, *sizes)}, "
                f"but logits are (batch, {self.num_classes}, channels, *spatial)"
            )
        spatial = zip(logits.shape[3:], given[1:], strict=True)
        return (logits.shape[2], *(None if size is None else found for found, size in spatial))

    # ---- The prediction

    def predict(self, given: Tensor) -> Tensor:
        """Return the logits of the target; see `logits`."""
        return self.masked(self.logits(given))

    def masked(self, logits: Tensor) -> Tensor:
        """Return logits with those of impossible classes far below all others."""
        return mask_classes(logits, self.impossible)

    def decide(self, given: Tensor) -> Tensor:
        """Return logits for decisions: their order for a sample does not depend on the rest of the batch."""
        try:
            return mask_classes(stable_logits(self.net, given), self.impossible, PER_NAT)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error

    # ---- Training

    def loss(self, net: nn.Module, x: Tensor) -> Loss:
        """Return the cross-entropy of the target."""
        given, target = self.split(x)
        log_p = self.masked(net(given).float()).log_softmax(dim=1)
        # With one-hot vectors, numbers are summed in the same order every time, on a GPU too.
        bits = (log_p * one_hot(target, self.num_classes)).sum() / (-log(2) * target.numel())
        return Loss(bits, bits)

    def check_data(self, symbols: Iterable[Tensor]) -> None:
        if self.limits is not None:
            for x in symbols:
                check_limits(self.split(x)[1], self.limits)

    def extra_repr(self) -> str:
        net = " ".join(repr(self.net).split())  # on one line
        return f"{net}, {self.partition}" + ("" if self.limits is None else f", limits={self.limits}")
