"""Integer flows: the same decisions and frequencies everywhere, at almost no cost."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ddf import TrainingConfig, architectures, fit, spec
from ddf.archive import InvalidCodeError, compress, decompress
from ddf.classes import Classes
from ddf.errors import DamagedFileError, ModelError
from ddf.exact import IntegerFlow, affine, export
from ddf.exact.affine import ExactAffine
from ddf.exact.products import bytes_are_exact
from ddf.exact.quantize import quantize_net
from ddf.modelfile import arrays_from_bytes, arrays_to_bytes
from ddf.models import load
from ddf.nets import MLP
from tests.zoo import INTEGER_FLOWS, VALUES, draw_maps, randomize

FIXED = 58
"""The overhead of an archive with one array, in bytes."""


@pytest.mark.parametrize("name", INTEGER_FLOWS)
def test_arrays_decompress_to_themselves(name: str, device: str) -> None:
    make, shape = INTEGER_FLOWS[name]
    flow = make().to(device)
    assert flow.is_exact()
    array = np.stack(draw_maps(5, shape, flow.num_classes))
    data = flow.compress(array)
    assert data is not None
    assert np.array_equal(flow.decompress(data, array.shape, array.dtype), array)
    assert make().compress(array) == data, "the code differs on the CPU"


@pytest.mark.parametrize("name", INTEGER_FLOWS)
def test_an_integer_flow_is_a_flow(name: str) -> None:
    """Its methods are inherited, and its codes are as long as its likelihood predicts."""
    make, shape = INTEGER_FLOWS[name]
    flow = make()
    array = np.stack(draw_maps(5, shape, flow.num_classes))
    symbols = torch.from_numpy(flow.classes.to_symbols(array)).view(5, *([1] * (len(flow.shape) - len(shape))), *shape)
    assert torch.equal(flow.decode(flow.encode(symbols)), symbols)
    bits = flow.bits_per_dim(symbols) * array[0].size
    assert abs(8 * len(flow.compress(array) or b"") - float(bits.sum())) < 16
    torch.testing.assert_close(flow(symbols), -bits * np.log(2))
    samples = flow.sample(3, torch.Generator().manual_seed(0), size=None if None not in flow.shape else (8, 12))
    assert samples.dtype == torch.int64
    assert int(samples.max()) < flow.num_classes
    again = flow.sample(3, torch.Generator().manual_seed(0), size=None if None not in flow.shape else (8, 12))
    assert torch.equal(samples, again)


@pytest.fixture(scope="module")
def model() -> IntegerFlow:
    """Return a flow for maps of any size that two squeezes can divide."""
    return INTEGER_FLOWS["any-size"][0]()


@pytest.mark.parametrize("shape", [(4, 4), (1, 8, 12), (3, 8, 12), (2, 1, 4, 8), (2, 3, 1, 4, 4)])
def test_arrays_of_samples_are_coded(model: IntegerFlow, shape: tuple[int, ...]) -> None:
    array = np.array(VALUES, dtype=np.int32)[np.random.default_rng(0).integers(0, 4, shape)]
    data = model.compress(array)
    assert data is not None
    again = model.decompress(data, array.shape, array.dtype)
    assert np.array_equal(again, array)
    assert again.dtype == array.dtype


@pytest.mark.parametrize("shape", [(4,), (6, 8), (3, 8, 9), (0, 8, 8), (), (4, 0)])
def test_arrays_of_other_shapes_are_not_coded(model: IntegerFlow, shape: tuple[int, ...]) -> None:
    assert model.compress(np.zeros(shape, np.uint8)) is None


def test_arrays_of_other_values_are_not_coded(model: IntegerFlow) -> None:
    assert model.compress(np.full((4, 4), 7)) is None
    with pytest.raises(InvalidCodeError, match=r"cannot code arrays of shape \(5, 4\)"):
        model.decompress(b"", (5, 4), np.dtype(np.uint8))


def test_the_batch_size_does_not_change_the_code(model: IntegerFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.stack(draw_maps(7, (8, 12), 4))
    data = model.compress(array)
    assert data is not None
    monkeypatch.setattr("ddf.exact.integer_flow._BATCH_SYMBOLS", 2 * 96)
    assert np.array_equal(model.decompress(model.compress(array) or b"", array.shape, array.dtype), array)


def test_the_latents_of_a_map_do_not_depend_on_other_maps(model: IntegerFlow) -> None:
    x = torch.from_numpy(model.classes.to_symbols(np.stack(draw_maps(20, (12, 20), 4)))[:, None])
    emitted: dict[int, list[torch.Tensor]] = {20: [], 1: []}
    for size, found in emitted.items():
        model.to_latents(x[7 : 7 + size] if size == 1 else x, lambda *parts, found=found: found.extend(parts))
    for together, alone in zip(emitted[20], emitted[1], strict=True):
        assert torch.equal(together[7:8], alone)


def test_threads_share_a_model(model: IntegerFlow) -> None:
    maps = [np.stack(draw_maps(2, (12, 20), 4, seed)) for seed in range(24)]
    expected = [model.compress(array) for array in maps]
    fresh = IntegerFlow.from_bytes(model.to_bytes())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fresh.compress, maps)) == expected
        again = list(pool.map(lambda code: fresh.decompress(code, (2, 12, 20), np.dtype(np.uint8)), expected))
    assert all(np.array_equal(one, two) for one, two in zip(again, maps, strict=True))


def test_a_model_survives_saving(tmp_path: Path) -> None:
    for make, shape in INTEGER_FLOWS.values():
        flow = make()
        flow.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert again.fingerprint == flow.fingerprint
        assert again.to_bytes() == flow.to_bytes()
        array = np.stack(draw_maps(2, shape, flow.num_classes))
        assert again.compress(array) == flow.compress(array)
    fingerprints = {make().fingerprint for make, _ in INTEGER_FLOWS.values()}
    assert len(fingerprints) == len(INTEGER_FLOWS)
    architectures.vectors(4, 2, spec.MLPSpec(hidden=8)).build().save(tmp_path / "float")
    with pytest.raises(DamagedFileError, match="does not hold an integer flow but a model of the kind 'flow'"):
        IntegerFlow.from_bytes((tmp_path / "float").read_bytes())
    data = bytearray((tmp_path / "model").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(DamagedFileError, match="damaged"):
        load(tmp_path / "model")


def changed(model: IntegerFlow, **new: np.ndarray) -> bytes:
    """Return the file of a model with changed integers."""
    arrays, header = arrays_from_bytes(model.to_bytes(), "the model")
    return arrays_to_bytes(arrays | new, header)


def test_the_fingerprint_covers_the_base(model: IntegerFlow) -> None:
    """This holds even if two integers are equal in single precision, the dtype of the logits."""
    found = {model.fingerprint}
    for value in (0, 1, (1 << 24) + 1, (1 << 24) + 2, (1 << 31) - 1, (1 << 31) - 2, -(1 << 31)):
        base = model.base.logits.numpy().copy()
        base.flat[0] = value
        again = IntegerFlow.from_bytes(changed(model, base=base))
        assert np.array_equal(again.base.logits.numpy(), base)
        assert IntegerFlow.from_bytes(again.to_bytes()).fingerprint == again.fingerprint
        found.add(again.fingerprint)
    assert len(found) == 8


def test_a_base_of_another_shape_or_dtype_is_rejected(model: IntegerFlow) -> None:
    base = model.base.logits.numpy()
    for wrong in (base[:-1], base[:, :-1], base[..., 0], np.concatenate([base] * 2), base[None], base.reshape(-1)):
        with pytest.raises(DamagedFileError, match=r"the file does not .*base.logits has the shape"):
            IntegerFlow.from_bytes(changed(model, base=wrong), "the file")
    for dtype in ("i1", "i8", "u4", "f4", "f8"):
        with pytest.raises(DamagedFileError, match=r"the file does not .*base has a dtype or values that"):
            IntegerFlow.from_bytes(changed(model, base=base.astype(dtype)), "the file")


@pytest.mark.parametrize(
    ("part", "value", "dtype", "message"),
    [
        ("weight", -128, "i1", "weight has a dtype or values that"),
        ("weight", 1, "i2", "weight has a dtype or values that"),
        ("weight", 1, "f4", "weight has a dtype or values that"),
        ("weight", np.nan, "f4", "does not describe an integer flow"),
        ("weight", np.inf, "f8", "does not describe an integer flow"),
        ("shift", -1, "i1", "shifts of -1 … -1 are out of range"),
        ("shift", 21, "i1", "shifts of 21 … 21 are out of range"),
        ("shift", 1, "i4", "shift has a dtype or values that"),
        ("bias", 0, "i8", "bias has a dtype or values that"),
        ("bias", 1 << 40, "i8", "do not fit 32 bits"),
        ("bias", 1 << 60, "i8", "do not fit into a double"),
    ],
)
def test_integers_that_export_never_produces_are_rejected(
    model: IntegerFlow, part: str, value: float, dtype: str, message: str
) -> None:
    for name in ("1.net.stack.1.mix", "1.net.stack.2"):
        shape = model._integers()[f"{name}.{part}"].shape
        with pytest.raises(DamagedFileError, match=message):
            IntegerFlow.from_bytes(changed(model, **{f"{name}.{part}": np.full(shape, value, dtype)}))


def test_logits_that_do_not_fit_32_bits_are_rejected(model: IntegerFlow) -> None:
    name = "1.net.stack.2"
    integers = model._integers()
    bias, shift = (np.full_like(integers[f"{name}.{part}"], value) for part, value in (("bias", 2**30), ("shift", 0)))
    with pytest.raises(DamagedFileError, match=r"logits of up to 2\d{9} do not fit 32 bits"):
        IntegerFlow.from_bytes(changed(model, **{f"{name}.bias": bias, f"{name}.shift": shift}))


def test_unexpected_and_missing_tensors_are_rejected(model: IntegerFlow) -> None:
    arrays, header = arrays_from_bytes(model.to_bytes(), "the model")
    with pytest.raises(DamagedFileError, match=r"unexpected tensors: layers.more"):
        IntegerFlow.from_bytes(changed(model, more=np.zeros(3)))
    for name in arrays:
        with pytest.raises(DamagedFileError, match="is missing"):
            IntegerFlow.from_bytes(arrays_to_bytes({key: arrays[key] for key in arrays if key != name}, header))
    couplings = INTEGER_FLOWS["couplings"][0]()
    with pytest.raises(DamagedFileError, match=r"1.order has a dtype or values that"):
        IntegerFlow.from_bytes(changed(couplings, **{"1.order": np.arange(4)}))


@pytest.mark.parametrize("name", INTEGER_FLOWS)
def test_a_model_survives_pickling(name: str) -> None:
    make, shape = INTEGER_FLOWS[name]
    flow = make()
    flow.about = {"what": "example"}
    x = flow.classes.to_values(flow.classes.to_symbols(np.stack(draw_maps(2, shape, flow.num_classes))))
    for again in (pickle.loads(pickle.dumps(flow)), copy.deepcopy(flow)):
        assert isinstance(again, IntegerFlow)
        assert again.fingerprint == flow.fingerprint
        assert again.about == flow.about
        assert again.compress(x) == flow.compress(x) is not None
    assert len(pickle.dumps(flow)) < len(flow.to_bytes()) + 200, "derived data is pickled"


def test_values_that_do_not_fit_the_dtype_are_rejected() -> None:
    flow = INTEGER_FLOWS["any-size"][0]()
    flow.classes = Classes((-1, 3, 255, 300))
    some, others = np.full((4, 4), 3), np.full((4, 4), 300)
    some[0, 0] = 255
    code, other = flow.compress(some), flow.compress(others)
    assert code is not None
    assert other is not None
    for dtype in (np.uint8, ">u2", np.int64):
        assert np.array_equal(flow.decompress(code, (4, 4), np.dtype(dtype)), some)
    assert np.array_equal(flow.decompress(other, (4, 4), np.dtype(np.int16)), others)
    for data, dtype in ((code, np.int8), (code, np.bool_), (other, np.uint8)):
        with pytest.raises(InvalidCodeError, match=r"contains the value \d+, which does not fit"):
            flow.decompress(data, (4, 4), np.dtype(dtype))


def test_couplings_can_be_exported() -> None:
    """Each layer is trained on the output of the integer layers before it."""
    maps = np.stack(draw_maps(80, (8, 8), 3, seed=2)) % 3
    data = torch.from_numpy(maps.astype(np.int64))[:, None]
    net = spec.DenseNetSpec(blocks=1, hidden=16)
    layers = (spec.SqueezeSpec(), spec.DenoisingCouplingSpec(net, top=3), spec.SplitPriorSpec(net))
    flow = spec.FlowSpec(3, (1, 8, 8), layers).build()
    config = TrainingConfig(batch_size=8, max_epochs=6, learning_rate=3e-3)
    fit(flow, data, config=config)
    integer = export(flow, data, config=TrainingConfig(batch_size=8, max_epochs=2, learning_rate=1e-3))
    archive = compress(maps, integer)
    assert np.array_equal(decompress(archive, integer), maps)
    assert len(archive) * 8 < 1.1 * float(flow.bits_per_dim(data).sum()) * 64 + 8 * FIXED + 64


def test_a_net_with_large_sums_uses_doubles_or_is_rejected() -> None:
    affine = ExactAffine(torch.ones(1, 4000, 3, 3), torch.zeros(1), input_bits=7)
    affine.eval()
    assert affine.bound() > 1 << 24
    assert affine.weight.dtype == torch.float64
    assert affine.is_exact()
    small = ExactAffine(torch.ones(1, 4), torch.zeros(1), input_bits=7).eval()
    assert small.weight.dtype == torch.float32
    assert small.is_exact()
    weight = 1 - torch.rand(1, 900, 3, 3, generator=torch.Generator().manual_seed(0)) / 4
    middle = ExactAffine(weight, torch.zeros(1), input_bits=7).eval()
    assert middle.tap_bound() < 1 << 24 < middle.bound()
    assert middle.weight.dtype == torch.float32
    assert middle.is_exact()
    with pytest.raises(ModelError, match="do not fit into a double"):
        ExactAffine(torch.ones(1, 4), torch.full((1,), 1e30), input_bits=7).eval()


@pytest.mark.parametrize("reads_out", [False, True])
@pytest.mark.parametrize("input_bits", [0, 7])
def test_rounding_is_as_exact_as_the_sums(input_bits: int, reads_out: bool) -> None:
    """Sums near the limit of each format are shifted down by many bits, by none, and up."""
    generator = torch.Generator().manual_seed(0)
    formats = set()
    for largest in (0.01, 1.0, 63.0, 63.9, 127.0):
        for inputs in (4, 60, 500, 1000, 1040):
            weight = largest * (1 - torch.rand(3, inputs, generator=generator) / 9)
            affine = ExactAffine(weight, torch.tensor([0.0, 0.3, 5.0]), input_bits, reads_out).eval()
            assert affine.fixed is not None
            x = torch.randint((1 << input_bits) * 7 // 8, 1 << input_bits, (200, inputs), generator=generator)
            x = torch.ones_like(x) if input_bits == 0 else x
            integers, bias = (part.long() for part in affine.fixed)
            sums = x @ integers.T + bias
            down = affine.shift.long() + input_bits - (8 if reads_out else 7)
            expected = (sums << (-down).clamp(min=0)) + torch.where(down > 0, 1 << (down - 1).clamp(min=0), 0)
            expected >>= down.clamp(min=0)
            for _ in range(2):
                got = affine(x / (1 << input_bits)) * (256 if reads_out else 128)
                assert torch.equal(got.long(), expected if reads_out else expected.clamp(0, 127))
                formats.add(affine.dtype)
                affine.use_no_bytes()
    assert torch.float32 in formats
    assert (torch.int8 in formats) == bytes_are_exact(torch.device("cpu"))


def test_sums_match_64_bit_integers(device: str) -> None:
    """Convolutions near the limit of each format, with int8 products where available and without."""
    generator = torch.Generator().manual_seed(0)
    for inputs in (5, 900, 4000):
        weight = 1 - torch.rand(3, inputs, 3, 3, generator=generator) / 4
        affine = ExactAffine(weight, torch.zeros(3), input_bits=7, reads_out=True).eval().to(device)
        assert affine.fixed is not None
        x = torch.randint(120, 128, (2, 4, 5, inputs), generator=generator)
        integers = affine.fixed[0].cpu().double()
        sums = F.conv2d(x.permute(0, 3, 1, 2).double(), integers, padding=1).permute(0, 2, 3, 1)
        down = affine.shift.cpu().double() + 7 - 8
        expected = torch.floor(sums * 2**-down + 0.5)
        for change in (lambda: None, affine.use_no_bytes, affine.double):
            change()
            assert torch.equal(affine.run(x.to(device)).cpu().double(), expected)
            assert affine.is_exact()


def test_global_precision_settings_have_no_effect(device: str) -> None:
    """This holds even for settings made after the checks on loading."""
    for make, shape in INTEGER_FLOWS.values():
        expected, flow = make(), make().to(device)
        x = np.stack(draw_maps(2, shape, flow.num_classes))
        for layer in flow._integer_modules().values():
            layer.use_no_bytes()
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            with torch.autocast(device, torch.bfloat16):
                data = flow.compress(x)
        finally:
            torch.set_float32_matmul_precision(before)
        assert data == expected.compress(x)


def test_a_trained_net_does_not_need_doubles(model: IntegerFlow) -> None:
    assert {affine.weight.dtype for affine in model._integer_modules().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("wrong", "warnings"),
    [
        ([torch.int32], ["using floating point"]),
        ([torch.int32, torch.float32], ["using floating point", "using double precision"]),
    ],
)
def test_a_device_with_wrong_sums_is_not_used(
    model: IntegerFlow, monkeypatch: pytest.MonkeyPatch, wrong: list[torch.dtype], warnings: list[str]
) -> None:
    monkeypatch.setattr("ddf.exact.affine.bytes_are_exact", lambda device: True)  # even if they are slow here
    flow = IntegerFlow.from_bytes(model.to_bytes())
    right = affine.add_taps
    monkeypatch.setattr(affine, "add_taps", lambda *args: right(*args) + (1 << 14) * (args[-1] in wrong))
    with pytest.warns(UserWarning, match="using") as warned:
        flow.to("cpu")
    assert [message for message in warnings if any(message in str(one.message) for one in warned)] == warnings
    assert len(warned) == len(warnings)
    assert flow.is_exact()
    x = np.array(VALUES)[np.random.default_rng(0).integers(0, 4, (1, 1, 20, 20))]
    data = flow.compress(x)
    assert data is not None
    monkeypatch.undo()
    assert data == model.compress(x)


def test_int8_products_with_wrong_sums_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some CPUs add pairs of products in 16 bits."""

    def saturated(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        products = (x.int() + 128).unsqueeze(2) * kernel.int()
        pairs = products.unflatten(1, (-1, 2)).sum(dim=2).clamp(-(1 << 15), (1 << 15) - 1)
        return (pairs.sum(dim=1) - 128 * kernel.int().sum(dim=0)).int()

    cpu, probe = torch.device("cpu"), bytes_are_exact.__wrapped__
    monkeypatch.setattr("ddf.exact.products._has_bytes", lambda device: True)
    monkeypatch.setattr(torch, "_int_mm", lambda x, kernel: x.int() @ kernel.int())
    assert probe(cpu)
    monkeypatch.setattr(torch, "_int_mm", saturated)
    assert not probe(cpu)


def test_sizes_without_int8_products_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries reject some sizes, without documenting which."""
    monkeypatch.setattr("ddf.exact.affine.bytes_are_exact", lambda device: True)
    affine = ExactAffine(torch.rand(5, 9), torch.zeros(5), input_bits=7).eval()
    x = torch.randint(128, (20, 9))

    def refuse(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(torch, "_int_mm", lambda x, kernel: x.int() @ kernel.int())
    expected = affine.run(x)
    assert expected.dtype == torch.int8
    monkeypatch.setattr(torch, "_int_mm", refuse)
    for _ in range(2):
        assert torch.equal(affine.run(x).to(torch.int8), expected)


def test_modules_without_an_integer_form_are_rejected() -> None:
    with pytest.raises(ModelError, match=r"MLP\(.*has no integer form"):
        quantize_net(MLP(3, 1, 1, activation="tanh"), [])
    with pytest.raises(ModelError, match=r"layer 0: DenoisingCoupling has the parameter net.stack.0.weight"):
        IntegerFlow(architectures.eight_gaussians(net=spec.MLPSpec(hidden=8)).build())


@pytest.mark.parametrize("config", [None, TrainingConfig(batch_size=20, max_epochs=2)])
def test_discrete_flows_can_be_exported(config: TrainingConfig | None) -> None:
    net = spec.DenseNetSpec(blocks=1, hidden=16)
    layers = (spec.SqueezeSpec(), spec.ModularCouplingSpec(net), spec.SplitPriorSpec(net))
    flow = randomize(spec.FlowSpec(5, (1, 8, 8), layers).build())
    maps = np.stack(draw_maps(40, (8, 8), 5))
    model = export(flow, torch.from_numpy(maps).long()[:, None], config=config)
    code = model.compress(maps)
    assert code is not None
    assert np.array_equal(model.decompress(code, maps.shape, maps.dtype), maps)
