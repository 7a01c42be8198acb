from __future__ import annotations

import json
import re
import time

import pytest

from memplan.diagnosing import reader
from memplan.diagnosing.command_lines import split_command
from memplan.diagnosing.lines import MAX_LINE, blocks, clean
from memplan.diagnosing.log import Load
from memplan.diagnosing.reader import read_log
from memplan.errors import LogError
from tests.counting import lines_run
from tests.diagnosing.logs import GOOD, LOGS, loads, text


def same(one: Load, other: Load) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in Load.__slots__ if name != "line")


DRESSED = {
    "stamps": lambda line: f"0.00.035.060 I {line}",
    "colours": lambda line: f"\x1b[34m0.01.000.123\x1b[0m \x1b[32mI \x1b[0m{line}\x1b[0m",
    "crlf": lambda line: line + "\r",
    "journal": lambda line: f"Jul 01 10:00:00 host llama-server[1234]: {line}",
    "docker": lambda line: f"2026-07-01T10:00:00.123456789Z {line}",
    "compose": lambda line: f"llama-1  | {line}",
    "json": lambda line: json.dumps({"type": "log", "time": 1, "level": "info", "msg": line + "\n"}),
    "noise": lambda line: f"GET /health 200\n{line}\n\xff\x00",
}


@pytest.mark.parametrize("dress", DRESSED)
@pytest.mark.parametrize("name", ["good-v0.5.0", "r8-one-card-short", "r31-four-slots"])
def test_what_stands_around_lines_does_not_matter(dress: str, name: str) -> None:
    plain = text(name)
    (wanted,) = loads(plain)
    (found,) = loads("\n".join(map(DRESSED[dress], plain.splitlines())))
    assert same(found, wanted)


def test_everything_that_a_log_shows() -> None:
    (load,) = loads(GOOD)
    assert (load.build, load.path) == (11200, "/models/flash-antirez-q2.gguf")
    assert (load.n_tensors, load.offloaded) == (1328, (44, 44))
    assert load.types["iq2_xxs"] == 86 and load.metadata["deepseek4.block_count"] == "43"
    gpu = load.gpus["CUDA0"]
    assert (gpu.capability, gpu.total_mib, gpu.free_mib) == ((12, 0), 97886, 97250)
    assert load.settings["n_ctx"] == "131072" and load.settings["kv_unified"] == "false"
    assert load.model == {"CUDA0": 81687.67, "CUDA_Host": 1010.0}
    assert load.compute == {"CUDA0": 413.09, "CUDA_Host": 81.84}
    assert (load.nodes, load.splits, load.copies, load.cache_types) == ((8349, 8349), (2, 2), 1, ("f16", "f16"))
    (old,) = loads(text("good-b9842-stamped"))
    assert (old.build, old.nodes, len(old.layers), len(old.overridden)) == (9842, (33605, 33605), 44, 120)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("error: invalid argument: --api-key=hush", "error: invalid argument: --api-key=..."),
        ("error: invalid argument: LLAMA_API_KEY=hush", "error: invalid argument: LLAMA_API_KEY=..."),
        ("error: invalid argument: {'HF_TOKEN': 'hush'}", "error: invalid argument: {'HF_TOKEN': ...}"),
        ('error: invalid argument: "--hf_token", "hush"', 'error: invalid argument: "--hf_token", ...'),
        ("error: invalid argument: Authorization: Bearer hush", "error: invalid argument: Authorization: Bearer ..."),
        ("error: invalid argument: -hft 'hush hush' -np 4", "error: invalid argument: -hft ... -np 4"),
        (f"error: invalid argument: hf_{'hush' * 9}", "error: invalid argument: ..."),
        ("error loading model: no https://a:hush@host/m?token=hush", "no https://host/m"),
        (
            "Out of memory: Killed process 7 (llama-server --api-key hush)",
            "Out of memory: Killed process 7 (llama-server --api-key ...",
        ),
        ("error: invalid argument: --api-key-file a.txt", "error: invalid argument: --api-key-file a.txt"),
    ],
)
def test_what_is_secret_is_not_kept(line: str, shown: str) -> None:
    (load,) = loads(line)
    assert load.failed is not None and load.failed.said == shown


def test_the_address_of_a_model_has_no_secret() -> None:
    (load,) = loads(GOOD.replace("/models/flash-antirez-q2.gguf", "https://me:hush@host/m.gguf?token=hush"))
    assert load.path == "https://host/m.gguf" and "hush" not in load.content


def test_the_command_line_in_a_log() -> None:
    (load,) = loads("user@host:~$ ./llama-server -m 'my model.gguf' -ot \"blk\\.1\\.=CPU\" \\\n" + GOOD)
    assert load.command == ("llama-server", "-m", "my model.gguf", "-ot", "blk\\.1\\.=CPU")
    (load,) = loads("$ llama serve -m flash.gguf -ngl 99\nllama_model_load: error loading model: x\n")
    assert load.command == ("llama-server", "-m", "flash.gguf", "-ngl", "99")
    assert split_command("-ot blk\\.(1|2)\\.x=CPU") == ["-ot", "blk\\.(1|2)\\.x=CPU"]
    assert split_command("-p 'oh") == ["-p", "'oh"]


def test_lines() -> None:
    assert clean(b"\x1b]0;title\x07a\x1b[1;31mb\tc") == "ab c"
    assert clean(b'{"msg": 5}') == '{"msg": 5}'
    assert clean(b'{"msg"' + b"[" * 5000).startswith('{"msg"')
    assert len(clean(b"x" * 100_000)) == MAX_LINE
    assert b"".join(blocks([b"a", b"b\nc", b"\r", b"\nd"])) == b"ab\nc\nd\n"
    assert next(blocks([b"x" * 1000] * 1000)).startswith(b"x")


def test_logs_that_are_none() -> None:
    assert loads("hello\nworld\n") == []
    assert loads(bytes(range(256)) * 100) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_text_as_powershell_writes_it(encoding: str) -> None:
    data = (b"\xfe\xff" if encoding == "utf-16-be" else b"") + GOOD.replace("\n", "\r\n").encode(encoding)
    for size in (1, 4095, len(data)):
        read = read_log(data[at : at + size] for at in range(0, len(data), size))
        assert [(x.path, x.compute, len(x.metadata)) for x in read] == [
            (x.path, x.compute, len(x.metadata)) for x in loads(GOOD)
        ]
    assert list(blocks([b"a"])) == [b"a\n"] and list(blocks([])) == []


def test_lines_of_dockers_json_files() -> None:
    dressed = "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}, separators=(",", ":"))
        + "\n"
        for line in GOOD.splitlines()
    )
    assert [load.content for load in loads(dressed)] == [load.content for load in loads(GOOD)]
    refused = '{"log":"error: invalid argument: --ncmoe\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}\n'
    assert [load.failures[0].said for load in loads(refused)] == ["error: invalid argument: --ncmoe"]


def test_no_line_takes_long() -> None:
    started = time.process_time()
    for hard in ("=" * 4000, " (" * 2000, "compute capability " * 200, "a: failed to allocate " * 180, "- kv " * 800):
        for mark in ("llama-server ", "using device CUDA0 (", "Device 0: ", "set to disabled", "- type ", "nodes = "):
            loads((hard + mark) * 3 + "\n")
    assert time.process_time() - started < 1


def test_the_logs_here_name_nobodys_machine() -> None:
    for path in LOGS.glob("*.log"):
        assert not re.search(r"/root|/home/(?!user)", path.read_text()), path


@pytest.mark.parametrize(
    "line",
    ["a\n", "a", "\n", "Killed " * 500 + "\n", "using device x (" * 250 + "\n", "cells," * 600 + ", K (\n",
     "tensor x (" * 300 + "buffer type overridden\n", "llama_init_from_model: " * 150 + "\n",
     "main" * 900 + "model loaded!\n", "and 1 tensors from (version " * 100 + "loaded meta data with\n",
     "$ llama-server -m x ' " * 150 + "\n"],
)  # fmt: skip
def test_what_a_log_costs_grows_no_faster_than_its_size(line: str) -> None:
    small, large = ((line * (size // len(line))).encode() for size in (20_000, 80_000))
    lines_run(lambda: read_log([small]))  # what is done once
    assert lines_run(lambda: read_log([large])) < 4.5 * lines_run(lambda: read_log([small])) + 200


def test_lines_are_counted_and_too_many_that_matter_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "\n\r\nnothing\n" * 100 + "Killed\nmore\n"
    assert [load.failures[0].kind for load in loads(log)] == ["killed"]
    (first, second) = loads("x\n\n" + GOOD + "\n" * 50 + GOOD)
    assert second.line - first.line == GOOD.count("\n") + 50
    monkeypatch.setattr(reader, "_MAX_LINES", 10_000)
    with pytest.raises(LogError, match=r"more than 10,000 lines.* cut out where"):
        read_log([b"llama-\n" * 1_000] * 11)
