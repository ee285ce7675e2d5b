"""Archives are read from files, memory and URLs, and only as far as needed."""

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from ddf.archive import Archive, ArchiveWriter, DamagedArchiveError, recover, verify
from ddf.archive.sources import open_source
from tests.web_server import WebServer, web_server
from tests.zoo import write_archive


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (30 + i % 3, 31), dtype=np.uint8) for i in range(300)]


@pytest.fixture(scope="module")
def data(arrays: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_archive(tmp_path_factory.mktemp("archive") / "a.ddf", None, arrays)


def test_an_archive_is_read_through_fsspec(data: bytes, arrays: list[np.ndarray]) -> None:
    with fsspec.open("memory://folder/a.ddf", "wb") as file:
        file.write(data)
    archive = Archive("memory://folder/a.ddf")
    assert archive.name == "memory://folder/a.ddf"
    assert len(archive) == 300
    assert np.array_equal(archive["map 7"], arrays[7])
    assert verify("memory://folder/a.ddf") == []
    assert sum(1 for _ in recover("memory://folder/a.ddf")) == 300


@pytest.fixture
def server(data: bytes) -> Iterator[WebServer]:
    pytest.importorskip("aiohttp")
    with web_server({"/a.ddf": data}) as running:
        yield running


def large_archive(names: Iterable[str]) -> tuple[bytes, list[np.ndarray]]:
    arrays = [np.full(900, i, np.uint16).view(np.uint8) ^ RANDOM for i, _ in enumerate(names)]
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, None, verify=False) as archive:
        for name, array in zip(names, arrays, strict=True):
            archive.add(array, name)
    return buffer.getvalue(), arrays


RANDOM = np.random.default_rng(0).integers(0, 256, 1800, dtype=np.uint8)


def test_an_archive_on_a_server_is_read_in_ranges(server: WebServer, data: bytes, arrays: list[np.ndarray]) -> None:
    archive = Archive(f"{server.url}/a.ddf")
    opening = len(server.requests)
    assert opening <= 3  # the size, the end with the index, and the header
    assert np.array_equal(archive["map 123"], arrays[123])
    assert np.array_equal(archive[5], arrays[5])
    table = archive.contents.index.table
    assert [request.count for request in server.requests[opening:]] == [table.sizes[123], table.sizes[5]]
    assert sum(request.count for request in server.requests) < len(data) / 3


@pytest.mark.parametrize("scheme", ["http", "memory"])
def test_one_map_of_a_large_archive_takes_one_request(
    scheme: str, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, arrays = large_archive([f"street/{i:05}.png" for i in range(4000)])
    server.files["/large.ddf"] = data
    read: list[int] = []
    if scheme == "memory":
        usual = MemoryFileSystem.cat_file

        def cat_file(files: MemoryFileSystem, path: str, **options: int) -> bytes:
            part = usual(files, path, **options)
            read.append(len(part))
            return part

        fsspec.filesystem("memory").pipe_file("/large.ddf", data)
        monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
        archive = Archive("memory://large.ddf")
    else:
        archive = Archive(f"{server.url}/large.ddf")
        read = [request.count for request in server.requests]
    assert len(read) <= 3
    assert sum(read) < 0.02 * len(data)
    server.requests.clear()
    read.clear()
    assert np.array_equal(archive["street/02345.png"], arrays[2345])
    read += [request.count for request in server.requests]
    assert read == [archive.contents.index.table.sizes[2345]]


def test_a_large_index_takes_one_more_request(server: WebServer) -> None:
    generator = np.random.default_rng(0)
    server.files["/a.ddf"], arrays = large_archive([generator.bytes(40).hex() for _ in range(3000)])
    archive = Archive(f"{server.url}/a.ddf")
    assert archive.size - archive.contents.end.position > 1 << 16
    assert len(server.requests) == 4
    assert sum(request.count for request in server.requests) < archive.size - archive.contents.end.position + (1 << 16)
    assert np.array_equal(archive[7], arrays[7])


def test_maps_are_read_ahead_in_growing_ranges(server: WebServer) -> None:
    server.files["/a.ddf"], arrays = large_archive([f"{i}.png" for i in range(3000)])
    size = len(server.files["/a.ddf"])
    archive = Archive(f"{server.url}/a.ddf")
    for read in (
        lambda: [array for _, array in archive.items()],
        lambda: list(archive.values()),
        lambda: [archive[i] for i in range(len(archive))],
        lambda: [archive[name] for name in archive],
    ):
        server.requests.clear()
        assert all(map(np.array_equal, read(), arrays))
        assert len(server.requests) < 14
        assert sum(request.count for request in server.requests) < 1.01 * size
        assert max(request.count for request in server.requests) == 1 << 20
    server.requests.clear()
    assert verify(f"{server.url}/a.ddf") == []
    assert len(server.requests) < 60
    server.requests.clear()
    assert sum(1 for _ in recover(f"{server.url}/a.ddf")) == len(arrays)
    assert len(server.requests) < 60


def test_maps_that_share_a_block_are_read_once(server: WebServer) -> None:
    buffer = io.BytesIO()
    arrays = np.random.default_rng(0).integers(0, 256, (400, 30, 31), dtype=np.uint8)
    with ArchiveWriter(buffer, None, maps_per_block=50) as writer:
        for array in arrays:
            writer.add(array)
    server.files["/a.ddf"] = buffer.getvalue()
    archive = Archive(f"{server.url}/a.ddf")
    server.requests.clear()
    for i in (60, 70, 99, 50):
        assert np.array_equal(archive[i], arrays[i])
    assert len(server.requests) == 1


def test_a_small_archive_is_read_when_it_is_opened(server: WebServer) -> None:
    server.files["/a.ddf"], arrays = large_archive(["a", "b"])
    archive = Archive(f"{server.url}/a.ddf")
    assert len(server.requests) == 2  # its size and its contents
    assert np.array_equal(archive["b"], arrays[1])
    assert len(server.requests) == 2


@given(st.lists(st.tuples(st.integers(0, 3 << 20), st.integers(0, 5 << 19)), max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranges_are_what_the_file_contains(reads: list[tuple[int, int]], follow: bool) -> None:
    files = fsspec.filesystem("memory")
    if not files.exists("/random"):
        files.pipe_file("/random", np.random.default_rng(1).bytes(3 << 20))
    data = files.cat_file("/random")
    source = open_source("memory://random")
    end = 0
    for start, count in reads:
        if follow:  # about where the last range ended
            start = min(end + start % (1 << 17), len(data))
        count = min(count, len(data) - start)
        assert source.read(start, count) == data[start : start + count]
        assert len(source._recent[1]) <= 2 << 20  # type: ignore[attr-defined]
        end = start + count
    with pytest.raises(DamagedArchiveError, match="it is truncated"):
        source.read(len(data) - 5, 6)
    with pytest.raises(DamagedArchiveError, match="it is truncated"):
        source.read(len(data) + 5, 6)


def test_nothing_beyond_the_end_is_requested(server: WebServer, data: bytes) -> None:
    source = open_source(f"{server.url}/a.ddf")
    for start, count in ((len(data), 1), (len(data) + 5, 6), (len(data) - 5, 6)):
        with pytest.raises(DamagedArchiveError, match="it is truncated"):
            source.read(start, count)
    assert source.read(len(data), 0) == b""
    assert [request.count for request in server.requests] == [0, 5]


def test_threads_share_an_archive_behind_a_url(server: WebServer, arrays: list[np.ndarray]) -> None:
    archive = Archive(f"{server.url}/a.ddf")

    def read(seed: int) -> bool:
        start = int(np.random.default_rng(seed).integers(0, 250))
        return all(np.array_equal(archive[i], arrays[i]) for i in range(start, start + 50))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(24)))


def test_a_server_without_ranges_is_asked_for_the_file_once(server: WebServer) -> None:
    server.files["/a.ddf"], arrays = large_archive([f"{i}.png" for i in range(300)])
    server.supports_ranges = False
    archive = Archive(f"{server.url}/a.ddf")
    assert all(np.array_equal(archive[i], arrays[i]) for i in (7, 299, 0))
    assert server.requested("/a.ddf") == 1


def test_a_server_that_does_not_tell_sizes_is_asked_for_the_file(server: WebServer, arrays: list[np.ndarray]) -> None:
    server.tells_sizes = False
    archive = Archive(f"{server.url}/a.ddf")
    assert archive.size == len(server.files["/a.ddf"])
    assert all(np.array_equal(archive[i], arrays[i]) for i in (7, 299, 0))


def test_only_the_end_and_the_header_are_read_to_open(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.ddf").write_bytes(data)
    archive = Archive(tmp_path / "a.ddf")
    read: list[int] = []
    kept = archive.contents.source.read

    def count(start: int, size: int) -> bytes:
        read.append(size)
        return kept(start, size)

    source = archive.contents.source
    source.read = count  # type: ignore[method-assign]
    type(archive.contents)(source)
    assert len(read) <= 2
    assert sum(read) <= 1 << 17


def test_unsupported_sources_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        Archive(tmp_path)
    with pytest.raises(FileNotFoundError):
        Archive(tmp_path / "missing.ddf")
    (tmp_path / "text.ddf").write_text("text")
    with (tmp_path / "text.ddf").open() as file, pytest.raises(TypeError, match="open it in binary mode"):
        Archive(file)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="archives are written to files"):
        ArchiveWriter("memory://a.ddf", None)
    with pytest.raises(TypeError, match="a path, a URL, bytes or an open file, not 5"):
        Archive(5)  # type: ignore[arg-type]
