"""Downloads from a local server that disconnects, stalls or sends the wrong bytes."""

import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ddf.data import DownloadError
from ddf.data.download import fetch
from ddf.files import cache_folder

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT. The first answers fail as often as requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.truncated = 0
        self.corrupt = 0
        self.stalled = 0
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        body = CONTENT
        if self.server.corrupt:
            self.server.corrupt -= 1
            body = bytes(len(body))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.truncated:
            self.server.truncated -= 1
            body = body[: len(body) // 2]
        elif self.server.stalled:
            self.server.stalled -= 1
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(1.0)
            return
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("DDF_CACHE", str(tmp_path))
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # between tries
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        path = fetch([f"{server.url}/file"], "deep/file", MD5)
        assert path == tmp_path / "deep" / "file"
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failure", ["truncated", "corrupt"])
def test_a_failed_download_is_repeated(failure: str, server: Server) -> None:
    setattr(server, failure, 2)
    assert fetch([f"{server.url}/file"], "file", MD5).read_bytes() == CONTENT
    assert len(server.requests) == 3


@pytest.mark.parametrize("failure", ["truncated", "corrupt"])
def test_an_incomplete_file_is_never_kept(failure: str, server: Server, tmp_path: Path) -> None:
    setattr(server, failure, 9)
    with pytest.raises(DownloadError, match=rf"cannot download file; .* put the file at {tmp_path}/file"):
        fetch([f"{server.url}/file"], "file", MD5, tries=2)
    assert not list(tmp_path.iterdir())


def test_a_stalled_download_is_repeated(server: Server) -> None:
    server.stalled = 1
    assert fetch([f"{server.url}/file"], "file", MD5, timeout=0.3).read_bytes() == CONTENT


def test_mirrors_are_tried_in_order(server: Server) -> None:
    assert fetch([f"{server.url}/missing", f"{server.url}/file"], "file", MD5, tries=1).read_bytes() == CONTENT
    assert server.requests == ["/missing", "/file"]


def test_the_error_lists_every_mirror(server: Server) -> None:
    with pytest.raises(DownloadError, match=r"/missing: 404(.|\n)*http://127.0.0.1:9/file: .*refused"):
        fetch([f"{server.url}/missing", "http://127.0.0.1:9/file"], "file", MD5, tries=1)


def test_the_cache_folder_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDF_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("DDF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ddf"
