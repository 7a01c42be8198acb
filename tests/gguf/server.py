"""A local web server that behaves as badly as asked."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


@dataclass
class Server:
    """``files``: path to content.  ``answers``: path to what answers in place of a file.  ``log``: requests so far."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    ranges: bool = True
    etags: bool = True
    failures: list[Answer] = field(default_factory=list)
    """Answers to the next requests, whatever they ask for."""
    log: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    sent: int = 0

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(path, headers.get("Range", "")) for path, headers in self.log]


class Handler(BaseHTTPRequestHandler):
    server_of: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server_of
        path = self.path.partition("?")[0]
        server.log.append((self.path, dict(self.headers)))
        try:
            if server.failures:
                server.failures.pop(0)(self)
            elif path in server.answers:
                server.answers[path](self)
            elif path in server.files:
                self.give(server.files[path])
            else:
                self.status(404)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def status(self, code: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def give(self, data: bytes, *, upto: int | None = None, pause: float = 0.0) -> None:
        """The range asked for, or all of it; ``upto``: so many bytes of it, then the connection is closed."""
        etag = f'"{hash(data)}"'
        if self.server_of.etags and self.headers.get("If-None-Match") == etag:
            self.status(304)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and self.server_of.ranges:
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
            if start >= len(data):
                self.status(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            start, end = 0, len(data)
            self.send_response(200)
        self.send_header("Content-Length", str(end - start))
        if self.server_of.etags:
            self.send_header("ETag", etag)
        self.end_headers()
        if upto is not None:
            end = min(end, start + upto)
        step = 1 if pause else 65536
        while start < end:
            self.wfile.write(data[start : min(start + step, end)])
            self.server_of.sent += min(step, end - start)
            start += step
            time.sleep(pause)


def redirect(to: str, code: int = 302) -> Answer:
    return lambda handler: handler.status(code, Location=to)


def status(code: int, **headers: str) -> Answer:
    return lambda handler: handler.status(code, **headers)


def cut(data: bytes, upto: int) -> Answer:
    """The file, but the connection dies after so many bytes."""
    return lambda handler: handler.give(data, upto=upto)


def trickle(data: bytes, pause: float = 0.01) -> Answer:
    """The file, a byte at a time."""
    return lambda handler: handler.give(data, pause=pause)


def silent(seconds: float) -> Answer:
    return lambda handler: time.sleep(seconds)


@contextmanager
def running() -> Iterator[Server]:
    server = Server()

    class Own(Handler):
        server_of = server

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as http:
        http.daemon_threads = True
        server.address = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
