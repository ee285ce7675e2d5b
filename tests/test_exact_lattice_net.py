"""The exact form of the net of ordered splits: the same logits everywhere, without fine-tuning."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ddf
from ddf import TrainingConfig, spec
from ddf.errors import DamagedFileError, InvalidCodeError, ModelError
from ddf.exact import IntegerFlow, exact_attention, export, wide_affine
from ddf.exact.exact_lattice_net import ExactBlock, ExactLatticeNet, exact_lattice_net
from ddf.exact.floats import floats_are_exact, hardswish6, normalized, root
from ddf.exact.integer_module import IntegerModule
from ddf.exact.products import bytes_are_exact
from ddf.exact.quantize import quantize_net
from ddf.exact.wide_affine import WideAffine, bits_for
from ddf.flow import Flow
from ddf.layers import LatticeOrder, OrderedSplit
from ddf.logits import PER_BIT
from ddf.modelfile import arrays_from_bytes, arrays_to_bytes
from ddf.nets import LatticeNet
from tests.zoo import draw_maps, randomize

K = 5
PER_NAT = PER_BIT / log(2)


def lattice_net(size: tuple[int, int] | None, channels: int = 1, **options: Any) -> LatticeNet:
    more = {"levels": 2, "planes": (64,), "blocks": (1,), "width": 8, "depth": 1, **options}
    return randomize(LatticeNet(K, channels, size=size, **more)).eval()


NETS = {
    "one resolution": lattice_net((8, 8)),
    "two resolutions": lattice_net((12, 16), channels=2, planes=(64, 128), blocks=(1, 2), width=24, depth=2),
    "padded": lattice_net((9, 14), levels=3, planes=(64, 192), blocks=(1, 1), hints=True),
    "any size": lattice_net(None, planes=(64, 64), blocks=(1, 1), cell=2, hints=True),
}


def inputs(net: LatticeNet, batch: int = 3, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, net.channels, *(net.size or (6, 10)))
    x = torch.randint(K, shape, generator=generator)
    return (x, torch.rand((batch, *shape[2:]), generator=generator) < 0.4) if net.hints else (x,)


def integer_modules(module: torch.nn.Module) -> list[IntegerModule]:
    return [part for part in module.modules() if isinstance(part, IntegerModule)]


def without_bytes(net: ExactLatticeNet) -> ExactLatticeNet:
    for part in integer_modules(net):
        part.use_no_bytes()
    return net


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> LatticeNet:
    return NETS[request.param]


def use_bytes(monkeypatch: pytest.MonkeyPatch, use: bool) -> None:
    """Use int8 products or not, whatever the machine supports. Without support, they are emulated."""
    monkeypatch.setattr(wide_affine, "bytes_are_exact", lambda device: use)
    if not bytes_are_exact(torch.device("cpu")):
        monkeypatch.setattr(torch, "_int_mm", lambda x, kernel: (x.double() @ kernel.double()).int())


# ---- The net ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_exact_logits_are_close_to_the_original_ones(net: LatticeNet) -> None:
    exact = exact_lattice_net(net, [inputs(net, 8, seed=1)])
    logits = exact(*inputs(net))
    expected = net(*inputs(net))
    assert logits.dtype == torch.int32
    assert logits.shape == expected.shape
    assert expected.std() > 0.3, "the test has no meaning"
    assert (logits / PER_NAT - expected).abs().max() < 5e-4 * expected.abs().max()


def test_logits_do_not_depend_on_the_batch(net: LatticeNet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many pixels, queries or keys are processed together."""
    exact = exact_lattice_net(net, [inputs(net)])
    given = inputs(net, 7)
    expected = exact(*given)
    for sizes in ([1] * 7, [3, 4], [5, 2]):
        parts = zip(*(part.split(sizes) for part in given), strict=True)
        assert torch.equal(torch.cat([exact(*part) for part in parts]), expected)
    for module in (wide_affine, "ddf.exact.exact_lattice_net"):
        target = f"{module if isinstance(module, str) else module.__name__}._PIXELS"
        monkeypatch.setattr(target, {"cpu": 5})
    monkeypatch.setattr(exact_attention, "_PAIRS", {"cpu": 30})
    monkeypatch.setattr(exact_attention, "_KEYS", 3)
    assert torch.equal(exact(*given), expected)


def test_all_arithmetics_agree(net: LatticeNet, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    exact = exact_lattice_net(net, [inputs(net)])
    given = inputs(net, 4)
    expected = without_bytes(exact)(*given)
    for bytes_, autocast in ((True, False), (True, True), (False, True)):
        use_bytes(monkeypatch, bytes_)
        other = exact_lattice_net(net, [inputs(net)]).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            logits = other(*(part.to(device) for part in given))
        assert torch.equal(logits.cpu(), expected)
        used = {part._prepared.bytes for part in other.modules() if isinstance(part, WideAffine) and part._prepared}
        assert used == {bytes_}
        assert all(part.is_exact() for part in integer_modules(other))


def test_later_pixels_have_no_effect(net: LatticeNet) -> None:
    exact = exact_lattice_net(net, [inputs(net)])
    x, *given = inputs(net)
    steps = LatticeOrder(1 << net.levels, net.cell).steps(*x.shape[2:])
    for step in (1, 3, int(steps.max())):
        later = (steps >= step) if not given else (steps >= step) & ~given[0].unsqueeze(1)
        other = torch.where(later, (x + 1) % K, x)
        assert torch.equal(exact(other, *given)[..., steps == step], exact(x, *given)[..., steps == step])
        assert not torch.equal(exact((x + 1) % K, *given)[..., steps == step], exact(x, *given)[..., steps == step])


def test_step_by_step_gives_the_same_logits(net: LatticeNet, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_lattice_net(net, [inputs(net)])
    x, *given = inputs(net)
    steps = LatticeOrder(1 << net.levels, net.cell).steps(*x.shape[2:])
    mask = given[0] if given else None
    logits, memory = exact(x, mask), {}
    monkeypatch.setattr("ddf.exact.exact_lattice_net._PIXELS", {"cpu": 5})
    for step in sorted(set(steps.flatten().tolist()) - (set() if given else {0})):
        assert torch.equal(exact(x, mask, step, memory), logits[..., steps == step])


def test_the_original_net_is_not_modified() -> None:
    """It may have dropout, which calibration does not apply."""
    net = lattice_net((8, 8), dropout=0.9).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    exact = quantize_net(net, [inputs(net)])
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    again = quantize_net(net.eval(), [inputs(net)])
    assert torch.equal(exact(*inputs(net)), again(*inputs(net)))


def test_activations_beyond_those_of_the_calibration_are_clipped() -> None:
    """Logits remain finite, and the same with and without int8 products, whatever the weights."""
    net = lattice_net((8, 8), blocks=(2,))
    exact = exact_lattice_net(net, [])
    for part in exact.modules():
        if isinstance(part, WideAffine):
            part.input_bits.fill_(11 if part is exact.leave else 24 if part.size == 3 else -16)
            part.shift.fill_(0)
            part._prepared = None
        elif isinstance(part, ExactBlock):
            part.table.fill_(-(1 << 31))
    logits = exact(*inputs(net))
    assert logits.abs().max() == 1 << 24
    assert torch.equal(logits, without_bytes(exact)(*inputs(net)))


# ---- Its parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [None, 1, 3])
@pytest.mark.parametrize("inner", [8, 20, 700])
@pytest.mark.parametrize("bytes_", [False, True])
def test_sums_match_64_bit_integers(
    kernel: int | None, inner: int, bytes_: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_bytes(monkeypatch, bytes_)
    generator = torch.Generator().manual_seed(0)
    shape = (24, inner, *([] if kernel is None else [kernel, kernel]))
    affine = WideAffine(torch.Size(shape), bias=True)
    weight = torch.randint(-32639, 32640, shape, generator=generator)
    weight[0], weight[1] = 32639, -32639
    bias = torch.randint(-(1 << 31), 1 << 31, (24,), generator=generator)
    shift = torch.arange(24)
    affine.set_integers({"weight": weight, "bias": bias, "shift": shift, "input_bits": torch.tensor(9)})
    affine.check()
    x = torch.randint(-32639, 32640, (2, 4, 5, inner), generator=generator)
    x[0], x[1, 0] = 32639, -32639
    image = weight.view(24, inner, 1, 1) if kernel is None else weight
    sums = F.conv2d(x.permute(0, 3, 1, 2), image, padding=image.shape[2] // 2).permute(0, 2, 3, 1)
    expected = (sums.double() * 2.0 ** -(shift.double() + 9)).float() + bias.float() / (1 << 16)
    assert torch.equal(affine.product(x.float()), expected)
    affine = affine.to(device)
    assert torch.equal(affine.product(x.float().to(device)).cpu(), expected)
    assert torch.equal(affine(x.float().to(device) / 512).cpu(), expected)
    assert affine.is_exact()


def test_inputs_are_rounded_and_clipped() -> None:
    affine = WideAffine(torch.Size((8, 8)))
    affine.convert(torch.eye(8), None, input_bits=3)
    x = torch.tensor([[0.0, 1 / 16, 3 / 16, 0.3, -0.3, 1e9, -1e9, 1.0]])
    expected = torch.tensor([[0.0, 0.0, 0.25, 0.25, -0.25, 32639 / 8, -32639 / 8, 1.0]])
    torch.testing.assert_close(affine(x), expected, rtol=0, atol=0)


def test_bytes_that_fail_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(x: Tensor, kernel: Tensor) -> Tensor:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    exact = exact_lattice_net(NETS["one resolution"], [])
    expected = without_bytes(exact)(*inputs(NETS["one resolution"]))
    monkeypatch.setattr(wide_affine, "bytes_are_exact", lambda device: True)
    monkeypatch.setattr(torch, "_int_mm", refuse)
    assert torch.equal(exact_lattice_net(NETS["one resolution"], [])(*inputs(NETS["one resolution"])), expected)


def _roots_are_wrong() -> bool:
    """Whether PyTorch's roots are not correctly rounded here, as with MKL."""
    x = torch.rand(4096, generator=torch.Generator().manual_seed(0))
    return not np.array_equal(x.sqrt().numpy(), np.sqrt(x.numpy()))


def test_roots_are_correctly_rounded(device: str) -> None:
    x = torch.rand(1 << 18, generator=torch.Generator().manual_seed(0)) * 2.0 ** torch.randint(-60, 60, (1 << 18,))
    assert np.array_equal(root(x.to(device)).cpu().numpy(), np.sqrt(x.numpy()))


def test_wrong_sums_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    affine = WideAffine(torch.Size((8, 16, 3, 3)))
    affine.convert(torch.rand(8, 16, 3, 3), None, input_bits=9)
    assert affine.is_exact()
    right = wide_affine._products
    monkeypatch.setattr(wide_affine, "_products", lambda rows, made: right(rows, made).add_(1))
    assert not affine.is_exact()
    monkeypatch.undo()
    assert affine.is_exact()
    floats_are_exact.cache_clear()
    monkeypatch.setattr("ddf.exact.floats.root", torch.sqrt if _roots_are_wrong() else lambda x: x.sqrt() * 1.0001)
    assert not floats_are_exact(torch.device("cpu"))
    floats_are_exact.cache_clear()


def test_a_device_whose_floats_are_not_exact_is_not_used(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert floats_are_exact(torch.device(device))
    flow = export(make_flow(), DATA)
    assert flow.to(device).is_exact()
    monkeypatch.setattr("ddf.exact.exact_lattice_net.floats_are_exact", lambda device: False)
    assert not flow.is_exact()
    with pytest.warns(UserWarning, match="does not") as warned:
        flow.to(device)
    assert "is not used" in str(warned[-1].message)
    assert flow.device.type == "cpu"


@pytest.mark.parametrize("width", [1, 2, 64, 192, 320])
def test_operations_are_those_of_the_net(width: int) -> None:
    x = torch.randn(3, 5, width, dtype=torch.float64) * 4
    torch.testing.assert_close(normalized(x), F.rms_norm(x, (width,), None, 1e-5))
    torch.testing.assert_close(hardswish6(x) / 6, F.hardswish(x))


def test_the_rounding_of_the_weights_of_attention_is_the_same_everywhere() -> None:
    """None of the numbers is close to a half, so the rounding error of a library's power function does not matter."""
    powers = 2.0 ** (23 - np.arange(23 * 1024 + 1) / 1024)
    assert np.abs(powers % 1 - 0.5).min() > 1e-6
    table = exact_attention._powers(torch.device("cpu"))
    assert table.tolist() == [*np.rint(powers), 0]


def test_attention_is_a_mean() -> None:
    """Equal scores give the mean of the values, and a score far above the others gives its value."""
    query, key = torch.zeros(2, 1, 1, 9, 64, dtype=torch.float64)
    value = torch.randint(-32639, 32640, (1, 1, 9, 64)).double()
    mean = value.sum(dim=2, keepdim=True) / 9
    assert torch.equal(exact_attention._attend(query, key, value), mean.expand(-1, -1, 9, -1))
    query[..., 0], key[..., 4, 0] = 1 << 19, 1 << 19
    assert torch.equal(exact_attention._attend(query, key, value), value[:, :, 4:5].expand(-1, -1, 9, -1))


def test_weights_that_do_not_fit_are_rejected() -> None:
    for value in (40_000.0, float("inf"), float("nan")):
        affine = WideAffine(torch.Size((8, 8)))
        with pytest.raises(ModelError, match="do not fit 16 bits"):
            affine.convert(torch.full((8, 8), value), None, 8)
        with pytest.raises(ModelError, match="do not fit 32 bits"):
            WideAffine(torch.Size((8, 8)), bias=True).convert(torch.ones(8, 8), torch.full((8,), value), 8)
    for peak in (1.1e9, float("inf"), float("nan")):
        with pytest.raises(ModelError, match="too large for an exact net"):
            bits_for(peak)
    assert bits_for(1e9) == -16
    assert bits_for(0.0) == 24
    assert bits_for(7.9) == 11


# ---- The flow --------------------------------------------------------------------------------------------------------

ORDER = LatticeOrder(stride=8, cell=4)
NET = spec.LatticeNetSpec(levels=3, planes=(64, 64), blocks=(1, 1), width=8, depth=1, hints=True)


def make_flow(ranks: bool = False, shape: tuple[int | None, ...] = (1, 16, 16), *more: spec.LayerSpec) -> Flow:
    split = spec.OrderedSplitSpec(NET, ORDER, ranks=ranks, given=0.2)
    base = spec.FactorizedCategoricalSpec(shared=None in shape)
    flow = randomize(spec.FlowSpec(K, shape, (split, *more), base).build())
    with torch.no_grad():
        for layer in flow.layer_list():
            if isinstance(layer, OrderedSplit):
                for weight in layer.net.leave.parameters():
                    weight.div_(layer.net.scale)  # for logits that occur in practice
            if isinstance(layer, OrderedSplit) and ranks:
                layer.table.copy_(torch.randint(-300, 300, layer.table.shape))
    return flow.eval()


MAPS = np.stack(draw_maps(6, (16, 16), K))
DATA = torch.from_numpy(MAPS).long()[:, None]


@pytest.fixture(params=[False, True], ids=["symbols", "ranks"], scope="module")
def flows(request: pytest.FixtureRequest) -> tuple[Flow, IntegerFlow]:
    flow = make_flow(request.param)
    return flow, export(flow, DATA)


@pytest.fixture(scope="module")
def model() -> IntegerFlow:
    return export(make_flow(shape=(1, None, None)), DATA)


def test_maps_are_compressed_and_restored(flows: tuple[Flow, IntegerFlow], device: str) -> None:
    flow, integer = flows
    code = integer.compress(MAPS)
    assert code is not None
    bits = float(flow.bits_per_dim(DATA).sum()) * 256
    assert abs(8 * len(code) - bits) < 0.002 * bits + 16
    assert abs(float(integer.bits_per_dim(DATA).sum()) * 256 - bits) < 0.002 * bits
    assert torch.equal(integer.decode(integer.encode(DATA)), DATA)
    moved = IntegerFlow.from_bytes(integer.to_bytes()).to(device)
    assert moved.is_exact()
    assert moved.compress(MAPS) == code
    assert np.array_equal(moved.decompress(code, MAPS.shape, MAPS.dtype), MAPS)


def test_files_restore_the_model(flows: tuple[Flow, IntegerFlow], tmp_path: Path) -> None:
    _, integer = flows
    integer.save(tmp_path / "model")
    again = ddf.load(tmp_path / "model")
    assert isinstance(again, IntegerFlow)
    assert again.fingerprint == integer.fingerprint
    assert again.to_bytes() == integer.to_bytes() == (tmp_path / "model").read_bytes()
    assert again.compress(MAPS) == integer.compress(MAPS)
    assert again.spec == integer.spec
    assert again.spec.layers == make_flow(integer.layer_list()[0].ranks).spec.layers


def test_maps_of_any_size(model: IntegerFlow) -> None:
    for shape in ((8, 8), (2, 24, 8), (1, 1, 16, 32)):
        maps = np.random.default_rng(0).integers(0, K, shape)
        code = model.compress(maps)
        assert code is not None
        assert np.array_equal(model.decompress(code, maps.shape, maps.dtype), maps)
    assert model.compress(np.zeros((9, 8), np.uint8)) is None


def test_maps_are_completed(model: IntegerFlow) -> None:
    (split,) = model.layer_list()
    assert isinstance(split, OrderedSplit)
    known = torch.rand(6, 16, 16) < 0.5
    found = split.complete(DATA, known, lambda logits: logits.argmax(dim=1))
    assert torch.equal(found[known.unsqueeze(1)], DATA[known.unsqueeze(1)])


def test_the_u_net_is_not_trained_but_other_nets_are() -> None:
    """The base is fitted to the output of the layers, as usual."""
    others = (spec.SqueezeSpec(), spec.SplitPriorSpec(spec.DenseNetSpec(blocks=1, hidden=8)))
    flow = make_flow(False, (1, 16, 16), *others)
    config = TrainingConfig(batch_size=2, max_epochs=2, learning_rate=0.1)
    tuned, untuned = (export(flow, DATA, config=each)._integers() for each in (config, None))
    changed = {name for name in tuned if not np.array_equal(tuned[name], untuned[name])}
    assert not any(name.startswith("0.") for name in changed)
    assert {"2.net.stack.2.weight", "base"} <= changed


def test_a_flow_without_nets_to_train_is_not_trained() -> None:
    flow = make_flow()
    integer = export(flow, DATA)
    expected = (flow.base.logits.double() * PER_NAT).round().int()
    assert torch.equal(integer.base.logits, expected)


# ---- Files -----------------------------------------------------------------------------------------------------------

FIRST = "0.net.unet.before.0.first"


@pytest.mark.parametrize(
    ("name", "value", "dtype", "message"),
    [
        (f"{FIRST}.weight", -32640, "i2", "weights of -32640 … -32640 are out of range"),
        (f"{FIRST}.weight", -32768, "i2", "weights of -32768 … -32768 are out of range"),
        (f"{FIRST}.weight", 32640, "i2", "weights of 32640 … 32640 are out of range"),
        (f"{FIRST}.weight", 1, "i4", "weight has a dtype or values that"),
        (f"{FIRST}.weight", 1, "f8", "weight has a dtype or values that"),
        (f"{FIRST}.weight", np.nan, "f4", "the file does not describe an integer flow"),
        (f"{FIRST}.shift", -1, "i1", "shifts of -1 … -1 are out of range"),
        (f"{FIRST}.shift", 31, "i1", "shifts of 31 … 31 are out of range"),
        (f"{FIRST}.shift", 256, "i2", "shift has a dtype or values that"),
        (f"{FIRST}.input_bits", -17, "i1", "input bits of -17 … -17 are out of range"),
        (f"{FIRST}.input_bits", 25, "i1", "input bits of 25 … 25 are out of range"),
        (f"{FIRST}.input_bits", 8, "u1", "input_bits has a dtype or values that"),
        ("0.net.leave.bias", 1 << 31, "i8", "bias has a dtype or values that"),
        ("0.net.unet.before.0.table", 1 << 40, "i8", "table has a dtype or values that"),
    ],
)
def test_integers_that_export_never_produces_are_rejected(
    model: IntegerFlow, name: str, value: float, dtype: str, message: str
) -> None:
    arrays, header = arrays_from_bytes(model.to_bytes(), "the model")
    arrays[name] = np.full(arrays[name].shape, value, dtype)
    with pytest.raises(DamagedFileError, match=message):
        IntegerFlow.from_bytes(arrays_to_bytes(arrays, header), "the file")


def test_sums_that_do_not_fit_into_a_double_are_rejected() -> None:
    affine = WideAffine(torch.Size((1, 9 << 20)))
    affine.weight.fill_(32639)
    with pytest.raises(ModelError, match="do not fit into a double"):
        affine.check()


def test_missing_and_misshapen_tensors_are_rejected(model: IntegerFlow) -> None:
    arrays, header = arrays_from_bytes(model.to_bytes(), "the model")
    for name in arrays:
        with pytest.raises(DamagedFileError, match="is missing"):
            IntegerFlow.from_bytes(arrays_to_bytes({key: arrays[key] for key in arrays if key != name}, header))
        with pytest.raises(DamagedFileError, match="has the shape"):
            IntegerFlow.from_bytes(arrays_to_bytes({**arrays, name: arrays[name][None]}, header))
    with pytest.raises(DamagedFileError, match="unexpected tensors"):
        IntegerFlow.from_bytes(arrays_to_bytes({**arrays, "0.net.more": np.zeros(1)}, header))


def test_any_integers_within_the_bounds_give_a_codec(model: IntegerFlow) -> None:
    generator = np.random.default_rng(0)
    arrays, header = arrays_from_bytes(model.to_bytes(), "the model")
    maps = generator.integers(0, K, (8, 8))
    for _ in range(3):
        for name, array in arrays.items():
            end = {"weight": 32640, "shift": 31, "input_bits": 25}.get(name.rpartition(".")[2], 1 << 31)
            start = {"shift": 0, "input_bits": -16}.get(name.rpartition(".")[2], 1 - end)
            arrays[name] = generator.integers(start, end, array.shape).astype(array.dtype)
        hostile = IntegerFlow.from_bytes(arrays_to_bytes(arrays, header))
        code = hostile.compress(maps)
        assert code is not None
        assert np.array_equal(hostile.decompress(code, maps.shape, maps.dtype), maps)


def test_invalid_codes_are_rejected(model: IntegerFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the base or a layer draws the symbols."""
    with pytest.raises(InvalidCodeError, match="invalid"):
        model.decompress(b"\xff" * 99, (8, 8), np.dtype(np.uint8))
    monkeypatch.setattr(model.base, "inverse", lambda batch, shape, draw: torch.zeros(batch, *shape, dtype=torch.int16))
    with pytest.raises(InvalidCodeError, match="invalid"):
        model.decompress(b"\xff" * 99, (8, 8), np.dtype(np.uint8))
