"""What answers in the page's worker, asked in this Python: the same as the commands, and nothing but the library."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memplan.cli import main
from memplan.page.engine import answer

FLASH = {
    "model": "deepseek-v4-flash",
    "flags": ["-c", "65536", "-np", "1"],
    "more": "-ncmoe 34",
    "gpus": ["2*RTX 3090"],
    "host_mib": 65536,
    "llama": "latest",
    "app": "server",
}
RIG = ("--gpu", "2*RTX 3090", "--host-mib", "65536")
SMALL = {**FLASH, "model": "llama-3.2-3b", "more": "", "gpus": ["RTX 3060"], "host_mib": None}


def ask(kind: str, question: dict[str, Any]) -> Any:
    return json.loads(answer(kind, json.dumps(question)))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_an_estimate_is_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("estimate", FLASH)
    expected = printed(
        capsys, "estimate", "deepseek-v4-flash", *RIG, "-c", "65536", "-np", "1", "-ncmoe", "34", "--json"
    )
    assert {key: found[key] for key in expected} == expected
    left = min(expected["devices"], key=lambda device: device["left"])
    assert found["verdict"] == [f"fits: {left['left'] / 2**20:,.0f} MiB left on {left['name']}, the least of 2 GPUs"]
    assert found["shape"] == {
        "block_count": 43, "expert_count": 256, "context_length": 1048576, "nextn_predict_layers": 0,
    }  # fmt: skip


def test_memplan_s_own_options_count_as_the_command_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    own = "--reserve 500 --filled 3000 --path indexer=unfused --without-op RMS_NORM"
    expected = printed(
        capsys, "estimate", "deepseek-v4-flash", *RIG, "-c", "65536", "-np", "1", "-cmoe", *own.split(), "--json"
    )
    found = ask("estimate", {**FLASH, "more": f"-cmoe {own}"})
    assert {key: found[key] for key in expected} == expected


def test_the_command_s_notes_on_a_drafter_are_the_page_s(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("estimate", {**FLASH, "more": "-ncmoe 20 -md deepseek-v4-flash-dspark"})
    expected = printed(
        capsys, "estimate", "deepseek-v4-flash", *RIG, "-c", "65536", "-np", "1", "-ncmoe", "20",
        "-md", "deepseek-v4-flash-dspark", "--json",
    )  # fmt: skip
    assert any("give -ts, or -devd" in note for note in expected["notes"])
    assert found["notes"] == expected["notes"]


def test_the_largest_context_is_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("largest", SMALL)
    sweep = printed(capsys, "sweep", "llama-3.2-3b", "--gpu", "RTX 3060", "-np", "1", "--max", "ctx", "--json")
    assert found["value"] == sweep["found"][0]["value"]
    assert found["beyond"]["value"] == sweep["found"][0]["beyond"]["value"]


def test_the_chart_ends_where_it_stops_fitting() -> None:
    found = ask("chart", SMALL)
    (panel,) = found["panels"]
    assert panel["kind"] == "stack" and [series["label"] for series in panel["series"]][:3] == [
        "weights",
        "context",
        "compute",
    ]
    (mark,) = panel["marks"]
    assert panel["top"] >= panel["capacities"][0]["bytes"] and f"{mark['x']:,}" in found["answer"]
    beside = [ask("estimate", {**SMALL, "flags": ["-np", "1", "-c", str(mark["x"] + more)]}) for more in (0, 256)]
    assert [estimate["fits"] for estimate in beside] == [True, True]
    assert [estimate["tight"] for estimate in beside] == [[], ["CUDA0"]]


def test_why_adds_up_to_the_buffer() -> None:
    estimate = ask("estimate", SMALL)
    for buffer in ask("why", SMALL)["buffers"]:
        assert sum(group["bytes"] for group in buffer["groups"]) + buffer["rest"] + buffer["gaps"] == buffer["bytes"]
    assert ask("why", SMALL)["buffers"][0]["bytes"] == estimate["devices"][0]["compute"]


def test_a_plan_places_anew_and_is_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("plan", {**FLASH, "more": "-ncmoe 34 --mlock"})
    expected = printed(capsys, "plan", "deepseek-v4-flash", *RIG, "-c", "65536", "-np", "1", "--mlock", "--json")
    assert found["args"] == expected["args"] and found["estimate"] == expected["estimate"]
    assert shlex.split(found["more"]) == ["--mlock", *found["args"]]
    assert found["line"].startswith("-c 65536 -np 1 ") and "override-tensor = " in found["ini"]
    assert ask("plan", {**FLASH, "gpus": []})["type"] == "RigError"


def test_margins_for_fit_are_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["preset", "--fit", "llama-3.2-3b", "--gpu", "RTX 3060", "-c", "65536", "-np", "1", "--json"]
    assert ask("fit", SMALL)["args"] == printed(capsys, *words)["args"]


@pytest.mark.parametrize(
    ("changes", "about", "said"),
    [
        ({"flags": ["-c", "12x"]}, "", "-c '12x'"),
        ({"more": "-ts 'a"}, "", "the line cannot be read: no closing quotation"),
        ({"more": "--bogus"}, "", "unknown flag '--bogus'"),
        ({"gpus": ["RTX 3091"]}, "cards", "RTX 3090"),
        ({"host_mib": 64}, "cards", "--host-mib: 64 MiB is too small to be meant"),
        ({"llama": "v9"}, "release", "v9"),
        ({"model": "/models/1/none.gguf"}, "model", "no such file"),
        ({"more": "-md nothing"}, "model", "nothing"),
    ],
)
def test_what_is_wrong_is_said_and_what_it_is_about(changes: dict[str, Any], about: str, said: str) -> None:
    found = ask("estimate", {**SMALL, **changes})
    assert found["about"] == about and said in found["error"] and "\n" not in found["error"]


def test_what_llama_cpp_refuses_is_in_its_words() -> None:
    found = ask("estimate", {**SMALL, "more": "-ctv q8_0 -fa off"})
    assert found["refused"]["said"] == "quantized V cache requires flash_attn"
    assert found["verdict"][1].endswith("quantized V cache requires flash_attn")


def test_the_catalogue_offers_what_there_is() -> None:
    found = ask("catalogue", {})
    models = {model["name"]: model for model in found["models"]}
    assert models["gpt-oss-20b"]["default"] == "mxfp4"
    assert {"name": "q8_0", "about": ""}.keys() <= models["qwen3-8b"]["recipes"][0].keys()
    assert "RTX 3090" in [card["name"] for card in found["cards"]]
    assert found["latest"] in found["releases"]


def test_names_on_hubs_become_addresses() -> None:
    assert ask("locate", {"name": "https://x.org/a.gguf"})["address"] == "https://x.org/a.gguf"
    listing = json.dumps([{"type": "file", "path": path} for path in ("a-Q8_0.gguf", "a-Q4_K_M.gguf")])
    chosen = ask("choose", {"name": "hf:o/r:q8_0", "listing": listing})["address"]
    assert chosen.endswith("/o/r/resolve/main/a-Q8_0.gguf") and not ask("locate", {"name": "hf:o/r"})["address"]
    assert ask("locate", {"name": "hf:o"})["type"] == "RemoteError"


def test_only_the_standard_library_is_needed(tmp_path: Path) -> None:
    """What the page has no room for is not there, nor are the modules that its archive leaves out."""
    import zipfile

    from memplan.page.folder import packed

    (tmp_path / "memplan.zip").write_bytes(packed())
    with zipfile.ZipFile(tmp_path / "memplan.zip") as archive:
        archive.extractall(tmp_path / "package")
    kinds = ["catalogue", "estimate", "largest", "chart", "why", "plan", "fit"]
    code = f"""
import json, sys
sys.modules.update(dict.fromkeys(("rich", "typer", "click", "matplotlib", "numpy", "pydantic", "gguf")))
from memplan.page.engine import answer
for kind in {kinds}:
    found = json.loads(answer(kind, {json.dumps(SMALL)!r}))
    assert "error" not in found, (kind, found)
line = json.dumps({{"text": "llama-server -m Qwen3-8B-Q8_0.gguf"}})
print(json.loads(answer("line", line))["builtin"])
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path / "package", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("qwen3-8b:q8_0\n", "")
