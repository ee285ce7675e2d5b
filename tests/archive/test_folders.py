"""Files in archives come back as they were, and what is not kept is reported."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin, TiffImagePlugin

from ddf.archive import Archive, ArchiveWriter, Codec, DamagedArchiveError, FileReader, FileWriter, files_in, recover
from ddf.archive.blocks import Method
from ddf.archive.folders import left_out
from ddf.archive.layout import wrong_model
from ddf.archive.recover import needed_model
from ddf.exact import IntegerFlow


def archive_of(folder: Path, model: Codec | None = None, **settings: object) -> tuple[bytes, FileWriter]:
    """An archive of a folder."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, **settings) as archive:  # type: ignore[arg-type]
        files = FileWriter(archive)
        for name, path in files_in([folder]):
            files.add(path, name)
        files.finish()
    return buffer.getvalue(), files


def mask(value: int, size: int = 12) -> np.ndarray:
    return np.where(np.add.outer(range(size), range(size)) % 9 < 4, 0, value).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Masks that the codec takes."""
    place = tmp_path / "masks"
    place.mkdir()
    generator = np.random.default_rng(0)
    for i in range(100):
        Image.fromarray(generator.integers(0, 16, (20, 30), dtype=np.uint8)).save(place / f"{i:03}.png")
    return place


def saved_of(data: bytes, model: Codec) -> FileReader:
    found = recover(data, model)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for name, array in found.arrays:
            archive.add(array, name)
    return FileReader(Archive(buffer.getvalue()))


def right_and_unknown(reader: FileReader, folder: Path) -> tuple[int, int]:
    """How many files come back as they were, and how many are reported as unknown."""
    right = unknown = 0
    for name in reader.names:
        if reader.file_name(name) != name:
            unknown += 1
            continue
        array = reader.archive[name]
        assert np.array_equal(array, np.asarray(Image.open(folder / name)))
        right += 1
    return right, unknown


def test_archives_hold_the_arrays_of_files(folder: Path, model: Codec) -> None:
    data, _ = archive_of(folder, model)
    archive = Archive(data, model)
    assert {block.kind.method for block in archive.blocks() if block.names[0].endswith(".png")} == {Method.CODEC}
    assert right_and_unknown(FileReader(archive), folder) == (100, 0)


def test_files_that_a_lost_manifest_describes_are_saved_as_arrays(folder: Path, model: Codec) -> None:
    data, _ = archive_of(folder, model)
    cut = data[: data.index(b".ddf/files-1.json") - 3]
    assert right_and_unknown(saved_of(cut, model), folder) == (64, 36)
    damaged = bytearray(data)
    damaged[data.index(b".ddf/files-0.json") + len(b".ddf/files-0.json") + 20] ^= 255
    assert right_and_unknown(saved_of(bytes(damaged), model), folder) == (36, 64)
    generator = np.random.default_rng(0)
    for some in (cut, bytes(damaged), *(data[: int(place)] for place in generator.integers(100, len(data), 20))):
        for name, array in recover(some, model).arrays:
            if name.endswith(".png"):
                assert np.array_equal(array, np.asarray(Image.open(folder / name)))


def test_manifests_do_not_cut_blocks_short(folder: Path, model: Codec) -> None:
    data, _ = archive_of(folder, model, maps_per_block=50)
    archive = Archive(data, model)
    sizes = [len(block.names) for block in archive.blocks() if not block.names[0].startswith(".ddf")]
    assert sizes == [50, 50]
    assert right_and_unknown(FileReader(archive), folder) == (100, 0)


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.int32, np.uint16, np.bool_])
def test_values_of_any_size(tmp_path: Path, dtype: type) -> None:
    (tmp_path / "in").mkdir()
    limits = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    array = np.where(mask(1) > 0, *(np.array(limit, dtype=dtype) for limit in limits))
    np.save(tmp_path / "in" / "a.npy", array)
    data, _ = archive_of(tmp_path / "in")
    assert len(list(FileReader(Archive(data)).write_all(tmp_path / "out"))) == 1
    again = np.load(tmp_path / "out" / "a.npy")
    assert again.dtype == dtype
    assert np.array_equal(again, array)


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
def test_odd_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("back\\slash.png", "new\nline.png", "C:.png", "-o.png"):
        Image.fromarray(mask(3)).save(tmp_path / "in" / name, "PNG")
    data, _ = archive_of(tmp_path / "in")
    list(FileReader(Archive(data)).write_all(tmp_path / "out"))
    names = [sorted(path.name for path in (tmp_path / place).iterdir()) for place in ("in", "out")]
    assert names[0] == names[1]


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    for name in ("a", ".git/x", "empty", "sub/empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/1.png", ".git/HEAD", "a/.hidden", "sub/kept.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "to a").symlink_to("a")
    (tmp_path / "fine").symlink_to("a/1.png")
    assert [name for name, _ in files_in([tmp_path])] == ["a/1.png", "fine", "sub/kept.txt"]
    found = [path.relative_to(tmp_path).as_posix() for path in left_out([tmp_path, tmp_path / "a" / "1.png"])]
    assert found == [".git", "a/.hidden", "empty", "nowhere", "sub/empty", "to a"]


def test_images_that_hold_more_are_named(tmp_path: Path) -> None:
    image = Image.fromarray(mask(200))
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", "someone")
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[33550] = (0.5, 0.5, 0.0)  # how large a pixel is on Earth
    image.save(tmp_path / "text.png", pnginfo=text)
    image.save(tmp_path / "dpi.png", dpi=(300, 300))
    image.save(tmp_path / "geo.tif", tiffinfo=tags)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "plain.tif")
    palette = Image.frombytes("P", image.size, image.tobytes())
    palette.putpalette([1, 2, 3] * 256)
    palette.save(tmp_path / "palette.png", transparency=3)
    palette.save(tmp_path / "palette.tif")
    _, files = archive_of(tmp_path)
    assert sorted(files.stripped) == ["dpi.png", "geo.tif", "text.png"]


@pytest.mark.parametrize("manifest", [b"{", b"[]", b'{"kinds":[],"usual":{".npy":0},"files":{}}'])
def test_an_invalid_manifest_is_named(manifest: bytes) -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        archive.add(np.eye(3, dtype=np.uint8), "a.npy")
        archive.add(np.frombuffer(manifest, np.uint8), ".ddf/files-0.json")
    with pytest.raises(DamagedArchiveError, match=r"the manifest \.ddf/files-0\.json is invalid"):
        FileReader(Archive(buffer.getvalue()))


def test_the_model_that_is_needed(flow: IntegerFlow) -> None:
    archives = {}
    for embed in (False, True):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, flow, embed_model=embed) as archive:
            archive.add(mask(3))
        archives[embed] = buffer.getvalue()
    assert needed_model(archives[False]) == flow.fingerprint
    assert flow.fingerprint.hex() in wrong_model(flow.fingerprint, None)
    assert needed_model(archives[True]) is None
    assert needed_model(b"\0" * 30 + archives[False][30:]) is None
    assert needed_model(b"something else") is None


def test_nothing_is_left_of_an_archive_that_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveWriter, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ArchiveWriter(tmp_path / "a.ddf", None)
    assert not list(tmp_path.iterdir())
