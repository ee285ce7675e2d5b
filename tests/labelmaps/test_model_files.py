"""Equal models give equal files, and invalid files are rejected."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from ddf.classes import Classes
from ddf.errors import DamagedFileError
from ddf.labelmaps import CausalFlow
from ddf.modelfile import arrays_to_bytes
from ddf.models import load
from tests.reference_decoder import read_model
from tests.zoo import coupling_flow


def test_a_model_survives_saving(model: CausalFlow, tmp_path: Path) -> None:
    model.save(tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    for again in (load(tmp_path / "model.safetensors"), load(str(tmp_path / "model.safetensors"))):
        assert isinstance(again, CausalFlow)
        assert again.to_bytes() == data
        assert again.fingerprint == model.fingerprint
        assert again.classes == model.classes


def test_the_fingerprint_covers_all_parameters(known: CausalFlow) -> None:
    about = CausalFlow(known.arrays, known.classes, {"trained": "long ago"})
    assert about.fingerprint == known.fingerprint
    assert CausalFlow.from_bytes(about.to_bytes()).about == {"trained": "long ago"}
    others = [CausalFlow(known.arrays, Classes((7, 0, 255, -1, 301)))]
    for name, array in known.arrays.items():
        changed = array.copy()
        changed.flat[-1] += -1 if name in ("settings", "weights", "third_bias") else 1
        others.append(CausalFlow(known.arrays | {name: changed}, known.classes))
    assert len({known.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
    assert len(known.fingerprint) == 16


def test_a_model_survives_pickling(model: CausalFlow, scenes: list[np.ndarray]) -> None:
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert isinstance(again, CausalFlow)
        assert again.fingerprint == model.fingerprint
        assert again.compress(scenes[0]) == model.compress(scenes[0]) is not None
    model.nets  # noqa: B018 - derived data, which is not pickled
    assert len(pickle.dumps(model)) < len(model.to_bytes()) + 200


def test_damaged_files_are_rejected(model: CausalFlow) -> None:
    data = model.to_bytes()
    for place in np.linspace(0, len(data) - 1, 150).astype(int).tolist():
        with pytest.raises(DamagedFileError):
            CausalFlow.from_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DamagedFileError):
            CausalFlow.from_bytes(data[:place])
    with pytest.raises(DamagedFileError):
        CausalFlow.from_bytes(data + b"\0")


def test_other_models_are_rejected() -> None:
    with pytest.raises(DamagedFileError, match="integer"):
        CausalFlow.from_bytes(coupling_flow().to_bytes(), "this")


@pytest.mark.parametrize("classes", [{}, {"values": [1, 1]}, "text", [3], {"values": "abc", "names": [], "colors": []}])
def test_invalid_classes_are_rejected(known: CausalFlow, classes: object) -> None:
    with pytest.raises(DamagedFileError):
        CausalFlow.from_bytes(arrays_to_bytes(known.arrays, {"kind": "labelmaps", "classes": classes}))


def changed(name: str, value: int | None = None, dtype: str | None = None, shape: tuple[int, ...] | None = None):
    def change(arrays: dict[str, np.ndarray]) -> None:
        if value is not None:
            arrays[name] = np.full_like(arrays[name], value)
        if dtype is not None:
            arrays[name] = arrays[name].astype(dtype)
        if shape is not None:
            arrays[name] = np.zeros(shape, arrays[name].dtype)

    return change


WRONG = {
    "a missing array": lambda arrays: arrays.pop("flat"),
    "an extra array": lambda arrays: arrays.update(more=np.zeros(3)),
    "floats": changed("second", dtype="float32"),
    "another dtype": changed("flat", dtype="int32"),
    "another shape": changed("third", shape=(8, 7)),
    "hidden layers that do not fit": changed("bias", shape=(24,)),
    "classes of another model": changed("escapes", shape=(5, 4)),
    "an odd number of pixels": lambda arrays: arrays.update(pixels=arrays["pixels"][:11]),
    "a context that is too small": lambda arrays: arrays.update(pixels=arrays["pixels"][:8]),
    "rows that do not fit": lambda arrays: arrays.update(rows=arrays["rows"][:5]),
    "first sums beyond 16 bits": changed("pixels", value=2731),
    "first sums beyond 16 bits, negative": changed("runs", value=-5462),
    "second sums beyond 24 bits": changed("second", value=-4113),
    "third sums beyond 24 bits": changed("third", value=8230),
    "a bias beyond 24 bits": changed("third_bias", value=1 << 24),
    "negative shifts": changed("shifts", value=-1),
    "shifts too large": changed("shifts", value=25),
    "limits too large": changed("settings", value=1024),
    "negative rates": changed("settings", value=-1),
    "impossible escapes": changed("escapes", value=0),
    "weights that overflow": changed("escapes", value=65535),
    "impossible flat pixels": changed("flat_counters", value=1023),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_are_rejected(known: CausalFlow, name: str) -> None:
    arrays = dict(known.arrays)
    WRONG[name](arrays)
    with pytest.raises(DamagedFileError, match="damaged"):
        CausalFlow.from_bytes(arrays_to_bytes(arrays, {"kind": "labelmaps", "classes": known.classes.to_plain()}))


@pytest.mark.parametrize("name", ["pixels", "runs", "second", "third"])
def test_sums_at_their_limits_are_exact(known: CausalFlow, scenes: list[np.ndarray], name: str) -> None:
    """With the largest weights that pass the check, encoder, decoder and reference decoder agree."""
    generator = np.random.default_rng(0)
    arrays = dict(known.arrays)
    for scale in range(1 << 14, 0, -64):
        arrays[name] = (generator.integers(0, 2, arrays[name].shape) * 2 - 1).astype(arrays[name].dtype) * np.int16(
            scale
        )
        try:
            extreme = CausalFlow(arrays, known.classes)
        except ValueError:
            continue
        break
    code = extreme.compress(scenes[0])
    assert code is not None
    assert np.array_equal(extreme.decompress(code, scenes[0].shape, scenes[0].dtype), scenes[0])
    small = scenes[0][10:24, 10:30]
    assert np.array_equal(read_model(extreme.to_bytes()).decode(extreme.compress(small), small.shape, "<i8"), small)
