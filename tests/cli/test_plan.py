from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.llama.flags import parse_flags

FLASH = ["plan", "deepseek-v4-flash", "--gpu", "2*RTX 3090", "-c", "65536", "-np", "1"]


def test_json_and_args_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert main([*FLASH, "--format", "args"]) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert parse_flags(shlex.split(line)) == parse_flags([*found["fixed"], *found["args"]])
    assert all(device["left"] >= 1024 << 20 for device in found["estimate"]["devices"])


def test_margins_one_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--margin", "5000,200", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["estimate"]["devices"]
    assert devices[0]["left"] >= 5000 << 20
    assert 200 << 20 <= devices[1]["left"] < 1024 << 20


def test_the_fit_target_is_the_margin_when_no_other_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--fit-target", "3000", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["estimate"]["devices"]
    assert all(device["left"] >= 3000 << 20 for device in devices)


@pytest.mark.parametrize("style", ["json", "args"])
def test_nothing_fits_is_status_1(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "-sm", "row", "--format", style]) == 1
    out, err = capsys.readouterr()
    if style == "json":
        assert json.loads(out)["args"] is None
    else:
        assert out == ""
        assert "without -sm fits" in err


@pytest.mark.parametrize("style", ["table", "sh", "ini"])
def test_formats(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--format", style]) == 0
    assert "CUDA1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--margin", "x"],
        ["--margin", "1,2,3"],
        ["--margin", "-5"],
        ["--margin"],
        ["--format", "yaml"],
        ["--format", "sh", "--json"],
        ["--search", "x"],
        ["--gpu-bandwidth", "fast"],
        ["--gpu-bandwidth", "1,2,3"],
        ["--host-bandwidth", "fast"],
        ["--fit-target", "1,2,3"],
        ["-ot", "x"],
        ["-ot", "exps=CUDA7"],
        ["--llama", "v99"],
    ],
)
def test_bad_input_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memplan: error:")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["plan", "--help"], ["preset", "--help"], ["preset"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Usage: memplan")


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preset", "list"]) == 0
    assert "2x-rtx-3090" in capsys.readouterr().out
    assert main(["preset", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["presets"]
    assert len(listed) >= 12
    assert main(["preset", "show", "h200"]) == 0
    assert "version = 1" in capsys.readouterr().out


def test_margins_for_fit(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX PRO 6000", "-c", "65536", "-np", "1"]
    assert main([*line, "--projector", "900"]) == 0
    assert "--fit-target 2180 --fit-ctx 65536" in capsys.readouterr().out
    assert main([*line, "--format", "ini"]) == 0
    assert "fit-target = 768" in capsys.readouterr().out
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fit_target_mib"] == [768]


@pytest.mark.parametrize(
    "words",
    [
        ["preset", "nonsense"],
        ["preset", "show"],
        ["preset", "show", "nonsense"],
        ["preset", "list", "x"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--projector", "/nowhere/at/all.gguf"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--format", "sh"],
    ],
)
def test_bad_presets_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_estimate_that_does_not_fit_ends_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "deepseek-v4-flash", "--gpu", "RTX 3090", "-c", "65536", "-np", "1"]) == 0
    out = capsys.readouterr().out
    assert "what would fit:" in out
    assert "memplan plan" in out


def test_the_example_in_the_docs_is_real(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "planning.md").read_text(encoding="utf-8")
    command, line = page.split("```console\n$ memplan ")[1].split("```")[0].splitlines()
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out.splitlines() == [line]
