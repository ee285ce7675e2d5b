"""Malicious files and other files that are not models are rejected by name, quickly and in little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ddf
from ddf import modelfile
from ddf.archive import compress
from ddf.errors import DamagedFileError, DdfError, UnknownKindError
from ddf.modelfile import arrays_to_bytes
from ddf.models import model_from_bytes
from tests.zoo import any_size_flow, coupling_flow

KINDS = ["flow", "integer"]


def small_file(of: str, layers: list[object], shape: tuple[int | None, ...] = (2,), **more: object) -> bytes:
    """Return the file of a two-class flow that contains only the tensors of a small base."""
    classes = more.pop("classes", {"values": [0, 1], "names": [], "colors": []})
    base = {"kind": "FactorizedCategorical", "shared": False}
    header = {
        "kind": of,
        "spec": {"kind": "Flow", "num_classes": 2, "shape": shape, "layers": layers, "base": base},
    }
    if of == "integer":
        return arrays_to_bytes({"base": np.zeros((2, 2), "i4")}, header | {"classes": classes} | more)
    arrays = {
        "base.logits": np.zeros((2, 2), "f4"),
        "base._extra_state": np.array(True),
        "_extra_state": np.frombuffer(json.dumps(classes).encode(), np.uint8),
    }
    return arrays_to_bytes(arrays, header | more)


def coupling(net: str, **options: int) -> dict[str, object]:
    described = {"kind": net, **options}
    return {
        "kind": "DenoisingCoupling",
        "net": described,
        "top": 1,
        "partition": {"kind": "ChannelSplit", "index": None},
    }


HUGE = {
    "a wide net": ([coupling("MLP", hidden=20_000, layers=4)], (2,)),
    "an impossibly wide net": ([coupling("MLP", hidden=1 << 61, layers=2)], (2,)),
    "a deep net": ([coupling("MLP", hidden=8, layers=10**9)], (2,)),
    "a net with many blocks": ([coupling("DenseNet", hidden=8, blocks=10**9)], (2, 1, 1)),
    "a wide shuffle": ([{"kind": "Shuffle", "seed": 0}], (10**9,)),
    "a large base": ([], (1 << 30,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_of_huge_flows_take_no_memory(kind: str, tmp_path: Path) -> None:
    for name, (layers, shape) in HUGE.items():
        (tmp_path / name).write_bytes(small_file(kind, layers, shape))
    program = """
import resource, sys
import ddf, ddf.errors, ddf.exact
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        ddf.load(path)
    except ddf.errors.DdfError as error:
        assert path in str(error), error
    else:
        raise AssertionError(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin
    assert grown < 200 * 1024, (path, grown)
"""
    subprocess.run([sys.executable, "-c", program, *HUGE], cwd=tmp_path, env=dict(os.environ), check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_layers_are_rejected(kind: str) -> None:
    data = small_file(kind, [{"kind": "Squeeze"}] * 1_000_000)
    with pytest.raises(DdfError, match=r"the file does not .*: 1000000 layers, but a flow in a file has at most 4096"):
        model_from_bytes(data, "the file")


CLASSES = {
    "nothing": None,
    "a list": [],
    "none": {"values": [], "names": [], "colors": []},
    "texts": {"values": ["0", "1"], "names": [], "colors": []},
    "floats": {"values": [0.0, 1.0], "names": [], "colors": []},
    "not a list": {"values": "01", "names": [], "colors": []},
    "duplicate values": {"values": [1, 1], "names": [], "colors": []},
    "beyond 64 bits": {"values": [0, 1 << 63], "names": [], "colors": []},
    "too many": {"values": [0, 1, 2], "names": [], "colors": []},
    "too few": {"values": [0], "names": [], "colors": []},
    "numbers as names": {"values": [0, 1], "names": [0, 1], "colors": []},
    "too few names": {"values": [0, 1], "names": ["a"], "colors": []},
    "colors with two channels": {"values": [0, 1], "names": [], "colors": [[0, 1], [0, 1]]},
    "colors above 255": {"values": [0, 1], "names": [], "colors": [[0, 1, 256], [0, 1, 2]]},
    "columns without values": {"columns": ["a", "b"]},
    "an empty column": {"columns": ["a", "b"], "values": [["x", "y"], []]},
    "too few columns": {"columns": ["a", "b"], "values": [["x", "y"]]},
    "columns of numbers": {"columns": ["a", "b"], "values": [[0, 1], [0, 1]]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_classes_are_rejected(kind: str) -> None:
    model_from_bytes(small_file(kind, []))
    for name, classes in CLASSES.items():
        if (kind, name) == ("flow", "nothing"):
            continue
        with pytest.raises(DdfError, match="the file does not describe"):
            model_from_bytes(small_file(kind, [], classes=classes), "the file")


@pytest.mark.parametrize("about", [[], [["a", 1]], "text", 3, False])
@pytest.mark.parametrize("make", [any_size_flow, ddf.labelmaps.pretrained, lambda: None])
def test_an_invalid_about_is_rejected(make: object, about: object) -> None:
    model = make()  # type: ignore[operator]
    if model is None:
        data = small_file("flow", [], about=about)
    else:
        arrays, header = modelfile.arrays_from_bytes(model.to_bytes(), "the model")
        data = arrays_to_bytes(arrays, header | {"about": about})
    with pytest.raises(DdfError, match=r"the file .*`about` is not an object"):
        model_from_bytes(data, "the file")


def safetensors(text: bytes, values: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + values


def table(**entry: object) -> bytes:
    metadata = {"ddf": json.dumps({"kind": "flow", "format": 1})}
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | entry
    return safetensors(json.dumps({"__metadata__": metadata, "x": entry}).encode(), b"ab")


DEEP = '{"a":' * 100_000
TEXTS = {
    "a deeply nested header": safetensors(DEEP.encode()),
    "deeply nested metadata": safetensors(json.dumps({"__metadata__": {"ddf": DEEP}}).encode()),
    "less deeply nested metadata": safetensors(json.dumps({"__metadata__": {"ddf": "[" * 70 + "]" * 70}}).encode()),
    "metadata that is a string": safetensors(b'{"__metadata__": "x"}'),
    "metadata that contains a number": safetensors(b'{"__metadata__": {"ddf": 3}}'),
    "a header that is a list": safetensors(b"[]"),
    "a duplicate key": safetensors(b'{"__metadata__": {}, "__metadata__": {}}'),
    "a duplicate key in the metadata": safetensors(b'{"__metadata__": {"ddf": "{\\"kind\\": 1, \\"kind\\": 2}"}}'),
    "a header in UTF-16": safetensors('{"__metadata__": {}}'.encode("utf-16")),
    "a name with a lone surrogate": safetensors(b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'),
    "an entry that is a number": safetensors(b'{"x": 3}'),
    "an unknown dtype": table(dtype="F9"),
    "a dtype that is a list": table(dtype=[]),
    "a shape of floats": table(shape=[2.0]),
    "a shape of booleans": table(shape=[True, 2]),
    "a shape that is not a list": table(shape=2),
    "a negative shape": table(shape=[-1, -2]),
    "a shape with NaN": table(shape=[float("nan")]),
    "a shape beyond 64 bits": table(shape=[1 << 64, 0], data_offsets=[0, 0]),
    "a shape whose product is beyond 64 bits": table(shape=[1 << 40, 1 << 40, 0], data_offsets=[0, 0]),
    "a shape with many dimensions": table(shape=[1] * 33),
    "offsets that are floats": table(data_offsets=[0.0, 2.0]),
    "offsets that are booleans": table(data_offsets=[False, 2]),
    "three offsets": table(data_offsets=[0, 1, 2]),
    "offsets beyond the file": table(data_offsets=[0, 3], shape=[3]),
    "offsets that leave a gap": table(data_offsets=[1, 2], shape=[1]),
    "a header of 2^60 bytes": (1 << 60).to_bytes(8, "little") + b"{}",
    "zeros": bytes(1000),
    "text": b"This is not a model.\n" * 9,
    "nothing": b"",
}


@pytest.mark.parametrize("name", TEXTS)
def test_files_that_are_not_model_files_are_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"^the file (is|has)"):
        model_from_bytes(TEXTS[name], "the file")
    (tmp_path / "model").write_bytes(TEXTS[name])
    with pytest.raises(DamagedFileError, match=r"model is not a model file.*not a complete safetensors file"):
        ddf.load(tmp_path / "model")


def test_deeply_nested_specs_are_rejected() -> None:
    deep: object = 0
    for _ in range(55):
        deep = [deep]
    with pytest.raises(DamagedFileError, match="does not describe a flow"):
        model_from_bytes(small_file("flow", [{"kind": "Shuffle", "permutation": deep}]))
    with pytest.raises(ValueError, match="the spec of a flow is not JSON"):
        ddf.FlowSpec.from_json(DEEP)


def test_long_reasons_are_truncated() -> None:
    with pytest.raises(DamagedFileError) as caught:
        model_from_bytes(small_file("flow", [], kind="x" * 100_000))
    assert len(str(caught.value)) < 1000
    with pytest.raises(UnknownKindError) as unknown:
        model_from_bytes(small_file("flow", [{"kind": "x" * 100_000}]))
    assert len(str(unknown.value)) < 1000


def test_an_archive_is_not_accepted_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "maps.ddf").write_bytes(compress(np.zeros((2, 4, 4), np.uint8), coupling_flow()))
    with pytest.raises(DamagedFileError, match=r"maps.ddf is an archive, not a model file"):
        ddf.load(tmp_path / "maps.ddf")
