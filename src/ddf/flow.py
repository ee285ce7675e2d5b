"""A flow: a list of layers with a base distribution at the end, walked in two directions."""

__all__ = ["Flow", "FlowSpec", "Latents"]

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, prod
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddf.base import FactorizedCategorical, FactorizedCategoricalSpec
from ddf.classes import MOST_CLASSES, Classes, Columns, classes_from_plain
from ddf.errors import LimitError
from ddf.layers.layer import Draw, Emit, Layer, LayerSpec, in_layer
from ddf.layers.net_layer import NetLayer
from ddf.layers.ordered_split import OrderedSplit
from ddf.logits import draw_symbols, log_probs
from ddf.plain import MOST_LAYERS, Spec, describe, from_plain, to_plain
from ddf.shapes import Shape, check_size, fits, format_shape
from ddf.symbols import check_symbols
from ddf.tensorfile import write_tensors

_MOST_SIZES = 8
_MOST_SYMBOLS = 1 << 40


@dataclass(frozen=True, eq=False)
class Latents:
    """The output of `Flow.encode`: the symbols that layers factored out, and last those of the base.

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
    """An exact-likelihood model of categorical data: invertible layers, and a base distribution of their output.

    `to_latents` walks from data to latents and `to_data` from latents to data. Everything else is a small function of
    these two: the symbols that layers and bases emit are scored, stored or coded, and those that they draw are sampled,
    replayed or decoded.

    References:
        Discrete Denoising Flows (Lindt & Hoogeboom, 2021)

    Arguments:
        layers: The layers, from data to latents.
        base: The distribution of the output of the last layer.
        shape: (channels, *spatial) of one sample, (D,) for a vector. None stands for any spatial size.

    The attribute `classes` holds the meaning of the symbols, if it is known, and is part of the state dict. The
    attribute `about` holds other information, as plain data. Both are saved in the model file.

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

    __call__: Callable[..., Tensor]

    def __init__(self, layers: Sequence[Layer], base: FactorizedCategorical, shape: Sequence[int | None]) -> None:
        super().__init__()
        for i, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layer {i} must be a Layer, not a {type(layer).__name__}")
        self.layers = nn.ModuleList(layers)
        self.base = base
        self.shape = tuple(shape)
        check_size("Flow", **{f"shape[{i}]": size for i, size in enumerate(shape) if size is not None})
        self.num_classes = base.num_classes
        self.classes: Classes | Columns | None = None
        self.about: dict[str, Any] = {}
        for i, layer in enumerate(self.layer_list()):
            if isinstance(layer, NetLayer) and layer.num_classes != self.num_classes:
                raise ValueError(
                    f"layer {i}: {type(layer).__name__} has {layer.num_classes} classes, "
                    f"but the base has {self.num_classes}"
                )
        self.latent_shape(self.shape)

    # ---- The two walks -----------------------------------------------------------------------------------------------

    def to_latents(self, x: Tensor, emit: Emit) -> None:
        """Walk from data to latents: pass everything that is factored out, and the rest at the end, to `emit`."""
        for _, output in self.steps(x, emit):
            x = output
        self.base(x, emit)

    def steps(self, x: Tensor, emit: Emit) -> Iterator[tuple[Layer, Tensor]]:
        """Take the steps of `to_latents` one by one: yield each layer and its output."""
        for i, layer in enumerate(self.layer_list()):
            with in_layer(i):
                x = layer(x, emit)
                if x.is_floating_point():
                    raise TypeError(f"{type(layer).__name__} returned {x.dtype}, but symbols are integers")
            yield layer, x

    def to_data(self, batch: int, shape: Shape, draw: Draw) -> Tensor:
        """Walk from latents to data: request from `draw` what `to_latents` emitted, in the reverse order.

        Arguments:
            batch: The number of samples.
            shape: The shape of the symbols that the base draws; see `latent_shape`.
            draw: A function from logits to symbols.
        """
        z = self.base.inverse(batch, shape, draw)
        for i, layer in reversed(list(enumerate(self.layer_list()))):
            with in_layer(i):
                z = layer.inverse(z, draw)
        return z

    def latent_shape(self, shape: Shape) -> Shape:
        """Return the shape that the base sees for a sample of `shape`; raise an error if a layer cannot work on it."""
        for i, layer in enumerate(self.layer_list()):
            with in_layer(i):
                shape = layer.output_shape(shape)
        self.base.check_shape(shape)
        return shape

    # ---- Scores ------------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """Return `log_prob(x)`."""
        return self.log_prob(x, batch_size)

    def log_prob(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """Return the natural logarithm of the probability of each sample: (samples,), float64.

        Arguments:
            x: Symbols (samples, *shape).
            batch_size: Number of samples to process at a time. It affects the result only by rounding.
        """

        def score(x: Tensor) -> Tensor:
            total = torch.zeros(len(x), dtype=torch.float64, device=x.device)

            def emit(symbols: Tensor, logits: Tensor) -> None:
                nonlocal total
                total = total + log_probs(symbols, logits).flatten(1).sum(1)

            try:
                self.to_latents(x, emit)
            except IndexError as error:
                raise ValueError(f"a layer emits symbols outside 0…{self.num_classes - 1}: {error}") from error
            return total

        return torch.cat([score(batch) for batch in self._batches(x, batch_size)])

    @torch.no_grad()
    def bits_per_dim(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """Return the bits of each sample, divided by its number of symbols: (samples,), float64."""
        return self.log_prob(x, batch_size) / (-log(2) * prod(x.shape[1:]))

    # ---- Latents -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, x: Tensor, batch_size: int = 64) -> Latents:
        """Convert data to latents, from which `decode` restores it exactly.

        Arguments:
            x: Symbols (samples, *shape) of any integer dtype. The latents have the same dtype if it can hold every
                class.
            batch_size: Number of samples to process at a time. It does not affect the result.
        """
        batches = []
        for batch in self._batches(x, batch_size):
            parts: list[Tensor] = []
            self.to_latents(batch, lambda symbols, logits, parts=parts: parts.append(symbols))  # type: ignore[misc]
            batches.append(parts)
        return Latents(tuple(torch.cat(parts) for parts in zip(*batches, strict=True)))

    @torch.no_grad()
    def decode(self, latents: Latents, batch_size: int = 64) -> Tensor:
        """Convert latents back to data: symbols (samples, *shape)."""
        if not isinstance(latents, Latents):
            raise TypeError(f"decode takes the Latents that encode returns, not a {type(latents).__name__}")
        if not latents.parts:
            raise ValueError("the latents are empty")
        lengths = {len(part) for part in latents.parts}
        if len(lengths) > 1:
            raise ValueError(f"the parts of the latents hold different numbers of samples: {sorted(lengths)}")

        def replay(parts: tuple[Tensor, ...]) -> Tensor:
            left = list(parts)

            def draw(logits: Tensor) -> Tensor:
                shape = logits.shape[:1] + logits.shape[2:]
                if not left or left[-1].shape != shape:
                    found = tuple(left[-1].shape[1:]) if left else "nothing"
                    raise ValueError(
                        f"the latents are not from this flow: it needs {tuple(shape[1:])}, but they have {found}"
                    )
                return check_symbols(left.pop(), self.num_classes, name="latents")

            x = self.to_data(len(parts[-1]), tuple(parts[-1].shape[1:]), draw)
            if left:
                raise ValueError(
                    f"the latents are not from this flow: {len(left)} of their {len(parts)} parts are not needed"
                )
            return x

        split = [part.to(self.device).split(_check_batch_size(batch_size)) for part in latents.parts]
        return torch.cat([replay(parts) for parts in zip(*split, strict=True)])

    # ---- Samples -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        size: Sequence[int] | None = None,
        batch_size: int = 64,
    ) -> Tensor:
        """Draw `n` samples: symbols (n, *shape), int64.

        Arguments:
            n: Number of samples.
            generator: Random number generator, on the device of the flow; PyTorch's default one if None.
            size: Spatial size of the samples, if the flow accepts any.
            batch_size: Number of samples to process at a time. With the same generator, it affects what is drawn.
        """
        if n < 0:
            raise ValueError(f"n={n} must not be negative")
        shape = self.shape if size is None else (self.shape[0], *size)
        self.check_sample_shape(shape)
        if None in shape:
            raise ValueError(f"this flow models samples of any size ({format_shape(shape)}): pass size=(height, width)")
        self._check_generator(generator)
        latent_shape = self.latent_shape(shape)
        step = _check_batch_size(batch_size)
        counts = [min(step, n - i) for i in range(0, n, step)] or [0]
        return torch.cat(
            [self.to_data(count, latent_shape, lambda logits: draw_symbols(logits, generator)) for count in counts]
        ).long()

    @torch.no_grad()
    def complete(
        self, x: Tensor, known: Tensor, generator: torch.Generator | None = None, batch_size: int = 64
    ) -> Tensor:
        """Draw the unknown pixels of maps, given the known ones: symbols (samples, *shape), int64.

        The flow must consist of one `OrderedSplit` with `given` > 0, whose net has learned to take known pixels into
        account wherever they are.

        Arguments:
            x: Symbols (samples, *shape). Unknown pixels may have any value.
            known: Which pixels are known: (height, width) for all samples, or (samples, height, width).
            generator: Random number generator, on the device of the flow; PyTorch's default one if None.
            batch_size: Number of samples to process at a time. With the same generator, it affects what is drawn.
        """
        layers = self.layer_list()
        if len(layers) != 1 or not isinstance(layers[0], OrderedSplit):
            raise TypeError("only a flow that consists of one OrderedSplit can complete maps")
        self._check_generator(generator)
        self.check_sample_shape(tuple(x.shape[1:]))
        if not isinstance(known, Tensor):
            raise TypeError(f"known must be a tensor, not a {type(known).__name__}; convert it with torch.as_tensor")
        if known.dtype != torch.bool or tuple(known.shape) not in (tuple(x.shape[2:]), (len(x), *x.shape[2:])):
            raise ValueError(
                f"known must be booleans of shape {tuple(x.shape[2:])} or {(len(x), *x.shape[2:])}, "
                f"not {known.dtype} of shape {tuple(known.shape)}"
            )
        layer, found = layers[0], []
        known = known.to(x.device).expand(len(x), *x.shape[2:])
        x = torch.where(known.unsqueeze(1), x, 0)
        marks = known.to(self.device).split(_check_batch_size(batch_size))
        for batch, mark in zip(self._batches(x, batch_size), marks, strict=True):
            found.append(layer.complete(batch, mark, lambda logits: draw_symbols(logits, generator)))
        return torch.cat(found).long()

    # ---- Training ----------------------------------------------------------------------------------------------------

    def freeze(self) -> "Flow":
        """Mark all layers and the base as trained; see `Freezable`."""
        for part in self.parts():
            part.freeze()
        return self

    def thaw(self) -> "Flow":
        """Make all layers and the base trainable again."""
        for part in self.parts():
            part.thaw()
        return self

    # ---- State, spec and file ----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the flow, to which inputs are moved."""
        return self.base.logits.device

    @property
    def spec(self) -> "FlowSpec":
        """The flow as plain data, without its weights."""
        spec: FlowSpec = describe(self)
        return spec

    def get_extra_state(self) -> Tensor:
        """Return the classes as JSON, encoded as bytes."""
        text = json.dumps(None if self.classes is None else self.classes.to_plain())
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        plain = json.loads(bytes(state.cpu().numpy()))
        classes = None if plain is None else classes_from_plain(plain)
        if classes is not None and classes.num_classes != self.num_classes:
            raise ValueError(f"{classes.num_classes} classes are named, but the flow has {self.num_classes}")
        self.classes = classes

    def save(self, path: str | PathLike[str]) -> None:
        """Write the flow to one file, atomically; `ddf.load(path)` reads it. Equal flows give equal files."""
        spec, tensors = self.spec, self.state_dict()
        spec.check_limits()
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                value = tensor[~tensor.isfinite()][0].item()
                raise ValueError(f"{name} contains {value}: the flow was not saved")
        write_tensors(Path(path), tensors, {"kind": "flow", "spec": to_plain(spec), "about": self.about})

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.parameters())
        lines = [f"Flow of {self.num_classes} classes, shape {format_shape(self.shape)}, {parameters:,} parameters"]
        shape: Shape = self.shape
        for i, layer in enumerate(self.layer_list()):
            shape = layer.output_shape(shape)
            lines.append(_line(f"{i:>4}", layer, shape))
        lines.append(_line("base", self.base, shape))
        return "\n".join(lines)

    def parts(self) -> list[Layer | FactorizedCategorical]:
        """Return the layers and the base, in order."""
        return [*self.layer_list(), self.base]

    def layer_list(self) -> list[Layer]:
        """Return the layers, in order."""
        return list(self.layers)  # type: ignore[arg-type]

    def check_sample_shape(self, shape: Shape) -> None:
        """Raise an error for samples of a shape other than the flow's."""
        if not fits(shape, self.shape):
            raise ValueError(f"the flow models samples of shape {format_shape(self.shape)}, not {format_shape(shape)}")

    def _check_generator(self, generator: torch.Generator | None) -> None:
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator={generator!r} must be a torch.Generator: torch.Generator().manual_seed(0)")
        if generator is not None and generator.device.type != self.device.type:
            raise ValueError(f"the generator is on {generator.device}, but the flow is on {self.device}")

    def _batches(self, x: Tensor, batch_size: int) -> Iterator[Tensor]:
        """Check data, because layers do not, and yield it in batches on the flow's device."""
        x = check_symbols(x, self.num_classes)
        if x.ndim == 0:
            raise ValueError("x is a single symbol, but an axis of samples is needed")
        shape = tuple(x.shape[1:])
        self.check_sample_shape(shape)
        if None in self.shape:
            self.latent_shape(shape)
        for batch in x.split(_check_batch_size(batch_size)):
            yield batch.to(self.device)


def _check_batch_size(batch_size: int) -> int:
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    return batch_size


def _line(label: str, module: Layer | FactorizedCategorical, shape: Shape) -> str:
    return f"  {label}  {module} → {format_shape(shape)}{', frozen' if module.frozen else ''}"


@dataclass(frozen=True)
class FlowSpec(Spec, builds=Flow):
    """A flow as plain data, without its weights.

    Arguments:
        num_classes: The number of classes K.
        shape: (channels, *spatial) of one sample, (D,) for a vector. None stands for any spatial size.
        layers: The layers, from data to latents.
        base: The distribution of the output of the last layer.

    Examples:
        >>> from ddf.spec import DenoisingCouplingSpec, DenseNetSpec, SqueezeSpec
        >>> spec = FlowSpec(
        ...     num_classes=8,
        ...     shape=(1, 32, 64),
        ...     layers=(SqueezeSpec(), DenoisingCouplingSpec(DenseNetSpec(blocks=2, hidden=32), top=4)),
        ... )
        >>> spec.build()
        Flow of 8 classes, shape 1 × 32 × 64, 31,584 parameters
             0  Squeeze() → 4 × 16 × 32
             1  DenoisingCoupling(DenseNet(blocks=2, hidden=32), ChannelSplit(index=None), top=4) → 4 × 16 × 32
          base  FactorizedCategorical(shared=False) → 4 × 16 × 32
        >>> FlowSpec.from_json(spec.to_json()) == spec
        True
    """

    num_classes: int
    shape: tuple[int | None, ...]
    layers: tuple[LayerSpec, ...]
    base: FactorizedCategoricalSpec = FactorizedCategoricalSpec()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "layers", tuple(self.layers))

    def build(self, seed: int = 0) -> Flow:
        """Build the flow. The seed determines the weights, and the shuffles that do not have a seed of their own."""
        check_size("FlowSpec", num_classes=self.num_classes)
        layers: list[Layer] = []
        shape: Shape = self.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for i, spec in enumerate(self.layers):
                with in_layer(i):
                    spec = spec.seeded((seed * 1_000_003 + i) % (1 << 62), shape)
                    layers.append(spec.build(self.num_classes, shape))
                    shape = layers[-1].output_shape(shape)
        return Flow(layers, self.base.build(self.num_classes, shape), self.shape)

    def to_json(self, indent: int | None = None) -> str:
        """Return the spec as JSON."""
        return json.dumps(to_plain(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "FlowSpec":
        """Parse what `to_json` returned."""
        try:
            plain = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"the spec of a flow is not JSON: {error}") from error
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> "FlowSpec":
        """Convert what `to_plain` returned; raise an error for the spec of anything but a flow."""
        spec = from_plain(plain)
        if not isinstance(spec, cls):
            raise ValueError(f"the spec of a flow begins with kind 'Flow', but this one is a {type(spec).__name__}")
        return spec

    def check_limits(self) -> None:
        """Raise an error for a flow that is too large for a file."""
        if self.num_classes > MOST_CLASSES:
            raise LimitError(f"{self.num_classes} classes, but a flow in a file has at most {MOST_CLASSES}")
        if len(self.layers) > MOST_LAYERS:
            raise LimitError(f"{len(self.layers)} layers, but a flow in a file has at most {MOST_LAYERS}")
        known = [size for size in self.shape if size is not None]
        if len(self.shape) > _MOST_SIZES or max(known, default=0) > _MOST_SYMBOLS or prod(known) > _MOST_SYMBOLS:
            raise LimitError(
                f"samples of the shape {self.shape}, but those of a flow in a file have at most {_MOST_SIZES} sizes "
                f"and {_MOST_SYMBOLS} symbols"
            )
