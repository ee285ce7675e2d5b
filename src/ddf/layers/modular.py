"""The modular coupling: the layer of Discrete Flows, the baseline."""

__all__ = ["ModularCoupling", "ModularCouplingSpec"]

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, LayerSpec, Movement, over_classes
from ddf.layers.partition import ChannelSplit, Partition
from ddf.nets.net import NetSpec, channels_of
from ddf.shapes import Shape
from ddf.symbols import one_hot


class ModularCoupling(Conditional):
    """Scales and shifts one part of the symbols modulo K, with a scale and a location predicted from the other part.

        z_a = x_a
        z_b = (s · x_b + t) mod K,    s and t the most likely under n(x_a)

    Only scales that are coprime to K can be chosen, so the map is invertible. The layer is trained end to end: the
    choice is hard in the forward pass, and replaced by a softmax in the backward pass (a biased, straight-through
    gradient).

    References:
        Discrete Flows: Invertible Generative Models of Discrete Data (Tran et al., 2019)

    Arguments:
        net: Predicts K logits for the location of each symbol and, with a scale, K more for the scale: its output
            channels are those of x_b, first for all locations, then for all scales. See `Conditional`.
        scale: Whether to scale. With K = 2, the only scale is 1.
        temperature: The temperature of the softmax that replaces the choice in the backward pass.
        partition: How the symbols are split into x_a and x_b.
        num_classes: The number of classes K, for a net without an attribute of that name.

    Examples:
        >>> from ddf.nets import MLP
        >>> coupling = ModularCoupling(MLP(num_classes=91, in_channels=1, out_channels=2))
        >>> coupling.scales[:8].tolist()  # 91 = 7 · 13
        [1, 2, 3, 4, 5, 6, 8, 9]
    """

    trained_jointly = True
    scales: Tensor
    inverse_scales: Tensor

    def __init__(
        self,
        net: nn.Module,
        scale: bool = True,
        temperature: float = 0.1,
        partition: Partition | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(net, partition, num_classes)
        if not temperature > 0:
            raise ValueError(f"ModularCoupling: temperature={temperature} must be positive")
        self.scale = scale
        self.temperature = temperature
        k = self.num_classes
        scales = _coprime_to(k)
        self.register_buffer("scales", torch.tensor(scales), persistent=False)
        self.register_buffer("inverse_scales", torch.tensor([pow(s, -1, k) for s in scales]), persistent=False)

    @staticmethod
    def outputs_per_symbol(num_classes: int, scale: bool) -> int:
        """Return how many outputs of K logits the net needs for each symbol: 2, or 1 if there is no scale to choose."""
        return 2 if scale and len(_coprime_to(num_classes)) > 1 else 1

    def predicted_shape(self, target: Shape) -> Shape:
        return (channels_of(target) * self.outputs_per_symbol(self.num_classes, self.scale), *target[1:])

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = self.split(x)
        return self._transform(x_a, x_b, self.decide(x_a))

    def carry(self, x: Tensor) -> Tensor:
        x_a, x_b = self.split(x)
        return self._transform(x_a, x_b, self.predict(x_a))

    def _transform(self, x_a: Tensor, x_b: Tensor, logits: Tensor) -> Tensor:
        t, which = self._choose(logits)
        s = 1 if which is None else self.scales[which]
        z_b = (s * x_b.long() + t) % self.num_classes
        return self.merge(x_a, z_b.to(x_a.dtype))

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        x_a, z_b = self.split(z)
        t, which = self._choose(self.decide(x_a))
        inverse_s = 1 if which is None else self.inverse_scales[which]
        x_b = (inverse_s * (z_b.long() - t)) % self.num_classes
        return self.merge(x_a, x_b.to(x_a.dtype))

    def relax(self, x: Tensor, emit: Emit) -> Tensor:
        x_a, x_b = over_classes(self.split, x)
        location, scale = self._location_and_scale(self.predict(x_a))
        z_b = x_b if scale is None else _scaled(x_b, self._straight_through(scale), self.scales)
        z_b = _shifted(z_b, self._straight_through(location))
        return self.merge(x_a.flatten(0, 1), z_b.flatten(0, 1)).unflatten(0, x_a.shape[:2])

    def follow(self, places: Tensor) -> Movement:
        return Movement(places, replaced=self.split(places)[1])

    def _location_and_scale(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits of the location (batch, K, …) and of the scale (batch, number of coprime scales, …)."""
        if self.outputs_per_symbol(self.num_classes, self.scale) == 1:
            return logits, None
        location, scale = logits.chunk(2, dim=2)
        return location, scale.index_select(1, self.scales)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the location, and the index of the scale among the coprime ones."""
        location, scale = self._location_and_scale(logits)
        return location.argmax(dim=1), None if scale is None else scale.argmax(dim=1)

    def _straight_through(self, logits: Tensor) -> Tensor:
        """Return the one-hot choice, with the gradient of a softmax."""
        soft = (logits / self.temperature).softmax(dim=1)
        return one_hot(logits.argmax(dim=1), logits.shape[1], logits.dtype) + _gradient_of(soft)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}, temperature={self.temperature}"


def _coprime_to(k: int) -> list[int]:
    return [s for s in range(k) if gcd(s, k) == 1]


# On one-hot vectors (batch, K, …), x + t and s · x modulo K are linear in each of their arguments. The value comes from
# the first term, and each term has the gradient with respect to one argument.


def _shifted(x: Tensor, t: Tensor) -> Tensor:
    """Return x + t modulo K: out[u] = Σ x[v] · t[u − v]."""
    u = _classes(x)
    return x.gather(1, (u - _value(t)) % x.shape[1]) + _gradient_of(t).gather(1, (u - _value(x)) % x.shape[1])


def _scaled(x: Tensor, s: Tensor, scales: Tensor) -> Tensor:
    """Return s · x modulo K, where s chooses one of `scales`: out[u] = Σ x[v] · s[c] over scales[c] · v = u."""
    k = x.shape[1]
    by_scale = (scales[_value(s)] * _classes(x)) % k
    by_symbol = (scales.view(-1, *[1] * (x.ndim - 2)) * _value(x)) % k
    out = torch.zeros_like(x)
    return out.scatter(1, by_scale, x) + out.scatter_add(1, by_symbol, _gradient_of(s).to(x.dtype))


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device).view(-1, *[1] * (x.ndim - 2))


def _value(x: Tensor) -> Tensor:
    """Return the class of one-hot vectors, (batch, 1, …)."""
    return x.argmax(dim=1, keepdim=True)


def _gradient_of(x: Tensor) -> Tensor:
    """Return zeros with the gradient of `x`."""
    return x - x.detach()


@dataclass(frozen=True)
class ModularCouplingSpec(LayerSpec, builds=ModularCoupling):
    """See `ModularCoupling`."""

    net: NetSpec
    scale: bool = True
    temperature: float = 0.1
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> ModularCoupling:
        given, target = self.partition.shapes(shape)
        outputs = ModularCoupling.outputs_per_symbol(num_classes, self.scale)
        net = self.net.build(num_classes, given, (channels_of(target) * outputs, *target[1:]))
        return ModularCoupling(net, self.scale, self.temperature, self.partition, num_classes)
