from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from memplan.errors import FlagError
from memplan.llama.flags import parse_flags
from memplan.output import plan as output
from memplan.planning.plan import NoPlan, Plan, make_plan
from tests.planning.rigs import problem


@cache
def plan(flags: str = "-c 65536 -np 1") -> Plan:
    made = make_plan(problem(flags))
    assert isinstance(made, Plan)
    return made


def test_one_line_to_paste_asks_the_same() -> None:
    made = plan()
    words = shlex.split(output.plan_args(made))
    assert parse_flags(words) == made.estimate.flags


def test_a_script_runs_the_server_with_the_same_flags() -> None:
    text = output.plan_script(plan(), "my model.gguf")
    shown = text.replace("exec llama-server", "printf '%s\\n'")
    words = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[:2] == ["-m", "my model.gguf"]
    assert parse_flags(words[2:]) == plan().estimate.flags
    assert "${MODEL:?" in output.plan_script(plan(), None)


HOSTILE = [
    "$(touch owned)", "`touch owned`", "a; touch owned", "a' touch owned '", 'a" touch owned "', "-h", "a\\b", "*", "~",
    "a && touch owned", "$HOME", "a | touch owned", "> owned", "# a", "a = b", "[a]", "!!", "%s%n",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_model_is_called_runs_nothing(name: str, tmp_path: Path) -> None:
    made = plan()
    script = output.plan_script(made, name).replace("exec llama-server", "printf '%s\\n'")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(f"-m\n{name}\n")
    assert not any(tmp_path.iterdir())
    if re.search("[;#]", name):  # where a comment starts
        with pytest.raises(FlagError, match="a preset cannot hold"):
            output.plan_ini(made, name, name)
    else:
        usual = output.plan_ini(made, "/models/flash.gguf", "/models/flash.gguf")
        assert keys(output.plan_ini(made, name, name)) == {**keys(usual), "model": name}


@pytest.mark.parametrize("name", ["a\ntouch owned", "a\r[b]", "\u202ea", "a\x1b[2Jb"])
def test_what_cannot_be_pasted_is_refused(name: str) -> None:
    with pytest.raises(FlagError, match="control characters"):
        output.plan_script(plan(), name)
    with pytest.raises(FlagError, match="control characters"):
        output.plan_ini(plan(), name, name)


def keys(text: str) -> dict[str, str]:
    return dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line and line[0] not in ";[")


def test_a_preset_asks_the_same() -> None:
    text = output.plan_ini(plan(), "/models/flash-00001-of-00003.gguf", "/models/flash-00001-of-00003.gguf")
    assert "[flash]" in text
    pairs = keys(text)
    assert pairs.pop("version") == "1"
    assert pairs.pop("model") == "/models/flash-00001-of-00003.gguf"
    words = [word for key, value in pairs.items() for word in (f"--{key}", value)]
    flags = parse_flags(words)
    assert (flags.overrides, flags.tensor_split, flags.n_ctx) == (
        plan().estimate.flags.overrides, plan().estimate.flags.tensor_split, 65536
    )  # fmt: skip


def test_a_preset_keeps_the_order_of_overrides() -> None:
    made = plan("-c 65536 -np 1 -ot blk\\.1\\..*exps=CUDA1 -ncmoe 3")
    pairs = keys(output.ini_section(made, "x", None))
    assert "n-cpu-moe" not in pairs
    assert parse_flags(["-ot", pairs["override-tensor"]]).overrides == made.estimate.flags.overrides


def test_rules_for_a_drafter_are_all_kept() -> None:
    rules = "-otd a=CPU --override-kv a=int:1 -ncmoed 1 -otd b=CPU -otd c=CPU --override-kv b=int:2"
    made = plan(f"-c 65536 -np 1 -md deepseek-v4-flash-dspark {rules}")
    flags = parse_flags(shlex.split(output.plan_args(made)))
    assert flags == made.estimate.flags and len(flags.draft_overrides) == 4 and len(flags.kv_overrides) == 2
    assert '-md "${DRAFT:?' in output.plan_script(made, None)
    preset = output.plan_ini(made, None, "model")
    assert keys(preset)["otd"].count("=CPU") == 4 and keys(preset)["override-kv"] == "a=int:1,b=int:2"
    assert "; md = /path/to/the/drafter.gguf" in preset


def test_a_preset_cannot_hold_everything() -> None:
    with pytest.raises(FlagError, match="cannot hold"):
        output.ini_section(plan(), "x", "a;b.gguf")


def test_the_last_value_of_a_flag_holds() -> None:
    assert output.merged(["--ctx-size", "1", "-ot", "a=CPU"], ["-c", "2", "-ot", "b=CPU", "--no-op-offload"]) == [
        ("-c", "2"), ("--no-op-offload", None), ("-ot", "a=CPU,b=CPU")
    ]  # fmt: skip


def test_the_table_says_what_sits_where() -> None:
    text = output.plan_table(plan(), width=80, unicode=False)
    assert text.startswith("add: -ngl 99")
    assert "output" in text
    assert "ms a token" in text
    assert "estimated:" in text
    assert all(len(line) <= 100 or "exps" in line for line in text.splitlines())


def test_json_has_the_contract() -> None:
    made = json.loads(output.plan_json(plan()))
    assert made["args"] == list(plan().args)
    assert made["estimate"]["exact"] is True
    assert made["notes"]
    assert [share["device"] for share in made["placed"]] == ["CUDA0", "CUDA1", "host"]


def test_nothing_fits() -> None:
    made = make_plan(problem("-c 65536 -np 1 -ctk q8_0"))
    assert isinstance(made, NoPlan)
    found = json.loads(output.plan_json(made))
    assert found["args"] is None
    assert {change["change"] for change in found["nearest"]} == {"-ctv q8_0", "-ctk f16"}
    assert all(change["args"][:2] == change["change"].split() for change in found["nearest"])
    text = output.no_plan_text(made)
    assert "does not support different K" in text
    assert "- -ctv q8_0 fits:" in text


def test_names_with_line_ends_stay_in_their_comment() -> None:
    """A driver's or a program's; --gpu and rig files do not take them."""
    made = plan()
    gpus = tuple(replace(gpu, description=f"{gpu.description}\ntouch gone # ") for gpu in made.estimate.devices)
    odd = replace(made, estimate=replace(made.estimate, devices=gpus))
    for text in (output.plan_script(odd, "m.gguf"), output.plan_ini(odd, "m.gguf", "m")):
        assert not re.search(r"^touch gone", text, re.MULTILINE)
        assert "touch gone" in text
