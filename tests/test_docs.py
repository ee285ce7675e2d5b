"""The documentation: its commands work verbatim, its links resolve, its pages can be built."""

import ast
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddf.cli.main import make_parser
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_exist(page: Path) -> None:
    """Parse every command, including those that are too slow or need data that is not available here."""
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    parser = make_parser()
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("--device cuda", "--device cpu").splitlines():
            command, *arguments = shlex.split(line, comments=True) or [""]
            if command == "ddf":
                parser.parse_args(arguments)  # exits with a message if they are invalid
            if command == "make":
                assert set(arguments) <= rules, line


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 250


def test_the_pages_can_be_built(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr  # --quiet would suppress the warnings that --strict turns into errors
    page = (tmp_path / "api" / "index.html").read_text()
    assert "ArchiveWriter" in page
    assert "<blockquote>" not in page  # examples are code


def test_the_tutorial_on_masks_works_verbatim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pillow_jxl  # noqa: F401

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    scenes = draw_scenes(40, seed=11)
    palette = [value for color in SCENE_CLASSES.colors for value in color]
    png = jxl = 0
    for i, scene in enumerate(scenes):
        image = Image.frombytes("P", scene.shape[::-1], scene.tobytes())
        image.putpalette(palette)
        place = tmp_path / "masks" / f"street {i % 3}" / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place, optimize=True)
        png += place.stat().st_size
        buffer = io.BytesIO()
        Image.fromarray(scene).save(buffer, "JXL", lossless=True, effort=9)
        jxl += len(buffer.getvalue())
    text = (ROOT / "docs" / "masks.md").read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        done = subprocess.run(["bash", "-euc", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, block + done.stdout + done.stderr
    archive = (tmp_path / "masks.ddf").stat().st_size
    assert archive < jxl < png
    for file in (tmp_path / "masks").rglob("*.png"):
        with Image.open(file) as one, Image.open(tmp_path / "again" / file.relative_to(tmp_path / "masks")) as two:
            assert np.array_equal(np.asarray(one), np.asarray(two))
            assert one.getpalette() == two.getpalette()
    assert len(list((tmp_path / "one").rglob("*.png"))) == 1
    assert (tmp_path / "explained.png").exists()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "masks.md", None, 0))
    assert runner.summarize().failed == 0


def test_imported_packages_are_declared() -> None:
    """Count everything that a command may need, not only what `import ddf` needs."""
    names = {"pillow": "PIL"}
    packages = set()
    for declared in requires("discrete-denoising-flows") or []:
        name, extra = re.match(r"""([\w-]+)[^;]*(?:; extra == ['"](\w+))?""", declared).groups()  # type: ignore[union-attr]
        if extra is None or EXTRAS.get(name) == extra:
            packages.add(names.get(name, name))
    assert set(EXTRAS) <= packages
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    others = found - set(sys.stdlib_module_names) - {"ddf"}
    assert others - packages == {"zstandard", "brotli", "oxipng", "pillow_jxl"}  # the peers of benchmarks
