"""Serves the page's files to this machine, from memory, by their names alone."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from memplan.errors import OutputError

ADDRESS: Final = "127.0.0.1"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".zip": "application/zip",
    ".txt": "text/plain; charset=utf-8",
}


class PageServer(ThreadingHTTPServer):
    """A server of ``files`` on 127.0.0.1; ``port`` 0: any that is free. Raises OutputError when it cannot listen."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], port: int = 0) -> None:
        self.files = files
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise OutputError(f"port {port}: {error.strerror or error}; give another with --port") from None

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        """The file of that name. A page from elsewhere that has a name of its own for this machine gets nothing."""
        name = self.path.partition("?")[0].removeprefix("/") or "index.html"
        data = self.server.files.get(name)
        own = self.headers.get("Host") in [f"{host}:{self.server.server_port}" for host in (ADDRESS, "localhost")]
        if data is None or not own:
            self.send_error(404 if own else 403)
            return
        self.send_response(200)
        self.send_header("Content-Type", _TYPES.get(name[name.rfind(".") :], "application/octet-stream"))
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep stderr quiet."""
