"""Every command, run as an executable: valid use, invalid use, interruption."""

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddf.archive import Archive, ArchiveWriter, FileReader
from ddf.cli.main import make_parser
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.labelmaps import CausalFlow, pretrained
from ddf.models import load
from ddf.spec import FlowSpec
from tests.images import same_image

pytestmark = pytest.mark.xdist_group("commands")  # one worker, which trains only once

SCRIPT = Path(sys.executable).with_name("ddf")
DDF = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "ddf"]  # the latter if ddf is not installed
PALETTE = [value for color in SCENE_CLASSES.colors for value in color]


def ddf(*arguments: object, code: int = 0, cwd: Path | None = None) -> str:
    """Run a command and return its output, including errors."""
    done = subprocess.run(
        [*DDF, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if code == 0 and "--json" in arguments:
        return done.stdout
    return done.stdout + done.stderr


def start(*arguments: object, program: list[str] = DDF) -> "subprocess.Popen[str]":
    """Start a command that can be interrupted, even if the tests run in the background and ignore interrupts."""
    return subprocess.Popen(
        [*program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def as_json(*arguments: object, code: int = 0) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(ddf(*arguments, "--json", code=code), parse_constant=refuse)


def save_scene(scene: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.frombytes("P", scene.shape[::-1], scene.tobytes())
    image.putpalette(PALETTE)
    image.save(path)


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of label maps with spaces and umlauts in their names."""
    folder = tmp_path_factory.mktemp("data") / "Straßen maps"
    for i, scene in enumerate(draw_scenes(14, seed=5, sizes=(40, 64))):
        save_scene(scene, folder / ("früh am Tag" if i % 2 else "spät") / f"scene {i}.png")
    return folder


@pytest.fixture(scope="module")
def model(masks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "ein Lauf"
    output = ddf("train", masks, "-o", run, "--steps", 400, "--mirrored", "--device", "cpu")
    assert "5 classes; training on 13 maps, 1 held out for the score" in output
    assert "bits per pixel on held-out data" in output
    assert re.search(r"The pretrained model reaches 0\.\d+ bits per pixel", output)
    assert "Warning: only 13 training maps" in output
    assert "Warning: only 400 training steps" in output
    assert f"Next: {shlex.join(['ddf', 'compress', str(masks)])} -o out.ddf" in output
    assert not list(run.glob("state-*"))
    return run / "model.safetensors"


# ---- Help ------------------------------------------------------------------------------------------------------------


def test_every_command_has_help_without_importing_torch() -> None:
    script = """
import sys
from ddf.cli.main import make_parser
parser = make_parser()
for name, command in parser._subparsers._group_actions[0].choices.items():
    assert "examples:" in command.format_help(), name
    assert name == "completion" or "--json" in command.format_help(), name
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(*parser._subparsers._group_actions[0].choices)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    expected = "demo train evaluate sample compress decompress list extract verify recover inspect explain reproduce"
    assert set(expected.split()) <= set(output.split())
    assert "ddf train masks -o run" in ddf("--help")
    assert ddf("--version").startswith("ddf 0.")


def test_completion_suggests_commands_options_and_paths(tmp_path: Path) -> None:
    (tmp_path / "masks.ddf").touch()
    script = ddf("completion", "bash")
    for typed in ("dec", "list --j", "list mas"):
        script += f'\nCOMP_WORDS=(ddf {typed}); COMP_CWORD={len(typed.split())}; _shtab_ddf; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["decompress", "--json", "masks.ddf"]


def test_every_option_states_its_default() -> None:
    commands = next(action.choices for action in make_parser()._actions if action.dest == "command")
    assert isinstance(commands, dict)
    for name, command in commands.items():
        for action in command._actions:
            if action.option_strings and not action.required and action.dest != "help":
                assert "default" in str(action.help), f"{name} {action.option_strings[0]}: {action.help}"


def test_a_traceback_is_printed_on_request(tmp_path: Path) -> None:
    missing = ["list", tmp_path / "missing.ddf"]
    assert ddf(*missing, code=1).count("\n") == 1
    done = subprocess.run([*DDF, *map(str, missing), "--debug"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "missing.ddf" in done.stderr.splitlines()[-1]


def test_modules_with_layers_are_imported(tmp_path: Path) -> None:
    (tmp_path / "own_layers.py").write_text(
        "from dataclasses import dataclass\n"
        "from ddf.layers import LayerSpec, Shuffle\n"
        "class Swap(Shuffle):\n"
        "    def __init__(self): super().__init__(2, permutation=[1, 0])\n"
        "@dataclass(frozen=True)\n"
        "class SwapSpec(LayerSpec, builds=Swap):\n"
        "    def build(self, num_classes, shape): return Swap()\n"
        "if __name__ == '__main__':\n"
        "    from ddf.spec import FlowSpec\n"
        "    import own_layers\n"
        "    FlowSpec(2, (2,), (own_layers.SwapSpec(),)).build().save('swap.safetensors')\n"
    )
    subprocess.run([sys.executable, "own_layers.py"], cwd=tmp_path, check=True)
    inspect = [*DDF, "inspect", "swap.safetensors"]
    done = subprocess.run(inspect, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown kind 'Swap'; first import the module that defines it (on the command line, --import" in done.stderr
    done = subprocess.run(
        [*inspect, "--import", "own_layers"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Swap" in done.stdout
    done = subprocess.run([*inspect, "--import", "absent"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--import absent: there is neither an installed module absent nor a file here" in done.stderr


# ---- Archives --------------------------------------------------------------------------------------------------------


def test_a_folder_is_compressed_and_decompressed(tmp_path: Path, masks: Path, model: Path) -> None:
    archive = tmp_path / "all of it.ddf"
    made = as_json("compress", masks, "-o", archive, "--model", model, "--embed")
    assert made["files"] == 14
    assert made["bytes_after"] == archive.stat().st_size
    assert (made["maps"], made["maps_by_model"]) == (14, 14)
    names = as_json("list", archive)["names"]
    assert names == sorted(file.relative_to(masks).as_posix() for file in masks.rglob("*.png"))
    assert as_json("decompress", archive, "-o", tmp_path / "out")["files"] == 14
    for name in names:
        assert same_image(masks / name, tmp_path / "out" / name)
    assert as_json("verify", archive) == {"files": 14, "intact": True, "damage": []}
    ddf("extract", archive, names[3], "-o", tmp_path / "one")
    assert same_image(masks / names[3], tmp_path / "one" / names[3])
    inspected = as_json("inspect", archive)
    assert inspected["arrays"] == 14
    assert inspected["embedded"]
    assert {kind["method"] for kind in inspected["kinds"]} == {"codec"}
    assert "14 arrays" in ddf("inspect", archive)


def test_the_same_files_produce_the_same_archive(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for i, suffix in enumerate(["txt", "bin", "npy", "csv", "md"]):
        (folder / f"a.{suffix}.raw").write_bytes(bytes(i))
        np.save(folder / f"b.{suffix}.npy", np.full((3, 3), i))
    made = []
    for seed in "0", "1", "2":
        done = subprocess.run(
            [*DDF, "compress", folder, "-o", tmp_path / seed], env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        )
        assert done.returncode == 0
        made.append((tmp_path / seed).read_bytes())
    assert made[0] == made[1] == made[2]


def test_all_types_of_files_are_restored(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep" / "er").mkdir(parents=True)
    scene = draw_scenes(1, seed=2, sizes=(40, 60))[0]
    save_scene(scene, source / "palette.png")
    with Image.open(source / "palette.png") as image:
        image.save(source / "deep" / "clear.png", transparency=bytes([255, 0, 9]))
    Image.fromarray((scene > 2).astype(np.uint8) * 255).save(source / "mask.png")
    Image.fromarray(scene > 1).save(source / "bits.png")
    Image.fromarray(scene.astype(np.uint16) * 3000).save(source / "deep" / "er" / "wide.png")
    Image.fromarray(scene).save(source / "map.tif")
    Image.fromarray(np.stack([scene] * 3, axis=-1) * 40).convert("RGB").save(source / "photo.png")
    np.save(source / "array.npy", scene.astype(">i4").T)
    np.save(source / "floats.npy", np.linspace(0, 1, 7))
    (source / "notes.txt").write_text("what is what")
    (source / "empty").touch()
    (source / ".hidden").touch()
    archive = tmp_path / "a.ddf"
    assert as_json("compress", source, "-o", archive)["left_out"] == [str(source / ".hidden")]
    ddf("decompress", archive, "-o", tmp_path / "out")
    images = ["palette.png", "deep/clear.png", "mask.png", "bits.png", "deep/er/wide.png", "map.tif"]
    for name in images:
        assert same_image(source / name, tmp_path / "out" / name), name
    for name in ("photo.png", "floats.npy", "notes.txt", "empty"):
        assert (source / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    assert np.array_equal(np.load(tmp_path / "out" / "array.npy"), scene.T)
    assert not (tmp_path / "out" / ".hidden").exists()
    by_model = [kind for kind in as_json("inspect", archive)["kinds"] if kind["method"] == "codec"]
    assert sum(kind["arrays"] for kind in by_model) == len(images) + 1  # with any labels, and the array


def test_append_adds_files_and_nothing_is_replaced_without_force(tmp_path: Path, masks: Path, model: Path) -> None:
    archive = tmp_path / "a.ddf"
    some = sorted((masks / "spät").iterdir())
    ddf("compress", some[0], "-o", archive, "--model", model)
    before = archive.read_bytes()
    assert "use --force to replace it" in ddf("compress", some[1], "-o", archive, "--model", model, code=1)
    assert archive.read_bytes() == before
    ddf("compress", some[1], "-o", archive, "--model", model, "--append")
    assert as_json("list", archive)["names"] == [some[0].name, some[1].name]
    ddf("decompress", archive, "-o", tmp_path / "out", "--model", model)
    for file in some[:2]:
        assert same_image(file, tmp_path / "out" / file.name)
    assert "--force" in ddf("decompress", archive, "-o", tmp_path / "out", "--model", model, code=1)
    ddf("decompress", archive, "-o", tmp_path / "out", "--model", model, "--force", "--threads", 2)
    ddf("compress", some[2], "-o", archive, "--model", model, "--force", "--threads", 2, "--no-verify")
    assert as_json("list", archive)["names"] == [some[2].name]


def test_a_wrong_model_is_rejected(tmp_path: Path, masks: Path, model: Path) -> None:
    some = next(masks.rglob("*.png"))
    needed = load(model).fingerprint.hex()
    other, floating = tmp_path / "other.safetensors", tmp_path / "float.safetensors"
    pretrained().save(other)
    FlowSpec(2, (1, 8, 8), ()).build().save(floating)
    ddf("compress", some, "-o", tmp_path / "a.ddf", "--model", model)
    output = ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "out", "--model", other, code=1)
    assert f"it needs the model {needed}, but the one passed is {pretrained().fingerprint.hex()}" in output
    output = ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "out", "--model", floating, code=1)
    assert "is a floating-point flow, which cannot compress" in output
    assert f"the archive needs the model {needed}" in output
    assert not (tmp_path / "out").exists()
    ddf("compress", some, "-o", tmp_path / "b.ddf", "--model", model, "--embed")
    output = ddf("decompress", tmp_path / "b.ddf", "-o", tmp_path / "out", "--model", other)
    assert f"embeds its model; --model {other} is a different model and is ignored" in output
    before = (tmp_path / "b.ddf").read_bytes()
    output = ddf("compress", model, "-o", tmp_path / "b.ddf", "--append", "--model", other, code=1)
    assert f"it needs the model {needed}, but the one passed is" in output
    assert "ignored" not in output
    assert (tmp_path / "b.ddf").read_bytes() == before
    assert same_image(some, tmp_path / "out" / some.name)


def test_damage_is_reported_and_recovered_from(tmp_path: Path, masks: Path, model: Path) -> None:
    archive = tmp_path / "a.ddf"
    ddf("compress", masks, "-o", archive, "--model", model, "--embed")
    with Archive(archive) as intact:
        block = [block for block in intact.blocks() if block.kind.method.name == "CODEC"][1]
    data = bytearray(archive.read_bytes())
    data[data.index(block.payload) + 3] ^= 1
    damaged = tmp_path / "damaged.ddf"
    damaged.write_bytes(data)
    name = as_json("list", archive)["names"][1]
    assert f"damaged: {name!r}: " in ddf("verify", damaged, code=1)
    assert '"intact": false, "damage": ["' in ddf("verify", damaged, "--json", code=1)
    output = ddf("decompress", damaged, "-o", tmp_path / "out", code=1)
    assert "is damaged" in output
    found = len(list((tmp_path / "out").rglob("*.png"))) if (tmp_path / "out").exists() else 0
    assert (f"{found} of 14 files were written to {tmp_path / 'out'}" in output) == (found > 0)
    output = ddf("recover", damaged, "-o", tmp_path / "saved", code=1)
    assert "13 files" in output
    assert "lost: " in output
    saved = list((tmp_path / "saved").rglob("*.png"))
    assert len(saved) == 13
    assert all(same_image(file, masks / file.relative_to(tmp_path / "saved")) for file in saved)
    damaged.write_bytes(data[:40])
    assert "damaged" in ddf("list", damaged, code=1)
    assert '{"intact": false, "damage": ["' in ddf("verify", damaged, "--json", code=1)
    assert ddf("recover", archive, "-o", tmp_path / "all").startswith(f"{tmp_path / 'all'}: 14 files")


def test_a_bad_file_is_reported_and_kept(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.fromarray(np.eye(9, dtype=np.uint8)).save(tmp_path / "in" / "fine.png")
    original = (tmp_path / "in" / "fine.png").read_bytes()
    (tmp_path / "in" / "cut\x1b[31m.png").write_bytes(original[:-20])
    (tmp_path / "in" / "zip.npy").write_bytes(b"PK\3\4" + bytes(30))
    output = ddf("compress", tmp_path / "in", "-o", tmp_path / "a.ddf", code=1)
    assert "cut\\x1b[31m.png: archived byte for byte: " in output
    assert "zip.npy: archived byte for byte: " in output
    assert "\x1b" not in output
    result = as_json("compress", tmp_path / "in", "-o", tmp_path / "a.ddf", "--force", code=1)
    assert (result["files"], result["maps"], sorted(result["problems"])) == (3, 1, ["cut\x1b[31m.png", "zip.npy"])
    listed = ddf("list", tmp_path / "a.ddf")
    assert listed.splitlines() == ["'cut\\x1b[31m.png'", "fine.png", "zip.npy"]
    ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "out")
    assert (tmp_path / "out" / "cut\x1b[31m.png").read_bytes() == original[:-20]


def test_the_size_of_maps_is_limited(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.fromarray(np.zeros((200, 300), np.uint8)).save(tmp_path / "in" / "large.png")
    output = ddf("compress", tmp_path / "in", "-o", tmp_path / "a.ddf", "--max-size", "50k", code=1)
    assert "large.png: archived byte for byte: " in output
    assert "60,000 bytes, but the limit is 51,200" in output
    ddf("compress", tmp_path / "in", "-o", tmp_path / "a.ddf", "--force")
    for command in (["decompress", "-o", tmp_path / "out"], ["extract", "large.png", "-o", tmp_path / "out"]):
        name, *rest = command
        assert "the limit is 51,200" in ddf(name, tmp_path / "a.ddf", *rest, "--max-size", "50k", code=1)
    assert "the limit is 51,200" in ddf("verify", tmp_path / "a.ddf", "--max-size", "50k", code=1)
    assert "is not a size" in ddf("verify", tmp_path / "a.ddf", "--max-size", "much", code=2)
    assert not (tmp_path / "out").exists()


def test_control_characters_are_never_printed(tmp_path: Path) -> None:
    ours = pretrained()
    about = {"what": "a \x1b[2Jmodel\x9b5m", "trained_on": "\u202edata"}
    CausalFlow(ours.arrays, ours.classes, about).save(tmp_path / "model.safetensors")
    output = ddf("inspect", tmp_path / "model.safetensors")
    assert "a \\x1b[2Jmodel\\x9b5m, trained on \\u202edata" in output
    with ArchiveWriter(tmp_path / "a.ddf", None) as archive:
        for i, name in enumerate(("a\x9b31m", "\u202eb", "c\nd", "größe 日本")):
            archive.add(np.arange(i), name)
    listed = ddf("list", tmp_path / "a.ddf")
    assert listed.splitlines() == ["'a\\x9b31m'", "'\\u202eb'", "'c\\nd'", "größe 日本"]
    for output in (listed, ddf("extract", tmp_path / "a.ddf", "no\x1b[1m", code=1)):
        assert all(character.isprintable() or character == "\n" for character in output)


def test_the_sha256_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    ddf("compress", tmp_path / "notes.txt", "-o", tmp_path / "a.ddf", "--sha256")
    assert as_json("verify", tmp_path / "a.ddf")["intact"]
    data = (tmp_path / "a.ddf").read_bytes()
    assert hashlib.sha256(data[: data.rindex(b"\x8dDDR")]).digest() in data


def test_archives_are_listed_without_loading_the_codec(tmp_path: Path, masks: Path) -> None:
    ddf("compress", masks, "-o", tmp_path / "a.ddf")
    script = """
import sys
from ddf.cli.main import main
assert main(sys.argv[1:]) == 0
loaded = {"torch", "numba", "PIL", "fsspec", "filelock", "tqdm"} & set(sys.modules)
assert not loaded, loaded
"""
    for command in ("list", "inspect"):
        subprocess.run([sys.executable, "-c", script, command, tmp_path / "a.ddf"], check=True, capture_output=True)
    script = script.replace('"numba", "PIL", "fsspec", "filelock", "tqdm"', '"fsspec"')
    for command in (["verify", tmp_path / "a.ddf"], ["extract", tmp_path / "a.ddf", "0000", "-o", tmp_path]):
        if command[0] == "extract":
            command[2] = as_json("list", tmp_path / "a.ddf")["names"][0]
        subprocess.run([sys.executable, "-c", script, *command], check=True, capture_output=True)


def test_unnamed_arrays_are_extracted(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        writer.add(np.zeros(3, np.int32))
        writer.add(np.ones(3, np.int32))
    assert ddf("list", tmp_path / "a.ddf").split() == ["000000", "000001"]
    ddf("extract", tmp_path / "a.ddf", "000001", "-o", tmp_path / "out")
    assert np.load(tmp_path / "out" / "000001.npy").tolist() == [1, 1, 1]
    with ArchiveWriter(tmp_path / "a.ddf", None, append=True) as writer:
        writer.add(np.arange(3), "000000")
    ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "all")
    found = {path.name: np.load(path).tolist() for path in (tmp_path / "all").iterdir()}
    assert found == {"000000_.npy": [0, 0, 0], "000001.npy": [1, 1, 1], "000000.npy": [0, 1, 2]}


def test_invalid_use_of_archives_is_rejected(tmp_path: Path, masks: Path, model: Path) -> None:
    assert "does not exist" in ddf("compress", tmp_path / "nothing", "-o", tmp_path / "a.ddf", "--model", model, code=1)
    (tmp_path / "empty folder").mkdir()
    assert "no files to compress in" in ddf(
        "compress", tmp_path / "empty folder", "-o", tmp_path / "a.ddf", "--model", model, code=1
    )
    assert "required: -o" in ddf("compress", masks, code=2)
    assert "pass only one of them" in ddf(
        "compress", masks, "-o", tmp_path / "a.ddf", "--append", "--force", "--model", model, code=2
    )
    assert "not a positive integer" in ddf("compress", masks, "-o", tmp_path / "a.ddf", "--threads", 0, code=2)
    assert "unrecognized arguments: --device" in ddf(
        "compress", masks, "-o", tmp_path / "a.ddf", "--device", "cpu", code=2
    )
    ddf("compress", masks, "-o", tmp_path / "a.ddf", "--model", model)
    assert "it needs the model" in ddf("verify", tmp_path / "a.ddf", code=1)
    output = ddf("recover", tmp_path / "a.ddf", "-o", tmp_path / "saved", code=1)
    assert output.count("\n") == 1
    assert "but none was passed" in output
    some = next(masks.rglob("*.png"))
    assert "but none was passed" in ddf("compress", some, "-o", tmp_path / "a.ddf", "--append", code=1)
    name = as_json("list", tmp_path / "a.ddf")["names"][0]
    assert "but none was passed" in ddf("extract", tmp_path / "a.ddf", name, "-o", tmp_path / "one", code=1)
    assert not (tmp_path / "one").exists()
    assert "a.ddf is a file; specify a folder" in ddf(
        "decompress", tmp_path / "a.ddf", "-o", tmp_path / "a.ddf", "--model", model, code=1
    )
    assert "is a folder; specify a file" in ddf("compress", masks, "-o", tmp_path / "empty folder", code=1)
    assert "`ddf list" in ddf("extract", tmp_path / "a.ddf", "no such", "--model", model, code=1)
    assert "is not a ddf archive" in ddf("list", next(masks.rglob("*.png")), code=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf", "empty folder"]


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "bad.ddf", None) as archive:
        archive.add(np.arange(3), "../outside")
    assert "written outside" in ddf("decompress", tmp_path / "bad.ddf", "-o", tmp_path / "out", code=1)
    assert "written outside" in ddf("extract", tmp_path / "bad.ddf", "../outside", "-o", tmp_path / "out", code=1)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.ddf"]


def test_two_names_for_one_file_are_rejected(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as archive:
        for name in ("a/b", "a//b"):
            archive.add(np.zeros(3, dtype=np.uint8), name)
    with pytest.raises(ValueError, match=r"'a/b.npy' and 'a//b.npy', which cannot both be written"):
        list(FileReader(Archive(tmp_path / "a.ddf")).write_all(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_recovery_keeps_everything_that_can_be_written(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "odd.ddf", None) as archive:
        for i, name in enumerate(["", "a/b", "../outside", "a//b", "x" * 300, "000000", "fine"]):
            archive.add(np.full(3, i, dtype=np.uint8), name)
    assert "written outside" in ddf("decompress", tmp_path / "odd.ddf", "-o", tmp_path / "out", code=1)
    output = ddf("recover", tmp_path / "odd.ddf", "-o", tmp_path / "saved", code=1)
    assert output.count("lost: ") == 4
    assert "3 files\n3 of them as npy arrays" in output
    saved = sorted(path.relative_to(tmp_path / "saved").as_posix() for path in (tmp_path / "saved").rglob("*.npy"))
    assert saved == ["000000.npy", "a/b.npy", "fine.npy"]
    assert np.load(tmp_path / "saved" / "a" / "b.npy").tolist() == [1, 1, 1]


def test_the_pretrained_model_is_the_default(tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    for i, scene in enumerate(draw_scenes(6, seed=3)):
        save_scene(scene, masks / f"{i}.png")
    made = as_json("compress", masks, "-o", tmp_path / "a.ddf")
    assert made["bytes_after"] < 0.5 * made["bytes_before"]
    ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "out")
    for i in range(6):
        assert same_image(masks / f"{i}.png", tmp_path / "out" / f"{i}.png")


# ---- Models ----------------------------------------------------------------------------------------------------------


def test_evaluation_matches_real_sizes(masks: Path, model: Path) -> None:
    found = as_json("evaluate", model, masks, "--compare")
    assert found["samples"] == 14
    assert 0 < found["standard_error"] < found["bits_per_dim"] < 2
    assert sum(row["share"] for row in found["ranks"]) == pytest.approx(1)
    assert sum(row["bits_per_dim"] for row in found["ranks"]) == pytest.approx(found["bits_per_dim"])
    assert sorted(row["class"] for row in found["classes"]) == ["0", "1", "2", "3", "4"]
    mean = sum(row["share"] * row["bits_per_symbol"] for row in found["classes"])
    assert mean == pytest.approx(found["bits_per_dim"])
    assert {"PNG", "xz"} <= set(found["others"])
    assert found["bits_per_dim"] < found["others"]["ddf, in one archive"] < found["others"]["xz"]
    assert "bits per dimension: 14 samples" in ddf("evaluate", model, masks)
    assert as_json("evaluate", model, masks, "--count", 2)["samples"] == 2


def test_the_score_of_a_map_does_not_depend_on_other_maps(tmp_path: Path, masks: Path, model: Path) -> None:
    first, second = sorted(masks.rglob("*.png"))[:2]
    (tmp_path / "many").mkdir()
    for name, source in {"a": first, "b": first, "c": second, "d": first}.items():
        (tmp_path / "many" / f"{name}.png").write_bytes(source.read_bytes())
    one, other, all_of_them = (as_json("evaluate", model, path) for path in (first, second, tmp_path / "many"))
    bits, symbols = (np.array([part[key] for part in (one, other)]) for key in ("bits_per_dim", "symbols"))
    assert all_of_them["symbols"] == symbols @ [3, 1]
    assert all_of_them["bits_per_dim"] == pytest.approx(np.average(bits, weights=symbols * [3, 1]))


def test_samples_and_explanations_are_written(tmp_path: Path, masks: Path, model: Path) -> None:
    ddf("sample", model, "-n", 3, "-o", tmp_path / "a.npy", "--size", "20x31", "--seed", 4)
    ddf("sample", model, "-n", 3, "-o", tmp_path / "b.npy", "--size", "20x31", "--seed", 4)
    first = np.load(tmp_path / "a.npy")
    assert first.shape == (3, 20, 31)
    assert np.array_equal(first, np.load(tmp_path / "b.npy"))
    assert "already exists; use --force to replace it" in ddf("sample", model, "-o", tmp_path / "a.npy", code=1)
    ddf("sample", model, "-n", 3, "-o", tmp_path / "a.png", "--size", "20x31", "--seed", 4)
    with Image.open(tmp_path / "a.png") as image:
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert colors <= {*SCENE_CLASSES.colors, (255, 255, 255)}
    found = as_json("explain", model, next(masks.rglob("*.png")), "-o", tmp_path / "e.png")
    assert found["bits"] > 0
    assert 0.5 < found["correct"] < 1
    with Image.open(tmp_path / "e.png") as image:
        assert min(image.size) > 500
    assert "is not a size" in ddf("sample", model, "-o", tmp_path / "c.png", "--size", "7", code=2)
    assert "has an unsupported suffix" in ddf("sample", model, "-o", tmp_path / "c.jpg", code=2)
    assert "is not a model of a table" in ddf("sample", model, "-o", tmp_path / "c.csv", code=2)
    about = as_json("inspect", model)["about"]
    assert (about["what"], about["trained_on"], about["unit"]) == ("fast codec", "Straßen maps", "bits per pixel")
    described = ddf("inspect", model)
    assert "causal flow: compresses label maps" in described
    assert f"fast codec, trained on Straßen maps: {about['score']} bits per pixel on held-out data" in described
    assert load(model).fingerprint.hex() in described
    assert not (tmp_path / "c.png").exists()


def test_tables_are_trained_evaluated_and_sampled(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    colors = generator.integers(0, 3, 400)
    rows = [f"{'rgb'[i]},{'abc'[i]},{'xy'[j]}" for i, j in zip(colors, generator.integers(0, 2, 400), strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["color,copy,coin", *rows]))
    found = as_json("train", tmp_path / "table.csv", "-o", tmp_path / "run", "--epochs", 15, "--device", "cpu")
    best = (np.log2(3) + 1) / 3
    assert best - 0.15 < found["test_bits"] < best + 0.25  # the second column is a copy
    ddf("sample", found["model"], "-n", 50, "-o", tmp_path / "drawn.csv")
    drawn = [line.split(",") for line in (tmp_path / "drawn.csv").read_text().splitlines()]
    assert drawn[0] == ["color", "copy", "coin"]
    assert sum("rgb".index(row[0]) == "abc".index(row[1]) for row in drawn[1:]) >= 45
    assert as_json("evaluate", found["model"], tmp_path / "table.csv")["bits_per_dim"] < best + 0.25


def test_a_model_and_data_that_do_not_match_are_rejected(tmp_path: Path, masks: Path, model: Path) -> None:
    map_ = np.zeros((40, 50), dtype=np.int16)
    np.save(tmp_path / "map.npy", map_)
    found = as_json("evaluate", model, tmp_path / "map.npy")
    assert (found["samples"], found["symbols"], found["standard_error"]) == (1, map_.size, None)
    assert as_json("explain", model, tmp_path / "map.npy", "-o", tmp_path / "e.png")["bits"] > 0
    assert "is a model of label maps; pass a folder of maps, not eight-gaussians" in ddf(
        "evaluate", model, "eight-gaussians", code=1
    )
    assert "pass a .png file" in ddf("explain", model, tmp_path / "map.npy", "-o", tmp_path / "e.jpg", code=2)
    assert "has 14 maps; pass a file with one" in ddf("explain", model, masks, "-o", tmp_path / "f.png", code=1)
    assert "is not a model" in ddf("sample", tmp_path / "map.npy", "-o", tmp_path / "s.png", code=1)
    assert "do not fit in memory" in ddf("sample", model, "-o", tmp_path / "s.png", "--size", "99999x99999", code=2)


def test_resuming_with_different_settings_is_rejected(tmp_path: Path, masks: Path, model: Path) -> None:
    before = model.read_bytes()
    command = ["train", masks, "-o", model.parent, "--mirrored"]
    assert "was started with --steps 400, but this command has --steps 401" in ddf(*command, "--steps", 401, code=1)
    assert "was started with --steps 400, but this command has --steps (default)" in ddf(*command, code=1)
    assert "was started with --preset fast, but this command has --preset best" in ddf(
        *command, "--steps", 400, "--preset", "best", code=1
    )
    assert "was started with --mirrored on, but this command has --mirrored off" in ddf(
        *command[:-1], "--steps", 400, code=1
    )
    assert "'-1' is not a seed" in ddf("train", masks, "-o", tmp_path / "run", "--seed", -1, code=2)
    assert model.read_bytes() == before


def test_invalid_use_of_models_is_rejected(tmp_path: Path, masks: Path, model: Path) -> None:
    assert "does not exist" in ddf("train", tmp_path / "nothing", "-o", tmp_path / "run", code=1)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("not a map")
    assert "does not contain a readable label map" in ddf("train", tmp_path / "texts", "-o", tmp_path / "run", code=1)
    assert "--epochs does not apply to label maps" in ddf("train", masks, "-o", tmp_path / "run", "--epochs", 3, code=2)
    assert "--integer does not apply to label maps" in ddf("train", masks, "-o", tmp_path / "run", "--integer", code=2)
    assert "has 1 map; training needs at least 2" in ddf(
        "train", next(masks.rglob("*.png")), "-o", tmp_path / "run", code=1
    )
    assert "invalid choice" in ddf("train", masks, "-o", tmp_path / "run", "--preset", "quick", code=2)
    (tmp_path / "broken").write_bytes(b"not a model")
    for command in (("inspect",), ("sample", "-o", tmp_path / "s.png"), ("evaluate", masks)):
        ddf(command[0], tmp_path / "broken", *command[1:], code=1)
    assert "neither a model nor an archive" in ddf("inspect", tmp_path / "broken", code=1)
    assert "No such file" in ddf("inspect", tmp_path / "nothing", code=1)
    assert "--preset does not apply to eight-gaussians" in ddf(
        "train", "eight-gaussians", "-o", tmp_path / "run", "--preset", "best", code=2
    )
    assert "'abacus' is not a device" in ddf("sample", model, "-o", tmp_path / "s.png", "--device", "abacus", code=2)
    assert "cannot find cuda:99" in ddf("sample", model, "-o", tmp_path / "s.png", "--device", "cuda:99", code=2)
    assert not (tmp_path / "run").exists()


def test_labels_unknown_to_the_model_are_supported(tmp_path: Path, model: Path) -> None:
    Image.fromarray(np.full((40, 40), 9, dtype=np.uint8)).save(tmp_path / "other.png")
    found = as_json("evaluate", model, tmp_path / "other.png")
    assert [row["class"] for row in found["classes"]] == ["9"]
    ddf("compress", tmp_path / "other.png", "-o", tmp_path / "a.ddf", "--model", model)
    ddf("decompress", tmp_path / "a.ddf", "-o", tmp_path / "out", "--model", model)
    assert same_image(tmp_path / "other.png", tmp_path / "out" / "other.png")


def test_training_reports_the_pretrained_model_and_warnings_as_json(tmp_path: Path) -> None:
    values = np.arange(256, dtype=np.uint8)  # more classes than a model supports
    np.save(
        tmp_path / "maps.npy",
        np.stack([np.kron(np.roll(values, i).reshape(16, 16), np.ones((4, 4))) for i in range(4)]).astype(np.uint8),
    )
    command = ["train", tmp_path / "maps.npy", "-o", tmp_path / "run", "--steps", 5, "--device", "cpu"]
    found = as_json(*command)
    assert found["test_bits"] > 0
    assert found["shipped_bits"] > 0
    assert found["bytes"] < (tmp_path / "run" / "model.safetensors").stat().st_size
    assert [warning.split()[2] for warning in found["warnings"]] == ["3", "5"]
    assert load(found["model"]).num_classes == 0


def test_splits_are_read_from_folder_names(tmp_path: Path) -> None:
    for split, count in {"train": 3, "val": 2, "test": 2}.items():
        for i, scene in enumerate(draw_scenes(count, seed=len(split), sizes=(40, 64))):
            save_scene(scene, tmp_path / "maps" / split / f"{i}.png")
    output = ddf("train", tmp_path / "maps", "-o", tmp_path / "run", "--steps", 2, "--device", "cpu")
    assert "training on 5 maps, 2 held out" in output


def test_interrupted_training_resumes(tmp_path: Path, masks: Path) -> None:
    def command(run: str) -> list[object]:
        return ["train", masks, "-o", tmp_path / run, "--steps", 400, "--device", "cpu"]

    ddf(*command("at once"))
    often = (
        "import ddf.labelmaps.busy_net as t; t._KEPT_EVERY = 0; from ddf.__main__ import main; raise SystemExit(main())"
    )
    process = start(*command("interrupted"), program=[sys.executable, "-c", often])
    while process.poll() is None and not list((tmp_path / "interrupted").glob("state-*.safetensors")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted; run the same command again to resume" in output
    assert "Traceback" not in output
    left = {path.name.partition("-")[0] for path in (tmp_path / "interrupted").iterdir()}
    assert left == {"command.json", "state"}
    ddf(*command("interrupted"))
    assert not list((tmp_path / "interrupted").glob("state-*"))
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("at once", "interrupted")]
    assert models[0] == models[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_interrupted_compression_leaves_no_files(
    tmp_path: Path, masks: Path, model: Path, number: signal.Signals
) -> None:
    many = tmp_path / "many"
    for i in range(30):
        for file in masks.rglob("*.png"):
            (many / str(i)).mkdir(parents=True, exist_ok=True)
            (many / str(i) / file.name).write_bytes(file.read_bytes())
    command = ["compress", many, "-o", tmp_path / "a.ddf", "--model", model]
    process = start(*command)
    while process.poll() is None and not any(
        file.stat().st_size > 20 for file in tmp_path.glob(".ddf-*.part") if file.exists()
    ):
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert [file.name for file in tmp_path.iterdir()] == ["many"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what a process has loaded")
def test_all_commands_can_be_interrupted_at_any_moment(tmp_path: Path, masks: Path, model: Path) -> None:
    ddf("compress", masks, "-o", tmp_path / "a.ddf", "--model", model, "--embed")
    out = tmp_path / "out"
    out.mkdir()
    image = next(masks.rglob("*.png"))
    commands = [
        ["decompress", tmp_path / "a.ddf", "-o", out / "all"],
        ["extract", tmp_path / "a.ddf", "spät/scene 0.png", "-o", out / "one"],
        ["verify", tmp_path / "a.ddf"],
        ["recover", tmp_path / "a.ddf", "-o", out / "saved"],
        ["evaluate", model, masks],
        ["sample", model, "-n", 200, "-o", out / "samples.npy"],
        ["explain", model, image, "-o", out / "explained.png"],
        ["inspect", model],
        ["demo", "-o", out / "demo"],
        ["reproduce", "eight-gaussians", "--runs", out / "runs", "--report", out / "report", "--device", "cpu"],
    ]
    processes = [start(*command) for command in commands]
    try:
        for process in processes[::2]:  # while PyTorch is being imported
            maps = Path(f"/proc/{process.pid}/maps")
            while process.poll() is None and "libtorch_python" not in maps.read_text():
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
        time.sleep(3)
        for process in processes[1::2]:  # a little later
            process.send_signal(signal.SIGINT)
        for command, process in zip(commands, processes, strict=True):
            output, _ = process.communicate(timeout=120)
            assert process.returncode in (0, 130), (command, output)
            assert "Traceback" not in output, (command, output)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert not [path for path in out.rglob("*") if path.suffix == ".part" or path.name.startswith(".")]
    for path in out.rglob("*.png"):
        with Image.open(path) as picture:
            picture.load()  # complete or absent


def test_closing_a_pipe_early_is_not_an_error(tmp_path: Path, masks: Path, model: Path) -> None:
    ddf("compress", masks, "-o", tmp_path / "a.ddf", "--model", model)
    script = f"{shlex.join(DDF)} list '{tmp_path / 'a.ddf'}' | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(".png\n")
    assert done.stderr == ""
    for reader in ("true", "head -n 1"):
        script = f"{shlex.join(DDF)} list '{tmp_path / 'a.ddf'}' | {reader}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
