"""Archives are safe under threads, forks, other processes and kills."""

import io
import multiprocessing
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddf.archive import Archive, ArchiveWriter, Codec
from ddf.exact import IntegerFlow
from ddf.labelmaps import pretrained
from tests.zoo import draw_maps, write_archive

READS = 600


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 9, (20 + i % 7, 31), dtype=np.uint8) for i in range(50)]


def wrong_reads(archive: Archive, arrays: list[np.ndarray], seed: int) -> int:
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, len(arrays), READS).tolist()
    return sum(not np.array_equal(archive[f"map {i}" if i % 2 else i], arrays[i]) for i in numbers)


@contextmanager
def opened(path: Path, how: str) -> Iterator[Archive]:
    if how == "path":
        yield Archive(path)
    elif how == "file":
        with path.open("rb") as file:
            yield Archive(file)
    else:
        yield Archive(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("how", ["path", "file", "object"])
def test_threads_share_an_archive(tmp_path: Path, arrays: list[np.ndarray], how: str) -> None:
    write_archive(tmp_path / "a.ddf", None, arrays)
    with opened(tmp_path / "a.ddf", how) as archive, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda seed: wrong_reads(archive, arrays, seed), range(4))) == [0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("how", ["path", "file", "object"])
def test_forked_processes_share_an_archive(tmp_path: Path, arrays: list[np.ndarray], how: str) -> None:
    write_archive(tmp_path / "a.ddf", None, arrays)
    context = multiprocessing.get_context("fork")
    with opened(tmp_path / "a.ddf", how) as archive:
        assert wrong_reads(archive, arrays, 9) == 0

        def read(seed: int) -> None:
            os._exit(wrong_reads(archive, arrays, seed) > 0)

        workers = [context.Process(target=read, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        assert wrong_reads(archive, arrays, 8) == 0
        for worker in workers:
            worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4


class Maps(torch.utils.data.Dataset[Any]):
    """A dataset with an open archive."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    def __len__(self) -> int:
        return len(self.archive)

    def __getitem__(self, number: int) -> tuple[int, np.ndarray]:
        return number, self.archive[number]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_data_loader_reads_every_map(tmp_path: Path, start: str) -> None:
    maps = [np.kron(np.arange(i, i + 12).reshape(3, 4) % 5, np.ones((6, 7))).astype(np.uint8) for i in range(40)]
    write_archive(tmp_path / "a.ddf", pretrained(), maps)
    archive = Archive(tmp_path / "a.ddf", pretrained())
    assert np.array_equal(archive[3], maps[3])
    loader = torch.utils.data.DataLoader(
        Maps(archive), batch_size=None, shuffle=True, num_workers=4, multiprocessing_context=start
    )
    found = {int(number): np.asarray(array) for number, array in loader}
    assert sorted(found) == list(range(40))
    assert all(np.array_equal(array, maps[number]) for number, array in found.items())


@pytest.mark.parametrize("embed", [False, True])
def test_an_archive_can_be_pickled(
    tmp_path: Path, flow: IntegerFlow, embed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = draw_maps(5, (8, 6), 3)
    data = write_archive(tmp_path / "a.ddf", flow, maps, embed_model=embed)
    monkeypatch.chdir(tmp_path)
    archives = [Archive("a.ddf", None if embed else flow, max_bytes=1 << 20, threads=2), Archive(data, flow)]
    monkeypatch.chdir("/")
    for archive in archives:
        again = pickle.loads(pickle.dumps(archive))
        assert "contents" not in vars(again)  # it is opened on first use
        assert np.array_equal(again["map 3"], maps[3])
        assert (again.max_bytes, again.threads) == (archive.max_bytes, archive.threads)
    with (
        (tmp_path / "a.ddf").open("rb") as file,
        pytest.raises(TypeError, match="opened as a file object and cannot be pickled"),
    ):
        pickle.dumps(Archive(file, flow))


def test_every_thread_can_load_an_embedded_model(tmp_path: Path, flow: IntegerFlow) -> None:
    maps = draw_maps(12, (8, 6), 3)
    write_archive(tmp_path / "a.ddf", flow, maps, embed_model=True)
    archive = Archive(tmp_path / "a.ddf")
    with ThreadPoolExecutor(6) as pool:
        assert all(np.array_equal(*pair) for pair in zip(pool.map(archive.__getitem__, range(12)), maps, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_fork_while_threads_read_does_not_deadlock(tmp_path: Path) -> None:
    """The child does not need any lock that a thread of its parent holds."""
    script = """
import os, sys, threading, warnings
import numpy as np
from ddf.archive import Archive
from ddf.labelmaps import pretrained
warnings.simplefilter("ignore")
archive = Archive(sys.argv[1], pretrained())
threads = [threading.Thread(target=lambda: [archive[i % 6] for i in range(400)]) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for i in range(12):
    child = os.fork()
    if child == 0:
        archive[i % 6]
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
for thread in threads:
    thread.join()
"""
    maps = [np.kron(np.arange(i, i + 12).reshape(3, 4) % 5, np.ones((6, 7))).astype(np.uint8) for i in range(6)]
    write_archive(tmp_path / "a.ddf", pretrained(), maps)
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.ddf")], check=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("ends", ["sys.exit(0)", "writer.close()", "writer.add(array)", "os._exit(1)"])
def test_a_forked_process_does_not_write_an_archive(tmp_path: Path, ends: str) -> None:
    script = f"""
import os, sys
import numpy as np
from ddf.archive import Archive, ArchiveWriter, verify
array = np.arange(5)
with ArchiveWriter(sys.argv[1], None, threads=2) as writer:
    writer.add(array, "before")
    if (child := os.fork()) == 0:
        {ends}
    os.waitpid(child, 0)
    writer.add(array, "after")
assert list(Archive(sys.argv[1])) == ["before", "after"]
assert verify(sys.argv[1]) == []
"""
    arguments = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "a.ddf")]
    subprocess.run(arguments, check=True, timeout=60, capture_output=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a.ddf"]


# ---- Writers ---------------------------------------------------------------------------------------------------------

APPEND = """
import sys
import numpy as np
from ddf.archive import ArchiveWriter
for i in range(int(sys.argv[3])):
    with ArchiveWriter(sys.argv[1], None, append=True, threads=1) as writer:
        writer.add(np.full(3, i), f"{sys.argv[2]} {i}")
"""


def test_concurrent_appends_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ddf"
    workers = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), str(worker), "100"]) for worker in range(3)]
    assert [worker.wait() for worker in workers] == [0] * 3
    archive = Archive(path)
    assert sorted(archive) == sorted(f"{worker} {i}" for worker in range(3) for i in range(100))
    assert all(archive[f"{worker} {i}"][0] == i for worker in range(3) for i in range(100))
    assert [file.name for file in tmp_path.iterdir()] == ["a.ddf"]


def test_threads_can_append_concurrently(tmp_path: Path) -> None:
    def append(worker: int) -> None:
        for i in range(10):
            with ArchiveWriter(tmp_path / "a.ddf", None, append=True, threads=1) as writer:
                writer.add(np.full(3, i), f"{worker} {i}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(append, range(3)))
    assert len(Archive(tmp_path / "a.ddf")) == 30


def test_opening_twice_for_appending_in_one_thread_is_rejected(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None, append=True) as writer:
        writer.add(np.arange(3))
        with pytest.raises(RuntimeError, match="already open for appending in this thread"):
            ArchiveWriter(tmp_path / "a.ddf", None, append=True)
    assert len(Archive(tmp_path / "a.ddf")) == 1


WRITE = """
import sys
import numpy as np
from ddf.archive import ArchiveWriter
with ArchiveWriter(sys.argv[1], None, append=sys.argv[2] == "append", overwrite=sys.argv[2] == "write") as writer:
    print("ready", flush=True)
    for i in range(300):
        writer.add(np.random.default_rng(i).integers(0, 200, 900), f"new {i}")
print("done", flush=True)
"""


@pytest.mark.parametrize("how", ["write", "append"])
def test_a_killed_writer_leaves_the_old_archive_or_the_new_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.ddf"
    old = write_archive(path, None, [np.arange(5)])
    generator = np.random.default_rng(0)
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / "timed.ddf"), "write"], check=True, capture_output=True)
    lasts = time.monotonic() - start
    (tmp_path / "timed.ddf").unlink()
    finished = 0
    for wait in generator.random(15) * lasts * 0.4:
        process = subprocess.Popen([sys.executable, "-c", WRITE, str(path), how], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        with process, io.BufferedReader(process.stdout):
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
        if path.read_bytes() == old:
            continue
        finished += 1
        archive = Archive(path)
        assert len(archive) == 300 + (how == "append")
        assert np.array_equal(archive["new 299"], np.random.default_rng(299).integers(0, 200, 900))
        path.write_bytes(old)
    assert finished < 15
    # The next writer finds the part files of the killed ones.
    script = WRITE.replace("range(300)", "range(1)")
    subprocess.run([sys.executable, "-c", script, str(path), how], check=True, capture_output=True)
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == ["a.ddf"]


def test_part_files_of_running_processes_are_kept(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "a.ddf", None)
    subprocess.run([sys.executable, "-c", APPEND, str(tmp_path / "b.ddf"), "x", "1"], check=True)
    writer.add(np.arange(3))
    writer.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf", "b.ddf"]


@pytest.mark.skipif(os.name == "nt", reason="files do not have modes on Windows")
def test_mode_and_owner_of_a_replaced_file_are_kept(tmp_path: Path, model: Codec) -> None:
    path = tmp_path / "a.ddf"
    write_archive(path, None, [np.arange(5)])
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()
    for options in ({"append": True}, {"overwrite": True}):
        with ArchiveWriter(path, None, **options) as writer:
            writer.add(np.arange(3), "more")
        after = path.stat()
        assert stat.S_IMODE(after.st_mode) == 0o640
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
