"""What is fuzzed: each target makes one input from a source of randomness and hands it to memplan.

A target ends quietly whether the input is taken or refused with memplan's own errors; anything else is a fault.
``tests/fuzzing/test_bounded.py`` runs each a few hundred times, ``scripts/fuzz.py`` for as long as wanted.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memplan.cli.arguments import Known, sort_words
from memplan.diagnosing.diagnosis import diagnose
from memplan.diagnosing.log import Load
from memplan.diagnosing.reader import read_log
from memplan.errors import MemplanError
from memplan.estimator import estimate
from memplan.gguf import hub
from memplan.gguf.header import parse_header
from memplan.gguf.http import Policy
from memplan.gguf.raw import read_raw
from memplan.gguf.remote import Access, read_remote
from memplan.gguf.source import read_header
from memplan.llama import flag_table
from memplan.llama.command_file import open_line
from memplan.llama.command_line import read_text
from memplan.llama.flags import check_devices, parse_flags
from memplan.llama.patterns import compile_pattern
from memplan.llama.preset_file import with_preset
from memplan.machine.llama_server import parse_devices
from memplan.models.builtin import builtin_header, header_of
from memplan.models.catalogue import MODELS
from memplan.rig import parse_gpu_spec, parse_gpus
from memplan.rig_file import parse_rig
from tests.gguf import writer

Random = random.Random
LOGS = Path(__file__).parent.parent / "data" / "logs"
SMALL = writer.small()
SOUND = (SMALL, writer.header(writer.SMALL_KEYS, writer.SMALL_TENSORS, version=2), *writer.shards(2))
SIZES = (0, 1, 2, 3, 5, 8, 31, 32, 64, 127, 128, 256, 257, 512, 1000, 4096, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS = (
    "0", "1", "-1", "4", "512", "2048", "131072", "2147483647", "2147483648", "-2147483649", "1e9", "0x10", "9" * 50,
    "½", "", " 7 ", "+3", "1,2", "1/2", "nan", "inf", "auto", "all", "none", "on", "off",
)  # fmt: skip
PIECES = (
    "blk", "\\.", ".", ".*", ".+", "(", ")", "(?:", "[0-9]", "[", "]", "|", "^", "$", "\\d", "{2}", "{1,", "}", "*",
    "+", "?", "\\b", "(a+)+", "(.*)*", "exps", "\\", "[[:digit:]]", "[^", "\\1", "ffn", "-", ",", "=", "é", "\0",
)  # fmt: skip


def damaged(r: Random, data: bytes) -> bytes:
    """``data`` with some bytes changed, cut out, doubled or moved."""
    out = bytearray(data)
    for _ in range(r.randint(1, 6)):
        at = r.choice((r.randrange(len(out) + 1), r.randrange(min(len(out), 400) + 1)))
        match r.randrange(6):
            case 0:
                out[at : at + 1] = bytes([r.randrange(256)])
            case 1:
                del out[at : at + r.choice((1, 4, 8, 100, len(out)))]
            case 2:
                out[at:at] = out[at : at + r.choice((1, 8, 64))]
            case 3:
                out[at : at + 8] = r.choice((0, 1, 255, 2**31, 2**40, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 4:
                out[at:at] = r.randbytes(r.randint(1, 20))
            case _:
                out[at : at + 4] = r.choice((b"\r\n\r\n", b"\x1b[31", b"\xff\xfe", b"\0\0\0\0", b'"}]'))
    return bytes(out)


def text(r: Random, pieces: tuple[str, ...], most: int = 12) -> str:
    """A few pieces, one after another."""
    return "".join(r.choice(pieces) for _ in range(r.randint(0, most)))


def header(r: Random) -> None:
    """A damaged GGUF file."""
    data = damaged(r, r.choice(SOUND))
    for read in (read_header, _raw):
        try:
            read(data)
        except MemplanError as error:
            _one_line(error)


def _raw(data: bytes) -> None:
    from io import BytesIO

    raw = read_raw(BytesIO(data), "bad.gguf")
    again = parse_header(BytesIO(raw.data), "again")
    assert again.tensors == raw.header.tensors


def model(r: Random) -> None:
    """A consistent header of absurd hyper-parameters, asked about with absurd settings."""
    known = MODELS[r.choice(sorted(MODELS))]
    keys = dict(known.keys)
    if r.random() < 0.9:
        keys["block_count"] = r.choice((1, 2, 3, 4))
    for key in r.choices(sorted(keys), k=r.randint(1, 4)):
        value = keys[key]
        if isinstance(value, bool):
            keys[key] = not value
        elif isinstance(value, int):
            keys[key] = r.choice(SIZES)
        elif isinstance(value, float):
            keys[key] = r.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
        elif isinstance(value, tuple) and value and isinstance(value[0], int):
            keys[key] = tuple(r.choice(SIZES) if r.random() < 0.3 else v for v in value)
    words = ["-c", r.choice(("0", "1", "4096", "1048576", "2147483647")), "-ub", r.choice(("1", "512", "1073741824"))]
    words += ["-b", r.choice(("1", "2048", "2147483647")), "-np", r.choice(("1", "4", "256"))]
    rig = parse_gpus(r.choice((["RTX 3090"], ["2*RTX 5090"], ["RTX 3090", "RX 7900 XTX"])))
    try:
        header = header_of(replace(known, keys=keys), known.recipes[known.default], "absurd")
        found = estimate(header, parse_flags(words), rig, r.choice(("latest", "v0.5.0", "b10068", "b9842")))
    except MemplanError as error:
        _one_line(error)
        return
    assert found.refused is not None or all(use.used < 1 << 64 for use in found.devices)


def flags(r: Random) -> None:
    """A command line of llama-server's flags."""
    words: list[str] = []
    spellings = sorted(flag_table.ARITY)
    for _ in range(r.randint(0, 10)):
        word = r.choice(spellings)
        words.append(word if r.random() < 0.9 else word[:-1] + r.choice(("", "x", "_", "=1", "\0")))
        words += [_value(r) for _ in range(flag_table.ARITY[word] if r.random() < 0.95 else r.randint(0, 2))]
    app, gpus = r.choice(("server", "cli")), r.randint(0, 3)
    takes: tuple[Callable[[], None], ...] = (
        lambda: check_devices(parse_flags(words, app), gpus),
        lambda: _cli(words),
    )
    for take in takes:
        try:
            take()
        except MemplanError as error:
            _one_line(error)


def _cli(words: list[str]) -> None:
    known = Known(
        {"--gpu": "--gpu", "-o": "--output", "--output": "--output", "--json": "--json"}, ["--json"], ["--gpu"]
    )
    sort_words([*words, "--gpu", "x"], known)
    sort_words(words, known, llama=False)


def _value(r: Random) -> str:
    override = text(r, PIECES, 4) + r.choice(("=CPU", "=CUDA0", "=x", "=CPU,a=CPU"))
    return r.choice((r.choice(NUMBERS), text(r, PIECES, 6), override))


def pattern(r: Random) -> None:
    """A regular expression of ``-ot``, looked for in every tensor's name."""
    try:
        found = compile_pattern(text(r, PIECES, 30))
    except MemplanError as error:
        _one_line(error)
        return
    for name in (*_names(), "a" * 63, "blk." * 15):
        found(name)


@cache
def _names() -> tuple[str, ...]:
    return tuple(builtin_header("deepseek-v4-flash").tensors)[:200]


def log(r: Random) -> None:
    """A damaged log of llama.cpp, or parts of several."""
    _loads(r)


def diagnosis(r: Random) -> None:
    """The same, and each load explained; without estimates, which have tests of their own and take time."""
    for load in _loads(r)[-2:]:
        load.types = {}
        try:
            diagnose(load)
        except MemplanError as error:
            _one_line(error)


def _loads(r: Random) -> list[Load]:
    lines = [line for name in r.sample(_logs(), r.randint(1, 2)) for line in _lines(name)]
    for _ in range(r.randint(0, 8)):
        at = r.randrange(len(lines) + 1)
        match r.randrange(4):
            case 0:
                del lines[at : at + r.choice((1, 1, 20, len(lines)))]
            case 1:
                lines[at:at] = r.choices(lines or [b"x"], k=r.choice((1, 5, 50)))
            case 2 if at < len(lines) and lines[at]:
                lines[at] = damaged(r, lines[at])
            case _:
                lines.insert(at, r.randbytes(r.choice((1, 30, 9000))))
    data = r.choice((b"\n", b"\r\n", b"\r")).join(lines)
    step = r.choice((1 << 20, 777, 64))
    try:
        return read_log(data[i : i + step] for i in range(0, len(data), step))
    except MemplanError as error:
        _one_line(error)
        return []


@cache
def _logs() -> list[str]:
    return sorted(path.name for path in LOGS.glob("*.log"))


@cache
def _lines(name: str) -> list[bytes]:
    return (LOGS / name).read_bytes().split(b"\n")


def rig(r: Random) -> None:
    """A damaged rig file, a GPU's spec, and what a llama-server lists."""
    toml = b'host_mib = 65536\nunified = false\n[[gpus]]\nname = "RTX 3090"\ncount = 2\ntotal_mib = 24268\n'
    gpu = {"name": "RTX 5090", "total_mib": 9, "free_mib": 8, "compute_capability": "8.6"}
    data = {"host_mib": 1, "gpus": [gpu]}
    whole = r.choice((toml, json.dumps(data).encode(), b"[" * 20_000, b'{"gpus":' * 5000))
    listed = "Available devices:\n  CUDA0: RTX 5090 (32606 MiB, 30991 MiB free)\n  Vulkan0: x (1 MiB, 2 MiB free)"
    made = damaged(r, whole).decode("utf-8", "replace")
    takes: tuple[Callable[[], Any], ...] = (
        lambda: parse_rig(made, json=r.random() < 0.5),
        lambda: parse_gpu_spec(text(r, (*NUMBERS, ":", "*", "x", "RTX", " ", "3090", "8.6"), 10)),
        lambda: [found.gpu() for found in parse_devices(damaged(r, listed.encode()).decode("utf-8", "replace"))],
    )
    for take in takes:
        try:
            take()
        except MemplanError as error:
            _one_line(error)


def command_file(r: Random) -> None:
    """A damaged script, unit, compose file or preset that starts llama-server; its key is shown by no error."""
    line = "llama-server -m qwen3-8b -c 4096 -np 1 -ot 'exps=CPU' --api-key KEY"
    texts = {
        "a.sh": f"export HF_TOKEN=KEY\n{line}\n".replace(" -np", " \\\n -np"),
        "a.bat": f"set HF_TOKEN=KEY\n{line}\n".replace(" -np", " ^\n -np"),
        "a.ps1": f"{line}\n".replace(" -np", " `\n -np"),
        "a.service": f"[Service]\nEnvironment=HF_TOKEN=KEY\nExecStart={line}\n",
        "a.yaml": f"services:\n  a:\n    environment:\n      - HF_TOKEN=KEY\n    command: {line}\n",
        "a.ini": "version = 1\n[*]\nc = 4096\n[a]\nm = qwen3-8b\nnp = 1\napi-key = KEY\n",
    }
    name = r.choice(sorted(texts))
    data = damaged(r, texts[name].replace("KEY", "hf_0123456789").encode())
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        takes: tuple[Callable[[], Any], ...] = (
            lambda: open_line(str(path)),
            lambda: open_line(f"{path}#a"),
            lambda: with_preset(["--models-preset", str(path)], "qwen3-8b"),
            lambda: read_text(data.decode("utf-8", "replace")),
        )
        for take in takes:
            try:
                take()
            except MemplanError as error:
                _one_line(error)
                assert "0123456789" not in str(error), error


def listing(r: Random) -> None:
    """A hub's damaged listing, and names of models there."""
    page = json.dumps([{"type": "file", "path": f"d/m-{q}-00001-of-00002.gguf"} for q in ("Q8_0", "UD-Q2_K", "F16")])
    location = hub.locate("hf:owner/repo:Q8_0")
    pieces = ("hf:", "https://", "owner", "/", "repo", ":", "Q8_0", ".gguf", "@", "?", "#", "..", "[", "%", " ", "é")
    takes: tuple[Callable[[], Any], ...] = (
        lambda: hub.choose(location, hub.parse_listing(location, damaged(r, page.encode()))),
        lambda: hub.locate(r.choice(("hf:", "ms:", "https://")) + text(r, pieces)),
        lambda: hub.siblings(text(r, (*pieces, "-00001-of-00002.gguf")), r.choice((2, 3, 99999))),
        lambda: hub.next_page(location, {"Link": damaged(r, b'<https://x/y?z>; rel="next"').decode("latin-1")}),
    )
    for take in takes:
        try:
            take()
        except MemplanError as error:
            _one_line(error)


def http(r: Random) -> None:
    """A server that answers with damaged HTTP, or goes away."""
    head = b'HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-%d/%d\r\nContent-Length: %d\r\nETag: "x"\r\n\r\n'
    size = len(SMALL)
    whole = r.choice((
        head % (size - 1, size, size) + SMALL,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + SMALL,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % size + SMALL + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /m-00001-of-00002.gguf\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
    ))  # fmt: skip
    answers = [damaged(r, whole[:2000]) + whole[2000:] if r.random() < 0.8 else damaged(r, whole) for _ in range(4)]
    policy = Policy(timeout=0.25, attempts=2, most=4, backoff=0.0, slow_after=0.5)
    with serving(answers) as address:
        try:
            read_remote(f"{address}/m.gguf", Access(cache=False, policy=policy))
        except MemplanError as error:
            _one_line(error)


@contextmanager
def serving(answers: list[bytes]) -> Iterator[str]:
    """A server that sends these bytes, one answer a connection, the last again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        done = threading.Event()

        def serve() -> None:
            left = list(answers)
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except (TimeoutError, OSError):
                    continue
                with connection:
                    try:
                        connection.settimeout(0.25)
                        connection.recv(4096)
                        connection.sendall(left.pop(0) if len(left) > 1 else left[0])
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def _one_line(error: MemplanError) -> None:
    message = " ".join(str(error).split())
    assert message.isprintable() and 0 < len(message) < 2000, repr(message)


TARGETS: dict[str, Callable[[Random], None]] = {
    target.__name__: target
    for target in (
        header, model, flags, pattern, log, diagnosis, rig, command_file, listing, http,
    )
}  # fmt: skip
"""By name."""
