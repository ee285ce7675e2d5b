"""Archives are read from files, memory and URLs, and only as far as needed."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest

from ddf.archive import Archive, ArchiveWriter, recover, verify
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


class Ranges(BaseHTTPRequestHandler):
    """Serves one file in ranges."""

    data = b""
    requests: list[tuple[int, int]] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = self.data[int(first) : int(last) + 1]
        self.requests.append((int(first), len(part)))
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(data: bytes) -> Iterator[str]:
    Ranges.data, Ranges.requests = data, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/a.ddf"
        http.shutdown()
        thread.join()


def test_an_archive_on_a_server_is_read_in_ranges(server: str, data: bytes, arrays: list[np.ndarray]) -> None:
    pytest.importorskip("aiohttp")
    archive = Archive(server)
    opening = list(Ranges.requests)
    assert len(opening) <= 2  # the end with the index, and the header
    assert np.array_equal(archive["map 123"], arrays[123])
    assert np.array_equal(archive[5], arrays[5])
    each = Ranges.requests[len(opening) :]
    table = archive.contents.index.table
    assert [count for _, count in each] == [table.sizes[123], table.sizes[5]]
    assert sum(count for _, count in Ranges.requests) < len(data) / 3


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
