"""Archives are written by a dask cluster, completely, whatever happens to its workers."""

import doctest
import io
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import fsspec
import numpy as np
import pytest
from distributed import Client, LocalCluster
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

import ddf.dask
import ddf.remote
from ddf.archive import Archive, ArchiveWriter, FileReader, recover, verify
from ddf.dask import Report, compress
from ddf.data.drawn import draw_scenes
from ddf.errors import RunConflictError
from ddf.labelmaps import CausalFlow
from ddf.progress import Progress
from tests.images import same_image
from tests.web_server import WebServer, web_server
from tests.zoo import GOLDEN

pytestmark = pytest.mark.xdist_group("dask")  # one worker, which starts one cluster

TIMEOUT = 60.0  # seconds


def local_cluster(folder: Path) -> LocalCluster:
    return LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", local_directory=str(folder)
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Return the client of a cluster of two processes."""
    with local_cluster(tmp_path_factory.mktemp("cluster")) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Client]:
    """Return the client of a cluster of threads in this process, which share its memory."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=":0",
            local_directory=str(tmp_path / "worker"),
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of maps of all kinds, and other files."""
    folder = tmp_path_factory.mktemp("data") / "masks"
    for i, scene in enumerate(draw_scenes(21, seed=3, sizes=(24, 40))):
        place = folder / f"street {i % 3}" / f"{i:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image = Image.frombytes("P", scene.shape[::-1], scene.tobytes())
        image.putpalette([i, 20, 30, 40, 50, 60, 70, 80, 90, 1, 2, 3, 4, 5, 6])
        image.save(place, transparency=i % 2 or None)
        if i < 3:
            Image.fromarray(scene).save(folder / f"{i}.tif")
            np.save(folder / f"{i}.npy", scene.astype(">i2").T)
    (folder / "broken.png").write_bytes((folder / "street 0" / "00.png").read_bytes()[:-20])
    (folder / "notes.txt").write_text("what is what")
    (folder / "größe").mkdir()
    (folder / "größe" / "empty").touch()
    (folder / ".hidden").write_text("x")
    return folder


COUNT = 21 + 6 + 3  # files that are archived


def names_in(folder: Path) -> list[str]:
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return [path.as_posix() for path in sorted(files, key=lambda path: path.parts)]


def archives_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.ddf"))


def same_file(one: Path, two: Path) -> bool:
    if one.suffix not in (".png", ".tif") or one.name == "broken.png":
        return one.read_bytes() == two.read_bytes()
    return same_image(one, two)


def assert_complete(out: Path, masks: Path, again: Path) -> None:
    """Assert that the archives restore the files, in order."""
    names = []
    for path in archives_in(out):
        archive = Archive(path)
        assert verify(path) == []
        names += list(archive)
        list(FileReader(archive).write_all(again))
    assert names == names_in(masks)
    assert all(same_file(masks / name, again / name) for name in names)
    assert not list(out.glob(".*"))


def identities(paths: list[Path]) -> list[tuple[int, int]]:
    return [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths]


def wait_until(happened: Callable[[], bool]) -> None:
    last = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < last
        time.sleep(0.01)


# ---- Complete archives -----------------------------------------------------------------------------------------------


def test_a_folder_is_compressed_and_restored(client: Client, masks: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "archives"
    report = compress(masks, out, maps_per_archive=8, client=client)
    assert_complete(out, masks, tmp_path / "again")
    assert [path.name for path in archives_in(out)] == [f"part-{i:05}.ddf" for i in range(4)]
    assert [len(Archive(path)) for path in archives_in(out)] == [8, 8, 8, COUNT - 24]
    problem = "archived byte for byte: it is not a valid .png file"
    assert report == Report(
        archives=4,
        skipped=0,
        files=COUNT,
        maps=27,
        bytes_before=sum((masks / name).stat().st_size for name in names_in(masks)),
        bytes_after=sum(path.stat().st_size for path in archives_in(out)),
        stripped=0,
        left_out=(str(masks / ".hidden"),),
        problems={"broken.png": report.problems["broken.png"]},
    )
    assert report.problems["broken.png"].startswith(problem)
    before = identities(archives_in(out))
    again = compress(masks, out, maps_per_archive=8, client=client)
    assert again == Report(**{**vars(report), "skipped": 4})
    assert identities(archives_in(out)) == before


def test_the_archives_are_those_of_a_single_process(client: Client, masks: Path, tmp_path: Path) -> None:
    from ddf.archive import FileWriter, files_in
    from ddf.labelmaps import pretrained

    options: dict[str, Any] = {"maps_per_block": 3, "sha256": True, "embed_model": True}
    compress(masks, tmp_path / "out", client=client, threads=2, verify=False, **options)
    with ArchiveWriter(tmp_path / "one.ddf", pretrained(), **options) as archive:
        list(FileWriter(archive).add_all(files_in([masks]).files))
    assert (tmp_path / "out" / "part-00000.ddf").read_bytes() == (tmp_path / "one.ddf").read_bytes()


def test_urls_and_a_model_of_ones_own(client: Client, masks: Path, tmp_path: Path) -> None:
    model = Archive(GOLDEN / "labels-any-1.ddf").model
    assert isinstance(model, CausalFlow)
    model.save(tmp_path / "model.safetensors")
    urls = [f"file://{masks / name}" for name in names_in(masks)]
    out = tmp_path / "out"
    report = compress(iter(urls), f"file://{out}", tmp_path / "model.safetensors", maps_per_archive=11, client=client)
    assert (report.archives, report.files, report.left_out) == (3, COUNT, ())
    assert (out / f"{model.fingerprint.hex()}.safetensors").exists()
    assert {Archive(path).fingerprint for path in archives_in(out)} == {model.fingerprint}
    assert_complete(out, masks, tmp_path / "again")
    assert compress(urls, f"file://{out}", model, maps_per_archive=11, client=client).skipped == 3


def test_a_cluster_of_threads_shares_memory(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    files = fsspec.filesystem("memory")
    for name in names_in(masks):
        files.pipe_file(f"/masks/{name}", (masks / name).read_bytes())
    report = compress("memory://masks", "memory://out/archives", maps_per_archive=9, client=threads)
    assert (report.archives, report.files) == (4, COUNT)
    names = [Path(name).name for name in files.ls("/out/archives", detail=False)]
    assert names == sorted([f"part-{i:05}.{kind}" for i in range(4) for kind in ("ddf", "json")] + ["plan.json"])
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).write_bytes(files.cat_file(f"/out/archives/{name}"))
    assert_complete(tmp_path / "out", masks, tmp_path / "again")
    assert compress("memory://masks", "memory://out/archives", maps_per_archive=9, client=threads).skipped == 4
    assert not list((tmp_path / "worker").rglob("*.ddf"))


def test_more_archives_than_tasks_at_a_time(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddf.dask, "_IN_FLIGHT", 1)
    assert compress(masks, tmp_path / "out", maps_per_archive=2, client=threads).archives == 15
    assert_complete(tmp_path / "out", masks, tmp_path / "again")


def test_patterns_and_paths_relative_to_this_process(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(masks.parent)
    compress("masks/**/0*.png", tmp_path / "pattern", client=threads)
    assert list(Archive(tmp_path / "pattern" / "part-00000.ddf")) == [
        f"street {i % 3}/{i:02}.png" for i in (0, 3, 6, 9, 1, 4, 7, 2, 5, 8)
    ]
    compress(["masks/street 1/01.png", masks / "0.npy", "masks/street 0/00.png"], tmp_path / "list", client=threads)
    assert list(Archive(tmp_path / "list" / "part-00000.ddf")) == ["street 1/01.png", "0.npy", "street 0/00.png"]


def test_calls_at_the_same_time_do_no_harm(threads: Client, client: Client, masks: Path, tmp_path: Path) -> None:
    """Dask may run a task twice, also at the same time."""
    for kind, out in (("path", str(tmp_path / "path")), ("url", f"file://{tmp_path / 'url'}")):
        with ThreadPoolExecutor(3) as pool:
            calls = [
                pool.submit(compress, masks, out, maps_per_archive=7, client=one) for one in (threads, threads, client)
            ]
        reports = [Report(**{**vars(call.result()), "skipped": 0}) for call in calls]
        assert reports[0] == reports[1] == reports[2]
        assert_complete(tmp_path / kind, masks, tmp_path / f"{kind} again")


# ---- Failures --------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture
def server() -> Iterator[WebServer]:
    """Serve twelve maps, of which the eighth is not sent before its event is set."""
    with web_server({f"/{i:02}.npy": npy(np.full((9, 8), i, np.uint8)) for i in range(12)}) as running:
        running.held["/07.npy"] = Event()
        yield running


def urls_of(server: WebServer) -> list[str]:
    return [f"{server.url}{name}" for name in server.files]


def assert_all_maps(out: Path) -> None:
    archives = [Archive(path) for path in archives_in(out)]
    assert [name for archive in archives for name in archive] == [f"{i:02}.npy" for i in range(12)]
    for i in range(12):
        assert np.array_equal(archives[i // 3][f"{i:02}.npy"], np.full((9, 8), i))


class Call(Thread):
    """A call of `compress` in another thread."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__()
        self.arguments, self.options = arguments, options
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            compress(*self.arguments, **self.options)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error


def test_after_killed_workers_and_a_lost_cluster_the_same_call_continues(server: WebServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with local_cluster(tmp_path / "first") as cluster, Client(cluster, set_as_default=False) as client:
        call = Call(urls_of(server), out, maps_per_archive=3, client=client)
        wait_until(lambda: server.requested("/07.npy") == 1 and len(archives_in(out)) == 3)
        finished = archives_in(out)
        before = identities(finished)
        assert [path.name for path in finished] == ["part-00000.ddf", "part-00001.ddf", "part-00003.ddf"]
        (busy,) = (worker for worker, keys in client.processing().items() if any("part-00002" in key for key in keys))
        os.kill(client.run(os.getpid, workers=[busy])[busy], signal.SIGKILL)
        wait_until(lambda: server.requested("/07.npy") >= 2)  # another worker continues
    call.join(TIMEOUT)
    assert "part-00002.ddf was cancelled; finished archives are kept: call again to resume" in str(call.error)
    server.held["/07.npy"].set()
    assert archives_in(out) == finished
    with local_cluster(tmp_path / "second") as cluster, Client(cluster, set_as_default=False) as client:
        report = compress(urls_of(server), out, maps_per_archive=3, client=client)
    assert (report.archives, report.skipped, report.files, report.problems) == (4, 3, 12, {})
    assert identities(finished) == before
    assert not list(out.glob(".*"))  # what the killed worker had begun
    assert_all_maps(out)


def test_an_interruption_cancels_the_tasks_and_keeps_the_archives(
    server: WebServer, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ddf.dask, "_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(ddf.dask._Run, "_collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compress(urls_of(server), out, maps_per_archive=3, client=threads)
    assert not [key for keys in threads.processing().values() for key in keys]
    tasks = threads.cluster.workers[0].state.tasks
    wait_until(lambda: all(task.state != "executing" for task in list(tasks.values())))
    server.held["/07.npy"].set()
    wait_until(lambda: not list(out.glob(".ddf-*")))  # running tasks notice that they were cancelled
    assert 1 <= len(archives_in(out)) < 4
    finished = archives_in(out)
    before = identities(finished)
    report = compress(urls_of(server), out, maps_per_archive=3, client=threads)
    assert report.skipped == len(finished)
    assert identities(finished) == before
    assert_all_maps(out)


def test_unreadable_files_are_reported_and_do_not_stop_the_others(
    server: WebServer, threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddf.remote, "_PAUSES", ())
    server.held["/07.npy"].set()
    server.answers |= {"/02.npy": 404, "/05.npy": 500}
    urls = urls_of(server)
    out = tmp_path / "out"
    report = compress(urls, out, maps_per_archive=3, client=threads)
    expected = {
        "02.npy": f"not archived: {server.url}/02.npy does not exist",
        "05.npy": f"not archived: {server.url}/05.npy: the server answered 500 Internal Server Error",
    }
    assert (report.files, report.problems) == (10, expected)
    server.answers.clear()
    (out / "part-00002.ddf").unlink()
    again = compress(urls, out, maps_per_archive=3, client=threads)
    assert (again.skipped, again.files, again.problems) == (3, 10, expected)  # as the earlier call has noted
    os.mkfifo(tmp_path / "pipe")
    paths = [masks / "0.npy", tmp_path / "missing.png", masks, tmp_path / "pipe"]
    report = compress(paths, tmp_path / "local", client=threads)
    assert sorted(report.problems.values()) == [
        "not archived: Is a directory",
        "not archived: No such file or directory",
        "not archived: it is not a regular file",
    ]


def test_a_task_that_fails_is_repeated_twice(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(28, "No space left on device")] * 5)
    usual = ddf.dask._add_files

    def add_files(*arguments: Any) -> dict[str, Any]:
        if (error := next(failures, None)) is not None:
            raise error
        return usual(*arguments)

    monkeypatch.setattr(ddf.dask, "_add_files", add_files)
    with pytest.raises(RuntimeError, match=r"part-00000.ddf could not be written: .*No space left on device; finished"):
        compress(masks, tmp_path / "out", client=threads)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["plan.json"]
    assert compress(masks, tmp_path / "out", client=threads).files == COUNT  # the last two failures, then success


def test_files_that_a_worker_does_not_see_are_not_reported_as_unreadable(threads: Client, tmp_path: Path) -> None:
    paths = [tmp_path / "not mounted" / f"{i}.png" for i in range(40)]
    with pytest.raises(RuntimeError, match=r"part-0000\d.ddf could not be written: none of its 20 files can be read"):
        compress(paths, tmp_path / "out", maps_per_archive=20, client=threads)
    assert archives_in(tmp_path / "out") == []
    report = compress(paths[:5], tmp_path / "few", client=threads)
    assert (report.archives, report.files, len(report.problems)) == (1, 0, 5)


def test_a_folder_that_a_worker_does_not_see_is_an_error(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ddf.dask._Folder.has
    monkeypatch.setattr(ddf.dask._Folder, "has", lambda self, name: name != "plan.json" and usual(self, name))
    with pytest.raises(RuntimeError, match=r"has no access to .*out, which all workers need"):
        compress(masks, tmp_path / "out", client=threads)


def test_an_archive_without_notes_is_written_again(threads: Client, masks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = compress(masks, out, maps_per_archive=10, client=threads)
    (out / "part-00001.json").unlink()
    assert compress(masks, out, maps_per_archive=10, client=threads) == Report(**{**vars(report), "skipped": 2})
    assert_complete(out, masks, tmp_path / "again")


# ---- Conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"truncated", None])
def test_a_damaged_archive_is_written_again(damage: bytes | None, threads: Client, masks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = compress(masks, out, maps_per_archive=10, client=threads)
    archive = archives_in(out)[1]
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-40] if damage is None else damage)
    again = compress(masks, out, maps_per_archive=10, client=threads)
    assert again == Report(**{**vars(report), "skipped": report.archives - 1})
    assert archive.read_bytes() == whole


@pytest.mark.parametrize("remote", [False, True])
def test_other_inputs_models_and_settings_are_refused(
    remote: bool, threads: Client, masks: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    out = f"file://{place}" if remote else str(place)
    compress(masks, out, maps_per_archive=10, client=threads)
    before = {path: path.read_bytes() for path in place.iterdir()}
    paths = [masks / name for name in names_in(masks)]
    model = Archive(GOLDEN / "labels-any-1.ddf").model
    usual: dict[str, Any] = {"maps_per_archive": 10, "client": threads}
    for urls, options, message in [
        (paths[:-1], {}, r"files=30, not 29, other files"),
        (paths[::-1], {}, r"\(other files\)"),
        (masks, {"model": model}, r"\(model=\w+, not \w+\)"),
        (masks, {"maps_per_archive": 9}, r"\(maps_per_archive=10, not 9\)"),
        (masks, {"maps_per_block": 4, "sha256": True}, r"\(maps_per_block=1, not 4, sha256=False, not True\)"),
    ]:
        with pytest.raises(
            RunConflictError, match=f"made from other files or with other settings .*{message}.*; specify"
        ):
            compress(urls, out, **{**usual, **options})
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert compress(masks, out, verify=False, threads=2, **usual).skipped == 3
    (place / "plan.json").write_text("{")
    with pytest.raises(RunConflictError, match=r"plan.json is damaged"):
        compress(masks, out, **usual)
    (place / "plan.json").unlink()
    with pytest.raises(RunConflictError, match=r"contains archives, but no plan.json"):
        compress(masks, out, **usual)


def test_invalid_use_is_rejected(threads: Client, masks: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no dask cluster: create a client first"):
        compress(masks, tmp_path / "out")
    with pytest.raises(ValueError, match="maps_per_archive=0 is out of range"):
        compress(masks, tmp_path / "out", maps_per_archive=0, client=threads)
    with pytest.raises(ValueError, match="no files to compress"):
        compress([], tmp_path / "out", client=threads)
    with pytest.raises(ValueError, match=f"no files to compress in {masks}/none"):
        compress(f"{masks}/none*", tmp_path / "out", client=threads)
    with pytest.raises(FileNotFoundError, match="missing does not exist"):
        compress(tmp_path / "missing", tmp_path / "out", client=threads)
    with pytest.raises(ValueError, match="files can be written neither to web servers"):
        compress(masks, "https://example.org/archives", client=threads)
    with pytest.raises(TypeError, match="a dict is not a codec"):
        compress(masks, tmp_path / "out", {}, client=threads)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_the_current_client_is_the_default(threads: Client, masks: Path, tmp_path: Path) -> None:
    with threads.as_current():
        assert compress(masks, tmp_path / "out").files == COUNT


def test_progress_is_shown_while_archives_are_written(
    threads: Client, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddf.progress.SECONDS_PER_LINE", 0.0)
    monkeypatch.setattr(ddf.dask, "_SECONDS", 0.0)
    compress(masks, tmp_path / "out", maps_per_archive=15, client=threads)
    lines = capsys.readouterr().err.splitlines()
    counts = [int(line.split()[2]) for line in lines]
    assert counts == sorted(counts)
    assert any(0 < count < 15 for count in counts)
    assert lines[-1].startswith("compressing: 100%, 30 of 30 files, 2 of 2 archives, ")
    compress(masks, tmp_path / "out", maps_per_archive=15, client=threads, progress=False)
    assert capsys.readouterr().err == ""


def test_progress_that_arrives_late_does_not_count_backward(threads: Client) -> None:
    run = ddf.dask._Run(threads, "out", [[("a", "b")] * 9], b"", {}, {}, Progress("compressing", 9, "file", False))
    run._update(0, 9)
    run._update(0, 4)
    assert run.done == {0: 9}


def test_the_documented_recipe_works_verbatim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "docs" / "dask.md").read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if ">>>" in block]
    names: dict[str, Any] = {"torch": torch}
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), names, "dask.md", None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, clear_globs=False)
    test.globs["client"].cluster.close()
    assert runner.summarize().failed == 0


def test_recovered_archives_hold_the_same_names(threads: Client, masks: Path, tmp_path: Path) -> None:
    compress(masks, tmp_path / "out", client=threads)
    found = [item.name for item in recover(tmp_path / "out" / "part-00000.ddf")]
    assert found == names_in(masks)
