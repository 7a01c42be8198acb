"""Wrong command lines: exit status 2, one line on stderr that says what is wrong, nothing on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.llama.test_flags import WRONG as WRONG_FLAGS

MODEL = "deepseek-v4-flash"
GPU = ("--gpu", "RTX 3090")

WRONG_LINES: list[tuple[tuple[str, ...], str]] = [
    (("estimat",), "No such command"),
    (("y" * 5000,), "No such command"),
    (("models", "y" * 5000), "no built-in model has 'yyy"),
    (("estimate", MODEL, *GPU, f"--ctx-size={'1' * 5000}"), "a space, not an equals sign"),
    (("--versio",), "No such option"),
    (("-c", "4096"), "No such option"),
    (("models", "extra"), "no built-in model has 'extra' in its name"),
    (("models", "--api-key=sk-1"), "unknown option '--api-key'; see memplan models --help"),
    (("models", "--yaml"), "unknown option '--yaml'; see memplan models --help"),
    (("releases", "--jsn"), "did you mean --json?"),
    (("estimate",), "which model?"),
    (("estimate", "llama-server"), "which model?"),
    (("estimate", "-c", "4096"), "which model?"),
    (("estimate", "-hf", "org/repo:Q4_K_M", "--offline", *GPU), "not in memplan's cache"),
    (("estimate", "hf:org/repo/m.gguf", "--offline", *GPU), "not in memplan's cache"),
    (("estimate", "hf:org", *GPU), "write hf:OWNER/REPO/FILE.gguf"),
    (("estimate", "https://example.org/a b.gguf", *GPU), "write it as %20"),
    (("estimate", MODEL), "which GPUs?"),
    (("estimate", MODEL, "-c", "4096"), "which GPUs?"),
    (("estimate", "", *GPU), "an empty argument"),
    (("estimate", MODEL, "other.gguf", *GPU), "more than one model"),
    (("estimate", MODEL, "4096", *GPU), "more than one model"),
    (("estimate", MODEL, "-m", "deepseek-v4-pro", *GPU), "more than one model"),
    (("plan", MODEL, "--model", "deepseek-v4-pro", *GPU), "more than one model"),
    (("verify", MODEL, "-hf", "owner/name", *GPU), "more than one model"),
    (("estimate", "no-such-model", *GPU), "no-such-model"),
    (("estimate", "deepseek-v4-flash:q9", *GPU), "q9"),
    (("estimate", "deepseek-v4", *GPU), "deepseek-v4-flash"),
    (("estimate", "/nowhere/at/all.gguf", *GPU), "/nowhere/at/all.gguf"),
    (("estimate", "all.gguf", *GPU), "all.gguf"),
    (("estimate", "/", *GPU), "folder"),
    (("estimate", os.devnull, *GPU), "null"),
    (("estimate", __file__, *GPU), "test_wrong_lines.py"),
    (("estimate", "-m", "/nowhere/at/all.gguf", *GPU), "/nowhere/at/all.gguf"),
    (("estimate", "a\0b.gguf", *GPU), "a"),
    (("estimate", "x" * 5000, *GPU), "xxx"),
    (("estimate", MODEL, *GPU, "--no-gpu"), "--gpu and --no-gpu: give only one"),
    (("estimate", MODEL, *GPU, "--rig", "r.toml"), "--gpu and --rig: give only one"),
    (("estimate", MODEL, "--no-gpu", "--rig", "r.toml"), "--rig and --no-gpu: give only one"),
    (("estimate", MODEL, "--rig", "/nowhere/r.toml"), "rig file '/nowhere/r.toml'"),
    (("estimate", MODEL, "--rig", __file__), "not TOML"),
    (("estimate", MODEL, "--rig", "/"), "rig file '/'"),
    (("estimate", MODEL, "--rig", ""), "rig file"),
    (("estimate", MODEL, "--rig"), "--rig needs a value"),
    (("estimate", MODEL, "--gpu"), "--gpu needs a value"),
    (("estimate", MODEL, "--gpu", ""), "a name is missing"),
    (("estimate", MODEL, "--gpu="), "a name is missing"),
    (("estimate", MODEL, "--gpu", "-c"), "not a card that memplan knows"),
    (("estimate", MODEL, "--gpu", "RTX 3090:24268:23868:8.6:1"), "too many colons"),
    (("estimate", MODEL, "--gpu", "RTX 3091"), "RTX 3090"),
    (("estimate", MODEL, "--gpu", "RTX 3090:lots"), "whole number of MiB"),
    (("estimate", MODEL, "--gpu", "RTX 3090:-1"), "whole number of MiB"),
    (("estimate", MODEL, "--gpu", "RTX 3090:1000:2000"), "free no more than it"),
    (("estimate", MODEL, "--gpu", "RTX 3090:1000:500:x"), "as in 8.6"),
    (("estimate", MODEL, "--gpu", "RTX 3090:24"), "total memory: 24 MiB is too small to be meant; 24 GB are 24576"),
    (("estimate", MODEL, "--gpu", "RTX 3090:24GB"), "total memory '24GB': give it in MiB: 24576"),
    (("estimate", MODEL, "--gpu", "RTX 3090", "--host-mib", "192"), "192 GB are 196608"),
    (("plot", MODEL, "--gpu", "RTX 3090", "-c", "65536", "--terminal"), "or vary it: --over ctx=4096:65536"),
    (("plot", MODEL, "--gpu", "RTX 3090", "-c", "65536", "--over", "ctk=f16,q8_0", "--terminal"), "-c 65536: fixes"),
    (("sweep", MODEL, "--gpu", "RTX 3090", "-c", "65536"), "what is to be varied?"),
    (("estimate", MODEL, "--gpu", "17*RTX 3090"), "1 to 16"),
    (("estimate", MODEL, "--gpu", "0*RTX 3090"), "no GPU: leave it out, or give --no-gpu"),
    (("estimate", MODEL, "--gpu", "16*RTX 3090", *GPU), "17 GPUs: llama.cpp starts with 1 to 16"),
    (("estimate", MODEL, *GPU, "--app", "bench"), "'server', 'cli'; see memplan estimate --help"),
    (("estimate", MODEL, *GPU, "--app"), "--app needs a value"),
    (("estimate", MODEL, *GPU, "--app", "cli", "-np", "-1"), "with --app cli"),
    (("estimate", MODEL, *GPU, "--llama", "v9"), "v9"),
    (("estimate", MODEL, *GPU, "--llama", "b1"), "older"),
    (("estimate", MODEL, *GPU, "--llama", "-5"), "-5"),
    (("estimate", MODEL, *GPU, "--llama", ""), "release ''"),
    (("estimate", MODEL, *GPU, "--llama", "main"), "main"),
    (("estimate", MODEL, *GPU, "--without-op", "LIGHTNING"), "LIGHTNING_INDEXER"),
    (("estimate", MODEL, *GPU, "--without-op", "FLASH_ATTN"), "did you mean FLASH_ATTN_EXT"),
    (("estimate", MODEL, *GPU, "--without-op", "xyzzy"), "name one as ggml does"),
    (("estimate", MODEL, *GPU, "--without-op"), "--without-op needs a value"),
    (("estimate", MODEL, *GPU, "--jsn"), "did you mean --json"),
    (("estimate", MODEL, *GPU, "--json=yes"), "--json takes no value"),
    (("estimate", MODEL, *GPU, "--chek"), "did you mean --check"),
    (("estimate", MODEL, *GPU, "--nogpu"), "did you mean --no-gpu"),
    (("estimate", MODEL, *GPU, "-ot", "exps=CUDA1"), "this rig has CUDA0, CPU"),
    (("estimate", MODEL, *GPU, "-ot", "exps=cpu"), "no such buffer type"),
    (("estimate", MODEL, *GPU, "-ot", "exps="), "no such buffer type"),
    (("estimate", MODEL, *GPU, "-dev", "CUDA1"), "no such device"),
    (("estimate", MODEL, "--no-gpu", "-dev", "CUDA0"), "this rig has none"),
    (("estimate", MODEL, *GPU, "-sm", "none", "-mg", "1"), "numbered from 0 to 0"),
    (("estimate", MODEL, *GPU, "llama-server -c 'x"), "no closing quotation"),
    (("estimate", MODEL, *GPU, "-c", "40 96"), "whole number"),
    (("estimate", MODEL, *GPU, "-c\n4096\nx"), "more than one model"),
    (("estimate", MODEL, *GPU, "--\x1b[31m"), "unknown flag"),
    (("estimate", MODEL, *GPU, "-\udcff"), "unknown flag"),
    (("models", "qwen3", "extra", "x"), "unexpected arguments 'extra' and 'x'"),
    (("estimate", MODEL, "--context", "4096", *GPU), "did you mean -c or --ctx-size?"),
    (("estimate", MODEL, "-c", "64k", *GPU), "must be a whole number; write 65536"),
    (("sweep", MODEL, *GPU, "--max", "contxt"), "--max 'contxt': there is no such axis; did you mean context"),
    (("preset", "show", "RTX 3090"), "did you mean 2x-rtx-3090"),
    (("estimate", MODEL, "--gpu", "2 RTX 3090"), "did you mean 2*RTX 3090?"),
    (("estimate", MODEL, "--gpu", "RTX 3090 Ti x2"), "did you mean 2*RTX 3090 Ti?"),
    (("estimate", MODEL, "--gpu", "RTX 3090 (24 GB)"), "did you mean RTX 3090, or RTX 3090:24576?"),
    (("estimate", MODEL, "--no-gpu", "--host-mib", "64GB"), "--host-mib '64GB': give it in MiB: 65536"),
    (("estimate", "owner/repo-GGUF", *GPU), "write hf:owner/repo-GGUF for a hub's"),
    (("estimate", f"{MODEL}:ud-iq2_xxs", *GPU), "such as hf:OWNER/REPO:QUANT"),
    (("sweep", MODEL, *GPU, "--over", "ncmoe=20..40"), "did you mean 20:40:1?"),
    (("compare", MODEL, *GPU, "v0.4.0", "v0.5.0"), "releases are compared by --llama A,B"),
]
WRONG_LINES += [
    (("estimate", MODEL, *line.split(), *(() if "needs" in said else GPU)), said)
    for line, said in WRONG_FLAGS
    if "--help" not in line and line != "4096" and "is a model of its own" not in said
]


def test_there_are_many() -> None:
    assert len(WRONG_LINES) >= 100


@pytest.mark.parametrize(("line", "said"), WRONG_LINES, ids=range(len(WRONG_LINES)))
def test_wrong_line(line: tuple[str, ...], said: str, wrong: Callable[[Sequence[str], str], None]) -> None:
    wrong(line, said)


@pytest.mark.parametrize("number", [0, 6, 12, 16, 20, 38, 60, -1])
def test_wrong_line_as_a_process(number: int) -> None:
    line, said = WRONG_LINES[number]
    command = [sys.executable, "-W", "error", "-m", "memplan", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_bytes_that_are_no_text() -> None:
    command = [sys.executable, "-m", "memplan", "estimate", os.fsdecode(b"\xff\xfe.gguf"), "--no-gpu"]
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
