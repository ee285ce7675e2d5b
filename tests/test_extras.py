"""What a plain installation can do, and its errors for missing extras."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.zoo import coupling_flow

MISSING = ["torch", "matplotlib", "constriction", "pooch", "fsspec", "dask", "distributed", "zarr", "numcodecs"]
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({MISSING}))\n"
COMMAND = WITHOUT + "from ddf.cli.main import main; raise SystemExit(main())"


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maps")
    for i in range(3):
        np.save(folder / f"{i}.npy", np.kron(np.eye(4, dtype=np.uint8), np.full((5, 5 + i), 7, np.uint8)))
    return folder


def test_a_plain_installation_compresses_and_reads_archives(maps: Path, tmp_path: Path) -> None:
    archive = tmp_path / "maps.ddf"
    for command in (
        ["compress", maps, "-o", archive, "--embed"],
        ["list", archive],
        ["inspect", archive],
        ["verify", archive],
        ["extract", archive, "1.npy", "-o", tmp_path / "one"],
        ["decompress", archive, "-o", tmp_path / "again"],
        ["recover", archive, "-o", tmp_path / "saved"],
        ["completion", "bash"],
    ):
        done = run(COMMAND, *command)
        assert done.returncode == 0, done.stderr
    for folder in ("again", "saved"):
        for path in maps.iterdir():
            assert np.array_equal(np.load(tmp_path / folder / path.name), np.load(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{maps}", "-o", "{out}/run"], "torch is not installed; it is needed for `ddf train`: pip install"),
        (["reproduce", "mnist"], "torch is not installed; it is needed for `ddf reproduce`"),
        (["list", "https://example.org/a.ddf"], "fsspec is not installed; it is needed for https://example.org/a.ddf"),
    ],
)
def test_commands_name_the_missing_extra(arguments: list[str], message: str, maps: Path, tmp_path: Path) -> None:
    done = run(COMMAND, *(argument.format(maps=maps, out=tmp_path) for argument in arguments))
    assert done.returncode == 1
    assert message in done.stderr
    extra = "remote" if "fsspec" in message else "train"
    assert f"pip install 'discrete-denoising-flows[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["Flow", "fit", "data.mnist", "labelmaps.train", "export", "rank"])
def test_attributes_name_the_missing_extra(name: str) -> None:
    done = run(WITHOUT + f"import ddf\ntry:\n    ddf.{name}\nexcept ImportError as error:\n    print(error)")
    assert done.stdout.startswith("torch is not installed; it is needed for "), done.stderr
    assert "[train]" in done.stdout


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("ddf.dask", "distributed", "dask"),
        ("ddf.zarr", "zarr", "zarr"),
        ("ddf.numcodecs", "numcodecs", "numcodecs"),
        ("ddf.torch", "torch", "train"),
    ],
)
def test_a_module_names_the_missing_extra(module: str, missing: str, extra: str) -> None:
    done = run(WITHOUT + f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)")
    remedy = f"pip install 'discrete-denoising-flows[{extra}]'"
    assert done.stdout == f"{missing} is not installed; it is needed for {module}: {remedy}\n", done.stderr


def test_an_error_names_a_model_that_needs_torch(tmp_path: Path) -> None:
    coupling_flow().save(tmp_path / "model.safetensors")
    script = WITHOUT + "import ddf\ntry:\n    ddf.load(sys.argv[1])\nexcept ddf.DdfError as error:\n    print(error)"
    assert (
        "model.safetensors, a model that runs on PyTorch: pip install"
        in run(script, tmp_path / "model.safetensors").stdout
    )


def test_importing_ddf_imports_no_heavy_modules() -> None:
    script = "import sys, ddf; print({'torch', 'numba', 'numpy', 'PIL', 'tqdm', 'filelock'} & set(sys.modules))"
    assert run(script).stdout.strip() == "set()"
