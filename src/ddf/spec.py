"""Flows as plain data: the JSON that is stored with the weights, and the parts that architectures consist of."""

__all__ = [
    "DenoisingCouplingSpec",
    "DenseNetSpec",
    "FactorizedCategoricalSpec",
    "FlowSpec",
    "LayerSpec",
    "MLPSpec",
    "ModularCouplingSpec",
    "NetSpec",
    "ShuffleSpec",
    "SplitPriorSpec",
    "SqueezeSpec",
    "describe",
]

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from math import prod
from sys import float_info
from types import UnionType
from typing import Any, ClassVar, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import nn

from ddf.data.classes import MOST_CLASSES
from ddf.errors import LimitError
from ddf.flow import Flow
from ddf.layers import (
    ChannelSplit,
    Checkerboard,
    DenoisingCoupling,
    Layer,
    ModularCoupling,
    Partition,
    Shuffle,
    SplitPrior,
    Squeeze,
)
from ddf.layers.layer import Shape
from ddf.layers.partition import as_partition
from ddf.nets import MLP, DenseNet, Net
from ddf.nets.net import check_size
from ddf.prior import FactorizedCategorical

_MOST_LAYERS = 4096
_MOST_SIDES = 8
_MOST_SYMBOLS = 1 << 40

_KINDS: dict[str, type[Any]] = {"ChannelSplit": ChannelSplit, "Checkerboard": Checkerboard}
_SPEC_OF: dict[type[nn.Module], type[Any]] = {}


class Spec:
    """Plain data that describes a module: a dataclass with the same names as the module's attributes.

    A subclass states which class it builds and is then recognized, in files as well:
    `class MySpec(LayerSpec, builds=MyLayer)`.
    """

    builds: ClassVar[type[nn.Module]]

    def __init_subclass__(cls, builds: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if builds is not None:
            cls.builds = builds
            _KINDS[builds.__name__] = cls
            _SPEC_OF[builds] = cls


class NetSpec(Spec, ABC):
    """A net without its shapes: those follow from its place in a flow."""

    @property
    def least_tensors(self) -> int:
        """A lower bound on the number of tensors of the net. It is not built if a file has fewer for it."""
        return 0

    @abstractmethod
    def build(self, num_classes: int, given: Shape, predicted: Shape) -> Net:
        """Build the net that predicts symbols of one shape from those of another."""


@dataclass(frozen=True)
class MLPSpec(NetSpec, builds=MLP):
    """See `MLP`."""

    hidden: int = 256
    layers: int = 4
    activation: str = "relu"

    @property
    def least_tensors(self) -> int:
        return 2 * self.layers

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> MLP:
        return MLP(num_classes, _channels(given), _channels(predicted), self.hidden, self.layers, self.activation)


@dataclass(frozen=True)
class DenseNetSpec(NetSpec, builds=DenseNet):
    """See `DenseNet`."""

    blocks: int = 8
    hidden: int = 512

    @property
    def least_tensors(self) -> int:
        return 4 * self.blocks

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> DenseNet:
        return DenseNet(num_classes, _channels(given), _channels(predicted), blocks=self.blocks, hidden=self.hidden)


@dataclass(frozen=True)
class _Outline(NetSpec):
    """Builds a net on PyTorch's meta device, where tensors take no memory, and converts it there."""

    net: NetSpec
    convert: Callable[[Net], Net]

    def build(self, num_classes: int, given: Shape, predicted: Shape) -> Net:
        with torch.device("meta"):
            return self.convert(self.net.build(num_classes, given, predicted))


class LayerSpec(Spec, ABC):
    """A layer without its shapes: those follow from its place in a flow."""

    @abstractmethod
    def build(self, num_classes: int, shape: Shape) -> Layer:
        """Build the layer for samples of `shape`."""

    def seeded(self, seed: int, shape: Shape) -> "LayerSpec":
        """Fill in what the seed of the flow decides: for most layers, nothing but the weights.

        Arguments:
            seed: A seed for this layer alone.
            shape: The shape of the samples that reach the layer.
        """
        return self


@dataclass(frozen=True)
class SqueezeSpec(LayerSpec, builds=Squeeze):
    """See `Squeeze`."""

    def build(self, num_classes: int, shape: Shape) -> Squeeze:
        return Squeeze()


@dataclass(frozen=True)
class ShuffleSpec(LayerSpec, builds=Shuffle):
    """See `Shuffle`. With neither a seed nor a permutation, `FlowSpec.build` derives the seed from that of the flow.

    Examples:
        >>> spec = FlowSpec(num_classes=2, shape=(4,), layers=(ShuffleSpec(),))
        >>> [spec.build(seed).layers[0].order.tolist() for seed in (0, 1)]
        [[3, 1, 0, 2], [1, 3, 0, 2]]
    """

    seed: int | None = None
    permutation: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.permutation is not None:
            object.__setattr__(self, "permutation", tuple(self.permutation))

    def seeded(self, seed: int, shape: Shape) -> "ShuffleSpec":
        """Draw the seed of a permutation other than the identity, unless the spec has one already."""
        if self.seed is not None or self.permutation is not None:
            return self
        generator = torch.Generator().manual_seed(seed)
        while True:
            drawn = ShuffleSpec(seed=int(torch.randint(1 << 31, (), generator=generator)))
            order = drawn.build(0, shape).order.tolist()
            if len(order) == 1 or order != sorted(order):
                return drawn

    def build(self, num_classes: int, shape: Shape) -> Shuffle:
        return Shuffle(_channels(shape), seed=self.seed, permutation=self.permutation)


class _PartitionedSpec(LayerSpec):
    """Allows a partition to be given by its name."""

    partition: Partition

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", as_partition(self.partition))


@dataclass(frozen=True)
class DenoisingCouplingSpec(_PartitionedSpec, builds=DenoisingCoupling):
    """See `DenoisingCoupling`."""

    net: NetSpec
    top: int
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> DenoisingCoupling:
        net = self.net.build(num_classes, *self.partition.shapes(shape))
        return DenoisingCoupling(net, top=self.top, partition=self.partition)


@dataclass(frozen=True)
class ModularCouplingSpec(_PartitionedSpec, builds=ModularCoupling):
    """See `ModularCoupling`."""

    net: NetSpec
    scale: bool = True
    temperature: float = 0.1
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> ModularCoupling:
        given, target = self.partition.shapes(shape)
        outputs = ModularCoupling.outputs_per_symbol(num_classes, self.scale)
        net = self.net.build(num_classes, given, (_channels(target) * outputs, *target[1:]))
        return ModularCoupling(net, scale=self.scale, temperature=self.temperature, partition=self.partition)


@dataclass(frozen=True)
class SplitPriorSpec(_PartitionedSpec, builds=SplitPrior):
    """See `SplitPrior`."""

    net: NetSpec
    factor_out: str = "b"
    partition: Partition = ChannelSplit()

    def build(self, num_classes: int, shape: Shape) -> SplitPrior:
        a, b = self.partition.shapes(shape)
        net = self.net.build(num_classes, *((a, b) if self.factor_out == "b" else (b, a)))
        return SplitPrior(net, factor_out=self.factor_out, partition=self.partition)


@dataclass(frozen=True)
class FactorizedCategoricalSpec(Spec, builds=FactorizedCategorical):
    """See `FactorizedCategorical`."""

    shared: bool = False

    def build(self, num_classes: int, shape: Shape) -> FactorizedCategorical:
        return FactorizedCategorical(num_classes, shape, shared=self.shared)


@dataclass(frozen=True)
class FlowSpec(Spec, builds=Flow):
    """A flow without its weights.

    Arguments:
        num_classes: The number of classes K.
        shape: (channels, *spatial) of one sample, (D,) for a vector. None stands for any spatial size.
        layers: The layers, from the data on.
        base: The distribution of what the last layer leaves.

    Examples:
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
                with _in_layer(i, spec):
                    spec = spec.seeded((seed * 1_000_003 + i) % (1 << 62), shape)
                    layers.append(spec.build(self.num_classes, shape))
                    shape = layers[-1].output_shape(shape)
        return Flow(layers, self.base.build(self.num_classes, shape), self.shape)

    def check_limits(self) -> None:
        """Refuse a flow that is too large for a file."""
        if self.num_classes > MOST_CLASSES:
            raise LimitError(f"{self.num_classes} classes, but a flow in a file has at most {MOST_CLASSES}")
        if len(self.layers) > _MOST_LAYERS:
            raise LimitError(f"{len(self.layers)} layers, but a flow in a file has at most {_MOST_LAYERS}")
        known = [side for side in self.shape if side is not None]
        if len(self.shape) > _MOST_SIDES or max(known, default=0) > _MOST_SYMBOLS or prod(known) > _MOST_SYMBOLS:
            raise LimitError(
                f"samples of the shape {self.shape}, but those of a flow in a file have at most {_MOST_SIDES} sizes "
                f"and {_MOST_SYMBOLS} symbols"
            )

    def outline(self, tensors: Mapping[str, Sequence[int]], convert: Callable[[Net], Net] = lambda net: net) -> Flow:
        """Build the flow for the tensors of a file, after checking that they are those that it needs.

        This takes no more time and memory than the tensors: the weights of the nets and of the base are on PyTorch's
        meta device, and each layer is compared with its tensors before the next one is built.

        Arguments:
            tensors: The shape of each tensor, by its name in the flow.
            convert: A function that converts each net.
        """
        self.check_limits()
        left = {name: tuple(shape) for name, shape in tensors.items()}
        counts = Counter(name.split(".")[1] for name in left if name.startswith("layers."))
        layers: list[Layer] = []
        shape: Shape = self.shape
        for i, spec in enumerate(self.layers):
            with _in_layer(i, spec):
                net = getattr(spec, "net", None)
                if isinstance(net, NetSpec):
                    if net.least_tensors > counts[str(i)]:
                        raise ValueError(f"{net} needs more tensors than the {counts[str(i)]} that the file has for it")
                    spec = replace(cast("Any", spec), net=_Outline(net, convert))
                elif isinstance(spec, ShuffleSpec):
                    _compare(f"layers.{i}.order", (_channels(shape),), left.get(f"layers.{i}.order"))
                layers.append(spec.build(self.num_classes, shape))
                shape = layers[-1].output_shape(shape)
            for name, tensor in layers[-1].state_dict().items():
                _compare(f"layers.{i}.{name}", tensor.shape, left.pop(f"layers.{i}.{name}", None))
        with torch.device("meta"):
            base = self.base.build(self.num_classes, shape)
        for name, tensor in base.state_dict().items():
            _compare(f"base.{name}", tensor.shape, left.pop(f"base.{name}", None))
        if left:
            raise ValueError(f"unexpected tensors: {', '.join(left)}")
        return Flow(layers, base, self.shape)

    def to_json(self, indent: int | None = None) -> str:
        """Return the spec as JSON."""
        return json.dumps(to_plain(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "FlowSpec":
        """Parse what `to_json` returned."""
        try:
            spec = from_plain(json.loads(text))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"the spec of a flow is not JSON: {error}") from error
        if not isinstance(spec, cls):
            raise ValueError(f"the spec of a flow begins with kind 'Flow', but this one is a {type(spec).__name__}")
        return spec


@contextmanager
def _in_layer(index: int, spec: LayerSpec) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {index} ({spec.builds.__name__}): {error}") from error


def _compare(name: str, want: Sequence[int], have: Sequence[int] | None) -> None:
    """Refuse a tensor whose shape differs from the one that a flow needs."""
    if have is None:
        raise ValueError(f"the tensor {name} is missing")
    if tuple(have) != tuple(want):
        raise ValueError(f"{name} has the shape {tuple(have)}, but the spec needs {tuple(want)}")


def describe(module: nn.Module) -> Any:
    """Return the spec of a flow, a layer, a net or a base.

    Examples:
        >>> describe(Shuffle(4, seed=7))
        ShuffleSpec(seed=7, permutation=None)
    """
    spec = _SPEC_OF.get(type(module))
    if spec is None:
        raise TypeError(
            f"{type(module).__name__} has no spec, so a flow with it cannot be described or saved; "
            f"define one: class {type(module).__name__}Spec(LayerSpec or NetSpec, builds={type(module).__name__})"
        )
    return spec(**{field.name: _described(getattr(module, field.name)) for field in fields(spec)})


def _described(value: Any) -> Any:
    if isinstance(value, nn.ModuleList):
        return tuple(describe(module) for module in value)
    return describe(value) if isinstance(value, nn.Module) else value


def to_plain(value: Any) -> Any:
    """Convert a spec to dictionaries, lists, numbers and strings."""
    if isinstance(value, Spec | Partition):
        kind = value.builds.__name__ if isinstance(value, Spec) else type(value).__name__
        return {"kind": kind} | {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(value: Any) -> Any:
    """Convert what `to_plain` returned to a spec; refuse anything else."""
    if isinstance(value, list):
        if sum(isinstance(item, dict) for item in value) > _MOST_LAYERS:
            raise LimitError(f"{len(value)} layers, but a flow in a file has at most {_MOST_LAYERS}")
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r} in the spec of a flow; known are {', '.join(sorted(_KINDS))}")
    options = {name: from_plain(item) for name, item in value.items() if name != "kind"}
    known = {field.name: field for field in fields(_KINDS[kind])}
    for name in options:
        if name not in known:
            raise ValueError(f"{kind} has no option {name!r}; it has {', '.join(known) or 'none'}")
    for name, field in known.items():
        if name not in options and field.default is MISSING:
            raise ValueError(f"{kind} lacks its option {name!r}")
    hints = _hints(_KINDS[kind])  # type: ignore[arg-type]
    for name, option in options.items():
        if not _fits(option, hints[name]):
            raise ValueError(f"{kind}: {name}={value[name]!r} is not of the type {hints[name]}")
    return _KINDS[kind](**options)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type, for the types that specs consist of."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= float_info.max
    return isinstance(value, hint)


def _channels(shape: Shape) -> int:
    if not shape or shape[0] is None:
        raise ValueError(f"symbols of shape {shape} have no number of channels")
    return shape[0]
