"""Files are restored from archives unchanged, and everything that is not kept is reported."""

import io
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin, TiffImagePlugin

from ddf.archive import (
    Archive,
    ArchiveWriter,
    Codec,
    DamagedArchiveError,
    FileFormat,
    FileReader,
    FileWriter,
    files_in,
    recover,
    verify,
)
from ddf.archive.blocks import Method
from ddf.archive.images import _with_palette
from ddf.archive.output_folder import OutputFolder
from ddf.archive.records import INDEX, pack_footer, pack_record


def archive_of(folder: Path, model: Codec | None = None, **settings: object) -> tuple[bytes, FileWriter]:
    """Return an archive of a folder."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, model, **settings) as archive:  # type: ignore[arg-type]
        files = FileWriter(archive)
        for name, path in files_in([folder]).files:
            files.add(path, name)
    return buffer.getvalue(), files


def mask(value: int, size: int = 12) -> np.ndarray:
    return np.where(np.add.outer(range(size), range(size)) % 9 < 4, 0, value).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of masks that the codec supports."""
    place = tmp_path / "masks"
    place.mkdir()
    generator = np.random.default_rng(0)
    for i in range(100):
        Image.fromarray(generator.integers(0, 16, (20, 30), dtype=np.uint8)).save(place / f"{i:03}.png")
    return place


def test_archives_contain_the_arrays_of_files(folder: Path, model: Codec, tmp_path: Path) -> None:
    data, files = archive_of(folder, model)
    archive = Archive(data, model)
    assert list(archive) == [f"{i:03}.png" for i in range(100)]
    assert {block.kind.method for block in archive.blocks()} == {Method.CODEC}
    assert archive.format_of("007.png") == FileFormat("PNG", "L")
    assert (files.files, files.maps, files.problems, files.stripped) == (100, 100, [], [])
    assert len(list(FileReader(archive).write_all(tmp_path / "out"))) == 100
    for path in folder.iterdir():
        assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / path.name)), np.asarray(Image.open(path)))


def test_recovered_files_are_unchanged(folder: Path, model: Codec) -> None:
    data, _ = archive_of(folder, model)
    generator = np.random.default_rng(0)
    for cut in generator.integers(200, len(data), 20):
        for found in recover(data[: int(cut)], model):
            assert found.format == FileFormat("PNG", "L")
            assert np.array_equal(found.array, np.asarray(Image.open(folder / found.name)))


def test_files_share_blocks(folder: Path, model: Codec) -> None:
    data, _ = archive_of(folder, model, maps_per_block=50)
    assert [block.count for block in Archive(data, model).blocks()] == [50, 50]


@pytest.mark.parametrize("name", ["frame_{:06}.png", "2008_{:06}.png"])
def test_names_and_metadata_have_little_overhead(tmp_path: Path, model: Codec, name: str) -> None:
    """A name costs at most 4 bytes per map, and the palette is stored once."""
    generator = np.random.default_rng(0)
    numbers = range(300) if name.startswith("frame") else np.cumsum(generator.integers(1, 9, 300)).tolist()
    arrays = generator.integers(0, 16, (300, 9, 12), dtype=np.uint8)
    palette = generator.integers(0, 256, 768, dtype=np.uint8).tobytes()
    for array, number in zip(arrays, numbers, strict=True):
        image = Image.fromarray(array)
        image.putpalette(palette, "RGB")
        image.save(tmp_path / name.format(number))
    data, _ = archive_of(tmp_path, model)
    assert data.count(palette[:200]) <= 1
    nameless = io.BytesIO()
    with ArchiveWriter(nameless, model) as archive:
        for array in arrays:
            archive.add(array)
    assert len(data) - 2 * 800 - len(nameless.getvalue()) <= 4 * 300


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.int32, np.uint16, np.bool_])
def test_values_of_any_size_are_restored(tmp_path: Path, dtype: type) -> None:
    (tmp_path / "in").mkdir()
    limits = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    array = np.where(mask(1) > 0, *(np.array(limit, dtype=dtype) for limit in limits))
    np.save(tmp_path / "in" / "a.npy", array)
    data, _ = archive_of(tmp_path / "in")
    assert len(list(FileReader(Archive(data)).write_all(tmp_path / "out"))) == 1
    again = np.load(tmp_path / "out" / "a.npy")
    assert again.dtype == dtype
    assert np.array_equal(again, array)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not allow such names")
def test_unusual_names_are_restored(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("back\\slash.png", "new\nline.png", "C:.png", "-o.png"):
        Image.fromarray(mask(3)).save(tmp_path / "in" / name, "PNG")
    data, _ = archive_of(tmp_path / "in")
    list(FileReader(Archive(data)).write_all(tmp_path / "out"))
    names = [sorted(path.name for path in (tmp_path / place).iterdir()) for place in ("in", "out")]
    assert names[0] == names[1]


@pytest.mark.skipif(os.name == "nt", reason="links need privileges on Windows")
def test_skipped_files_are_reported(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.png"
    outside.write_text("x")
    for name in ("a", ".git/x", "empty", "sub/empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/1.png", ".git/HEAD", "a/.hidden", "sub/kept.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "to a").symlink_to("a")
    (tmp_path / "fine").symlink_to("a/1.png")
    (tmp_path / "out").symlink_to(outside)
    found = files_in([tmp_path, tmp_path / "a" / "1.png"])
    assert [name for name, _ in files_in([tmp_path]).files] == ["a/1.png", "fine", "sub/kept.txt"]
    left_out = [path.relative_to(tmp_path).as_posix() for path in found.left_out]
    assert left_out == [".git", "a/.hidden", "empty", "nowhere", "out", "sub/empty", "to a"]


def test_images_with_unsupported_content_are_reported(tmp_path: Path) -> None:
    image = Image.fromarray(mask(200))
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", "someone")
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[33550] = (0.5, 0.5, 0.0)  # the pixel size of a GeoTIFF
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


def test_an_archive_interrupted_at_creation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveWriter, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ArchiveWriter(tmp_path / "a.ddf", None)
    assert not list(tmp_path.iterdir())


# ---- Bad input -------------------------------------------------------------------------------------------------------


def bad_files(folder: Path) -> dict[str, bytes]:
    """Return files that are label maps by name only."""
    good = io.BytesIO()
    Image.fromarray(mask(3, 40)).save(good, "PNG")
    npy = io.BytesIO()
    np.save(npy, np.arange(6))
    contents = {
        "zip.npy": b"PK\3\4" + bytes(30),
        "text.npy": b"no array",
        "cut.npy": npy.getvalue()[:-3],
        "huge.npy": npy.getvalue()[:128].replace(b"(6,), }", b"(1<<50,), }")[:128] + bytes(48),
        "petabyte.npy": npy.getvalue().replace(b"(6,), }        ", b"(99999999999,),"),
        "empty.npy": b"",
        "cut.png": good.getvalue()[:-30],
        "broken.png": good.getvalue()[:50] + bytes(9) + good.getvalue()[59:],
        "empty.png": b"",
        "broken.tif": b"II*\0" + bytes(range(90)),
        "text.tiff": b"hello",
    }
    folder.mkdir()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return contents


def test_a_bad_file_does_not_end_a_run(tmp_path: Path) -> None:
    contents = bad_files(tmp_path / "in")
    Image.fromarray(mask(3)).save(tmp_path / "in" / "fine.png")
    np.save(tmp_path / "in" / "fine.npy", np.linspace(0, 1, 5))  # not integers, which is not a problem
    data, files = archive_of(tmp_path / "in")
    assert sorted(name for name, _ in files.problems) == sorted(contents)
    assert all(why.startswith("archived byte for byte: ") for _, why in files.problems)
    assert len(list(FileReader(Archive(data)).write_all(tmp_path / "out"))) == len(contents) + 2
    for name, expected in contents.items():
        assert (tmp_path / "out" / name).read_bytes() == expected


@pytest.mark.skipif(os.name == "nt", reason="Windows does not allow such names")
def test_a_name_that_is_not_utf8_is_stored_escaped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/caf\xe9.txt")).write_text("x")
    data, files = archive_of(tmp_path / "in")
    assert list(Archive(data)) == ["caf\\xe9.txt"]
    ((_, why),) = files.problems
    assert "its name is not valid UTF-8" in why


def test_a_file_above_the_limit_is_not_archived(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "large.bin").write_bytes(bytes(90_000))
    Image.fromarray(np.zeros((300, 300), np.uint8)).save(tmp_path / "in" / "large.png")
    Image.fromarray(np.zeros((100, 100), np.uint8)).save(tmp_path / "in" / "small.png")
    data, files = archive_of(tmp_path / "in", max_bytes=50_000)
    assert list(Archive(data)) == ["large.png", "small.png"]
    (one, refused), (two, kept) = files.problems
    assert (one, two) == ("large.bin", "large.png")
    assert refused.startswith("not archived: ")
    assert kept.startswith("archived byte for byte: ")
    assert all("90,000 bytes, but the limit is 50,000" in why for why in (refused, kept))


def test_a_huge_npy_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "huge.npy", np.zeros(200_000))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    _, files = archive_of(tmp_path / "in", max_bytes=50_000)
    ((name, why),) = files.problems
    assert name == "huge.npy"
    assert "1,600,128 bytes, but the limit is 50,000" in why


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [">i4", "<i4", "u1"])
def test_npy_files_keep_their_order(tmp_path: Path, order: str, dtype: str) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order))
    data, _ = archive_of(tmp_path / "in")
    list(FileReader(Archive(data)).write_all(tmp_path / "out"))
    assert (tmp_path / "out" / "a.npy").read_bytes() == (tmp_path / "in" / "a.npy").read_bytes()


# ---- Writing ---------------------------------------------------------------------------------------------------------


def archive_with(**arrays: FileFormat | None) -> bytes:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for name, file in arrays.items():
            archive.add(
                np.eye(3, dtype=np.uint8),
                name.replace("__", "/").replace("_up_", "..").replace("_dot_", "."),
                file=file,
            )
    return buffer.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="links need privileges on Windows")
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    for name in ("outside", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "outside")
    (tmp_path / "out" / "b.npy").symlink_to(tmp_path / "outside" / "dangling")
    for data in (archive_with(a__x=None), archive_with(b=None)):
        for overwrite in (False, True):
            with pytest.raises(FileExistsError):
                list(FileReader(Archive(data)).write_all(tmp_path / "out", overwrite))
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "out" / "b.npy").is_symlink()


def test_existence_is_checked_at_the_moment_of_writing(tmp_path: Path) -> None:
    """A file that appears during writing is not replaced."""
    data = archive_with(a=None, b=None, c=None)
    written = FileReader(Archive(data)).write_all(tmp_path)
    next(written)
    (tmp_path / "c.npy").write_text("mine")
    with pytest.raises(FileExistsError, match="already exists"):
        list(written)
    assert (tmp_path / "c.npy").read_text() == "mine"
    assert not list(tmp_path.glob(".ddf-*"))


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ".."])
def test_names_outside_the_folder_are_rejected(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        archive.add(np.eye(3, dtype=np.uint8), name, file=FileFormat("npy"))
    assert "would be written outside" in verify(buffer.getvalue())[0]
    with pytest.raises(DamagedArchiveError, match="would be written outside"):
        list(FileReader(Archive(buffer.getvalue())).write_all(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_index_that_disagrees_with_its_groups_is_damage(tmp_path: Path) -> None:
    """Existing files are looked up by the names in the index, under which the arrays are written."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for name in ("harmless", "other"):
            archive.add(np.eye(3, dtype=np.uint8), name, file=FileFormat("npy"))
    data = buffer.getvalue()
    contents = Archive(data).contents
    contents.index.table.names[0] = "mine"
    forged = data[: contents.end.position] + pack_record(INDEX, contents.index.to_bytes())
    forged += pack_footer(contents.end.position)
    (problem,) = verify(forged)
    assert "does not match the index" in problem
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="mine already exists"):
        list(FileReader(Archive(forged)).write_all(tmp_path))
    assert (tmp_path / "mine").read_text() == "mine"
    assert [path.name for path in FileReader(Archive(forged)).write_all(tmp_path / "out")] == ["mine", "other"]


def test_conflicting_names_are_rejected(tmp_path: Path) -> None:
    for names in (("a", "a/b"), ("a/b", "a"), ("a//b", "a/b")):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, None) as archive:
            for name in names:
                archive.add(np.eye(3, dtype=np.uint8), name, file=FileFormat("npy"))
        assert "cannot both be written" in verify(buffer.getvalue())[0]
        with pytest.raises(DamagedArchiveError, match="cannot both be written"):
            list(FileReader(Archive(buffer.getvalue())).write_all(tmp_path / "out"))


@pytest.mark.parametrize(
    "file",
    [FileFormat("PNG", "I;16"), FileFormat("file"), FileFormat("TIFF", "1"), FileFormat("PNG", "L", transparency=b"x")],
    ids=["mode", "bytes", "bits", "transparency"],
)
def test_formats_that_do_not_match_their_arrays_are_damage(tmp_path: Path, file: FileFormat) -> None:
    data = archive_with(fine=FileFormat("npy"), a=file)
    (problem,) = verify(data)
    assert problem.startswith("'a': ")
    with pytest.raises(DamagedArchiveError, match="is damaged: 'a': "):
        list(FileReader(Archive(data)).write_all(tmp_path / "out"))


def test_an_unknown_file_format_gives_an_npy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(FileFormat, "to_bytes", lambda self: b"\x63a format of the future")
        data = archive_with(a=FileFormat("npy"))
    assert [path.name for path in FileReader(Archive(data)).write_all(tmp_path)] == ["a.npy"]
    assert "file format 99 is unknown; a newer version of ddf may read it" in verify(data)[0]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no device files")
def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is not a regular file and is never replaced"):
        ArchiveWriter(tmp_path / "pipe", None, overwrite=True)
    folder = OutputFolder(tmp_path, overwrite=True)
    with pytest.raises(FileExistsError, match="is not a regular file and is never replaced"):
        folder.write("pipe", b"x")
    assert (tmp_path / "pipe").is_fifo()


# ---- Unusual files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colors", [1, 2, 4, 5, 16, 17, 256])
def test_pixels_outside_the_palette_are_restored(tmp_path: Path, colors: int) -> None:
    """For values such as 255 (void) in an image with 5 colors, Pillow would write too few bits."""
    (tmp_path / "in").mkdir()
    pixels = np.array([[0, 0, 1], [255, 7, 3]], np.uint8)
    image = Image.frombytes("P", (3, 2), pixels.tobytes())
    image.putpalette(bytes(i // 3 for i in range(768)), "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    (tmp_path / "in" / "a.png").write_bytes(_with_palette(buffer.getvalue(), bytes(range(1, 256))[: 3 * colors]))
    data, _ = archive_of(tmp_path / "in")
    assert verify(data) == []
    list(FileReader(Archive(data)).write_all(tmp_path / "out"))
    with Image.open(tmp_path / "in" / "a.png") as one, Image.open(tmp_path / "out" / "a.png") as two:
        assert np.array_equal(np.asarray(two), pixels)
        assert np.array_equal(np.asarray(one.convert("RGBA")), np.asarray(two.convert("RGBA")))


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def test_extra_chunks_are_stripped_and_damaged_png_files_kept(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(mask(3)).save(buffer, "PNG")
    data = buffer.getvalue()
    end = data[-12:]
    contents = {
        "plain.png": data,
        "time.png": data[:-12] + chunk(b"tIME", bytes(7)) + end,
        "private.png": data[:-12] + chunk(b"ddFx", b"mine") + end,
        "trailing.png": data + b"more",
        "checksum.png": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
        "endless.png": data[:-12],
        "claim.png": data[:16] + (60_000).to_bytes(4, "big") * 2 + data[24:29] + zlib.crc32(
            b"IHDR" + (60_000).to_bytes(4, "big") * 2 + data[24:29]
        ).to_bytes(4, "big") + data[33:],
    }  # fmt: skip
    (tmp_path / "in").mkdir()
    for name, content in contents.items():
        (tmp_path / "in" / name).write_bytes(content)
    archive, files = archive_of(tmp_path / "in")
    assert files.stripped == ["private.png", "time.png", "trailing.png"]
    assert [name for name, _ in files.problems] == ["checksum.png", "claim.png", "endless.png"]
    list(FileReader(Archive(archive)).write_all(tmp_path / "out"))
    for name in ("checksum.png", "claim.png", "endless.png"):
        assert (tmp_path / "out" / name).read_bytes() == contents[name]


@pytest.mark.skipif(os.name == "nt", reason="links need privileges on Windows")
def test_circular_links_and_unreadable_folders_do_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "closed").mkdir()
    (tmp_path / "fine.txt").write_text("x")
    scan = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = files_in([tmp_path])
    assert [name for name, _ in found.files] == ["fine.txt"]
    assert found.left_out == [tmp_path / "self"]
    assert found.problems == [("closed", "not archived: Permission denied")]


def test_unnamed_arrays_get_unused_names(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for i, name in enumerate(["", "", "000001", "a", "a.npy"]):
            archive.add(np.full(2, i), name)
    reader = FileReader(Archive(buffer.getvalue()))
    assert list(reader.names) == ["000000", "000001_", "000001", "a", "a.npy"]
    assert [reader.key(name) for name in reader.names] == list(range(5))
    assert verify(buffer.getvalue()) == []
    written = [path.name for path in reader.write_all(tmp_path)]
    assert written == ["000000.npy", "000001_.npy", "000001.npy", "a_.npy", "a.npy"]
    assert [np.load(tmp_path / name)[0] for name in written] == list(range(5))


def test_names_too_long_for_file_systems_are_found_by_verify() -> None:
    data = archive_with(**{"x" * 300: None})
    assert "at most 255 bytes between slashes" in verify(data)[0]
