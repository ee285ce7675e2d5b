"""Files behind URLs: on web servers, in object stores, in memory."""

import _thread
import gc
import io
import pickle
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

import ddf.remote
from ddf.archive import Archive, ArchiveWriter, FileReader, FileWriter, files_in
from ddf.archive.archived_files import _from_url
from ddf.archive.found_files import relative_names
from ddf.cli.main import main
from ddf.data.drawn import draw_scenes
from ddf.errors import DdfError, MissingExtraError
from ddf.remote import RemoteFile, join_url, list_files, read_ahead, read_bytes, remote_errors, type_of, upload
from tests.web_server import WebServer, web_server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddf.remote, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFileSystem:
    """Return an empty file system in memory."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return fsspec.filesystem("memory")


def png(array: np.ndarray, palette: bool = False) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    if palette:
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([200, 30, 40, 0, 0, 250, 7, 8, 9])
    image.save(buffer, "PNG")
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    """Return files of all kinds, some of which are left out."""
    scenes = draw_scenes(6, seed=1, sizes=(30, 40))
    files = {f"street {i % 2}/{i}.png": png(scene.clip(0, 2), palette=True) for i, scene in enumerate(scenes)}
    files |= {
        "array.npy": npy(scenes[0].astype(">i4").T),
        "floats.npy": npy(np.linspace(0, 1, 9)),
        "broken.png": files["street 0/0.png"][:-20],
        "notes.txt": b"what is what",
        "empty": b"",
        ".hidden": b"x",
        "deep/.git/config": b"x",
        "deep/.git/objects/1": b"x",
        "deep/er/größe.png": png(scenes[0]),
        "deep er.txt": b"in the order of folders, not of characters",
    }
    return files


LEFT_OUT = [".hidden", "deep/.git"]


@pytest.fixture(scope="module")
def folder(contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("local") / "masks"
    for name, data in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


@pytest.fixture
def server(contents: dict[str, bytes]) -> Iterator[WebServer]:
    with web_server({f"/masks/{name}": data for name, data in contents.items()}) as running:
        yield running


def in_memory(files: MemoryFileSystem, folder: str, contents: dict[str, bytes]) -> str:
    for name, data in contents.items():
        files.pipe_file(f"/{folder}/{name}", data)
    return f"memory://{folder}"


def ddf_command(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command in this process, and return its output."""
    assert main(list(map(str, arguments))) == code, capsys.readouterr()
    out, err = capsys.readouterr()
    return out + err


# ---- Compressing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "web", "file", "zip", "whole zip"])
def test_a_folder_behind_a_url_is_compressed_like_a_local_one(
    where: str,
    folder: Path,
    contents: dict[str, bytes],
    memory: MemoryFileSystem,
    server: WebServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "zip" in where:
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
            for name, data in contents.items():
                packed.writestr(f"masks/{name}" if where == "zip" else name, data)
    url = {
        "memory": in_memory(memory, "masks", contents),
        "web": f"{server.url}/masks/",
        "file": f"file://{folder}",
        "zip": f"zip://masks::file://{tmp_path / 'all.zip'}",
        "whole zip": f"zip://::file://{tmp_path / 'all.zip'}",
    }[where]
    expected = ddf_command(capsys, "compress", folder, "-o", tmp_path / "local.ddf", code=1)
    output = ddf_command(capsys, "compress", url, "-o", tmp_path / "remote.ddf", code=1)
    assert (tmp_path / "remote.ddf").read_bytes() == (tmp_path / "local.ddf").read_bytes()
    problem = "broken.png: archived byte for byte: it is not a valid .png file"
    assert problem in expected
    assert problem in output
    assert "not archived" not in output
    left_out = [join_url(url, name) if where != "file" else str(folder / name) for name in LEFT_OUT]
    assert (
        f"skipped (hidden files, empty folders, broken links, links to folders or out of a folder): {left_out[0]}, "
        in (output)
    )
    assert left_out[1] in output
    archive = Archive(tmp_path / "remote.ddf")
    assert list(archive) == sorted(
        (name for name in contents if "." not in name[0] and ".git" not in name), key=lambda name: name.split("/")
    )


def test_empty_folders_are_listed(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/masks/a/1.txt", b"x")
    memory.makedirs("/masks/empty/inner")
    found = files_in(["memory://masks"])
    assert [name for name, _ in found.files] == ["a/1.txt"]
    assert found.left_out == ["memory://masks/empty/inner"]
    assert found.problems == []


def test_single_files_and_several_inputs_are_compressed(
    folder: Path, contents: dict[str, bytes], memory: MemoryFileSystem, server: WebServer, tmp_path: Path
) -> None:
    in_memory(memory, "data", {"one.txt": b"1", ".explicit": b"2"})
    sources = ["memory://data/one.txt", f"{server.url}/masks/street%200/0.png", folder / "notes.txt"]
    found = files_in([*sources, "memory://data/.explicit"])
    assert [name for name, _ in found.files] == ["one.txt", "0.png", "notes.txt", ".explicit"]
    with ArchiveWriter(tmp_path / "a.ddf", None) as archive:
        writer = FileWriter(archive)
        assert list(writer.add_all(found.files)) == ["one.txt", "0.png", "notes.txt", ".explicit"]
        writer.add("memory://data/one.txt", "again.txt")
        writer.add(f"file://{folder / 'notes.txt'}", "notes again.txt")
    assert (writer.files, writer.maps, writer.problems) == (6, 1, [])
    assert writer.bytes == 1 + len(contents["street 0/0.png"]) + 12 + 1 + 1 + 12
    list(FileReader(Archive(tmp_path / "a.ddf")).write_all(tmp_path / "out"))
    assert (tmp_path / "out" / "again.txt").read_bytes() == b"1"
    with pytest.raises(ValueError, match=r"memory://data/one.txt and .*one.txt would both be named 'one.txt'"):
        files_in(["memory://data/one.txt", "memory://data"])


@pytest.mark.parametrize("is_remote", [False, True])
def test_patterns_select_files(
    is_remote: bool, folder: Path, contents: dict[str, bytes], memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = in_memory(memory, "masks", contents) if is_remote else str(folder)

    def names(pattern: str) -> list[str]:
        return [name for name, _ in files_in([pattern]).files]

    assert names(f"{root}/*.npy") == ["array.npy", "floats.npy"]
    assert names(f"{root}/**/*.png") == [
        "broken.png",
        "deep/er/größe.png",
        *(f"street {i % 2}/{i}.png" for i in (0, 2, 4, 1, 3, 5)),
    ]
    assert names(f"{root}/street [1]") == ["street 1/1.png", "street 1/3.png", "street 1/5.png"]
    assert names(f"{root}/street 0/**") == ["0.png", "2.png", "4.png"] or is_remote
    assert names(f"{root}/*/?.png") == [f"street {i % 2}/{i}.png" for i in (0, 2, 4, 1, 3, 5)]
    assert names(f"{root}/no*") == ["notes.txt"]
    assert [str(place) for place in files_in([f"{root}/de*"]).left_out] == [f"{root}/deep/.git"]
    if not is_remote:
        monkeypatch.chdir(folder)
        assert names("*.npy") == ["array.npy", "floats.npy"]
        assert names("deep/*/*.png") == ["er/größe.png"]


def test_names_with_wildcards_stand_for_themselves(tmp_path: Path, memory: MemoryFileSystem) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "x.txt").write_text("x")
    memory.pipe_file("/b[1]/x.txt", b"x")
    for source in (tmp_path / "a[1]", "memory://b[1]"):
        assert [name for name, _ in files_in([source]).files] == ["x.txt"]


def test_names_are_relative_to_the_common_folder() -> None:
    assert [name for name, _ in relative_names(["s3://one/a/1.png", "s3://two/a/1.png"])] == [
        "one/a/1.png",
        "two/a/1.png",
    ]
    assert relative_names(["https://example.org/a%20b/1.png?token=x"]) == [
        ("1.png", "https://example.org/a%20b/1.png?token=x")
    ]
    assert [name for name, _ in relative_names(["simplecache::s3://b/x/1", "simplecache::s3://b/y/1"])] == [
        "x/1",
        "y/1",
    ]
    with pytest.raises(ValueError, match="no common folder"):
        relative_names(["s3://a/1.png", "gs://a/1.png"])
    with pytest.raises(ValueError, match="would both be named"):
        relative_names(["/a/1.png", "/a/1.png"])


def test_unreadable_files_are_reported_and_do_not_stop_the_others(
    server: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers |= {"/masks/notes.txt": 403, "/masks/street 0/0.png": 500}
    output = ddf_command(capsys, "compress", f"{server.url}/masks/", "-o", tmp_path / "a.ddf", code=1)
    assert f"notes.txt: not archived: {server.url}/masks/notes.txt: permission denied\n" in output
    assert f"street 0/0.png: not archived: {server.url}/masks/street%200/0.png: the server answered 500" in output
    assert "Traceback" not in output
    names = list(Archive(tmp_path / "a.ddf"))
    assert "array.npy" in names
    assert "notes.txt" not in names
    attempts = [request for request in server.requests if request.path == "/masks/street 0/0.png"]
    assert len(attempts) > len([request for request in server.requests if request.path == "/masks/notes.txt"])


def test_a_failed_read_is_repeated(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers["/masks/notes.txt"] = 503
    monkeypatch.setattr("time.sleep", lambda _: server.answers.clear())
    assert RemoteFile.at(f"{server.url}/masks/notes.txt").read(1 << 20) == b"what is what"


def test_large_files_are_not_downloaded(server: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.files["/large/large.bin"] = bytes(200_000)
    server.files["/large/array.npy"] = npy(np.zeros(50_000, np.uint8))  # the file is larger than the array
    server.files["/large/small.bin"] = b"x"
    output = ddf_command(
        capsys, "compress", f"{server.url}/large/", "-o", tmp_path / "a.ddf", "--max-size", 50_000, code=1
    )
    assert "large.bin: not archived: " in output
    assert "200,000 bytes, but the limit is 50,000" in output
    assert list(Archive(tmp_path / "a.ddf")) == ["array.npy", "small.bin"]
    assert not server.requested("/large/large.bin")


def test_files_are_read_ahead_in_order_and_in_little_memory(memory: MemoryFileSystem) -> None:
    sizes = [10, 30 << 20, 30 << 20, 30 << 20, *range(100)]
    begun: list[int] = []
    started: list[int] = []

    class File:
        def __init__(self, number: int) -> None:
            self.number, self.size = number, sizes[number]
            begun.append(number)

        def read(self, max_bytes: int) -> bytes:
            started.append(self.number)
            return b"%d" % self.number

    contents = read_ahead(map(File, range(len(sizes))), 1 << 30)  # type: ignore[arg-type]
    assert next(contents).result() == b"0"
    assert set(started) <= {0, 1, 2}  # the fourth file would exceed the limit on their total size
    for number in range(1, len(sizes)):
        assert next(contents).result() == b"%d" % number
        if 3 < number < 90:
            assert len(begun) == number + 1 + ddf.remote._IN_FLIGHT  # one that waits for its turn
    assert not list(contents)
    contents = read_ahead(map(File, range(10, len(sizes))), 1 << 30)  # type: ignore[arg-type]
    started.clear()
    next(contents).result()
    assert len(started) <= ddf.remote._IN_FLIGHT


def test_an_interruption_does_not_wait_for_a_server(server: WebServer, tmp_path: Path) -> None:
    server.held["/masks/notes.txt"] = threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddf", "compress", f"{server.url}/masks/", "-o", tmp_path / "a.ddf"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not server.requested("/masks/notes.txt"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_delayed_interruption_is_noticed_while_waiting() -> None:
    """The command delays interruptions of imports; what is delayed does not wake the thread that waits."""
    contents: Future[bytes] = Future()
    timers = [threading.Timer(0.05, _thread.interrupt_main), threading.Timer(10, contents.set_result, [b""])]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            _from_url(contents, "a.txt", 1)
        assert not contents.done()
    finally:
        signal.signal(signal.SIGINT, before)
        for timer in timers:
            timer.cancel()
            timer.join()


# ---- Writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file", "store"])
def test_an_archive_is_written_to_a_url(
    kind: str,
    folder: Path,
    memory: MemoryFileSystem,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory.mkdir("/out")
    (tmp_path / "out").mkdir()
    url = f"file://{tmp_path}/out/a.ddf" if kind == "file" else "memory://out/a.ddf"
    if kind == "store":
        monkeypatch.setattr(MemoryFileSystem, "protocol", ("s3", "memory"))
        monkeypatch.setattr(MemoryFileSystem, "mv", None)  # objects are written directly
    output = ddf_command(capsys, "compress", folder, "-o", url, code=1)
    assert output.startswith(f"{url}: 13 files, ")
    assert len(Archive(url)) == 13
    refused = ddf_command(capsys, "compress", folder, "-o", url, code=1)
    assert refused == f"ddf: {url} already exists; use --force to replace it\n"
    ddf_command(capsys, "compress", folder / "notes.txt", "-o", url, "--force")
    assert list(Archive(url)) == ["notes.txt"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == (["a.ddf"] if kind == "file" else [])
    assert [Path(name).name for name in memory.ls("/out", detail=False)] == ([] if kind == "file" else ["a.ddf"])
    assert "is a folder; specify a file" in ddf_command(
        capsys, "compress", folder, "-o", url.removesuffix("/a.ddf"), code=1
    )


def test_the_archive_to_be_replaced_is_not_compressed(
    memory: MemoryFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory.pipe_file("/masks/notes.txt", b"x")
    ddf_command(capsys, "compress", "memory://masks", "-o", "memory://masks/a.ddf")
    ddf_command(capsys, "compress", "memory://masks", "-o", "memory://masks/a.ddf", "--force")
    assert list(Archive("memory://masks/a.ddf")) == ["notes.txt"]
    (tmp_path / "notes.txt").write_text("x")
    for _ in range(2):
        ddf_command(capsys, "compress", tmp_path, "-o", f"file://{tmp_path}/a.ddf", "--force")
        assert list(Archive(tmp_path / "a.ddf")) == ["notes.txt"]


def test_a_missing_folder_is_noticed_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 5), np.uint8))
    assert main(["compress", str(tmp_path / "a.npy"), "-o", f"file://{tmp_path}/none/a.ddf"]) == 1
    assert f"the folder {tmp_path}/none does not exist" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_failed_upload_leaves_nothing_behind_and_keeps_the_archive(
    folder: Path, memory: MemoryFileSystem, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(files: MemoryFileSystem, source: str, target: str) -> None:
        files.pipe_file(target, Path(source).read_bytes()[:-7])

    memory.pipe_file("/out/a.ddf", b"old")
    monkeypatch.setattr(MemoryFileSystem, "put_file", half)
    output = ddf_command(capsys, "compress", folder / "notes.txt", "-o", "memory://out/a.ddf", "--force", code=1)
    assert "memory://out/a.ddf: only " in output
    kept = Path(output.partition("the archive was written to ")[2].partition(":")[0])
    assert list(Archive(kept)) == ["notes.txt"]
    kept.unlink()
    kept.parent.rmdir()
    assert memory.ls("/out", detail=False) == ["/out/a.ddf"]
    assert memory.cat_file("/out/a.ddf") == b"old"


def test_an_interrupted_upload_leaves_nothing_behind(
    tmp_path: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"new")
    memory.mkdir("/out")
    monkeypatch.setattr(MemoryFileSystem, "mv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        upload(tmp_path / "a", "memory://out/a")
    assert memory.ls("/out") == []


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["-o", "memory://a.ddf", "--append"], "--append needs a local archive; download memory://a.ddf", 2),
        (
            ["-o", "http://127.0.0.1:1/a.ddf"],
            "http://127.0.0.1:1/a.ddf: files can be written neither to web servers",
            1,
        ),
        (["-o", "simplecache::memory://a.ddf"], "nor to chained URLs", 1),
        (["-o", "s3://bucket/a.ddf"], "s3://bucket/a.ddf: Install s3fs to access S3", 1),
        (["-o", "nowhere://a.ddf"], "nowhere://a.ddf: no installed package provides the protocol 'nowhere'", 1),
    ],
)
def test_impossible_outputs_are_rejected_before_any_work(
    arguments: list[str],
    message: str,
    code: int,
    folder: Path,
    memory: MemoryFileSystem,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ArchiveWriter, "__init__", None)
    output = ddf_command(capsys, "compress", folder, *arguments, code=code)
    assert message in output
    assert output.count("\n") == 1
    assert memory.find("/") == []


class Store(AsyncFileSystemWrapper):
    """An object store: it has no folders, lists all objects at once and remembers the lists."""

    protocol = "store"
    lists: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        super().__init__(MemoryFileSystem(), asynchronous=False)
        self.protocol = "store"

    def find(self, path: str, withdirs: bool, detail: bool) -> Any:
        if path not in self.lists:
            self.lists[path] = MemoryFileSystem().find(path, withdirs=withdirs, detail=detail)
        return self.lists[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.lists.clear()


def test_object_stores_are_listed_at_once_and_written_directly(
    memory: MemoryFileSystem, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fsspec.register_implementation("store", Store, clobber=True)
    monkeypatch.setattr(ddf.remote, "_OBJECT_STORES", {"store"})
    in_memory(memory, "bucket", contents)
    for count in (13, 14):
        found = files_in(["store://bucket"])
        assert len(found.files) == count
        assert found.left_out == ["store://bucket/.hidden", "store://bucket/deep/.git"]
        memory.pipe_file("/bucket/more.txt", b"x")  # a later list is a new one
    with ArchiveWriter(tmp_path / "a.ddf", None) as archive:
        assert len(list(FileWriter(archive).add_all(found.files))) == 14
    monkeypatch.setattr(Store, "mv", None)
    upload(tmp_path / "a.ddf", "store://bucket/a.ddf")
    assert np.array_equal(Archive("store://bucket/a.ddf")["array.npy"], Archive(tmp_path / "a.ddf")["array.npy"])


# ---- Reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "web"])
def test_every_command_reads_archives_behind_urls(
    where: str,
    folder: Path,
    memory: MemoryFileSystem,
    server: WebServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ddf_command(capsys, "compress", folder, "-o", tmp_path / "a.ddf", "--sha256", code=1)
    data = (tmp_path / "a.ddf").read_bytes()
    memory.pipe_file("/a.ddf", data)
    server.files["/a.ddf"] = data
    url = {"memory": "memory://a.ddf", "web": f"{server.url}/a.ddf"}[where]
    local = ddf_command(capsys, "list", tmp_path / "a.ddf")
    assert ddf_command(capsys, "list", url) == local
    inspected = ddf_command(capsys, "inspect", tmp_path / "a.ddf")
    assert ddf_command(capsys, "inspect", url) == inspected.replace(str(tmp_path / "a.ddf"), url)
    assert f"{url} is intact, and matches its SHA-256" in ddf_command(capsys, "verify", url)
    server.requests.clear()
    ddf_command(capsys, "extract", url, "notes.txt", "-o", tmp_path / "one")
    assert len(server.requests) <= 3
    assert (tmp_path / "one" / "notes.txt").read_text() == "what is what"
    ddf_command(capsys, "decompress", url, "-o", tmp_path / "all")
    ddf_command(capsys, "recover", url, "-o", tmp_path / "saved")
    for name in local.splitlines():
        again = (tmp_path / "all" / name).read_bytes()
        assert again == (tmp_path / "saved" / name).read_bytes()
        if not name.endswith(".png") or name == "broken.png":
            assert again == (folder / name).read_bytes()


URLS = {
    "{server}/missing.ddf": "{server}/missing.ddf does not exist",
    "{server}/secret.ddf": "{server}/secret.ddf: permission denied",
    "{server}/failing.ddf": "{server}/failing.ddf: the server answered 500 Internal Server Error",
    "http://127.0.0.1:1/a.ddf": "http://127.0.0.1:1/a.ddf: Connect call failed ('127.0.0.1', 1)",
    "memory://missing.ddf": "memory://missing.ddf does not exist",
    "memory://folder": "memory://folder: it is a folder, not a file",
    "s3://bucket/a.ddf": "s3://bucket/a.ddf: Install s3fs to access S3",
    "nowhere://a.ddf": "nowhere://a.ddf: no installed package provides the protocol 'nowhere'",
}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", ["list", "decompress", "extract", "inspect", "verify", "recover"])
def test_errors_name_the_url_on_one_line(
    command: str,
    url: str,
    server: WebServer,
    memory: MemoryFileSystem,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.answers |= {"/secret.ddf": 403, "/failing.ddf": 500}
    memory.mkdir("/folder")
    rest = {"decompress": ["-o", tmp_path], "recover": ["-o", tmp_path], "extract": ["x", "-o", tmp_path]}
    output = ddf_command(capsys, command, url.format(server=server.url), *rest.get(command, []), code=1)
    assert output == f"ddf: {URLS[url].format(server=server.url)}\n"


def test_inputs_that_do_not_exist_are_errors(
    server: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["/secret/"] = 403
    for url, message in {
        "memory://missing": "memory://missing does not exist",
        f"{server.url}/missing.png": f"{server.url}/missing.png does not exist",
        f"{server.url}/missing/": f"{server.url}/missing/ does not exist",
        f"{server.url}/secret/": f"{server.url}/secret/: permission denied",
        "memory://missing/*.png": "memory://missing does not exist",
        "s3://bucket/masks": "s3://bucket/masks: Install s3fs to access S3",
        f"file://{tmp_path}/missing": f"{tmp_path}/missing does not exist",
    }.items():
        assert ddf_command(capsys, "compress", url, "-o", tmp_path / "a.ddf", code=1) == f"ddf: {message}\n"
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_listed_are_reported(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory(memory, "masks", {"a/1.txt": b"x", "closed/2.txt": b"x"})
    usual = MemoryFileSystem.ls

    def ls(files: MemoryFileSystem, path: str, **options: object) -> object:
        if path.rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return usual(files, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    found = files_in(["memory://masks"])
    assert [name for name, _ in found.files] == ["a/1.txt"]
    ((place, why),) = found.problems
    assert place == "/masks/closed"
    assert why == "not archived: /masks/closed: permission denied"
    memory.mkdir("/closed")
    with pytest.raises(PermissionError, match="memory://closed: permission denied"):
        list_files("memory://closed")


def test_any_error_of_a_file_system_names_the_url() -> None:
    class CustomTimeoutError(Exception):
        pass

    for error, kind, message in [
        (RuntimeError("boom\nmore"), OSError, "s3://a: RuntimeError: boom"),
        (CustomTimeoutError(), TimeoutError, "s3://a: the server did not answer in time"),
        (NotImplementedError(), OSError, "s3://a: this file system does not support the operation"),
        (OSError(28, "No space left on device"), OSError, "s3://a: No space left on device"),
        (FileExistsError(17, "File exists"), FileExistsError, "s3://a: File exists"),
        (ImportError("Install it"), MissingExtraError, "s3://a: Install it"),
        (DdfError("ours"), DdfError, "ours"),
    ]:
        with pytest.raises(kind) as caught, remote_errors("s3://a"):
            raise error
        assert str(caught.value) == message


def test_a_missing_package_of_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from ddf.archive import Archive\n"
        "try:\n    Archive('http://example.org/a.ddf')\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "aiohttp is not installed; it is needed for http://example.org/a.ddf: "
        "pip install 'discrete-denoising-flows[remote]'\n"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # blockcache does not close its files
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_archives_are_read_through_caches_of_fsspec(cache: str, server: WebServer, tmp_path: Path) -> None:
    arrays = np.random.default_rng(0).integers(0, 256, (8, 1 << 21), dtype=np.uint8)
    with ArchiveWriter(tmp_path / "a.ddf", None, verify=False) as archive:
        for i, array in enumerate(arrays):
            archive.add(array, f"{i}.npy")
    server.files["/a.ddf"] = (tmp_path / "a.ddf").read_bytes()
    url, options = f"{cache}::{server.url}/a.ddf", {cache: {"cache_storage": str(tmp_path / "cache")}}
    archive = Archive(url, storage_options=options)
    assert np.array_equal(archive["1.npy"], arrays[1])
    assert np.array_equal(pickle.loads(pickle.dumps(archive))["1.npy"], arrays[1])
    contents = [request.count for request in server.requests if request.path == "/a.ddf"]
    if cache == "blockcache":  # of 5 MiB
        assert sum(contents) < len(server.files["/a.ddf"])
    before = len(server.requests)
    assert np.array_equal(Archive(url, storage_options=options)["1.npy"], arrays[1])
    assert not any(request.count for request in server.requests[before:] if request.path == "/a.ddf")
    gc.collect()


def test_urls_are_described(memory: MemoryFileSystem, server: WebServer) -> None:
    memory.pipe_file("/a/b", b"x")
    assert (type_of("memory://a/b"), type_of("memory://a"), type_of("memory://c")) == ("file", "directory", "")
    assert (type_of(f"{server.url}/masks/notes.txt"), type_of(f"{server.url}/none")) == ("file", "")
    assert read_bytes("memory://a/b") == b"x"
    with pytest.raises(FileNotFoundError, match="memory://none does not exist"):
        read_bytes("memory://none")
