"""Any thread and any instruction set, compiled or not, produces the same bytes, without torch."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ddf.labelmaps import CausalFlow

ENCODE = """
import sys
import numpy as np
from ddf.models import load
model = load(sys.argv[1])
with np.load(sys.argv[2]) as file:
    for name in file.files:
        array = file[name]
        code = model.compress(array)
        print(code.hex())
        assert np.array_equal(model.decompress(code, array.shape, array.dtype), array)
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", script, *arguments]
    return subprocess.run(
        command, check=True, env={**os.environ, **environment}, capture_output=True, text=True
    ).stdout  # fmt: skip


def codes(model: CausalFlow, arrays: list[np.ndarray], folder: Path, **environment: str) -> list[bytes]:
    model.save(folder / "model.safetensors")
    np.savez(folder / "maps.npz", **{f"{i}": array for i, array in enumerate(arrays)})
    out = run(ENCODE, str(folder / "model.safetensors"), str(folder / "maps.npz"), **environment)
    return [bytes.fromhex(line) for line in out.split()]


def test_threads_produce_the_same_bytes(model: CausalFlow, maps: list[np.ndarray]) -> None:
    want = [model.compress(one) for one in maps]
    fresh = CausalFlow.from_bytes(model.to_bytes())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fresh.compress, maps * 6)) == want * 6


def test_baseline_instructions_produce_the_same_bytes(
    model: CausalFlow, maps: list[np.ndarray], tmp_path: Path
) -> None:
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert codes(model, maps, tmp_path, **environment) == [model.compress(one) for one in maps]


def test_uncompiled_code_produces_the_same_bytes(model: CausalFlow, scenes: list[np.ndarray], tmp_path: Path) -> None:
    arrays = [scenes[0][12:26, 10:26], np.array([[5, 5, 2**62], [5, 5, 2**62], [-9, -9, 5]])]
    assert codes(model, arrays, tmp_path, NUMBA_DISABLE_JIT="1") == [model.compress(one) for one in arrays]


@pytest.mark.parametrize("verb", ["compress", "explain", "bits"])
def test_torch_is_not_imported(known: CausalFlow, tmp_path: Path, verb: str) -> None:
    known.save(tmp_path / "model.safetensors")
    script = f"""
import sys
import numpy as np
import ddf
model = ddf.load(sys.argv[1])
model.{verb}(np.eye(20, dtype=np.uint8))
assert "torch" not in sys.modules
"""
    run(script, str(tmp_path / "model.safetensors"))
