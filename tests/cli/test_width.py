"""Nothing is wider than a terminal of 80 columns, but what is there to be pasted."""

from __future__ import annotations

import io
import re

import pytest

from memplan.cli import main
from memplan.cli.commands import COMMANDS

pytestmark = pytest.mark.slow

PASTED = re.compile(r"add: |[; ]*\S+$|\s+-ngl ")
"""A line that must stay whole: flags, or one long word."""

TWO = ["--gpu", "2*RTX 3090"]
FLASH = ["deepseek-v4-flash", *TWO, "-c", "65536"]
QWEN = ["qwen3-30b-a3b", "-c", "8192"]
VULKAN = ["--gpu", "RX 7900 XTX"]

LINES = [
    ["compare", *FLASH, "-cmoe", "--llama", "b10361", "--llama", "v0.5.0"],
    ["compare", "gpt-oss-20b", "--gpu", "RTX 5090", "-c", "8192", "--llama", "b10131,b11434"],
    ["compare", "qwen3-8b", "llama-3.1-8b", *VULKAN, "-c", "8192"],
    ["explain", *FLASH, "-cmoe"],
    ["explain", *QWEN, *VULKAN],
    ["explain", *QWEN, *TWO, "--run-time"],
    ["slots", *FLASH, "-cmoe"],
    ["slots", *FLASH],
    ["slots", *QWEN, *VULKAN],
    ["slots", *QWEN, "--gpu", "6*RTX 3090", "-ctk", "q8_0"],
    ["sweep", *QWEN, "--gpu", "6*RTX 3090", "--over", "np=1,2", "--over", "ctk=f16,q8_0"],
    ["sweep", "qwen3-8b", *VULKAN, "--over", "ctx=4k:16k"],
    ["sweep", "deepseek-v4-flash", "--gpu", "RTX 3090", "-ngl", "99", "--max", "ctx"],
    ["plot", "deepseek-v4-flash", *TWO, "-cmoe", "--over", "ctx=4k:64k", "--terminal"],
    ["plot", "qwen3-8b", *VULKAN, "--over", "ctx=4k:64k", "--over", "np=1,4", "--terminal"],
    ["plan", *FLASH, "-np", "1", "--host-mib", "200000"],
    ["plan", *FLASH, "-np", "1", "--host-mib", "2000"],
    ["plan", *QWEN, *VULKAN],
    ["estimate", *FLASH],
    ["estimate", *QWEN, *VULKAN],
    ["paths", *FLASH, "-cmoe"],
    ["preset", "list"],
    ["preset", "show", "2x-rtx-3090"],
    ["preset", "--fit", *FLASH],
    ["preset", "--fit", *FLASH, "--format", "ini"],
    ["models"],
    ["releases"],
    ["devices"],
    ["devices", "--known"],
    *([command, "--help"] for command in COMMANDS),
    ["--help"],
]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


LONG = ("compare", "paths", "slots", "models", "preset")
"""Commands that take long: of each, their help and the rest is in the suite."""


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, marks=pytest.mark.thorough if w[0] in LONG and "--help" not in w else ()) for w in LINES],
    ids=" ".join,
)
def test_every_answer_and_every_help_keeps_to_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    main(words)
    said = re.sub(r"\r\x1b\[K[^\r\n]*", "", err.getvalue())  # a bar of progress
    lines = [*out.getvalue().splitlines(), *said.splitlines()]
    assert lines
    assert [line for line in lines if len(line) > 80 and not PASTED.match(line)] == []


def test_a_comparison_of_models_names_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "qwen3-8b", "llama-3.1-8b", "--gpu", "RTX 5090", "-c", "4096"]) == 0
    heads = capsys.readouterr().out.splitlines()[:2]
    assert heads[0].startswith("qwen3-8b:q4_K_M: ") and heads[1].startswith("llama-3.1-8b:q4_K_M: ")
