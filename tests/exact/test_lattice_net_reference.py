"""Flows with an ordered split, decoded by the reference decoder, which was written from docs/format.md."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddf import spec
from ddf.archive import Archive
from ddf.archive.blocks import Method
from ddf.exact import IntegerFlow, exact_attention, export
from ddf.exact.exact_lattice_net import ExactLatticeNet, exact_lattice_net
from ddf.exact.floats import hardswish6, nearest, normalized
from ddf.exact.integer_module import IntegerModule
from ddf.layers import LatticeOrder, OrderedSplit
from ddf.nets import LatticeNet
from ddf.plain import describe, to_plain
from tests import reference_decoder, reference_lattice_net
from tests.zoo import draw_maps, randomize, write_archive

# ---- The order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [2, 8, 32])
@pytest.mark.parametrize("cell", [2, 4, 16, 32])
def test_orders_agree(stride: int, cell: int) -> None:
    if cell > stride:
        return
    order = {"kind": "LatticeOrder", "stride": stride, "cell": cell}
    for size in ((32, 32), (7, 45), (1, 1)):
        expected = LatticeOrder(stride, cell).steps(*size).numpy()
        assert np.array_equal(reference_lattice_net.steps(order, *size), expected)


# ---- The net ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 64, 192, 320])
def test_functions_agree(width: int) -> None:
    """Also those of large numbers, whose squares overflow."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4000, width)) * np.exp2(generator.integers(-50, 68, (4000, 1)))
    x = x.astype(np.float32)
    for exact, reference in ((normalized, reference_lattice_net.norm), (hardswish6, reference_lattice_net.act)):
        assert np.array_equal(exact(torch.from_numpy(x)).numpy(), reference(x))
    assert np.array_equal(nearest(torch.from_numpy(x), 0.5).numpy(), reference_lattice_net.whole(x, -1))


SMALL: dict[str, Any] = {"levels": 2, "planes": (64,), "blocks": (1,), "width": 8, "depth": 1}

NETS = {
    "one resolution": LatticeNet(2, 1, size=(8, 8), **SMALL),
    "two resolutions": LatticeNet(3, 2, size=(9, 7), **{**SMALL, "planes": (64, 128), "blocks": (1, 2), "depth": 2}),
    "three resolutions": LatticeNet(2, 1, size=(5, 9), **{**SMALL, "planes": (64,) * 3, "blocks": (1,) * 3}),
    "three terms at the end of sums": LatticeNet(4, 1, size=(6, 6), **{**SMALL, "planes": (192,), "width": 24}),
    "hints": LatticeNet(2, 1, size=(6, 6), hints=True, **SMALL),
    "any size": LatticeNet(3, 1, **{**SMALL, "levels": 3, "cell": 2}),
}


def tensors(net: ExactLatticeNet) -> dict[str, np.ndarray]:
    return {
        ".".join(part for part in ("net", module_name, name) if part): tensor.numpy().astype(np.int64)
        for module_name, module in net.named_modules()
        if isinstance(module, IntegerModule)
        for name, tensor in module.integer_tensors().items()
    }


def check_logits(net: LatticeNet, exact: ExactLatticeNet) -> np.ndarray:
    """Compare the logits of all steps; return some."""
    reference = reference_lattice_net.LatticeNet(tensors(exact), "net", to_plain(describe(net)), net.num_classes)
    x = np.random.default_rng(0).integers(net.num_classes, size=(2, net.channels, *(net.size or (6, 10))))
    steps = LatticeOrder(1 << net.levels, net.cell).steps(*x.shape[2:]).numpy()
    logits = exact(torch.from_numpy(x)).movedim(1, -1).numpy()
    for step in sorted({*steps.ravel().tolist()} - {0}):
        here, found = reference.logits(x, step, net.positions)
        assert np.array_equal(here, steps == step)
        assert np.array_equal(found, logits[:, :, here])
    return logits[:, :, steps > 0]


@pytest.mark.parametrize("name", NETS)
def test_logits_agree(name: str) -> None:
    net = randomize(NETS[name]).eval()
    x = torch.randint(net.num_classes, (8, net.channels, *(net.size or (6, 10))))
    with torch.no_grad():
        logits = check_logits(net, exact_lattice_net(net, [(x,)]))
    assert logits.std() > 50


@pytest.mark.parametrize("name", NETS)
def test_logits_agree_for_any_integers_within_the_bounds(name: str) -> None:
    """Inputs are clipped, attention selects single pixels, and squares overflow."""
    net = NETS[name]
    generator = torch.Generator().manual_seed(0)
    ends = {"weight": (-32639, 32639), "shift": (0, 30), "input_bits": (-16, 24)}
    with torch.no_grad():
        exact = exact_lattice_net(net, [])
        for extreme in (False, True):
            for module in exact.modules():
                if isinstance(module, IntegerModule):
                    integers = {}
                    for tensor_name, tensor in module.integer_tensors().items():
                        low, high = ends.get(tensor_name, (-(1 << 31), (1 << 31) - 1))
                        if extreme and tensor_name in ("shift", "input_bits"):
                            high = low
                        integers[tensor_name] = torch.randint(low, high + 1, tensor.shape, generator=generator)
                    module.set_integers(integers)
                    module.check()
            check_logits(net, exact)


@pytest.mark.parametrize("pixels", [1, 300, 40_000])
@pytest.mark.parametrize("spread", [1, 1 << 6, 1 << 16])
def test_attention_agrees(pixels: int, spread: int) -> None:
    """Beyond 2^14 pixels, sums are not exact, and beyond 2^53, they are rounded."""
    generator = np.random.default_rng(0)
    queries, keys = (generator.integers(-spread, spread + 1, (count, 64)) for count in (3, pixels))
    queries *= 1 << 10
    values = generator.integers(32000, 32640, (pixels, 64))
    given = (torch.from_numpy(part)[None, None].double() for part in (queries, keys, values))
    expected = exact_attention._attend(*given)[0, 0].numpy()
    assert np.array_equal(reference_lattice_net.attend(queries, keys, values), expected)


# ---- Flows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A flow, and the shape of an array that it compresses."""

    num_classes: int
    shape: tuple[int | None, ...]
    array: tuple[int, ...]
    layers: tuple[spec.LayerSpec, ...]

    def make(self) -> IntegerFlow:
        base = spec.FactorizedCategoricalSpec(shared=None in self.shape)
        flow = randomize(spec.FlowSpec(self.num_classes, self.shape, self.layers, base).build()).eval()
        generator = torch.Generator().manual_seed(0)
        for layer in flow.layer_list():
            if isinstance(layer, OrderedSplit):
                with torch.no_grad():
                    for weight in layer.net.leave.parameters():
                        weight.div_(layer.net.scale)  # for logits that occur in practice
            if isinstance(layer, OrderedSplit) and layer.ranks:
                layer.table.copy_(torch.randint(-300, 300, layer.table.shape, generator=generator))
        sample = (self.shape[0] or 1, *self.array[-2:])
        data = torch.randint(self.num_classes, (2, *sample), generator=generator)
        return export(flow, data, config=None)

    def sample(self, flow: IntegerFlow) -> np.ndarray:
        """Draw an array from the flow, and change some of its symbols."""
        generator = torch.Generator().manual_seed(0)
        size = self.array[-2:] if None in self.shape else None
        count = int(np.prod(self.array)) // ((self.shape[0] or 1) * int(np.prod(self.array[-2:])))
        drawn = flow.sample(count, generator, size=size).numpy().reshape(self.array).astype(np.uint8)
        other = np.random.default_rng(0)
        changed = other.integers(self.num_classes, size=self.array, dtype=np.uint8)
        return np.where(other.random(self.array) < 0.1, changed, drawn)


def ordered(
    stride: int, cell: int, planes: tuple[int, ...] = (64,), ranks: bool = False, given: float = 0.0
) -> spec.OrderedSplitSpec:
    order = LatticeOrder(stride, cell)
    net = spec.LatticeNetSpec(
        order.levels, cell, planes=planes, blocks=(1,) * len(planes), width=8, depth=1, hints=given > 0
    )
    return spec.OrderedSplitSpec(net, order, ranks=ranks, given=given)


PRIOR = spec.SplitPriorSpec(spec.DenseNetSpec(blocks=1, hidden=8))

CASES = {
    "symbols": Case(2, (1, 8, 8), (3, 8, 8), (ordered(4, 4),)),
    "ranks": Case(2, (1, 8, 8), (3, 8, 8), (ordered(4, 4, ranks=True),)),
    "three classes, two channels": Case(3, (2, 8, 8), (2, 2, 8, 8), (ordered(8, 4, (64, 64)),)),
    "ranks of two channels": Case(3, (2, 8, 8), (2, 2, 8, 8), (ordered(8, 2, (64, 64), ranks=True, given=0.5),)),
    "ranks of five classes": Case(5, (1, 4, 4), (2, 4, 4), (ordered(4, 2, ranks=True),)),
    "no multiple of the stride": Case(3, (1, 9, 7), (2, 9, 7), (ordered(4, 2, (64, 64)),)),
    "smaller than the stride": Case(3, (2, 3, 5), (2, 2, 3, 5), (ordered(8, 8, ranks=True),)),
    "one level": Case(2, (1, 3, 3), (2, 3, 3), (ordered(2, 2),)),
    "any size": Case(3, (1, None, None), (2, 1, 8, 12), (ordered(4, 4, (64, 64)),)),
    "among other layers": Case(
        2,
        (1, None, None),
        (2, 16, 16),
        (spec.SqueezeSpec(), PRIOR, ordered(2, 2), ordered(2, 2, ranks=True), spec.ShuffleSpec(permutation=(1, 0))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_codes_are_decoded(name: str) -> None:
    case = CASES[name]
    flow = case.make()
    array = case.sample(flow)
    assert len(np.unique(array)) == case.num_classes
    code = flow.compress(array)
    assert code is not None
    found = reference_decoder.read_model(flow.to_bytes()).decode(code, array.shape, array.dtype.str)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_archives_are_decoded(tmp_path: Path) -> None:
    """Several maps share a block."""
    case = CASES["symbols"]
    flow = case.make()
    maps = [*case.sample(flow), *draw_maps(2, (8, 8), 2)]
    data = write_archive(tmp_path / "maps.ddf", flow, maps, embed_model=True, maps_per_block=8)
    (block,) = Archive(tmp_path / "maps.ddf").blocks()
    assert block.kind.method is Method.CODEC
    assert block.kind.shared
    for (_, found), expected in zip(reference_decoder.decode(data), maps, strict=True):
        assert np.array_equal(found, expected)
