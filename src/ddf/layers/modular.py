"""The modular coupling: the layer of Discrete Flows, the baseline."""

__all__ = ["ModularCoupling"]

from math import gcd
from typing import Any

import torch
from torch import Tensor

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, Shape
from ddf.layers.partition import Partition
from ddf.nets.net import Net
from ddf.symbols import one_hot


class ModularCoupling(Conditional):
    """Shifts and scales one part of the symbols modulo K, as the other part says.

    z_a = x_a and z_b = (s · x_b + t) mod K, with the scale s and the location t the likeliest under a prediction from
    x_a. Only scales that are coprime to K can be chosen, so the map can always be undone. It is trained end to end:
    forwards the choice is hard, backwards it passes for a softmax (a straight-through gradient, which is biased).

    References:
        Discrete Flows: Invertible Generative Models of Discrete Data (Tran et al., 2019)

    Arguments:
        net: Predicts K logits for the location of each symbol and, with a scale, K more for the scale: its
            `out_channels` are those of x_b, first for all locations, then for all scales.
        scale: Whether there is a scale. With K = 2 there is none: 1 is the only one.
        temperature: Of the softmax that stands in for the choice in the gradient.
        partition: What x_a and x_b are: `"channels"`, `"checkerboard"`, or a `Partition`.

    Examples:
        >>> from ddf.nets import MLP
        >>> coupling = ModularCoupling(MLP(num_classes=91, in_channels=1, out_channels=2))
        >>> coupling.scales[:8].tolist()  # 91 = 7 · 13
        [1, 2, 3, 4, 5, 6, 8, 9]
    """

    scales: Tensor
    inverse_scales: Tensor

    def __init__(
        self, net: Net, scale: bool = True, temperature: float = 0.1, partition: Partition | str = "channels"
    ) -> None:
        super().__init__(net, partition)
        if not temperature > 0:
            raise ValueError(f"ModularCoupling: temperature={temperature}, but it must be positive")
        self.scale = scale
        self.temperature = temperature
        k = net.num_classes
        scales = _coprime_to(k)
        self.register_buffer("scales", torch.tensor(scales), persistent=False)
        self.register_buffer("inverse_scales", torch.tensor([pow(s, -1, k) for s in scales]), persistent=False)

    @staticmethod
    def outputs_per_symbol(num_classes: int, scale: bool) -> int:
        """How many outputs of K logits the net needs for each symbol: 2, or 1 where there is no scale to choose."""
        return 2 if scale and len(_coprime_to(num_classes)) > 1 else 1

    def predicted_shape(self, target: Shape) -> Shape:
        assert target[0] is not None
        return (target[0] * self.outputs_per_symbol(self.num_classes, self.scale), *target[1:])

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = self.split(x)
        return self._transform(x_a, x_b, self.decide(x_a))

    def carry(self, x: Tensor) -> Tensor:
        x_a, x_b = self.partition.split(x)
        return self._transform(x_a, x_b, self.predict(x_a))

    def _transform(self, x_a: Tensor, x_b: Tensor, logits: Tensor) -> Tensor:
        location, which = self._choose(logits)
        z_b = x_b.long() if which is None else x_b * self.scales[which]
        return self.partition.merge(x_a, ((z_b + location) % self.num_classes).to(x_a.dtype))

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        x_a, z_b = self.split(z)
        location, which = self._choose(self.decide(x_a))
        x_b = z_b - location
        if which is not None:
            x_b = x_b * self.inverse_scales[which]
        return self.partition.merge(x_a, (x_b % self.num_classes).to(x_a.dtype))

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = self.split_vectors(x)
        location, scale = self._location_and_scale(self.classify(x_a))
        classes = torch.arange(self.num_classes, device=x.device)
        z_b = x_b
        if scale is not None:
            z_b = _move(z_b, self._straight_through(scale), (classes[:, None] * self.scales) % self.num_classes)
        z_b = _move(z_b, self._straight_through(location), (classes[:, None] + classes) % self.num_classes)
        return self.merge_vectors(x_a, z_b)

    def _location_and_scale(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the location (batch, K, …) and of the scale (batch, number of coprime scales, …)."""
        if self.outputs_per_symbol(self.num_classes, self.scale) == 1:
            return logits, None
        location, scale = logits.chunk(2, dim=2)
        return location, scale.index_select(1, self.scales)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """The location, and the number of the scale among the coprime ones."""
        location, scale = self._location_and_scale(logits)
        return location.argmax(dim=1), None if scale is None else scale.argmax(dim=1)

    def _straight_through(self, logits: Tensor) -> Tensor:
        soft = (logits / self.temperature).softmax(dim=1)
        hard = one_hot(logits.argmax(dim=1), logits.shape[1], logits.dtype)
        return soft + (hard - soft).detach()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}, temperature={self.temperature}"


def _coprime_to(k: int) -> list[int]:
    return [s for s in range(k) if gcd(s, k) == 1]


def _move(x: Tensor, choice: Tensor, destinations: Tensor) -> Tensor:
    """Moves one-hot vectors as a one-hot choice says.

    out[u] is the sum of x[v] · choice[c] over all v and c with destinations[v, c] = u.

    Arguments:
        x: (batch, K, …).
        choice: (batch, C, …).
        destinations: (K, C): under choice c, class v becomes class destinations[v, c].
    """
    moved: Tensor = _Move.apply(x, choice, destinations)  # type: ignore[no-untyped-call]
    return moved


class _Move(torch.autograd.Function):
    """The sum in `_move` and its gradients, of which one-hot vectors leave one term each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, choice: Tensor, destinations: Tensor) -> Tensor:
        which_x, which_choice = x.argmax(dim=1), choice.argmax(dim=1)
        ctx.save_for_backward(which_x, which_choice, destinations)
        return one_hot(destinations[which_x, which_choice], x.shape[1], x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        which_x, which_choice, destinations = ctx.saved_tensors
        by_x = destinations[:, which_choice].movedim(0, 1)
        by_choice = destinations[which_x].movedim(-1, 1)
        return gradient.gather(1, by_x), gradient.gather(1, by_choice), None
