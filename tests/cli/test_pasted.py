"""Command lines as people paste them, through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memplan.cli import main

MODEL = "deepseek-v4-flash"


def estimated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["estimate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_line_with_its_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "2")
    words = [MODEL, "--gpu", "RTX 3090", "--gpu", "RTX 3060"]
    pasted = estimated(
        capsys, *words, "CUDA_VISIBLE_DEVICES=1", "LLAMA_ARG_CTX_SIZE=4096", "sudo", "llama-server", "-ncmoe", "43"
    )
    plain = estimated(capsys, MODEL, "--gpu", "RTX 3060", "-c", "4096", "-ncmoe", "43")
    assert pasted["devices"] == plain["devices"] and pasted["host"] == plain["host"]
    assert (
        "read as llama-server reads its environment: LLAMA_ARG_CTX_SIZE=4096, LLAMA_ARG_N_PARALLEL=2"
        in (pasted["notes"])
    )
    assert any(note.startswith("CUDA_VISIBLE_DEVICES=1 leaves 1 of 2") for note in pasted["notes"])


def test_variables_that_are_not_modelled_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimated(capsys, MODEL, "--no-gpu", "GGML_OP_OFFLOAD_MIN_BATCH=64", "llama-server", "-c", "4096")
    assert found["exact"] is False
    assert "GGML_OP_OFFLOAD_MIN_BATCH is not modelled" in json.dumps(found)


def test_files_beside_the_model_that_are_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["-m", "/x/Flash.gguf", "-md", "/x/DSpark-Q8_0.gguf", "--mmproj", "/x/mmproj.gguf"]
    line = ["llama-server", *files, "-c", "4096", "-np", "1"]
    found = estimated(capsys, MODEL, "--gpu", "RTX PRO 6000", *line)
    assert found["draft"]["model"]["architecture"] == "dflash"
    assert "'/x/DSpark-Q8_0.gguf' is not here: deepseek-v4-flash-dspark is taken for it" in found["notes"]
    assert "the projector is not counted" in found["notes"][0] and not found["exact"]
    other = estimated(capsys, MODEL, "--gpu", "RTX PRO 6000", *line, "-md", "/x/another.gguf")
    assert other["draft"] is None and "what drafts is not counted" in other["notes"][0]
    named = estimated(capsys, MODEL, "--gpu", "RTX PRO 6000", *line, "-md", "deepseek-v4-flash-dspark")
    assert named["draft"]["buffers"] == found["draft"]["buffers"]
    # of a model that is here, a file beside it that is not is a mistake
    assert main(["estimate", "llama-server", "-m", MODEL, "-md", "/x/DSpark.gguf", "--gpu", "RTX 3090"]) == 2


def test_a_section_that_names_its_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p.ini").write_text("[a]\nmodel = llama-3.2-3b\nc = 4096\n[b]\nmodel = none.gguf\n")
    plain = estimated(capsys, "llama-3.2-3b", "--gpu", "RTX 3090", "-c", "4096")
    for words in (["A", "--models-preset", f"{tmp_path}/p.ini"], [f"{tmp_path}/p.ini#a"]):
        assert estimated(capsys, *words, "--gpu", "RTX 3090")["devices"] == plain["devices"]
