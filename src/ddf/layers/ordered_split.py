"""The ordered split: the pixels of a map leave the flow in many steps, and one net predicts all of them."""

__all__ = ["OrderedSplit", "OrderedSplitSpec", "random_pixels"]

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ddf.layers.layer import Draw, Emit, LayerSpec, Movement
from ddf.layers.net_layer import Loss, NetLayer
from ddf.layers.orders import LatticeOrder, Order
from ddf.layers.rank_code import RankCode
from ddf.nets import LatticeNet, NetSpec
from ddf.nets.lattice import LatticeWalk
from ddf.nets.stable import evaluation_mode, stable_logits
from ddf.permutation import rank, unrank
from ddf.shapes import Shape
from ddf.symbols import one_hot

_SIZES = 4  # map sizes whose steps are cached
_CHECKED = 4  # steps that `check_data` tests, at most


class OrderedSplit(RankCode, NetLayer):
    """Factors out the pixels of a map in many steps, each step predicted from the pixels of all earlier steps.

    Steps are numbered in the order in which decoding needs them, so the forward walk factors out the last step first.
    The pixels of step 0, a coarse lattice, stay in the flow. The same net predicts all steps; the pixels of a step
    are predicted independently of one another.

    Arguments:
        net: A `LatticeNet` for a `LatticeOrder`; or a net that maps symbols (batch, channels, height, width) to logits
            (batch, K, channels, height, width), where the logits of a pixel depend only on pixels of earlier steps.
        order: Which pixel is coded in which step; None for `LatticeOrder()`.
        ranks: Whether ranks are factored out instead of symbols; see `DenoisingSplit`.
        given: The fraction of training samples in which additional random pixels are given in advance. If it is
            positive, the layer can `complete` maps; the net must take a mask of the given pixels (batch, height,
            width) as well, as a `LatticeNet` with `hints` does.
        size: Height and width of the maps; None for maps of any size whose sides are multiples of the order's stride.
        num_classes: The number of classes K, for a net without an attribute of that name.

    Examples:
        >>> order = LatticeOrder(stride=8)
        >>> net = LatticeNet(num_classes=2, channels=1, levels=3, planes=(64,), blocks=(1,), width=8)
        >>> OrderedSplit(net, order).output_shape((1, 16, 24))
        (1, 2, 3)
    """

    def __init__(
        self,
        net: nn.Module,
        order: Order | None = None,
        ranks: bool = False,
        given: float = 0.0,
        size: tuple[int, int] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(net, num_classes)
        order = LatticeOrder() if order is None else order
        if not isinstance(order, Order):
            raise TypeError(f"OrderedSplit: the order must be an Order, such as LatticeOrder(), not {order!r}")
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ValueError(f"OrderedSplit: given={given!r} must be a number between 0 and 1")
        if isinstance(net, LatticeNet):
            built = LatticeOrder(1 << net.levels, net.cell)
            if built != order:
                raise ValueError(f"OrderedSplit: the net was built for {built}, not for {order}")
            if given and not net.hints:
                raise ValueError(f"OrderedSplit: given={given} needs a net with hints=True")
        self.order = order
        self.ranks = ranks
        self.given = given
        self.size = None if size is None else (int(size[0]), int(size[1]))
        self._known_steps: dict[tuple[int, int, torch.device], _Steps] = {}
        if ranks:
            self.add_table()

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ValueError(f"OrderedSplit takes maps (channels, height, width), not symbols of shape {shape}")
        if self.size is not None and shape[1:] != self.size:
            raise ValueError(f"OrderedSplit was built for maps of {self.size}, not for symbols of shape {shape}")
        stride = self.order.stride
        for name, side in zip(("height", "width"), shape[1:], strict=True):
            if self.size is None and side is not None and side % stride:
                raise ValueError(f"OrderedSplit: the {name} of symbols of shape {shape} must be a multiple of {stride}")
        return (shape[0], *(None if side is None else -(-side // stride) for side in shape[1:]))

    # ---- The walks

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        logits = self._predicted(x).flatten(3)
        for _, place in reversed(self.steps(x).places):
            symbols, predicted = x.flatten(2)[..., place], logits[..., place]
            if self.ranks:
                emit(rank(symbols, predicted, self.num_classes, dim=1), self.rank_logits(predicted))
            else:
                emit(symbols, predicted)
        return self.carry(x)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        stride = self.order.stride
        height, width = self.size or (z.shape[2] * stride, z.shape[3] * stride)
        x = z.new_zeros(*z.shape[:2], height, width)
        x[:, :, ::stride, ::stride] = z
        memory: dict[str, Any] = {}
        for step, place in self.steps(x).places:
            x.flatten(2)[..., place] = self._drawn(self._at_step(x, None, step, place, memory), draw).to(x.dtype)
        return x

    def carry(self, x: Tensor) -> Tensor:
        return x[:, :, :: self.order.stride, :: self.order.stride]

    def follow(self, places: Tensor) -> Movement:
        parts = [places.flatten(2)[..., place].flatten() for _, place in reversed(self.steps(places).places)]
        return Movement(self.carry(places), torch.cat([places.new_zeros(0), *parts]))

    def complete(self, x: Tensor, known: Tensor, draw: Draw) -> Tensor:
        """Draw the unknown pixels of maps, given the known ones.

        Arguments:
            x: Symbols (batch, channels, height, width). Those of unknown pixels have no effect.
            known: Which pixels are known: (batch, height, width).
            draw: A function from logits to symbols.
        """
        if not self.given:
            raise ValueError("OrderedSplit: to complete maps, train a layer with given > 0")
        x, steps = x.clone(), self.steps(x)
        memory: dict[str, Any] = {}
        for step, place in [(0, (steps.of_pixel.flatten() == 0).nonzero()[:, 0]), *steps.places]:
            drawn = self._drawn(self._at_step(x, known, step, place, memory), draw).to(x.dtype)
            keep = known.flatten(1)[:, None, place]
            x.flatten(2)[..., place] = torch.where(keep, x.flatten(2)[..., place], drawn)
        return x

    # ---- The prediction

    def steps(self, x: Tensor) -> "_Steps":
        """Return the steps of maps of this size, on their device, from a cache if possible."""
        height, width = x.shape[2:]
        key = height, width, x.device
        found = self._known_steps.get(key)
        if found is None:
            steps = self._checked_steps(height, width)
            present = [step for step in range(1, self.order.count) if (steps == step).any()]
            places = [(step, (steps.flatten() == step).nonzero()[:, 0].to(x.device)) for step in present]
            found = _Steps(steps.to(x.device), places)
            self._known_steps = {**dict(list(self._known_steps.items())[1 - _SIZES :]), key: found}
        return found

    def _checked_steps(self, height: int, width: int) -> Tensor:
        """Return the step of every pixel; raise an error if the order is invalid."""
        steps, name, stride = self.order.steps(height, width), type(self.order).__name__, self.order.stride
        if steps.shape != (height, width) or steps.dtype != torch.int64:
            raise ValueError(
                f"{name}: the steps of maps of {(height, width)} must be int64 of this shape, "
                f"not {steps.dtype} of shape {tuple(steps.shape)}"
            )
        low, high = (int(end) for end in steps.aminmax())
        if low < 0 or high >= self.order.count:
            raise ValueError(
                f"{name}: maps of {(height, width)} have steps {low} … {high}, but with count={self.order.count}, "
                f"steps are 0 … {self.order.count - 1}"
            )
        lattice = torch.zeros(height, width, dtype=torch.bool)
        lattice[::stride, ::stride] = True
        if not torch.equal(steps == 0, lattice):
            raise ValueError(
                f"{name}: step 0 must consist of the pixels whose row and column are multiples of stride={stride}"
            )
        return steps

    def _predicted(self, x: Tensor, *more: Tensor) -> Tensor:
        """Return the logits of all pixels."""
        shape = (len(x), self.num_classes, *x.shape[1:])
        if not len(x) or not self.steps(x).places:
            return torch.zeros(shape, device=x.device)
        # Ranks must not depend on the rest of the batch.
        logits = stable_logits(self.net, x, *more) if self.ranks else self.logits(x, *more)
        if logits.shape != shape:
            raise ValueError(f"OrderedSplit: the net must return logits {shape}, but returned {tuple(logits.shape)}")
        return logits

    def _at_step(self, x: Tensor, given: Tensor | None, step: int, place: Tensor, memory: dict[str, Any]) -> Tensor:
        """Return the logits of the pixels of one step: (batch, K, channels, pixels).

        Arguments:
            x: Symbols, of which those of this step and of later ones have no effect unless they are given.
            given: Which pixels are given in advance, or None.
            step: The number of the step.
            place: Its pixels, as indices into flattened maps.
            memory: What the net keeps between the steps of a walk.
        """
        if not len(x):
            return torch.zeros(0, self.num_classes, x.shape[1], len(place), device=x.device)
        if not isinstance(self.net, LatticeWalk):
            return self._predicted(x, *([] if given is None else [given])).flatten(3)[..., place]
        if self.ranks:
            return stable_logits(self.net, x, given, step, memory)
        return self.logits(x, given, step, memory)

    def _drawn(self, logits: Tensor, draw: Draw) -> Tensor:
        if self.ranks:
            return unrank(draw(self.rank_logits(logits)), logits, self.num_classes, dim=1)
        return draw(logits)

    # ---- Training

    def loss(self, net: nn.Module, x: Tensor) -> Loss:
        """Return the mean bits of all pixels, except those of step 0.

        The objective also covers samples in which pixels are given in advance: all their other pixels, including
        those of step 0. The reported bits do not.
        """
        later = (self.steps(x).of_pixel > 0).expand(len(x), -1, -1)
        if not self.given:
            bits = self._mean_bits(net(x), x, later)
            return Loss(bits, bits)
        chosen = torch.rand(len(x), 1, 1, device=x.device) < self.given
        given = chosen & random_pixels(x)
        logits = net(x, given)
        return Loss(self._mean_bits(logits, x, later & ~chosen), self._mean_bits(logits, x, (later | chosen) & ~given))

    @torch.no_grad()
    def score(self, net: nn.Module, x: Tensor) -> Tensor:
        with evaluation_mode(net):
            return self._mean_bits(net(x), x, (self.steps(x).of_pixel > 0).expand(len(x), -1, -1))

    def _mean_bits(self, logits: Tensor, x: Tensor, pixels: Tensor) -> Tensor:
        """Return the mean bits of the pixels selected by a mask (batch, height, width)."""
        log_p = logits.float().log_softmax(dim=1)
        bits = (log_p * one_hot(x, self.num_classes)).sum((1, 2)) * (-1 / log(2))
        return (bits * pixels).sum() / (pixels.sum() * x.shape[1]).clamp(min=1)

    @torch.no_grad()
    def check_data(self, symbols: Iterable[Tensor]) -> None:
        x = next(iter(symbols))[:1]
        steps = self.steps(x)
        if not steps.places:
            raise ValueError(
                f"OrderedSplit: maps of {tuple(x.shape[2:])} have only pixels of step 0; use a smaller stride"
            )
        checked = steps.places[:: -(-len(steps.places) // _CHECKED)]
        with evaluation_mode(self.net):
            logits = self._predicted(x).flatten(3)
            for step, place in checked:
                changed = torch.where(steps.of_pixel < step, x, (x + 1) % self.num_classes)
                if not torch.equal(self._predicted(changed).flatten(3)[..., place], logits[..., place]):
                    raise ValueError(
                        "OrderedSplit: the net's logits of a pixel depend on pixels of the same step or of later ones; "
                        "they may depend only on pixels of earlier steps"
                    )

    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        if not self.ranks:
            return torch.empty(0)

        def predicted() -> Iterator[tuple[Tensor, Tensor]]:
            for x in symbols:
                logits = self._predicted(x).flatten(3)
                for _, place in self.steps(x).places:
                    yield x.flatten(2)[..., place], logits[..., place]

        return self.count_ranks(predicted())

    def extra_repr(self) -> str:
        net = " ".join(repr(self.net).split())  # on one line
        return f"{net}, {self.order}" + (", ranks=True" if self.ranks else "")


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of the pixels of maps of one size.

    Arguments:
        of_pixel: The step of every pixel (height, width).
        places: Each step that has pixels, except step 0, and its pixels, as indices into flattened maps.
    """

    of_pixel: Tensor
    places: list[tuple[int, Tensor]]


def random_pixels(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return a random mask (batch, height, width): the inside or outside of a rectangle, or independent pixels."""
    batch, _, height, width = x.shape

    def rand(*size: int) -> Tensor:
        return torch.rand(*size, device=x.device, generator=generator)

    ends = rand(batch, 4).view(batch, 2, 2).sort(dim=-1).values
    rows = torch.arange(height, device=x.device).view(1, -1, 1) / height
    columns = torch.arange(width, device=x.device).view(1, 1, -1) / width
    (top, bottom), (left, right) = (ends[:, i].T[..., None, None] for i in range(2))
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    kind = rand(batch, 1, 1)
    some = rand(batch, height, width) < rand(batch, 1, 1)
    return torch.where(kind < 1 / 3, inside, torch.where(kind < 2 / 3, ~inside, some))


@dataclass(frozen=True)
class OrderedSplitSpec(LayerSpec, builds=OrderedSplit):
    """See `OrderedSplit`."""

    net: NetSpec
    order: Order = LatticeOrder()
    ranks: bool = False
    given: float = 0.0

    def build(self, num_classes: int, shape: Shape) -> OrderedSplit:
        net = self.net.build(num_classes, shape, shape)
        _, height, width = shape if len(shape) == 3 else (None, None, None)
        size = None if height is None or width is None else (height, width)
        return OrderedSplit(net, self.order, self.ranks, self.given, size, num_classes)
