"""The contract of all layers: a forward walk, an inverse walk, and what follows from them."""

__all__ = ["Draw", "Emit", "Freezable", "Layer", "LayerSpec", "Movement", "Rearrangement", "in_layer", "over_classes"]

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ddf.errors import InvalidCodeError
from ddf.plain import Spec
from ddf.shapes import Shape

Emit = Callable[[Tensor, Tensor], None]
"""`emit(symbols, logits)`: called in the forward walk with symbols that a layer factors out and their prediction."""

Draw = Callable[[Tensor], Tensor]
"""`draw(logits) → symbols`: called in the inverse walk for the symbols that a layer needs back."""

Self = TypeVar("Self", bound="Freezable")


class Freezable(nn.Module):
    """A module that can be frozen once it is trained.

    A frozen module stays in evaluation mode, and its parameters get no gradients, whatever is done to the modules
    around it. Whether it is frozen is part of its state dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False

    def freeze(self: Self) -> Self:
        """Mark the module as trained."""
        self.frozen = True
        self.requires_grad_(False)
        return self.eval()

    def thaw(self: Self) -> Self:
        """Make the module trainable again."""
        self.frozen = False
        return self.requires_grad_(True)

    def train(self: Self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.frozen)

    def set_extra_state(self, state: Tensor) -> None:
        if bool(state):
            self.freeze()
        elif self.frozen:
            self.thaw()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


@dataclass(frozen=True, eq=False)
class Movement:
    """What a layer does with the symbols of a sample, each identified by its place in the data.

    Arguments:
        kept: The places of the symbols that the layer passes on, in its output shape.
        emitted: The places of the symbols that it factors out, in the order in which it emits them; None if none.
        replaced: The places of the symbols that it replaces with others, such as ranks; None if none.
    """

    kept: Tensor
    emitted: Tensor | None = None
    replaced: Tensor | None = None


class Layer(Freezable, ABC):
    """One invertible step of a flow.

    In the forward walk, from data to latents, a layer passes the symbols that it factors out to `emit(symbols, logits)`
    and returns the others. In the inverse walk, it requests the symbols that it needs back from `draw(logits)`. A layer
    behaves the same whether the flow is scoring, sampling or coding.

    Symbols are integers (batch, channels, *spatial), which the flow has checked; logits are
    (batch, K, channels, *spatial). How a layer transforms one sample never depends on the rest of the batch, and it
    never modifies its input in place.

    A layer implements `output_shape`, `forward` and `inverse`. The other methods have defaults that are right for a
    layer that keeps the shape of its input and factors nothing out.
    """

    __call__: Callable[..., Tensor]

    trained_jointly = False
    """Whether flows with this layer are trained end to end, through `relax`."""

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output for an input of `shape`; raise an error for an unsupported shape.

        Arguments:
            shape: (channels, *spatial) of one sample, with None for any spatial size.
        """

    @abstractmethod
    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        """Take one step from data to latents."""

    @abstractmethod
    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        """Take one step from latents to data: undo `forward`, given the symbols that it emitted."""

    def carry(self, x: Tensor) -> Tensor:
        """Return what `forward` returns, for training the next layer; it should be fast but need not be invertible."""
        return self.forward(x, _ignore)

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        """Take the forward step on one-hot vectors (batch, K, channels, *spatial), passing gradients.

        Only layers of flows that are trained end to end need this method.
        """
        raise TypeError(
            f"{type(self).__name__} does not pass gradients: it is trained locally, "
            "and a flow that contains it cannot be trained end to end"
        )

    def follow(self, places: Tensor) -> Movement:
        """Return what `forward` does with each symbol, for explanations.

        Arguments:
            places: The place in the data of each symbol of the input, (1, channels, *spatial).
        """
        shape = tuple(places.shape[1:])
        if self.output_shape(shape) != shape:
            raise TypeError(f"{type(self).__name__} changes the shape of its input; implement `follow` to explain it")
        return Movement(places, replaced=places)


class Rearrangement(Layer):
    """A layer that only moves symbols to other places."""

    @abstractmethod
    def arrange(self, x: Tensor) -> Tensor:
        """Move the symbols."""

    @abstractmethod
    def restore(self, z: Tensor) -> Tensor:
        """Move them back."""

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        self.output_shape(tuple(x.shape[1:]))
        return self.arrange(x)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        return self.restore(z)

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        return over_classes(self.arrange, x)

    def follow(self, places: Tensor) -> Movement:
        return Movement(self.arrange(places))


class LayerSpec(Spec, ABC):
    """A layer without its shapes, which follow from its place in a flow."""

    @abstractmethod
    def build(self, num_classes: int, shape: Shape) -> Layer:
        """Build the layer for samples of `shape`."""

    def seeded(self, seed: int, shape: Shape) -> "LayerSpec":
        """Return the spec with everything that the seed of the flow determines, except weights.

        Arguments:
            seed: A seed for this layer alone.
            shape: The shape of the samples that reach the layer.
        """
        return self


@contextmanager
def in_layer(index: int) -> Iterator[None]:
    """Name the layer in the message of an error."""
    try:
        yield
    except InvalidCodeError:  # which is not the fault of the layer
        raise
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"layer {index}: {error}") from error


def _ignore(symbols: Tensor, logits: Tensor) -> None:
    pass


def over_classes(move: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Apply a rearrangement of symbols to one-hot vectors (batch, K, channels, *spatial), class by class."""
    moved = move(x.flatten(0, 1))
    if isinstance(moved, Tensor):
        return moved.unflatten(0, x.shape[:2])
    return tuple(part.unflatten(0, x.shape[:2]) for part in moved)
