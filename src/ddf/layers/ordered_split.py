"""The ordered split: the pixels of a map leave the flow in many steps, and one net predicts all of them."""

__all__ = ["OrderedSplit", "OrderedSplitSpec"]

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from ddf.layers.layer import Draw, Emit, LayerSpec, Movement
from ddf.layers.net_layer import Loss, NetLayer
from ddf.layers.orders import LatticeOrder, Order
from ddf.layers.rank_code import RankCode
from ddf.nets.net import Net, NetSpec
from ddf.nets.stable import evaluation_mode, stable_logits
from ddf.permutation import rank, unrank
from ddf.shapes import Shape
from ddf.symbols import one_hot

_AUXILIARY = 0.5  # the weight of the auxiliary loss at the start
_AUXILIARY_END = 0.7  # the fraction of training after which it is 0
_SIZES = 4  # whose steps are kept
_SCORED = 8  # steps of each sample that validation scores
_GOLDEN = 0.6180339887  # the golden ratio − 1, whose multiples modulo 1 are spread evenly


class OrderedSplit(RankCode, NetLayer):
    """Factors out the pixels of a map in many steps, each step predicted from the pixels of all earlier steps.

    Steps are numbered from coarse to fine, so the forward walk factors out the last step first. The pixels of step 0, a
    coarse lattice, stay in the flow. The same net predicts all steps. It is given the known pixels, a marker for the
    unknown ones, and the number of the step; the pixels of a step are predicted independently of one another.

    The net is trained on a random step of each map. For most of the training, an auxiliary loss whose weight decreases
    to 0 also makes it predict the pixels of all later steps.

    Arguments:
        net: `net(x, known, step)` returns logits (batch, K, channels, height, width), given symbols x (batch, channels,
            height, width), a mask of the known pixels (batch, height, width), and the number of the step of each sample
            (batch). Symbols of unknown pixels must have no effect.
        order: The step of every pixel; None for `LatticeOrder()`.
        ranks: Whether ranks are factored out instead of symbols; see `DenoisingSplit`.
        given: The share of training samples in which additional random pixels are known. If it is positive, the layer
            can `complete` maps.
        size: Height and width of the maps; None for maps of any size whose sides are multiples of the order's stride.
        num_classes: The number of classes K, for a net without an attribute of that name.

    Examples:
        >>> from ddf.nets import UNet
        >>> order = LatticeOrder(stride=8)
        >>> split = OrderedSplit(UNet(2, 1, steps=order.count, planes=(64,), blocks=(1,)), order)
        >>> split.output_shape((1, 16, 24))
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
        steps = getattr(net, "steps", order.count)
        if steps < order.count:
            raise ValueError(
                f"OrderedSplit: the order has {order.count} steps, but the net only {steps}; "
                f"build the net with steps={order.count}"
            )
        if isinstance(net, Net):
            raise TypeError(
                f"OrderedSplit: a {type(net).__name__} is given symbols only, but the net must also be given the known "
                "pixels and the step; use a UNet"
            )
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ValueError(f"OrderedSplit: given={given!r} must be a number between 0 and 1")
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
        for step, place in reversed(self.steps(x).places):
            symbols, logits = x.flatten(2)[..., place], self.predict(x, step, place)
            if self.ranks:
                emit(rank(symbols, logits, self.num_classes, dim=1), self.rank_logits(logits))
            else:
                emit(symbols, logits)
        return self.carry(x)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        stride = self.order.stride
        height, width = self.size or (z.shape[2] * stride, z.shape[3] * stride)
        x = z.new_zeros(*z.shape[:2], height, width)
        x[:, :, ::stride, ::stride] = z
        for step, place in self.steps(x).places:
            x.flatten(2)[..., place] = self._drawn(self.predict(x, step, place), draw).to(x.dtype)
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
        x, known = x.clone(), known.clone()
        steps = self.steps(x)
        for step in [0, *(step for step, _ in steps.places)]:
            here = steps.of_pixel == step
            logits = self._predicted(x, known, step)
            drawn = self._drawn(logits, draw)
            x = torch.where((here & ~known).unsqueeze(1), drawn.to(x.dtype), x)
            known = known | here
        return x

    # ---- The prediction

    def steps(self, x: Tensor) -> "_Steps":
        """Return the step of every pixel for maps of this size, on their device."""
        height, width = x.shape[2:]
        key = height, width, x.device
        found = self._known_steps.get(key)
        if found is None:
            steps = self._checked_steps(height, width)
            present = [step for step in range(1, self.order.count) if (steps == step).any()]
            places = [(step, (steps.flatten() == step).nonzero()[:, 0].to(x.device)) for step in present]
            roots = torch.tensor([len(place) ** 0.5 for _, place in places], device=x.device)
            found = _Steps(
                steps.to(x.device),
                torch.tensor(present, device=x.device),
                places,
                int((steps > 0).sum()),
                roots / roots.sum(),
            )
            self._known_steps = {**dict(list(self._known_steps.items())[1 - _SIZES :]), key: found}
        return found

    def _checked_steps(self, height: int, width: int) -> Tensor:
        """Return the step of every pixel, if the order is one."""
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

    def predict(self, x: Tensor, step: int, place: Tensor) -> Tensor:
        """Return the logits of the pixels of one step, given all earlier steps: (batch, K, channels, pixels).

        Arguments:
            x: Symbols (batch, channels, height, width).
            step: The number of the step.
            place: Its pixels, as indices into flattened maps.
        """
        known = (self.steps(x).of_pixel < step).expand(len(x), -1, -1)
        return self._predicted(x, known, step).flatten(3)[..., place]

    def _predicted(self, x: Tensor, known: Tensor, step: int) -> Tensor:
        """Return the logits of all pixels."""
        numbers = torch.full((len(x),), step, device=x.device)
        shape = (len(x), self.num_classes, *x.shape[1:])
        if not len(x):
            return torch.zeros(shape, device=x.device)
        # Ranks must not depend on the rest of the batch.
        logits = stable_logits(self.net, x, known, numbers) if self.ranks else self.logits(x, known, numbers)
        if logits.shape != shape:
            raise ValueError(f"OrderedSplit: the net must return logits {shape}, but returned {tuple(logits.shape)}")
        return logits

    def _drawn(self, logits: Tensor, draw: Draw) -> Tensor:
        if self.ranks:
            return unrank(draw(self.rank_logits(logits)), logits, self.num_classes, dim=1)
        return draw(logits)

    # ---- Training

    def loss(self, net: nn.Module, x: Tensor, progress: Tensor) -> Loss:
        """Return the loss of a random step of each sample.

        Two things reduce the variance of the gradient: steps are drawn in proportion to the square root of their number
        of pixels, and the draws of a batch are evenly spaced, with a random offset.
        """
        steps, batch = self.steps(x), len(x)
        count = len(steps.present)
        spaced = (torch.arange(batch, device=x.device) + torch.rand((), device=x.device)) / batch
        drawn = torch.searchsorted(steps.shares.cumsum(0), spaced).clamp(max=count - 1)
        step = steps.present[drawn]
        known = steps.of_pixel < step.view(-1, 1, 1)
        target = steps.of_pixel == step.view(-1, 1, 1)
        usual = torch.ones(batch, device=x.device)
        if self.given:
            chosen = torch.rand(batch, device=x.device) < self.given
            step = torch.where(chosen & (torch.rand(batch, device=x.device) < 1 / (count + 1)), 0, step)
            known = (steps.of_pixel < step.view(-1, 1, 1)) | (chosen.view(-1, 1, 1) & _random_pixels(x))
            target = (steps.of_pixel == step.view(-1, 1, 1)) & ~known
            usual = 1 - chosen.float()
        bits = self._bits(net, x, known, step)
        of_sample = (bits * target.unsqueeze(1)).flatten(1).sum(1) / (steps.shares[drawn] * (steps.later * x.shape[1]))
        rest = ~(known | target).unsqueeze(1)
        auxiliary = (bits * rest).sum() / (rest.sum() * x.shape[1] + 1)
        weight = _AUXILIARY * (1 - progress / _AUXILIARY_END).clamp(min=0)
        return Loss((of_sample * usual).sum() / usual.sum().clamp(min=1), of_sample.mean() + weight * auxiliary)

    @torch.no_grad()
    def score(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the mean bits per pixel, estimated from a few steps of each sample, always the same ones."""
        steps, batch = self.steps(x), len(x)
        count = len(steps.present)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        with evaluation_mode(net):
            for i in range(_SCORED):
                spaced = (torch.arange(batch, device=x.device, dtype=torch.float64) * _SCORED + i) * _GOLDEN % 1
                step = steps.present[(spaced * count).long()]
                known = steps.of_pixel < step.view(-1, 1, 1)
                target = steps.of_pixel == step.view(-1, 1, 1)
                total += (self._bits(net, x, known, step) * target.unsqueeze(1)).sum(dtype=torch.float64)
        return total * count / (_SCORED * batch * x.shape[1] * steps.later)

    def _bits(self, net: nn.Module, x: Tensor, known: Tensor, step: Tensor) -> Tensor:
        """Return the bits of every pixel: (batch, channels, height, width)."""
        log_p = net(x, known, step).float().log_softmax(dim=1)
        return (log_p * one_hot(x, self.num_classes)).sum(1) * (-1 / log(2))

    @torch.no_grad()
    def check_data(self, symbols: Iterable[Tensor]) -> None:
        x = next(iter(symbols))[:1]
        steps = self.steps(x)
        if not steps.places:
            raise ValueError(f"OrderedSplit: maps of {tuple(x.shape[2:])} have only pixels of step 0")
        known = steps.of_pixel[None] < steps.places[-1][0]
        changed = torch.where(known.unsqueeze(1), x, self.num_classes - 1 - x)
        with evaluation_mode(self.net):
            one, other = (self._predicted(part, known, steps.places[-1][0]) for part in (x, changed))
        if not torch.equal(one, other):
            raise ValueError("OrderedSplit: the net's logits depend on the symbols of unknown pixels; use the mask")

    def count(self, symbols: Iterable[Tensor]) -> Tensor:
        if not self.ranks:
            return torch.empty(0)

        def predicted() -> Iterator[tuple[Tensor, Tensor]]:
            for x in symbols:
                for step, place in self.steps(x).places:
                    yield x.flatten(2)[..., place], self.predict(x, step, place)

        return self.count_ranks(predicted())

    def extra_repr(self) -> str:
        net = " ".join(repr(self.net).split())  # on one line
        return f"{net}, {self.order}" + (", ranks=True" if self.ranks else "")


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of the pixels of maps of one size.

    Arguments:
        of_pixel: The step of every pixel (height, width).
        present: The steps that have pixels, except step 0.
        places: Each of these steps and its pixels, as indices into flattened maps.
        later: The number of pixels of all these steps.
        shares: The probability with which each of these steps is drawn in training.
    """

    of_pixel: Tensor
    present: Tensor
    places: list[tuple[int, Tensor]]
    later: int
    shares: Tensor


def _random_pixels(x: Tensor) -> Tensor:
    """Return a random mask (batch, height, width): the inside or outside of a rectangle, or independent pixels."""
    batch, _, height, width = x.shape
    ends = torch.rand(batch, 4, device=x.device).view(batch, 2, 2).sort(dim=-1).values
    rows = torch.arange(height, device=x.device).view(1, -1, 1) / height
    columns = torch.arange(width, device=x.device).view(1, 1, -1) / width
    (top, bottom), (left, right) = (ends[:, i].T[..., None, None] for i in range(2))
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    kind = torch.rand(batch, 1, 1, device=x.device)
    some = torch.rand(batch, height, width, device=x.device) < torch.rand(batch, 1, 1, device=x.device)
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
