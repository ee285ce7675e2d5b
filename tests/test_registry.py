"""Models are found by their fingerprints, and a missing one is named."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ddf import architectures, recover, registry
from ddf.archive import Archive, ArchiveWriter, WrongModelError
from ddf.classes import Classes
from ddf.cli.main import main
from ddf.labelmaps import CausalFlow, pretrained
from ddf.spec import DenseNetSpec

MASK = np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((12, 9), np.uint8))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DDF_MODELS", raising=False)
    monkeypatch.setattr(registry, "_in_use", {})


@pytest.fixture
def other() -> CausalFlow:
    """The pretrained model with other parameters, and therefore with another fingerprint."""
    arrays = dict(pretrained().arrays)
    arrays["bias"] = arrays["bias"] + 1
    return CausalFlow(arrays)


def archived(path: Path, model: CausalFlow) -> Path:
    with ArchiveWriter(path, model) as archive:
        archive.add(np.tile(MASK, (4, 4)), "mask")
    return path


def test_the_pretrained_model_is_always_there() -> None:
    assert registry.find_model(pretrained().fingerprint) is pretrained()
    assert registry.find_model(bytes(range(16))) is None


def test_added_models_are_found(other: CausalFlow, tmp_path: Path) -> None:
    path = archived(tmp_path / "a.ddf", other)
    with pytest.raises(WrongModelError, match=other.fingerprint.hex()):
        Archive(path)["mask"]
    stored = Path(registry.add_model(other))
    assert stored == tmp_path / "cache" / "models" / f"{other.fingerprint.hex()}.safetensors"
    assert np.array_equal(Archive(path)["mask"], np.tile(MASK, (4, 4)))
    before = stored.stat().st_mtime_ns
    registry.add_model(other)
    assert stored.stat().st_mtime_ns == before


@pytest.mark.parametrize("kind", ["folder", "file", "url"])
def test_the_environment_variable_is_a_folder_a_file_or_a_url(
    kind: str, other: CausalFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"memory://{tmp_path.name}" if kind == "url" else str(tmp_path / "store")
    stored = registry.add_model(other, place)
    monkeypatch.setenv("DDF_MODELS", stored if kind == "file" else place)
    found = registry.find_model(other.fingerprint)
    assert found is not None
    assert found.fingerprint == other.fingerprint
    assert registry.find_model(bytes(range(16))) is None


def test_a_model_next_to_an_archive_is_found(other: CausalFlow, tmp_path: Path) -> None:
    path = archived(tmp_path / "a.ddf", other)
    assert recover(path).needs_model
    registry.add_model(other, tmp_path)
    registry._in_use.clear()
    assert not recover(path).needs_model
    for read in (lambda: Archive(path)["mask"], lambda: next(iter(recover(path))).array):
        registry._in_use.clear()
        assert np.array_equal(read(), np.tile(MASK, (4, 4)))


def test_a_model_next_to_an_archive_in_an_archive_of_files_is_found(other: CausalFlow, tmp_path: Path) -> None:
    path = archived(tmp_path / "a.ddf", other)
    model = Path(registry.add_model(other, tmp_path))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        for one in (path, model):
            packed.write(one, f"masks/{one.name}")
    model.unlink()
    url = f"zip://masks/a.ddf::file://{tmp_path}/all.zip"
    assert np.array_equal(Archive(url)["mask"], np.tile(MASK, (4, 4)))


def test_a_model_appears_at_a_url_only_when_it_is_complete(
    other: CausalFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(files: MemoryFileSystem, target: str, data: bytes, **_: object) -> None:
        with files.open(target, "wb") as file:
            file.write(data[:-7])

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", half)
    place = f"memory://{tmp_path.name}/half"
    with pytest.raises(OSError, match="bytes were written"):
        registry.add_model(other, place)
    assert MemoryFileSystem().ls(f"/{tmp_path.name}/half") == []


def test_a_model_next_to_a_remote_archive_is_found(other: CausalFlow, tmp_path: Path) -> None:
    import fsspec

    url = f"memory://{tmp_path.name}/a.ddf"
    with fsspec.open(url, "wb") as file:
        file.write(archived(tmp_path / "a.ddf", other).read_bytes())
    registry.add_model(other, url.rpartition("/")[0])
    assert np.array_equal(Archive(url)["mask"], np.tile(MASK, (4, 4)))


def test_bad_model_files_are_mentioned_and_passed_over(
    other: CausalFlow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = Path(registry.add_model(other))
    path = archived(tmp_path / "a.ddf", other)
    for content, reason in (
        (pretrained().to_bytes(), "does not hold the model that its name states"),
        (b"", "is not a model file"),
        (other.to_bytes()[:-9], "truncated"),
    ):
        stored.write_bytes(content)
        assert registry.find_model(other.fingerprint) is None
        with pytest.raises(WrongModelError, match=rf"not usable: .*{reason}"):
            Archive(path)["mask"]
        assert main(["verify", str(path)]) == 1
        shown = capsys.readouterr()
        assert "damaged: " not in shown.out + shown.err
        assert stored.name in shown.err
        assert main(["models", "list"]) == 1
        assert reason in capsys.readouterr().out
    registry.add_model(other, tmp_path)  # another copy, next to the archive
    assert np.array_equal(Archive(path)["mask"], np.tile(MASK, (4, 4)))


def test_an_unreachable_place_is_mentioned(other: CausalFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDF_MODELS", "http://127.0.0.1:9/models")
    path = archived(tmp_path / "a.ddf", other)
    with pytest.raises(WrongModelError, match=r"needs the model .*not usable: http://127.0.0.1:9/models"):
        Archive(path)["mask"]
    registry.add_model(other)
    assert np.array_equal(Archive(path)["mask"], np.tile(MASK, (4, 4)))


def test_the_error_names_the_fingerprint_and_three_remedies(other: CausalFlow, tmp_path: Path) -> None:
    path = archived(tmp_path / "a.ddf", other)
    for read in (
        lambda: Archive(path)["mask"],
        lambda: registry.get_model(other.fingerprint, needed_by="this"),
    ):
        with pytest.raises(WrongModelError) as caught:
            read()
        for part in (other.fingerprint.hex(), "`ddf models add FILE`", "set DDF_MODELS", "--model FILE", "model="):
            assert part in str(caught.value)


def test_codecs_are_given_as_models_files_or_fingerprints(other: CausalFlow, tmp_path: Path) -> None:
    other.save(tmp_path / "m.safetensors")
    assert registry.codec_of(None) == (pretrained().fingerprint, pretrained())
    assert registry.codec_of(other) == (other.fingerprint, other)
    assert registry.codec_of(other.fingerprint.hex()) == (other.fingerprint, None)
    assert registry.codec_of(tmp_path / "m.safetensors")[0] == other.fingerprint
    registry.add_model(other)
    assert registry.codec_of(other.fingerprint.hex()[:8])[0] == other.fingerprint
    with pytest.raises(TypeError, match="a Classes is not a codec"):
        registry.codec_of(Classes.plain(2))  # type: ignore[arg-type]


def test_the_command_lists_adds_and_shows(
    other: CausalFlow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other.save(tmp_path / "m.safetensors")
    name = other.fingerprint.hex()
    assert main(["models", "list"]) == 0
    assert "ddf models add" in capsys.readouterr().out
    assert main(["models", "add", str(tmp_path / "m.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["fingerprint"] == name
    assert main(["models", "list", "--json"]) == 0
    listed = [entry["fingerprint"] for entry in json.loads(capsys.readouterr().out)["models"]]
    assert listed == [pretrained().fingerprint.hex(), name]
    for fingerprint in listed:
        assert main(["models", "show", fingerprint[:6]]) == 0
        assert fingerprint in capsys.readouterr().out
    np.save(tmp_path / "mask.npy", MASK)
    command = ["compress", str(tmp_path / "mask.npy"), "-o", str(tmp_path / "a.ddf"), "--model", name[:7]]
    assert main(command) == 0
    assert Archive(tmp_path / "a.ddf").fingerprint == other.fingerprint
    assert main(["models", "show", fingerprint[:6].upper()]) == 0
    for text in ("abcdef123", "42b", ""):
        assert main(["models", "show", text]) == 1
        assert f"there is no model file {text!r}, and no model with a fingerprint that" in capsys.readouterr().err


def test_beginnings_of_several_fingerprints_are_rejected(tmp_path: Path) -> None:
    folder = registry.user_models()
    folder.mkdir(parents=True)
    for last in "01":
        (folder / f"{'ab' * 15}a{last}.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is the beginning of several fingerprints"):
        registry.model_path("ababab")
    with pytest.raises(FileNotFoundError, match="at least six digits"):
        registry.model_path("abab")


def test_flows_without_a_fingerprint_are_rejected() -> None:
    flow = architectures.binary_mnist(net=DenseNetSpec(blocks=1, hidden=4)).build()
    with pytest.raises(TypeError, match="a Flow is not a codec: `ddf train"):
        registry.add_model(flow)
