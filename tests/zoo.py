"""Small instances of everything, with random weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ddf import architectures, spec
from ddf.archive import ArchiveWriter, Codec
from ddf.base import FactorizedCategorical
from ddf.classes import Classes
from ddf.exact import IntegerFlow
from ddf.exact.quantize import quantize_net
from ddf.flow import Flow
from ddf.layers import (
    ChannelSplit,
    Conditional,
    DenoisingCoupling,
    DenoisingSplit,
    LatticeOrder,
    Layer,
    ModularCoupling,
    OrderedSplit,
    Shuffle,
    SplitPrior,
    Squeeze,
)
from ddf.nets import MLP, DenseNet, LatticeNet, Net
from ddf.nets.convolution import Convolution
from ddf.shapes import Shape

Module = TypeVar("Module", bound=nn.Module)
RankLayer = TypeVar("RankLayer", DenoisingSplit, OrderedSplit)


def randomize(module: Module, seed: int = 0) -> Module:
    """Draw all weights at random, including those initialized to zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2 / fan_in) ** 0.5)
    return module


def nothing(*args: object) -> None:
    """Stand in for emit and draw, for layers that use neither."""
    raise AssertionError("this layer must not factor anything out")


def dense(k: int, given: int, predicted: int) -> Net:
    return randomize(DenseNet(k, given, predicted, blocks=2, hidden=16))


def mlp(k: int, given: int, predicted: int) -> Net:
    return randomize(MLP(k, given, predicted, hidden=16, layers=3))


def modular_outputs(k: int) -> int:
    return ModularCoupling.outputs_per_symbol(k, scale=True)


class PlainNet(nn.Module):
    """A classifier that is not a `Net`: an embedding of each symbol of one channel, and a linear layer."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(k, 8)
        self.readout = nn.Linear(8, k)
        randomize(self)

    def forward(self, x: Tensor) -> Tensor:
        one_hot = x.is_floating_point()  # in flows trained end to end
        features = x.movedim(1, -1) @ self.embedding.weight if one_hot else self.embedding(x.long())
        return self.readout(features).movedim(-1, 1)


def counted(layer: RankLayer, shape: tuple[int, ...]) -> RankLayer:
    """Fit the tables of a layer to some samples."""
    x = torch.randint(layer.num_classes, (200, *shape), generator=torch.Generator().manual_seed(7))
    layer.set_counts(layer.count([x]))
    return layer


def ordered(k: int, shape: tuple[int, int, int], **options: Any) -> tuple[Layer, tuple[int, ...]]:
    """Return an ordered split of small maps."""
    channels, *size = shape
    net = randomize(
        LatticeNet(k, channels, 1, 2, (size[0], size[1]), planes=(64,), blocks=(1,), width=8, depth=1, hints=True)
    )
    layer = OrderedSplit(net, LatticeOrder(2, 2), size=(size[0], size[1]), **options)
    return (counted(layer, shape) if layer.ranks else layer), shape


# Name → for K classes, a layer and the shape of a small sample. Maps have 4 symbols and vectors 2: few enough to
# enumerate all samples.
LAYERS: dict[str, Callable[[int], tuple[Layer, tuple[int, ...]]]] = {
    "squeeze": lambda k: (Squeeze(), (1, 2, 2)),
    "shuffle, seeded": lambda k: (Shuffle(4, seed=3), (4, 1, 1)),
    "shuffle, given": lambda k: (Shuffle(2, permutation=[1, 0]), (2, 2, 1)),
    "shuffle of a vector": lambda k: (Shuffle(2, permutation=[1, 0]), (2,)),
    "denoising": lambda k: (DenoisingCoupling(dense(k, 2, 2), top=k), (4, 1, 1)),
    "denoising, half the classes": lambda k: (DenoisingCoupling(dense(k, 1, 1), top=(k + 1) // 2), (2, 2, 1)),
    "denoising, one class": lambda k: (DenoisingCoupling(dense(k, 1, 1), top=1), (2, 1, 2)),
    "denoising, 1 : 3": lambda k: (DenoisingCoupling(dense(k, 1, 3), top=k, partition=ChannelSplit(1)), (4, 1, 1)),
    "denoising, 3 : 1": lambda k: (DenoisingCoupling(dense(k, 3, 1), top=k, partition=ChannelSplit(3)), (4, 1, 1)),
    "denoising, plain net": lambda k: (DenoisingCoupling(PlainNet(k), top=k, num_classes=k), (2, 2, 1)),
    "denoising, limits": lambda k: (
        DenoisingCoupling(dense(k, 2, 2), top=k, limits=(k, max(1, k - 1))),
        (4, 1, 1),
    ),
    "denoising of a vector": lambda k: (DenoisingCoupling(mlp(k, 1, 1), top=k), (2,)),
    "modular": lambda k: (ModularCoupling(dense(k, 2, 2 * modular_outputs(k))), (4, 1, 1)),
    "modular, location only": lambda k: (ModularCoupling(dense(k, 1, 1), scale=False), (2, 2, 1)),
    "modular, 1 : 3": lambda k: (
        ModularCoupling(dense(k, 1, 3 * modular_outputs(k)), partition=ChannelSplit(1)),
        (4, 1, 1),
    ),
    "modular of a vector": lambda k: (ModularCoupling(mlp(k, 1, modular_outputs(k))), (2,)),
    "denoising split": lambda k: (DenoisingSplit(dense(k, 2, 2)), (4, 1, 1)),
    "denoising split, 1 : 3": lambda k: (DenoisingSplit(dense(k, 1, 3), ChannelSplit(1)), (4, 1, 1)),
    "denoising split, limits": lambda k: (DenoisingSplit(dense(k, 2, 2), limits=(max(1, k - 1), k)), (4, 1, 1)),
    "denoising split, plain net": lambda k: (DenoisingSplit(PlainNet(k), num_classes=k), (2, 2, 1)),
    "denoising split of a vector": lambda k: (counted(DenoisingSplit(mlp(k, 1, 1)), (2,)), (2,)),
    "ordered split": lambda k: ordered(k, (1, 2, 2)),
    "ordered split, two channels": lambda k: ordered(k, (2, 1, 2), given=0.5),
    "ordered split, ranks": lambda k: ordered(k, (1, 2, 2), ranks=True),
    "split prior, b": lambda k: (SplitPrior(dense(k, 2, 2)), (4, 1, 1)),
    "split prior, a": lambda k: (SplitPrior(dense(k, 2, 2), factor_out="a"), (4, 1, 1)),
    "split prior, b of 1 : 3": lambda k: (SplitPrior(dense(k, 1, 3), "b", ChannelSplit(1)), (4, 1, 1)),
    "split prior, a of 1 : 3": lambda k: (SplitPrior(dense(k, 3, 1), "a", ChannelSplit(1)), (4, 1, 1)),
    "split prior, limits": lambda k: (SplitPrior(dense(k, 2, 2), limits=(1, k)), (4, 1, 1)),
    "split prior, plain net": lambda k: (SplitPrior(PlainNet(k), num_classes=k), (2, 2, 1)),
    "split prior of a vector": lambda k: (SplitPrior(mlp(k, 1, 1), factor_out="a"), (2,)),
}

LOCALLY_TRAINED = [name for name, make in LAYERS.items() if type(make(2)[0]).relax is Layer.relax]


def as_flow(layer: Layer, shape: tuple[int, ...], k: int, shared: bool = False) -> Flow:
    """Return a flow of one layer."""
    base = FactorizedCategorical(k, layer.output_shape(shape), shared=shared)
    return Flow([layer], randomize(base), shape)


def layer_flow(name: str, k: int) -> Flow:
    return as_flow(*LAYERS[name](k), k)


class TinyNet(Net):
    """Two convolutions with a bottleneck: small even for many channels and classes."""

    def __init__(self, num_classes: int, in_channels: int, out_channels: int) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        self.inner = Convolution(self.in_planes, 16, kernel_size=3)
        self.outer = Convolution(16, self.out_planes, kernel_size=1)

    def body(self, planes: Tensor) -> Tensor:
        return self.outer(self.inner(planes).relu())

    def output_shape(self, shape: Shape) -> Shape:
        return (self.out_channels, *shape[1:])


@dataclass(frozen=True)
class TinyNetSpec(spec.NetSpec, builds=TinyNet):
    def build(self, num_classes: int, given: Shape, predicted: Shape) -> TinyNet:
        assert given[0] is not None
        assert predicted[0] is not None
        return TinyNet(num_classes, given[0], predicted[0])


@dataclass(frozen=True)
class PlainNetSpec(spec.NetSpec, builds=PlainNet):
    def build(self, num_classes: int, given: Shape, predicted: Shape) -> PlainNet:
        return PlainNet(num_classes)


SMALL_NET = TinyNetSpec()
SMALL_MLP = spec.MLPSpec(hidden=16)

ARCHITECTURES: dict[str, Callable[[], spec.FlowSpec]] = {
    f"{name}, {coupling}, {priors}": make
    for coupling in ("denoising", "modular")
    for name, priors, make in (
        ("8 Gaussians", "no split priors", lambda c=coupling: architectures.eight_gaussians(c, net=SMALL_MLP)),
        ("MNIST", "no split priors", lambda c=coupling: architectures.binary_mnist(c, False, net=SMALL_NET)),
        ("MNIST", "order a", lambda c=coupling: architectures.binary_mnist(c, factor_out="a", net=SMALL_NET)),
        ("MNIST", "order b", lambda c=coupling: architectures.binary_mnist(c, factor_out="b", net=SMALL_NET)),
        ("Cityscapes", "no split priors", lambda c=coupling: architectures.cityscapes(c, False, net=SMALL_NET)),
        ("Cityscapes", "order a", lambda c=coupling: architectures.cityscapes(c, factor_out="a", net=SMALL_NET)),
        ("Cityscapes", "order b", lambda c=coupling: architectures.cityscapes(c, factor_out="b", net=SMALL_NET)),
    )
}


def with_classes(flow: spec.FlowSpec, k: int) -> spec.FlowSpec:
    """Return the same architecture for another number of classes."""
    layers = (
        replace(layer, top=min(layer.top, k)) if isinstance(layer, spec.DenoisingCouplingSpec) else layer
        for layer in flow.layers
    )
    return replace(flow, num_classes=k, layers=tuple(layers))


def everything(k: int, shape: tuple[int, ...]) -> Tensor:
    """Return all samples of a shape."""
    size = torch.Size(shape).numel()
    return torch.tensor(list(product(range(k), repeat=size))).view(-1, *shape)


# ---- For archives and exact flows -----------------------------------------------------------------------------------


VALUES = (0, 3, 4, 9)
"""The values of the four classes of small label maps."""


def exact(flow: Flow, seed: int = 0, values: tuple[int, ...] | None = None) -> IntegerFlow:
    """Return an integer flow with random weights."""
    randomize(flow, seed)
    for layer in flow.layer_list():
        if isinstance(layer, Conditional):
            layer.net = quantize_net(layer.net, [])
    flow.classes = None if values is None else Classes(values)
    return IntegerFlow(flow)


def any_size_flow() -> IntegerFlow:
    """Return a flow with a shared base, for maps of any size that two squeezes can divide."""
    net = spec.DenseNetSpec(blocks=1, hidden=8)
    layers = (spec.SqueezeSpec(), spec.SplitPriorSpec(net), spec.SqueezeSpec(), spec.SplitPriorSpec(net))
    base = spec.FactorizedCategoricalSpec(shared=True)
    return exact(spec.FlowSpec(4, (1, None, None), layers, base).build(), values=VALUES)


def coupling_flow() -> IntegerFlow:
    net = spec.DenseNetSpec(blocks=2, hidden=16)
    layers = (
        spec.SqueezeSpec(),
        spec.ShuffleSpec(seed=3),
        spec.DenoisingCouplingSpec(net, top=2),
        spec.SplitPriorSpec(net, factor_out="a"),
        spec.DenoisingCouplingSpec(net, top=3),
    )
    return exact(spec.FlowSpec(3, (1, 8, 6), layers).build())


def vector_flow() -> IntegerFlow:
    net = spec.MLPSpec(hidden=16, layers=3)
    layers = (
        spec.DenoisingCouplingSpec(net, top=7),
        spec.ShuffleSpec(permutation=(3, 2, 1, 0)),
        spec.SplitPriorSpec(net),
    )
    return exact(spec.FlowSpec(7, (4,), layers).build())


def denoising_split_flow() -> IntegerFlow:
    net = spec.DenseNetSpec(blocks=2, hidden=16)
    layers = (spec.SqueezeSpec(), spec.DenoisingSplitSpec(net), spec.SqueezeSpec(), spec.DenoisingSplitSpec(net))
    flow = exact(spec.FlowSpec(5, (1, 8, 4), layers).build())
    x = torch.randint(5, (200, 1, 8, 4), generator=torch.Generator().manual_seed(7))
    for layer in flow.layer_list():
        if isinstance(layer, DenoisingSplit):
            layer.set_counts(layer.count([x]))
        x = layer.carry(x)
    return IntegerFlow(flow)


# Name → an integer flow, and the shape of a small array.
INTEGER_FLOWS: dict[str, tuple[Callable[[], IntegerFlow], tuple[int, ...]]] = {
    "any-size": (any_size_flow, (12, 20)),
    "couplings": (coupling_flow, (8, 6)),
    "denoising-splits": (denoising_split_flow, (8, 4)),
    "vectors": (vector_flow, (4,)),
}


def draw_maps(count: int, shape: tuple[int, ...], num_classes: int, seed: int = 0) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Return maps of discs, or vectors of random symbols, with the values of an integer flow of this many classes."""
    generator = np.random.default_rng(seed)
    values = np.array(VALUES if num_classes == 4 else range(num_classes), dtype=np.uint8)
    if len(shape) == 1:
        return list(values[generator.integers(num_classes, size=(count, *shape))])
    maps = []
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    for _ in range(count):
        symbols = np.zeros(shape, dtype=np.int64)
        for _ in range(4):
            row, column, radius = generator.random(3) * (*shape, max(shape) / 2)
            symbols[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = generator.integers(num_classes)
        maps.append(values[symbols])
    return maps


def noise_maps(count: int, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return maps of random values below 16, which a general-purpose compressor handles poorly."""
    return list(np.random.default_rng(seed).integers(0, 16, (count, *shape), dtype=np.uint8))


GOLDEN = Path(__file__).parent / "golden"
"""Archives that every version must read."""


def write_archive(path: Path, model: Codec | None, arrays: list[np.ndarray], **options: object) -> bytes:  # type: ignore[type-arg]
    """Return an archive of arrays named map 0, map 1 and so on."""
    with ArchiveWriter(path, model, overwrite=True, **options) as writer:
        for i, array in enumerate(arrays):
            writer.add(array, f"map {i}")
    return path.read_bytes()


def assorted_arrays() -> list[np.ndarray]:
    """Return arrays that the codec supports, and others."""
    generator = np.random.default_rng(0)
    discs = draw_maps(4, (26, 30), 4, seed=8)
    noise = noise_maps(3, (26, 30))
    return [
        *noise,
        np.stack(noise).astype(np.int64),
        discs[0],
        discs[1].astype(np.int64),
        discs[2].astype(">i2"),
        np.stack(discs),
        np.stack(discs)[:, None][None][0],
        discs[0].astype(bool),
        discs[3] + 1,
        np.where(discs[3] == 3, -70_000, 1 << 33),
        np.repeat(np.arange(50), 30).reshape(30, 50),
        np.array(3, dtype=np.uint8),
        np.array(-7, dtype=np.int32),
        np.empty((0, 5), dtype=np.uint16),
        np.empty((3, 0), dtype=np.uint8),
        generator.integers(-(2**62), 2**62, (3, 4)),
        generator.integers(0, 2**64 - 1, 9, dtype=np.uint64),
        generator.integers(0, 255, (2, 3, 4, 5), dtype=np.uint8),
        np.zeros((1, 1, 1, 1, 1, 2), dtype=np.int8),
        discs[0][::2, ::-1],
    ]
