"""A file contains the complete flow, or is rejected."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ddf
from ddf import architectures, spec
from ddf.errors import DamagedFileError, LimitError
from ddf.files import atomic_write
from ddf.modelfile import arrays_from_bytes, arrays_to_bytes
from ddf.shapes import Shape
from ddf.tensorfile import read_tensors, write_tensors
from tests.zoo import LAYERS, TinyNet, layer_flow, randomize

SMALL = spec.FlowSpec(
    num_classes=5,
    shape=(1, 4, 8),
    layers=(
        spec.SqueezeSpec(),
        spec.ShuffleSpec(seed=11),
        spec.DenoisingCouplingSpec(spec.DenseNetSpec(blocks=1, hidden=8), top=3),
        spec.SplitPriorSpec(spec.DenseNetSpec(blocks=1, hidden=8)),
    ),
)


@pytest.fixture
def flow() -> ddf.Flow:
    flow = randomize(SMALL.build())
    flow.layers[2].freeze()
    return flow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flow.ddf"


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_survives_saving(name: str, path: Path) -> None:
    flow = layer_flow(name, 8)
    flow.save(path)
    again = ddf.load(path)
    x = torch.randint(8, (10, *flow.shape))
    assert again.spec == flow.spec
    assert torch.equal(again.log_prob(x), flow.log_prob(x))


def test_a_loaded_flow_encodes_the_same_in_another_process(tmp_path: Path) -> None:
    flow = randomize(architectures.binary_mnist(split_priors=False, net=spec.DenseNetSpec(2, 16)).build())
    with torch.no_grad():  # a shuffle that no seed produces
        for layer in flow.layers:
            if isinstance(layer, ddf.Shuffle):
                layer.order.copy_(torch.arange(layer.channels).roll(1))
    x = torch.randint(2, (4, 1, 28, 28))
    flow.save(tmp_path / "flow.ddf")
    np.save(tmp_path / "x.npy", x.numpy())
    program = (
        "import ddf, numpy as np, torch; flow = ddf.load('flow.ddf'); x = torch.from_numpy(np.load('x.npy'));"
        "np.save('z.npy', flow.encode(x).parts[0].numpy()); np.save('p.npy', flow.log_prob(x).detach().numpy())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert np.array_equal(np.load(tmp_path / "z.npy"), flow.encode(x).parts[0].numpy())
    assert np.array_equal(np.load(tmp_path / "p.npy"), flow.log_prob(x).detach().numpy())


def test_frozen_parts_stay_frozen(flow: ddf.Flow, path: Path) -> None:
    flow.base.freeze()
    flow.save(path)
    assert [part.frozen for part in ddf.load(path).parts()] == [False, False, True, False, True]


def test_equal_flows_give_equal_files(flow: ddf.Flow, tmp_path: Path) -> None:
    flow.save(tmp_path / "a")
    ddf.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_of_the_weights_is_kept(flow: ddf.Flow, path: Path, dtype: torch.dtype) -> None:
    flow.to(dtype).save(path)
    again = ddf.load(path)
    assert again.base.logits.dtype == dtype
    x = torch.randint(5, (10, 1, 4, 8))
    assert torch.equal(again.log_prob(x), flow.log_prob(x))


def test_shared_nets_are_saved(path: Path) -> None:
    net = randomize(ddf.MLP(3, 1, 1, hidden=8))
    layers = [ddf.DenoisingCoupling(net, 3), ddf.Shuffle(2, permutation=[1, 0]), ddf.DenoisingCoupling(net, 3)]
    flow = ddf.Flow(layers, ddf.FactorizedCategorical(3, (2,)), (2,))
    flow.save(path)
    x = torch.randint(3, (50, 2))
    assert torch.equal(ddf.load(path).encode(x).parts[0], flow.encode(x).parts[0])


def test_an_unavailable_device_is_not_reported_as_damage(flow: ddf.Flow, path: Path) -> None:
    flow.save(path)
    with pytest.raises(RuntimeError, match="nowhere"):
        ddf.load(path, "nowhere")


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder, not a model file"):
        ddf.load(tmp_path)


def test_links_and_long_names_are_supported(flow: ddf.Flow, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / ("x" * 250))
    flow.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert ddf.load(tmp_path / ("x" * 250)).spec == flow.spec


def test_saving_replaces_an_older_file(flow: ddf.Flow, path: Path) -> None:
    path.write_bytes(b"old")
    flow.save(path)
    assert ddf.load(path).spec == flow.spec
    assert list(path.parent.iterdir()) == [path]


def test_every_truncation_is_detected(flow: ddf.Flow, path: Path) -> None:
    flow.save(path)
    complete = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(complete) // 2, len(complete) - 1]:
        path.write_bytes(complete[:length])
        with pytest.raises(DamagedFileError, match="not a complete safetensors file"):
            ddf.load(path)


def test_every_damaged_byte_is_detected(flow: ddf.Flow, path: Path) -> None:
    flow.save(path)
    complete = bytearray(path.read_bytes())
    for position in range(0, len(complete), 61):
        complete[position] ^= 0x10
        path.write_bytes(complete)
        with pytest.raises(DamagedFileError):
            ddf.load(path)
        complete[position] ^= 0x10
    path.write_bytes(complete)
    ddf.load(path)


def test_foreign_files_are_rejected(path: Path) -> None:
    path.write_bytes(os.urandom(1000))
    with pytest.raises(DamagedFileError, match="not a complete safetensors file"):
        ddf.load(path)
    torch.save({"a": torch.zeros(3)}, path)
    with pytest.raises(DamagedFileError, match="not a complete safetensors file"):
        ddf.load(path)
    for metadata in (None, {"format": "pt"}, {"ddf": "null"}, {"ddf": "{}"}):
        save_file({"a": torch.zeros(3)}, path, metadata=metadata)
        with pytest.raises(DamagedFileError, match="is a safetensors file that ddf did not write"):
            ddf.load(path)
    save_file({"a": torch.zeros(3)}, path, metadata={"ddf": "{"})
    with pytest.raises(DamagedFileError, match="not a complete safetensors file"):
        ddf.load(path)


def test_files_are_safetensors_files(flow: ddf.Flow, path: Path) -> None:
    flow.to(torch.bfloat16).save(path)
    found = load_file(path)
    assert found.keys() == flow.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in flow.state_dict().items())


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "<i2", ">i4", "u8", "i8", "f2", "f4", "f8"])
def test_arrays_of_any_dtype_survive_saving(dtype: str) -> None:
    arrays = {
        "a": np.arange(6).astype(dtype).reshape(2, 3),
        "scalar": np.array(1, dtype),
        "none": np.empty((0, 4), dtype),
    }
    again, header = arrays_from_bytes(arrays_to_bytes(arrays, {"kind": "example", "x": [1]}), "arrays")
    assert header == {"kind": "example", "x": [1]}
    for name, array in arrays.items():
        assert np.array_equal(again[name], array)
        assert again[name].shape == array.shape
        assert again[name].dtype == array.dtype.newbyteorder("<")


def test_a_missing_file_raises_file_not_found(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ddf.load(path)


def resaved(path: Path, change: object) -> None:
    """Rewrite the file with a changed header and changed tensors, and the right checksum."""
    tensors, header = read_tensors(path)
    header["format"] = 1
    change(header, tensors)  # type: ignore[operator]
    write_tensors(path, tensors, header)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, t: h.update(format=99), "has format 99, but this version of ddf reads up to 1: install a newer one"),
        (lambda h, t: h["spec"]["layers"].pop(0), "does not describe a flow: "),
        (lambda h, t: h.pop("spec"), "does not describe a flow: 'spec'"),
        (lambda h, t: t.pop("layers.1._extra_state"), "does not describe a flow: .*layers.1._extra_state"),
        (lambda h, t: t.update({"base._extra_state": torch.zeros(2).bool()}), "base._extra_state has the shape"),
        (lambda h, t: t["_extra_state"].fill_(0), "does not describe a flow: "),
        (lambda h, t: h.update(format=0), "that ddf did not write"),
        (lambda h, t: h.update(format=True), "that ddf did not write"),
        (lambda h, t: h.update(spec={"kind": "Squeeze"}), "but this one is a SqueezeSpec"),
        (lambda h, t: h["spec"]["layers"][2].update(top=6), "top=6 is out of range: the data has 5 classes"),
        (lambda h, t: t.pop("base.logits"), "does not describe a flow: the tensor base.logits is missing"),
        (lambda h, t: t.update(more=torch.zeros(1)), "does not describe a flow: unexpected tensors: more"),
        (lambda h, t: t["layers.1.order"].fill_(0), r"Shuffle: \[0, 0, 0, 0\] is not a permutation"),
        (lambda h, t: h.update(about=[["a", 1]]), "`about` is not an object"),
        (lambda h, t: h["spec"].update(num_classes=1 << 17), "131072 classes, but a flow in a file has at most 65536"),
        (lambda h, t: h["spec"].update(shape=[1] * 9), "at most 8 sizes"),
        (lambda h, t: h["spec"].update(shape=[1, 1 << 30, 1 << 30]), "at most 8 sizes and 1099511627776 symbols"),
        (
            lambda h, t: t.update({"base.logits": torch.zeros(5, 2, 2, 2)}),
            r"has the shape \(5, 2, 2, 2\), but the spec",
        ),
        (
            lambda h, t: t.update({"layers.1.order": torch.arange(4.0)}),
            "is torch.float32, but a flow needs torch.int64",
        ),
        (
            lambda h, t: t.update({"base.logits": t["base.logits"].long()}),
            "is torch.int64, but a flow needs torch.float",
        ),
        (lambda h, t: t["base.logits"].fill_(float("nan")), "base.logits contains nan: .* was not loaded"),
    ],
)
def test_files_that_do_not_describe_a_flow_are_rejected(
    flow: ddf.Flow, path: Path, change: object, message: str
) -> None:
    flow.save(path)
    resaved(path, change)
    with pytest.raises(DamagedFileError, match=message):
        ddf.load(path)


def test_weights_that_are_not_finite_are_not_saved(flow: ddf.Flow, path: Path) -> None:
    path.write_bytes(b"old")
    with torch.no_grad():
        flow.layers[2].net.stack[0].mix.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"layers.2.net.stack.0.mix.weight contains inf: the flow was not saved"):
        flow.save(path)
    assert path.read_bytes() == b"old"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        write()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_files_have_the_usual_permissions(flow: ddf.Flow, tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    flow.save(tmp_path / "flow")
    assert (tmp_path / "flow").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_an_error_names_a_missing_folder(flow: ddf.Flow, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot write .*nowhere/flow: the folder .*nowhere does not exist"):
        flow.save(tmp_path / "nowhere" / "flow")


class OffsetNet(TinyNet):
    """A net with a buffer that is not saved."""

    def __init__(self, num_classes: int, in_channels: int, out_channels: int) -> None:
        super().__init__(num_classes, in_channels, out_channels)
        self.register_buffer("offset", torch.arange(float(self.in_planes)).view(-1, 1, 1), persistent=False)

    def body(self, planes: torch.Tensor) -> torch.Tensor:
        return super().body(planes + self.offset)


@dataclass(frozen=True)
class OffsetNetSpec(spec.NetSpec, builds=OffsetNet):
    def build(self, num_classes: int, given: Shape, predicted: Shape) -> OffsetNet:
        return OffsetNet(num_classes, given[0] or 0, predicted[0] or 0)


def test_buffers_that_a_net_computes_are_not_required_in_the_file(path: Path) -> None:
    flow = randomize(spec.FlowSpec(3, (2, 4, 4), (spec.DenoisingCouplingSpec(OffsetNetSpec(), top=3),)).build())
    flow.save(path)
    x = torch.randint(3, (4, 2, 4, 4))
    assert torch.equal(ddf.load(path).encode(x).parts[0], flow.encode(x).parts[0])


def test_loading_draws_no_random_numbers(flow: ddf.Flow, path: Path) -> None:
    flow.save(path)
    state = torch.get_rng_state()
    ddf.load(path)
    assert torch.equal(torch.get_rng_state(), state)


def test_flows_that_could_not_be_loaded_are_not_saved(flow: ddf.Flow, path: Path) -> None:
    flow.about = {"deep": json.loads("[" * 70 + "]" * 70)}
    with pytest.raises(LimitError, match="more than 64 levels"):
        flow.save(path)
    many = [ddf.Shuffle(2) for _ in range(4097)]
    with pytest.raises(LimitError, match="4097 layers, but a flow in a file has at most 4096"):
        ddf.Flow(many, ddf.FactorizedCategorical(2, (2,)), (2,)).save(path)
    assert not path.exists()
