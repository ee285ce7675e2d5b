"""Imports point in one direction, as documented in docs/architecture.md."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ddf"
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# Packages and modules by level: each imports only from itself and from those on the lines above.
ROOMS = [
    line.split()
    for line in """
    errors lazy
    extras progress files shapes classes
    remote
    plain symbols protocol modelfile label_files
    fast_permutation
    permutation logits tensorfile
    nets
    layers
    base
    flow
    spec checkpoint
    architectures
    data
    training
    exact labelmaps
    models
    registry
    archive
    codec_metadata
    zarr numcodecs torch pillow napari
    dask
    analysis peers
    viz
    experiments
    cli
    __init__ __main__
    """.strip().splitlines()
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def imports_of(path: Path) -> set[str]:
    """Return the packages and modules that a module imports from, also in functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ddf":
            assert node.level == 0
            names = [node.module] if node.module != "ddf" else [f"ddf.{alias.name}" for alias in node.names]
            found.update(name.split(".")[1] for name in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ddf."))
    return found - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_upward(path: Path) -> None:
    room = room_of(path)
    assert room in LEVEL, f"{room} is new: add it to ROOMS and to docs/architecture.md"
    for other in imports_of(path) - {room}:
        assert LEVEL[other] < LEVEL[room], f"{path} imports {other}, which is not above {room}"


def test_no_two_modules_have_the_same_name() -> None:
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert not [name for name, count in names.items() if count > 1]


def test_the_map_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = re.search(r"```\nsrc/ddf/\n(.*?)```", text, re.DOTALL)
    assert rooms is not None
    listed = Counter(re.findall(r"\b(\w+)\.py\b", rooms[1]))
    assert set(listed) == {path.stem for path in FILES} - {"__init__"}
    assert max(listed.values()) == 1


def test_archives_need_neither_torch_nor_numba() -> None:
    heavy = {"torch", "numba", "constriction", "matplotlib"}
    for path in FILES:
        if room_of(path) in ("archive", "files", "errors", "shapes", "classes", "modelfile", "protocol"):
            for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not heavy & {name.split(".")[0] for name in names}, path
