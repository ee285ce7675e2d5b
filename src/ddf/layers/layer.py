"""The contract of all layers: two walks, and nothing else."""

__all__ = ["Draw", "Emit", "Freezable", "Layer", "Rearrangement", "Shape"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from ddf.nets.net import Shape

Emit = Callable[[Tensor, Tensor], None]
"""`emit(symbols, logits)`: called in the forward walk with what a layer factors out, and the prediction of it."""

Draw = Callable[[Tensor], Tensor]
"""`draw(logits) → symbols`: called in the inverse walk for what a layer needs back, with the prediction of it."""

Self = TypeVar("Self", bound="Freezable")


class Freezable(nn.Module):
    """A module that training finishes with: once frozen, it neither learns nor changes its mode.

    Frozen, it stays in evaluation mode and passes no gradients to its parameters, whatever the caller does to the
    modules around it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False

    def freeze(self: Self) -> Self:
        """Marks the module as trained."""
        self.frozen = True
        self.requires_grad_(False)
        return self.eval()

    def thaw(self: Self) -> Self:
        """Opens the module for training again."""
        self.frozen = False
        return self.requires_grad_(True)

    def train(self: Self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class Layer(Freezable, ABC):
    """One invertible step of a flow.

    The forward walk turns data into latents: what a layer factors out goes to `emit(symbols, logits)`, and the rest
    goes on to the next layer. The inverse walk turns latents into data: what a layer needs back it asks of
    `draw(logits)`. No layer knows whether it is being scored, sampled or coded.

    Symbols are integers (batch, channels, *spatial); logits are (batch, K, channels, *spatial). What a layer does with
    one sample never depends on the other samples of a batch.
    """

    __call__: Callable[..., Tensor]

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Returns the shape of what goes on for an input of `shape`; refuses a shape that cannot work.

        Arguments:
            shape: (channels, *spatial) of one sample, None for any spatial size.
        """

    @abstractmethod
    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        """One step of the walk from data to latents."""

    @abstractmethod
    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        """One step of the walk from latents to data: undoes `forward`, given back what that emitted."""

    def carry(self, x: Tensor) -> Tensor:
        """What goes on of data that need not come back: `forward` for training the next layer, as cheap as can be."""
        return self.forward(x, _ignore)

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        """The forward step on one-hot vectors (batch, K, channels, *spatial), through which gradients flow.

        Only flows that are trained end to end need it.
        """
        raise TypeError(
            f"{type(self).__name__} passes no gradients on: it is trained locally, "
            "and a flow that contains it cannot be trained end to end"
        )


class Rearrangement(Layer):
    """A layer that only moves symbols around."""

    @abstractmethod
    def arrange(self, x: Tensor) -> Tensor:
        """Moves the symbols."""

    @abstractmethod
    def restore(self, z: Tensor) -> Tensor:
        """Moves them back."""

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        self.output_shape(tuple(x.shape[1:]))
        return self.arrange(x)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        return self.restore(z)

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        return over_classes(self.arrange, x)


def _ignore(symbols: Tensor, logits: Tensor) -> None:
    pass


def over_classes(move: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Applies a rearrangement of symbols to one-hot vectors (batch, K, channels, *spatial), class by class."""
    moved = move(x.flatten(0, 1))
    if isinstance(moved, Tensor):
        return moved.unflatten(0, x.shape[:2])
    return tuple(part.unflatten(0, x.shape[:2]) for part in moved)
