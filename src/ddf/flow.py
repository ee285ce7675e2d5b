"""A flow: a list of layers with a base distribution at the end, walked in two directions."""

__all__ = ["Flow", "Latents"]

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log, prod
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddf.layers.conditional import Conditional
from ddf.layers.layer import Draw, Emit, Layer, Shape
from ddf.nets.net import check_size
from ddf.prior import FactorizedCategorical
from ddf.symbols import check_symbols, one_hot

if TYPE_CHECKING:
    from ddf.data.classes import Classes, Columns
    from ddf.spec import FlowSpec


_MOST_GAIN = 5.0  # nats that a relaxed symbol is said to win at most: what hardly ever happens must not drown the rest


@dataclass(frozen=True, eq=False)
class Latents:
    """What a flow turns data into: the symbols that each split prior factored out, and last those of the base.

    Arguments:
        parts: Symbols (batch, channels, *spatial) each, in the order of the forward walk.
    """

    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, samples: int | slice | Tensor) -> "Latents":
        if isinstance(samples, int):
            samples = torch.tensor([samples])
        return Latents(tuple(part[samples] for part in self.parts))

    def to(self, device: torch.device | str) -> "Latents":
        return Latents(tuple(part.to(device) for part in self.parts))


class Flow(nn.Module):
    """An exact-likelihood model of categorical data: invertible layers, and a base distribution of what they leave.

    `forward` walks from data to latents and `inverse` from latents to data. Everything else is a small function over
    these two: what the layers and the base emit is summed up, kept or coded; what they draw is replayed or sampled.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021)

    Arguments:
        layers: The layers, from the data on.
        base: The distribution of what the last layer leaves.
        shape: (channels, *spatial) of one sample, (D,) for a vector. None stands for any spatial size.

    What the symbols stand for, if that is known, is in its attribute `classes`; what else is worth knowing (plain data)
    in `about`. Both go into its file as well.

    Examples:
        >>> from ddf import architectures
        >>> flow = architectures.eight_gaussians().build(seed=0)
        >>> x = torch.tensor([[45, 85], [45, 5]])
        >>> flow.bits_per_dim(x)  # untrained: log2(91)
        tensor([6.5078, 6.5078], dtype=torch.float64)
        >>> torch.equal(flow.decode(flow.encode(x)), x)
        True
        >>> flow.sample(3, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 2])
    """

    def __init__(self, layers: Sequence[Layer], base: FactorizedCategorical, shape: Sequence[int | None]) -> None:
        super().__init__()
        for i, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layer {i} is no Layer, but a {type(layer).__name__}")
        self.layers = nn.ModuleList(layers)
        self.base = base
        self.shape = tuple(shape)
        check_size("Flow", **{f"shape[{i}]": size for i, size in enumerate(shape) if size is not None})
        self.num_classes = base.num_classes
        self.classes: Classes | Columns | None = None
        self.about: dict[str, Any] = {}
        for i, layer in enumerate(self.layer_list()):
            if isinstance(layer, Conditional) and layer.num_classes != self.num_classes:
                raise ValueError(
                    f"layer {i}: {type(layer).__name__} has {layer.num_classes} classes, "
                    f"but the base has {self.num_classes}"
                )
        self.latent_shape(self.shape)

    # ---- The two walks -----------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, emit: Emit) -> None:
        """Walks from data to latents: all that is factored out on the way, and at the end, goes to `emit`."""
        for i, layer in enumerate(self.layer_list()):
            with _in_layer(i):
                x = layer(x, emit)
        self.base(x, emit)

    def inverse(self, batch: int, shape: Shape, draw: Draw) -> Tensor:
        """Walks from latents to data: all that `forward` emitted is asked of `draw`, in the reverse order.

        Arguments:
            batch: The number of samples.
            shape: The shape of what the base draws; see `latent_shape`.
            draw: Called with logits, returns symbols.
        """
        z = self.base.inverse(batch, shape, draw)
        for i, layer in reversed(list(enumerate(self.layer_list()))):
            with _in_layer(i):
                z = layer.inverse(z, draw)
        return z

    def latent_shape(self, shape: Shape) -> Shape:
        """Returns the shape of what the layers leave to the base of a sample of `shape`; refuses what cannot work."""
        for i, layer in enumerate(self.layer_list()):
            with _in_layer(i):
                shape = layer.output_shape(shape)
        self.base.check_shape(shape)
        return shape

    # ---- The verbs ---------------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """The natural logarithm of the probability of each sample.

        Arguments:
            x: Symbols (samples, *shape).
            batch_size: How many samples to work on at a time. It does not change the result.

        Returns:
            (samples,), float64.
        """

        def score(x: Tensor) -> Tensor:
            total = torch.zeros(len(x), dtype=torch.float64, device=x.device)

            def emit(symbols: Tensor, logits: Tensor) -> None:
                nonlocal total
                nats = F.cross_entropy(logits.float(), symbols.long(), reduction="none")
                total = total - nats.double().flatten(1).sum(1)

            self.forward(x, emit)
            return total

        return torch.cat([score(batch) for batch in self._batches(x, batch_size)])

    @torch.no_grad()
    def bits_per_dim(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """The bits that each sample costs, divided by its number of symbols: (samples,), float64."""
        return self.log_prob(x, batch_size) / (-log(2) * prod(x.shape[1:]))

    @torch.no_grad()
    def encode(self, x: Tensor, batch_size: int = 64) -> Latents:
        """Turns data into latents, from which `decode` gets it back exactly.

        Arguments:
            x: Symbols (samples, *shape) of any integer dtype. The latents have the same, if it can hold every class.
            batch_size: How many samples to work on at a time. It does not change the result.
        """
        batches = []
        for batch in self._batches(x, batch_size):
            parts: list[Tensor] = []
            self.forward(batch, lambda symbols, logits, parts=parts: parts.append(symbols))  # type: ignore[misc]
            batches.append(parts)
        return Latents(tuple(torch.cat(parts) for parts in zip(*batches, strict=True)))

    @torch.no_grad()
    def decode(self, latents: Latents, batch_size: int = 64) -> Tensor:
        """Turns latents back into data: symbols (samples, *shape)."""

        def replay(parts: tuple[Tensor, ...]) -> Tensor:
            left = list(parts)

            def draw(logits: Tensor) -> Tensor:
                shape = logits.shape[:1] + logits.shape[2:]
                if not left or left[-1].shape != shape:
                    have = tuple(left[-1].shape[1:]) if left else "nothing"
                    raise ValueError(
                        f"these latents are not this flow's: it needs {tuple(shape[1:])} where they hold {have}"
                    )
                return check_symbols(left.pop(), self.num_classes, name="latents")

            x = self.inverse(len(parts[-1]), tuple(parts[-1].shape[1:]), draw)
            if left:
                raise ValueError(
                    f"these latents are not this flow's: {len(left)} of their {len(parts)} parts are left over"
                )
            return x

        if not isinstance(latents, Latents):
            raise TypeError(f"decode takes Latents, as encode returns them, but is given a {type(latents).__name__}")
        if not latents.parts:
            raise ValueError("these latents are empty")
        lengths = {len(part) for part in latents.parts}
        if len(lengths) > 1:
            raise ValueError(f"the parts of these latents hold different numbers of samples: {sorted(lengths)}")
        split = [part.to(self.device).split(_check_batch_size(batch_size)) for part in latents.parts]
        return torch.cat([replay(parts) for parts in zip(*split, strict=True)])

    @torch.no_grad()
    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        size: Sequence[int] | None = None,
        batch_size: int = 64,
    ) -> Tensor:
        """Draws `n` samples.

        Arguments:
            n: How many.
            generator: The source of randomness, on the flow's device; PyTorch's own if None.
            size: The spatial size of the samples, for a flow of any size.
            batch_size: How many samples to work on at a time.

        Returns:
            Symbols (n, *shape), int64.
        """

        def draw(logits: Tensor) -> Tensor:
            logits = logits.movedim(1, -1)
            chances = logits.float().softmax(-1).flatten(0, -2)
            return torch.multinomial(chances, 1, generator=generator).view(logits.shape[:-1])

        if n < 0:
            raise ValueError(f"n={n}, but a number of samples cannot be negative")
        shape = self.shape if size is None else (self.shape[0], *size)
        self.check_sample_shape(shape)
        if None in shape:
            raise ValueError(f"this flow has no size of its own {self.shape}: say which with size=(height, width)")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(
                f"generator={generator!r}, but it must be a torch.Generator: torch.Generator().manual_seed(0)"
            )
        if generator is not None and generator.device.type != self.device.type:
            raise ValueError(f"the generator is on {generator.device}, but the flow is on {self.device}")
        latent_shape = self.latent_shape(shape)
        step = _check_batch_size(batch_size)
        counts = [min(step, n - i) for i in range(0, n, step)] or [0]
        return torch.cat([self.inverse(count, latent_shape, draw) for count in counts])

    def relaxed_log_prob(self, x: Tensor, power: float = 0.5) -> Tensor:
        """`log_prob` of one batch with straight-through gradients, to train flows of modular couplings end to end.

        The log-probability of a vector z that is no longer one-hot can be read in more ways than one. With power 0 it
        is the sum of z · log p, as is usual. That counts what a shift would win and what it would lose alike, so nets
        first agree on no shift at all, which is best on average, until their softmax is saturated, and learn nothing
        more. With power r it is log(sum of z · p^r) / r, the same for one-hot vectors: there it matters most what a
        shift would win.

        Arguments:
            x: Symbols (batch, *shape).
            power: The r above, 0 to 1.
        """
        (x,) = self._batches(x, max(1, len(x)))
        return self.relaxed_walk(x, power)

    def relaxed_walk(self, x: Tensor, power: float = 0.5) -> Tensor:
        """`relaxed_log_prob` of symbols that have been checked before and are on the flow's device."""
        total = torch.zeros(len(x), device=self.device)

        def emit(symbols: Tensor, logits: Tensor) -> None:
            nonlocal total
            chances = logits.float().log_softmax(dim=1)
            fixed = symbols.detach()
            taken = (fixed * chances).sum(dim=1, keepdim=True)
            # The gradient of log(sum of z · p^r) / r at a one-hot z, but for a constant, which has no effect.
            gain = (chances - taken).detach()
            slope = torch.expm1(power * gain.clamp(max=_MOST_GAIN)) / power if power else gain
            total = total + (taken + ((symbols - fixed) * slope).sum(dim=1, keepdim=True)).flatten(1).sum(1)

        vectors = one_hot(x, self.num_classes, self.base.logits.dtype)
        for i, layer in enumerate(self.layer_list()):
            with _in_layer(i):
                vectors = layer.relax(vectors, emit)
        self.base.relax(vectors, emit)
        return total

    # ---- A flow as a thing -------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the flow is; what the verbs are given is brought there."""
        return self.base.logits.device

    @property
    def spec(self) -> "FlowSpec":
        """The flow as plain data, without its weights."""
        from ddf.spec import describe

        return describe(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the flow to one file; `ddf.load(path)` reads it."""
        from ddf.checkpoint import save

        save(self, path)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.parameters())
        lines = [f"Flow of {self.num_classes} classes, shape {_brief(self.shape)}, {parameters:,} parameters"]
        shape = self.shape
        for i, layer in enumerate(self.layer_list()):
            shape = layer.output_shape(shape)
            lines.append(_line(f"{i:>4}", layer, shape))
        lines.append(_line("base", self.base, shape))
        return "\n".join(lines)

    def parts(self) -> list[Layer | FactorizedCategorical]:
        """The layers and the base, in order."""
        return [*self.layer_list(), self.base]

    def layer_list(self) -> list[Layer]:
        """The layers, in order."""
        return list(self.layers)  # type: ignore[arg-type]

    def check_sample_shape(self, shape: Shape) -> None:
        """Refuses samples of a shape other than the flow's."""
        if len(shape) != len(self.shape) or any(
            want not in (None, have) for have, want in zip(shape, self.shape, strict=True)
        ):
            raise ValueError(f"the flow is for samples of shape {_brief(self.shape)}, but these have {_brief(shape)}")

    def _batches(self, x: Tensor, batch_size: int) -> Iterator[Tensor]:
        """Checks data and hands it out in batches on the flow's device."""
        if not isinstance(x, Tensor):
            x = check_symbols(x, self.num_classes)  # says what is wrong with it
        if x.ndim == 0:
            raise ValueError("x is a single symbol, but it needs an axis of samples")
        shape = tuple(x.shape[1:])
        self.check_sample_shape(shape)
        if None in self.shape:
            self.latent_shape(shape)
        x = check_symbols(x, self.num_classes)
        for batch in x.split(_check_batch_size(batch_size)):
            yield batch.to(self.device)


def _check_batch_size(batch_size: int) -> int:
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}, but it must be at least 1")
    return batch_size


@contextmanager
def _in_layer(index: int) -> Iterator[None]:
    """Says which layer an error comes from."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"layer {index}: {error}") from error
    except ValueError as error:
        raise ValueError(f"layer {index}: {error}") from error


def _brief(shape: Shape) -> str:
    return " × ".join("any" if size is None else str(size) for size in shape)


def _line(label: str, module: Layer | FactorizedCategorical, shape: Shape) -> str:
    return f"  {label}  {module} → {_brief(shape)}{', frozen' if module.frozen else ''}"
