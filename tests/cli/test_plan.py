from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.gguf.header import TensorInfo
from memplan.gguf.raw import assemble, key_entry, tensor_entries
from memplan.gguf.types import F16
from memplan.llama.flags import parse_flags

pytestmark = pytest.mark.slow

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
    assert all(device["left"] >= 300 << 20 for device in found["estimate"]["devices"])


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
        ["--fit-target", ",".join("1" * 16)],
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


@pytest.mark.parametrize("style", ["sh", "args", "ini"])
def test_scripts_hold_nothing_when_nothing_fits(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "deepseek-v4-flash", "--gpu", "RTX 3060:12288:800", "-c", "65536", "-np", "1"]
    assert main([*line, "--format", style]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "CUDA0 is 569 MiB short of its margin" in err
    assert "fits: -ngl 0 --no-op-offload" in err


@pytest.mark.parametrize("style", ["sh", "args", "ini"])
def test_scripts_say_what_is_not_exact(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    big = ["plan", "deepseek-v4-flash", "--gpu", "2*RTX PRO 6000", "-c", "2097152", "-np", "1", "--llama", "b10300"]
    assert main([*big, "--format", style]) == 0
    out, err = capsys.readouterr()
    said = err if style == "args" else out
    assert "not exact: llama.cpp build 10300 is not modelled" in said
    assert "more context than the 1,048,576 tokens" in said
    assert (err == "") == (style != "args")
    assert all(line[:1] in "#;" for line in out.splitlines() if "not exact" in line)


def test_indexers_are_taken_as_by_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLASH, "--indexer", "unfused", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(note.startswith("--path indexer=unfused: ") for note in found["estimate"]["notes"])
    asked = ["estimate", *FLASH[1:], "--indexer", "unfused", "--json", *found["args"]]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["buffers"] == found["estimate"]["buffers"]
    assert main([*FLASH, "--hyper-connections", "blue"]) == 2


@pytest.mark.parametrize("style", ["sh", "ini"])
def test_a_header_is_no_model_to_start(style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = str(tmp_path / "header.gguf")
    assert main(["header", "deepseek-v4-flash", "-o", header]) == 0
    capsys.readouterr()
    assert main(["plan", header, *FLASH[2:], "--format", style]) == 0
    out = capsys.readouterr().out
    assert "header.gguf is a header without weights" in out
    assert header not in out


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
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert out == "--fit on --fit-target 526 --fit-ctx 65536\n"
    assert "MiB for what kernels take at run time" in err
    assert main([*line, "--format", "ini"]) == 0
    assert "fit-target = 526" in capsys.readouterr().out
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fit_target_mib"] == [526]


def test_margins_for_fit_with_which_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3060:12288:800", "-c", "65536", "-np", "1"]
    for style in ("args", "ini"):
        assert main([*line, "--format", style]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("with --fit-target 1324 (300 MiB for CUDA kernels loaded later")
        assert "nothing fits" in err
    assert main([*line, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["args"] is None


def test_llama_server_makes_room_for_a_projector_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX PRO 6000", "-c", "65536", "-np", "1", "--mmproj"]
    projector = tmp_path / "mmproj.gguf"
    keys = [key_entry("general.architecture", "str", "clip")]
    tensors, _ = tensor_entries([TensorInfo("v.patch_embd.weight", (1024, 1024, 100), F16, 0)], 32)
    projector.write_bytes(b"".join(assemble(3, keys, tensors, 32)))
    assert main([*line, str(projector)]) == 0
    assert "--fit-target 526 " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["preset", "nonsense"],
        ["preset", "show"],
        ["preset", "show", "nonsense"],
        ["preset", "list", "x"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--mmproj", "/nowhere/at/all.gguf"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--projector", "900"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--format", "sh"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "--fit-target", "100"],
        ["preset", "--fit", "deepseek-v4-flash", "--gpu", "RTX 3090", "-fit", "off"],
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
