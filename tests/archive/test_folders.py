"""Files in archives come back as they were, and nothing about them is lost unsaid."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin, TiffImagePlugin

from ddf.codec import Archive, ArchiveWriter, DamagedArchiveError, FileReader, FileWriter, files_in, pretrained, recover
from ddf.codec.blocks import Method
from ddf.codec.folders import left_out
from ddf.codec.layout import wrong_model
from ddf.codec.parallel import _undisturbed
from ddf.codec.recover import needed_model


def archive_of(folder: Path, **settings: object) -> tuple[bytes, FileWriter]:
    """An archive of a folder."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, pretrained(), **settings) as archive:  # type: ignore[arg-type]
        files = FileWriter(archive)
        for name, path in files_in([folder]):
            files.add(path, name)
        files.finish()
    return buffer.getvalue(), files


def mask(value: int, size: int = 12) -> np.ndarray:
    return np.where(np.add.outer(range(size), range(size)) % 9 < 4, 0, value).astype(np.uint8)


def disc(value: int) -> np.ndarray:
    """A map that a model of maps does better than anyone."""
    rows, columns = np.ogrid[:48, :40]
    return np.where((rows - 20) ** 2 + (columns - 23) ** 2 < 200 + value, value, 0).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Masks whose labels the model does not know, all others in each."""
    place = tmp_path / "masks"
    place.mkdir()
    for i in range(100):
        Image.fromarray(disc(100 + i)).save(place / f"{i:03}.png")
    return place


def saved_of(data: bytes) -> FileReader:
    found = recover(data, pretrained())
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None) as archive:
        for name, array in found.arrays:
            archive.add(array, name)
    return FileReader(Archive(buffer.getvalue()))


def right_and_unknown(reader: FileReader, folder: Path) -> tuple[int, int]:
    """How many files come back as they were, and of how many it is said that nobody knows."""
    right = unknown = 0
    for name in reader.names:
        if reader.file_name(name) != name:
            unknown += 1
            continue
        array = reader.array(name, reader.archive[name])
        assert np.array_equal(array, np.asarray(Image.open(folder / name)))
        right += 1
    return right, unknown


def test_archives_hold_the_labels_of_files(folder: Path) -> None:
    """In Python as they were on disk, whatever labels the model has."""
    data, _ = archive_of(folder)
    archive = Archive(data, pretrained())
    assert {block.kind.method for block in archive.blocks() if block.names[0].endswith(".png")} == {Method.MODEL}
    for name, array in archive:
        if name.endswith(".png"):
            assert np.array_equal(array, np.asarray(Image.open(folder / name)))
    assert right_and_unknown(FileReader(archive), folder) == (100, 0)


def test_labels_do_not_depend_on_what_is_said_of_files(folder: Path) -> None:
    """What files were may be lost; what was in them is right or lost as well."""
    data, _ = archive_of(folder)
    cut = data[: data.index(b".ddf/files-1.json") - 3]
    assert right_and_unknown(saved_of(cut), folder) == (64, 36)
    damaged = bytearray(data)
    damaged[data.index(b".ddf/files-0.json") + len(b".ddf/files-0.json") + 20] ^= 255
    assert right_and_unknown(saved_of(bytes(damaged)), folder) == (36, 64)
    generator = np.random.default_rng(0)
    for some in (cut, bytes(damaged), *(data[: int(place)] for place in generator.integers(100, len(data), 20))):
        for name, array in recover(some, pretrained()).arrays:
            if name.endswith(".png"):
                assert np.array_equal(array, np.asarray(Image.open(folder / name)))


def test_what_is_said_of_files_does_not_cut_blocks_short(tmp_path: Path) -> None:
    for i in range(100):
        Image.fromarray(disc(200 + i % 2)).save(tmp_path / f"{i:03}.png")
    data, _ = archive_of(tmp_path, maps_per_block=50)
    archive = Archive(data, pretrained())
    sizes = [len(block.names) for block in archive.blocks() if not block.names[0].startswith(".ddf")]
    assert sizes == [1, 50, 49]  # the second one brings a label that the first had no word of
    assert right_and_unknown(FileReader(archive), tmp_path) == (100, 0)


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.int32, np.uint16, np.bool_])
def test_labels_of_any_size(tmp_path: Path, dtype: type) -> None:
    (tmp_path / "in").mkdir()
    limits = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    array = np.where(mask(1) > 0, *(np.array(limit, dtype=dtype) for limit in limits))
    np.save(tmp_path / "in" / "a.npy", array)
    data, _ = archive_of(tmp_path / "in")
    assert len(list(FileReader(Archive(data, pretrained())).write_all(tmp_path / "out"))) == 1
    again = np.load(tmp_path / "out" / "a.npy")
    assert again.dtype == dtype
    assert np.array_equal(again, array)


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
def test_odd_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("back\\slash.png", "new\nline.png", "C:.png", "-o.png"):
        Image.fromarray(mask(3)).save(tmp_path / "in" / name, "PNG")
    data, _ = archive_of(tmp_path / "in")
    list(FileReader(Archive(data, pretrained())).write_all(tmp_path / "out"))
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


def test_archives_in_which_words_say_the_labels(tmp_path: Path) -> None:
    """As they did before kinds had labels."""
    buffer = io.BytesIO()
    word = b'{"kinds":[{"as":"npy","labels":[[0,-4],[1,900]],"dtype":"<i2"}],"usual":{".npy":0},"files":{}}'
    with ArchiveWriter(buffer, None) as archive:
        archive.add(np.eye(3, dtype=np.uint8), "a.npy")
        for name in (".ddf/files-0.json", ".ddf/files-0.copy.json"):
            archive.add(np.frombuffer(word, np.uint8), name)
    list(FileReader(Archive(buffer.getvalue())).write_all(tmp_path))
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.where(np.eye(3), 900, -4).astype(np.int16))


def test_what_is_said_of_labels_may_be_wrong(tmp_path: Path) -> None:
    for pairs in ([[0, 1 << 70], [1, 0]], [[0, 5]], [[0, "x"], [1, 0]], [[0], [1]]):
        buffer = io.BytesIO()
        word = f'{{"kinds":[{{"as":"npy","labels":{pairs},"dtype":"|u1"}}],"usual":{{".npy":0}},"files":{{}}}}'
        with ArchiveWriter(buffer, None) as archive:
            archive.add(np.eye(3, dtype=np.uint8), "a.npy")
            archive.add(np.frombuffer(word.replace("'", '"').encode(), np.uint8), ".ddf/files-0.json")
        with pytest.raises(DamagedArchiveError, match=r"the labels of a\.npy"):
            list(FileReader(Archive(buffer.getvalue())).write_all(tmp_path / "out"))


def test_the_model_that_is_needed() -> None:
    whole = {}
    for embed in (False, True):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, pretrained(), embed_model=embed) as archive:
            archive.add(mask(3))
        whole[embed] = buffer.getvalue()
    fingerprint = pretrained().fingerprint
    assert needed_model(whole[False]) == fingerprint
    assert fingerprint.hex() in wrong_model(fingerprint, None)
    assert needed_model(whole[True]) is None
    assert needed_model(b"\0" * 30 + whole[False][30:]) is None
    assert needed_model(b"something else") is None


# ---- Interruption ----------------------------------------------------------------------------------------------------


def test_ctrl_c_waits_where_it_would_do_harm() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("late"))
    try:
        with _undisturbed():
            # As if another thread had been told: the main thread's mask has no say in that.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)
            heard.append("inside")
        assert heard == ["inside", "late"]
        with _undisturbed():
            pass
        assert heard == ["inside", "late"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_left_of_an_archive_that_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveWriter, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ArchiveWriter(tmp_path / "a.ddf", None)
    assert not list(tmp_path.iterdir())


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
import numpy as np
from ddf.codec import ArchiveWriter

if __name__ == "__main__":
    writer = ArchiveWriter({str(tmp_path / "a.ddf")!r}, None, processes=2, batch_size=1)
    for i in range(4):
        writer.add(np.full(9, i))
    next(iter(writer._pool._jobs)).result()
    print(*(process.pid for process in writer._pool._executor._processes.values()), flush=True)
    time.sleep(600)
"""
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert workers
    process.kill()
    process.wait()
    for _ in range(600):
        if not any(alive(worker) for worker in workers):
            break
        time.sleep(0.1)
    assert not any(alive(worker) for worker in workers)
    process.stdout.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
