"""The server: those files, by those names, for this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from memplan.errors import OutputError
from memplan.page.server import PageServer

FILES = {
    "index.html": b"<!doctype html>",
    "worker.js": b"//",
    "pyodide/pyodide.asm.wasm": b"\0asm",
    "memplan.zip": b"PK",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with PageServer(FILES) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: PageServer, path: str, method: str = "GET", host: str = "") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/worker.js?v=1", "worker.js", "text/javascript; charset=utf-8"),
        ("/pyodide/pyodide.asm.wasm", "pyodide/pyodide.asm.wasm", "application/wasm"),
        ("/memplan.zip", "memplan.zip", "application/zip"),
    ],
)
def test_its_files(server: PageServer, path: str, name: str, kind: str) -> None:
    answer, body = get(server, path)
    assert (answer.status, body, answer.headers["Content-Type"]) == (200, FILES[name], kind)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    answer, body = get(server, path, "HEAD")
    assert (answer.status, body, answer.headers["Content-Length"]) == (200, b"", str(len(FILES[name])))


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "//etc/passwd", "/pyodide/", "/engine.py", "/index.html/", "/%2e%2e/"]
)
def test_nothing_else(server: PageServer, path: str) -> None:
    assert get(server, path)[0].status == 404


def test_no_other_site_that_calls_itself_this_machine(server: PageServer) -> None:
    assert get(server, "/", host="evil.example")[0].status == 403
    assert get(server, "/", host=f"localhost:{server.server_port}")[0].status == 200
    assert get(server, "/", method="POST")[0].status == 501


def test_it_listens_to_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match=r"port \d+: .*; give another with --port"):
            PageServer(FILES, taken.getsockname()[1])


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_the_command_serves_until_ctrl_c() -> None:
    code = """
import memplan.page.core
memplan.page.core.pyodide_core = lambda folder: {}
from memplan.cli import main
raise SystemExit(main(["page", "--no-browser"]))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr and process.stdout
        said = process.stderr.readline()
        port = int(said.partition("/ (Ctrl-C")[0].rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/style.css")
        assert connection.getresponse().status == 200
        connection.close()
        os.kill(process.pid, signal.SIGINT)
        assert (process.wait(timeout=20), process.stderr.read(), process.stdout.read()) == (0, "", "")
