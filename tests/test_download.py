"""Downloads from a server on this machine that is slow, breaks off, or sends the wrong bytes."""

import gzip
import hashlib
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ddf.data import DownloadError
from ddf.data.download import cache_folder, fetch

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT, and misbehaves as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts = 0  # answers that break off halfway
        self.wrong = 0  # answers with wrong bytes
        self.stalls = 0  # answers that stop coming
        self.ranges = True
        self.content = CONTENT
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.path == "/missing":
            self.send_error(404)
            return
        content, start = self.server.content, 0
        if wanted and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        if self.server.wrong:
            self.server.wrong -= 1
            body = bytes(len(body))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(body[: len(body) // 2])
            return
        if self.server.stalls:
            self.server.stalls -= 1
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(1.0)
            return
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for _ in range(2):
        assert fetch([f"{server.url}/file"], path, MD5).read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert list(path.parent.iterdir()) == [path]


def test_what_broke_off_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = 2
    assert fetch([f"{server.url}/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=150000-", "bytes=225000-"]


def test_a_later_call_resumes_too(server: Server, tmp_path: Path) -> None:
    server.cuts = 9
    with pytest.raises(
        DownloadError, match=r"cannot download file; .* put the file there yourself(.|\n)*broke off after"
    ):
        fetch([f"{server.url}/file"], tmp_path / "file", MD5, tries=1)
    assert not (tmp_path / "file").exists()  # half a download never counts as one
    server.cuts = 0
    assert fetch([f"{server.url}/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=150000-"


def test_a_server_that_cannot_resume_starts_anew(server: Server, tmp_path: Path) -> None:
    server.cuts, server.ranges = 1, False
    assert fetch([f"{server.url}/file"], tmp_path / "file", MD5).read_bytes() == CONTENT


def test_a_server_that_stalls_is_left(server: Server, tmp_path: Path) -> None:
    server.stalls = 1
    assert fetch([f"{server.url}/file"], tmp_path / "file", MD5, timeout=0.3).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_wrong_bytes_are_refused_and_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    server.wrong = 1
    urls = [f"{server.url}/one", f"{server.url}/two"]
    assert fetch(urls, tmp_path / "file", MD5).read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/one", "/two"]
    server.wrong = 9
    with pytest.raises(DownloadError, match=rf"its MD5 is [0-9a-f]+, but should be {MD5}"):
        fetch(urls, tmp_path / "other", MD5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_part_with_wrong_bytes_is_thrown_away(server: Server, tmp_path: Path) -> None:
    for part in (bytes(1000), bytes(400_000)):  # wrong, and longer than the file
        (tmp_path / "file.part").write_bytes(part)
        assert fetch([f"{server.url}/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
        (tmp_path / "file").unlink()


def test_what_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"/missing: HTTP Error 404"):
        fetch([f"{server.url}/missing"], tmp_path / "file", MD5, tries=1)
    with pytest.raises(DownloadError, match="refused"):
        fetch(["http://127.0.0.1:9/file"], tmp_path / "file", MD5, tries=1)


def test_the_checksum_of_a_gzipped_file_is_that_of_its_contents(server: Server, tmp_path: Path) -> None:
    server.content = gzip.compress(CONTENT, mtime=1)
    assert gzip.decompress(fetch([f"{server.url}/file"], tmp_path / "file.gz", MD5).read_bytes()) == CONTENT


def test_the_cache_has_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDF_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("DDF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ddf"


def test_several_at_once_download_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch([f"{server.url}/file"], tmp_path / "file", MD5), range(4)))
    assert [path.read_bytes() == CONTENT for path in paths] == [True] * 4
    assert len(server.asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
