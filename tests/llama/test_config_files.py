from __future__ import annotations

from pathlib import Path

import pytest

from memplan.cli import main
from memplan.errors import FlagError
from memplan.llama.config_files import CONFIG_FILES_SINCE, config_files, config_flags


def written(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "config.ini").write_text(text)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def flags(tmp_path: Path, text: str) -> list[str]:
    return config_flags(written(tmp_path, text), CONFIG_FILES_SINCE)[0]


def test_where_they_are() -> None:
    system = "/etc/llama.cpp/config.ini"
    assert config_files({"HOME": "/h"}, windows=False) == [system, "/h/.config/llama.cpp/config.ini"]
    assert config_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, windows=False) == [system, "/x/llama.cpp/config.ini"]
    assert config_files({}, windows=False) == [system]
    assert len(config_files({"PROGRAMDATA": "p", "APPDATA": "a"}, windows=True)) == 2


def test_every_section_then_what_stands_in_none(tmp_path: Path) -> None:
    text = "ctx-size = 8192\nport = 1\n[*]\nctx-size = 4096\nLLAMA_ARG_N_PARALLEL = 2\nno-such = 1\n[other]\nub = 64\n"
    assert flags(tmp_path, text) == ["--ctx-size", "4096", "--parallel", "2", "--port", "1", "--ctx-size", "8192"]


def test_a_switch_counts_whatever_is_said_and_a_negation_by_its_value(tmp_path: Path) -> None:
    text = "cpu-moe = off\nkv-offload = yes\nno-op-offload = on\n"
    assert sorted(flags(tmp_path, text)) == ["--cpu-moe", "--no-kv-offload", "--no-op-offload"]


def test_older_builds_read_none_and_faults_name_the_file(tmp_path: Path) -> None:
    environment = written(tmp_path, " ctx-size = 1\n")
    assert config_flags(environment, CONFIG_FILES_SINCE - 1) == ([], [])
    with pytest.raises(FlagError, match=r"^'/.*, line 1 is neither"):
        config_flags(environment, CONFIG_FILES_SINCE)


def test_variables_and_words_come_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in written(tmp_path, "c = 4096\nm = other.gguf\nnp = 3\nub = 256\n").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "2")
    assert main(["estimate", "qwen3-8b", "--gpu", "RTX 3090", "-ub", "128"]) == 0
    out = capsys.readouterr().out
    assert "2 slots of 2,048 tokens" in out and "batch 2048/128" in out
    assert "read as llama.cpp reads its configuration" in out.replace("\n  ", " ")
