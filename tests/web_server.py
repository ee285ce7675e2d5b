"""A web server for tests, which counts requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import quote, unquote


class Request(NamedTuple):
    method: str
    path: str
    first: int
    count: int  # bytes of the answer


class WebServer(ThreadingHTTPServer):
    """Serves files from memory, and lists of the files in folders, whose paths end with a slash.

    Arguments:
        files: The files: their contents by path, such as "/masks/1.png".
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.requests: list[Request] = []
        self.answers: dict[str, int] = {}  # paths that are answered with this status instead
        self.held: dict[str, threading.Event] = {}  # paths that are answered when the event is set
        self.supports_ranges = True
        self.tells_sizes = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def requested(self, path: str) -> int:
        """Return how many times the contents of a file were requested."""
        return sum(request.method == "GET" and request.path == path for request in self.requests)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        server, path = self.server, unquote(self.path)
        data, kind = server.files.get(path), "application/octet-stream"
        if path.endswith("/"):
            data, kind = self._listing(path), "text/html"
        status = server.answers.get(path, 200 if data is not None else 404)
        data = data if data is not None and status == 200 else b""
        ranges = self.headers.get("Range", "").removeprefix("bytes=") if server.supports_ranges else ""
        first = 0
        if ranges and status == 200:
            first, last = (int(number) for number in ranges.split("-"))
            status = 206 if first < len(data) else 416
            data = data[first : last + 1]
        server.requests.append(Request(self.command, path, first, len(data) if body else 0))
        if body and path in server.held:
            server.held[path].wait()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if server.tells_sizes:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _listing(self, path: str) -> bytes | None:
        below = {name.removeprefix(path) for name in self.server.files if name.startswith(path)}
        entries = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in below})
        links = "".join(f'<a href="{quote(entry)}">{entry}</a>\n' for entry in entries)
        return f'<a href="?C=N;O=D">sort</a> <a href="../">up</a>\n{links}'.encode() if below else None

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def web_server(files: dict[str, bytes]) -> Iterator[WebServer]:
    """Run a web server."""
    with WebServer(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            for event in server.held.values():
                event.set()
            server.shutdown()
            thread.join()
