from __future__ import annotations

import json
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from memplan.errors import BadMagic, MissingShard, RemoteError, ShardMismatch, TruncatedHeader
from memplan.gguf import cache
from memplan.gguf.http import Policy
from memplan.gguf.remote import FIRST_WINDOW, SHARD_WINDOW, Access, in_parallel, read_remote
from memplan.gguf.source import read_header
from memplan.models.open import open_model
from tests.gguf import writer
from tests.gguf.server import Answer, Handler, Server, cut, redirect, running, silent, status, trickle

pytestmark = pytest.mark.slow

SMALL = writer.small()
WITH_DATA = SMALL + b"\0" * 3_000_000
QUICK = Policy(timeout=0.5, attempts=3, backoff=0.001, slow_after=0.3, slow_bytes=1000)
PLAIN = Access(cache=False, policy=QUICK)


def read(server: Server, path: str, access: Access = PLAIN) -> dict[str, object]:
    header = read_remote(server.address + path, access)
    return {"tensors": dict(header.tensors), "metadata": dict(header.metadata)}


def same(answer: dict[str, object], data: bytes = SMALL) -> bool:
    header = read_header(data)
    return answer == {"tensors": dict(header.tensors), "metadata": dict(header.metadata)}


def large() -> bytes:
    """A header that is longer than the first window of another shard."""
    return writer.header([*writer.SMALL_KEYS, ("big", "arr[u32]", range(100_000))], writer.SMALL_TENSORS)


def test_one_request_reads_a_header_and_not_the_data(server: Server) -> None:
    server.files["/m.gguf"] = WITH_DATA + b"\0" * (40 << 20)
    assert same(read(server, "/m.gguf"))
    assert server.asked == [("/m.gguf", f"bytes=0-{FIRST_WINDOW - 1}")]
    assert server.sent < 8 << 20  # what stands in the sockets' buffers, not 12 MiB and not the file


def test_a_header_that_is_the_whole_file(server: Server) -> None:
    server.files["/m.gguf"] = SMALL
    assert same(read(server, "/m.gguf"))
    assert len(server.log) == 1


def test_open_model_takes_addresses(server: Server) -> None:
    server.files["/m.gguf"] = SMALL
    assert open_model(f"{server.address}/m.gguf", PLAIN).tensors == read_header(SMALL).tensors
    assert open_model(f"{server.address}/m.gguf?download=true", PLAIN).name.endswith("/m.gguf")


def test_shards_are_read_from_any_of_them(server: Server) -> None:
    parts = writer.shards(3)
    for i, part in enumerate(parts):
        server.files[f"/m-{i + 1:05d}-of-00003.gguf"] = part + b"\0" * 200_000
    assert same({**read(server, "/m-00002-of-00003.gguf"), "metadata": read_header(SMALL).metadata}) is False
    header = read_remote(f"{server.address}/m-00002-of-00003.gguf", PLAIN)
    assert header.shards == 3 and list(header.tensors) == list(read_header(SMALL).tensors)
    asked = dict(server.asked[3:])
    assert asked["/m-00001-of-00003.gguf"] == f"bytes=0-{FIRST_WINDOW - 1}"
    assert asked["/m-00003-of-00003.gguf"] == f"bytes=0-{SHARD_WINDOW - 1}"
    assert len(server.log) == 6


def test_a_longer_shard_is_continued_never_read_again(server: Server) -> None:
    first = writer.shards(2)[0]
    split: list[writer.Key] = [("split.no", "u16", 1), ("split.count", "u16", 2), ("split.tensors.count", "i32", 22)]
    second = writer.header([*split, ("x", "arr[u8]", bytes(99_000))], writer.SMALL_TENSORS[11:])
    server.files |= {"/m-00001-of-00002.gguf": first, "/m-00002-of-00002.gguf": second + b"\0" * 999_999}
    assert len(read_remote(f"{server.address}/m-00001-of-00002.gguf", PLAIN).tensors) == 22
    ranges = [asked for path, asked in server.asked if "00002-of" in path]
    assert ranges == ["bytes=0-65535", f"bytes=65536-{65536 + 262144 - 1}"]


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("/m-00003-of-00003.gguf", RemoteError, "-of-00003.gguf: not found on the server (404)"),
        ("/renamed.gguf", RemoteError, "its name does not end in -NNNNN-of-00003.gguf"),
    ],
)
def test_shards_that_are_not_there(server: Server, path: str, error: type[Exception], said: str) -> None:
    server.files[path] = writer.shards(3)[2]
    with pytest.raises(error) as caught:
        read(server, path)
    assert said in str(caught.value)


def test_redirects_keep_the_range(server: Server) -> None:
    server.files["/cdn/m.gguf"] = WITH_DATA
    for code in (301, 302, 303, 307, 308):
        server.answers["/m.gguf"] = redirect(f"{server.address}/cdn/m.gguf?signature=x", code)
        assert same(read(server, "/m.gguf"))
    assert {asked for _, asked in server.asked} == {f"bytes=0-{FIRST_WINDOW - 1}"}
    server.answers["/m.gguf"] = redirect("/cdn/m.gguf")
    assert same(read(server, "/m.gguf"))


def test_the_token_goes_to_its_own_host_only(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with running() as other:
        other.files["/cdn"] = SMALL
        server.answers["/o/r/resolve/main/m.gguf"] = redirect("/same")
        server.answers["/same"] = redirect(f"{other.address}/cdn")
        read_remote("hf:o/r/m.gguf", PLAIN)
        assert [headers.get("Authorization") for _, headers in server.log] == ["Bearer hf_secret"] * 2
        assert "Authorization" not in other.log[0][1]
        other.files["/x.gguf"] = SMALL
        read_remote(f"{other.address}/x.gguf", PLAIN)
        assert "Authorization" not in other.log[1][1]
        server.files["/x.gguf"] = SMALL
        read_remote(f"{server.address}/x.gguf", PLAIN)
        assert server.log[-1][1]["Authorization"] == "Bearer hf_secret"


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("/m.gguf", "redirects in a circle"),
        ("ftp://127.0.0.1/m.gguf", "redirects to ftp"),
        ("file:///etc/passwd", "redirects to what is not followed"),
    ],
)
def test_redirects_that_are_not_followed(server: Server, to: str, said: str) -> None:
    server.answers["/m.gguf"] = redirect(to)
    with pytest.raises(RemoteError, match=said):
        read(server, "/m.gguf")
    assert len(server.log) < 12


def test_servers_without_ranges_are_read_no_further_than_needed(server: Server) -> None:
    server.ranges = False
    server.files["/m.gguf"] = SMALL + b"\0" * (64 << 20)
    assert same(read(server, "/m.gguf"))
    assert len(server.log) == 1 and server.sent < 16 << 20


def test_servers_without_ranges_whose_connection_dies(server: Server) -> None:
    server.ranges = False
    server.files["/m.gguf"] = data = large()
    server.failures = [cut(data, 200_000)]
    assert same(read(server, "/m.gguf"), data)
    assert len(server.log) == 2


def test_dying_connections_are_continued(server: Server) -> None:
    server.files["/m.gguf"] = data = large()
    server.failures = [cut(data, 100_000), cut(data, 150_000), status(503), cut(data, 1)]
    assert same(read(server, "/m.gguf", Access(cache=False, policy=replace(QUICK, attempts=4))), data)
    starts = [int(asked[6:].split("-")[0]) for _, asked in server.asked]
    assert starts == [0, 100_000, 250_000, 250_000, 250_001]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(server: Server, code: int) -> None:
    server.files["/m.gguf"] = SMALL
    server.failures = [status(code, Retry_After="0"), status(code)]
    assert same(read(server, "/m.gguf"))
    server.failures = [status(code)] * 3
    with pytest.raises(RemoteError, match=rf"the server answers {code}.* after 3 attempts, 0 bytes read"):
        read(server, "/m.gguf")


def test_a_server_that_asks_for_patience(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    server.files["/m.gguf"] = SMALL
    soon = formatdate(time.time() + 15, usegmt=True)
    server.failures = [status(429, Retry_After="2"), status(503, Retry_After=soon)]
    assert same(read(server, "/m.gguf"))
    assert pauses[0] == 2.0 and 10 < pauses[1] <= 15
    server.failures = [status(429, Retry_After="nonsense"), status(429, Retry_After="-1")]
    assert same(read(server, "/m.gguf")) and max(pauses[2:]) < 1
    for much in ("3600", "9" * 18, formatdate(time.time() + 3600, usegmt=True)):
        server.log.clear()
        server.failures = [status(429, Retry_After=much)]
        with pytest.raises(RemoteError, match=r"answers 429 .* asks to be left alone for [0-9,]+ s; try later"):
            read(server, "/m.gguf")
        assert len(server.log) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [(401, "denies access (401)"), (403, "HF_TOKEN"), (404, "not found on"), (410, "not found"), (400, "answers 400")],
)
def test_lasting_failures_are_not(server: Server, code: int, said: str) -> None:
    server.answers["/m.gguf"] = status(code)
    with pytest.raises(RemoteError) as caught:
        read(server, "/m.gguf?token=secret")
    assert said in str(caught.value) and "secret" not in str(caught.value)
    assert len(server.log) == 1


def test_silence_and_trickles_end(server: Server) -> None:
    started = time.monotonic()
    server.failures = [silent(1.0)] * 3
    with pytest.raises(RemoteError, match="no answer in time after 3 attempts"):
        read_remote(f"{server.address}/m.gguf", Access(cache=False, policy=Policy(0.2, 3, backoff=0.001)))
    server.answers["/m.gguf"] = trickle(SMALL)
    with pytest.raises(RemoteError, match=r"bytes in 0 s after 3 attempts"):
        read(server, "/m.gguf")
    assert time.monotonic() - started < 8


def test_a_server_that_trickles_has_so_much_time_in_all(server: Server) -> None:
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nX: ")
        for _ in range(16):
            time.sleep(0.05)
            handler.wfile.write(b"x")

    server.answers["/m.gguf"] = endless
    started = time.monotonic()
    with pytest.raises(RemoteError, match="not read in 0 s; check the connection"):
        read_remote(f"{server.address}/m.gguf", Access(cache=False, policy=Policy(total=0.3)))
    assert time.monotonic() - started < 4


def test_plain_text_where_tls_was_asked_for_is_not_tried_again(server: Server) -> None:
    address = server.address.replace("http://", "https://")
    with pytest.raises(RemoteError, match=r"does not speak TLS as https:// asks for; check the address") as found:
        read_remote(f"{address}/m.gguf", PLAIN)
    assert "attempts" not in str(found.value)


def test_nobody_there() -> None:
    with pytest.raises(RemoteError, match="the host refuses the connection after 3 attempts"):
        read_remote("http://127.0.0.1:9/m.gguf", PLAIN)


def test_a_file_that_changes_between_two_requests(server: Server) -> None:
    data = large()
    server.failures = [cut(data, 1000)]
    server.files["/m.gguf"] = data + b"x"
    with pytest.raises(RemoteError, match="changed on the server"):
        read(server, "/m.gguf")


@pytest.mark.parametrize(
    ("data", "error"), [(b"", TruncatedHeader), (b"<!DOCTYPE html>", BadMagic), (SMALL[:5000], TruncatedHeader)]
)
def test_what_is_no_model(server: Server, data: bytes, error: type[Exception]) -> None:
    server.files["/m.gguf"] = data
    with pytest.raises(error):
        read(server, "/m.gguf")
    assert not cache.load(f"{server.address}/m.gguf")


def test_compressed_answers_and_wrong_ranges(server: Server) -> None:
    server.answers["/m.gguf"] = status(200, Content_Encoding="gzip")
    with pytest.raises(RemoteError, match="compressed"):
        read(server, "/m.gguf")
    for said in ("bytes 5-9/10", "elephants", ""):
        server.answers["/m.gguf"] = status(206, Content_Range=said)
        with pytest.raises(RemoteError, match="sends"):
            read(server, "/m.gguf")


def test_the_cache(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(policy=QUICK)
    server.files["/m.gguf"] = WITH_DATA
    assert same(read(server, "/m.gguf", access))
    assert same(read(server, "/m.gguf", access)) and len(server.log) == 1
    assert same(read(server, "/m.gguf", Access(offline=True)))
    entry = cache.load(f"{server.address}/m.gguf")
    assert entry and entry.data == SMALL
    # older: asked about, not fetched
    monkeypatch.setattr(cache, "FRESH", 0.0)
    assert same(read(server, "/m.gguf", access))
    assert "If-None-Match" in server.log[1][1]
    # another version
    server.files["/m.gguf"] = large()
    assert same(read(server, "/m.gguf", access), large())
    # the server is away
    warned: list[str] = []
    server.failures = [status(503)] * 9
    assert same(read(server, "/m.gguf", Access(policy=QUICK, warn=warned.append)), large())
    assert len(warned) == 1 and "cached" in warned[0]
    # what is kept is kept anew, where the cache is not asked
    server.failures = []
    server.files["/m.gguf"] = SMALL
    assert same(read(server, "/m.gguf", PLAIN))
    assert same(read(server, "/m.gguf", Access(offline=True)))
    # nobody asks the cache
    server.failures = [status(404)]
    with pytest.raises(RemoteError, match="not found"):
        read(server, "/m.gguf", PLAIN)


def test_damaged_entries_are_fetched_again(server: Server, tmp_path: Path) -> None:
    access = Access(policy=QUICK)
    server.files["/m.gguf"] = SMALL
    read(server, "/m.gguf", access)
    (entry,) = (tmp_path / "cache" / "memplan").iterdir()
    good = entry.read_bytes()
    for bad in (b"", b"{}", b"[" * 5000, good[:-1], good[:-1] + b"!", good.replace(b'"version": 1', b'"version": 9')):
        entry.write_bytes(bad)
        asked = len(server.log)
        assert same(read(server, "/m.gguf", access)) and len(server.log) == asked + 1
        assert entry.read_bytes() == good


def test_offline_without_an_entry(server: Server) -> None:
    for model in (f"{server.address}/m.gguf", "hf:o/r/m.gguf", "hf:o/r:Q8_0"):
        with pytest.raises(RemoteError, match="not in memplan's cache"):
            read_remote(model, Access(offline=True))
    assert server.log == []


def test_a_cache_that_cannot_be_written_is_no_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    server.files["/m.gguf"] = SMALL
    assert same(read(server, "/m.gguf", Access(policy=QUICK)))


def test_old_entries_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "KEPT", 3)
    for i in range(5):
        cache.store(f"https://example.org/{i}", b"x", "")
    assert len(list((tmp_path / "memplan").iterdir())) == 3
    assert cache.load("https://example.org/4")


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_where_the_cache_is(platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    wanted = {"linux": ".cache/memplan", "darwin": "Library/Caches/memplan", "win32": "AppData/Local/memplan/cache"}
    assert cache.cache_folder() == tmp_path / wanted[platform]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.cache_folder() == tmp_path / "x" / "memplan"


def test_progress(server: Server) -> None:
    seen: list[tuple[str, int]] = []
    server.files["/m.gguf"] = SMALL
    read(server, "/m.gguf", Access(cache=False, progress=lambda name, done: seen.append((name, done))))
    assert seen[-1] == (f"{server.address}/m.gguf", len(SMALL))


def test_in_parallel_ends_with_the_first_error() -> None:
    def fail() -> int:
        raise RemoteError("x")

    def wait() -> int:
        time.sleep(5)
        return 1

    assert in_parallel([lambda i=i: i for i in range(50)]) == list(range(50))  # type: ignore[misc]
    started = time.monotonic()
    with pytest.raises(RemoteError):
        in_parallel([wait, fail])
    assert time.monotonic() - started < 2


def test_mixed_up_shards(server: Server) -> None:
    parts = writer.shards(3)
    for i, part in enumerate((parts[0], parts[2], parts[1])):
        server.files[f"/m-{i + 1:05d}-of-00003.gguf"] = part
    with pytest.raises(ShardMismatch):
        read(server, "/m-00001-of-00003.gguf")
    with pytest.raises(MissingShard):
        read_header(parts[0])


def test_tree_pages_are_joined(server: Server) -> None:
    listing = "/api/models/o/r/tree/main"

    def page(names: list[str], after: str = "") -> bytes:
        return json.dumps([{"type": "file", "path": name} for name in names]).encode()

    def first(handler: object) -> None:
        from tests.gguf.server import Handler

        assert isinstance(handler, Handler)
        if "cursor" in handler.path:
            handler.give(page(["m-Q8_0.gguf"]))
            return
        body = page(["README.md", "m-Q2_K.gguf"])
        handler.send_response(200)
        handler.send_header("Link", f'<{server.address}{listing}?cursor=2>; rel="next"')
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    server.answers[listing] = first
    server.files["/o/r/resolve/main/m-Q8_0.gguf"] = SMALL
    assert read_remote("hf:o/r:Q8_0", PLAIN).name.endswith("m-Q8_0.gguf")


def stalls(data: bytes, upto: int) -> Answer:
    """The file, but nothing more comes after so many bytes."""

    def answer(handler: Handler) -> None:
        handler.give(data, upto=upto)
        handler.wfile.flush()
        time.sleep(2)

    return answer


def test_the_next_try_goes_on_from_what_was_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = large()
    server.files["/m.gguf"] = data
    access = Access(policy=Policy(total=0.5))
    for etag in (True, False):
        server.failures.append(stalls(data, 100_000))
        with pytest.raises(RemoteError, match=r"not read in 0 s.* 100,000 bytes came"):
            read_remote(f"{server.address}/m.gguf", access)
        if not etag:  # it is another file now
            server.files["/m.gguf"] = data = SMALL
        server.log.clear()
        assert same(read(server, "/m.gguf", Access()), data)
        assert server.asked[0][1].startswith("bytes=100000-")
        assert len(server.asked) == (1 if etag else 2)
        assert len(list((tmp_path / "memplan").iterdir())) == 1  # the header, and no part of it
        cache.drop(f"{server.address}/m.gguf")


def test_what_waits_says_so(server: Server) -> None:
    said: list[tuple[str, int]] = []
    server.answers["/m.gguf"] = silent(2)
    with pytest.raises(RemoteError, match="nothing came"):
        access = Access(cache=False, progress=lambda *a: said.append(a), policy=Policy(total=1.2))
        read_remote(f"{server.address}/m.gguf", access)
    assert said and said[0][1] == 0


def test_headers_of_shards_have_a_size_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.gguf.remote.MAX_HEADER", 1_000)
    for i, data in enumerate(writer.shards(3)):
        server.files[f"/m-{i + 1:05d}-of-00003.gguf"] = data
    with pytest.raises(RemoteError, match="headers of its shards have more than"):
        read(server, "/m-00001-of-00003.gguf")
