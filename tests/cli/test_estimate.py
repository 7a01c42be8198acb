from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.cli.commands import command_options
from memplan.errors import SourceError
from memplan.llama.flags import Flags
from memplan.releases import LATEST, V0_4_0
from tests.cli.conftest import Engine
from tests.estimates import MIB, TOO_MUCH

CARD = "RTX PRO 6000"
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_json_goes_to_stdout_alone(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "deepseek-v4-flash", "--gpu", CARD, "-c", "4096", "-np", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["n_ctx"], len(answer["devices"]), err) == (4096, 1, "")
    asked = engine.asked[0]
    assert len(asked.header.tensors) > 1000
    assert (asked.flags.n_ctx, asked.flags.n_parallel) == (4096, 1)
    assert asked.rig.gpus[0].total == 97886 * MIB
    assert (asked.release, asked.without_ops) == (LATEST, ())


def test_everything_reaches_the_engine(engine: Engine) -> None:
    line = "deepseek-v4-flash:mxfp4 --no-gpu --llama v0.4.0 --app cli --without-op lightning_indexer -nkvo --json"
    assert main(["estimate", *line.split()]) == 0
    asked = engine.asked[0]
    assert (asked.flags.app, asked.flags.offload_kqv, asked.rig.gpus, asked.release) == ("cli", False, (), V0_4_0)
    assert asked.without_ops == ("LIGHTNING_INDEXER",)


def test_a_rig_file(engine: Engine) -> None:
    assert main(["estimate", "deepseek-v4-flash", "--rig", str(EXAMPLES / "two-3090.toml"), "--json"]) == 0
    assert len(engine.asked[0].rig.gpus) == 2
    assert engine.asked[0].rig.host_total == 131072 * MIB


def test_a_pasted_command_line(engine: Engine) -> None:
    line = "./llama-server -m deepseek-v4-flash --host 0.0.0.0 --port 8080 --jinja -fa on -c 8192 -ngl 99 -ot exps=CPU"
    assert main(["estimate", line, "--gpu", CARD]) == 0
    flags = engine.asked[0].flags
    assert (flags.n_ctx, flags.flash_attn, flags.overrides) == (8192, "on", (("exps", "CPU"),))
    assert main(["estimate", *line.split(), "--gpu", CARD]) == 0
    assert engine.asked[1].flags == flags


def test_a_model_that_is_named_twice(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["estimate", "deepseek-v4-flash", "--gpu", CARD, "-m"]
    assert main([*line, "deepseek-v4-flash"]) == 0
    assert main([*line, "/nowhere/x.gguf"]) == 2
    assert "more than one model: 'deepseek-v4-flash' and '/nowhere/x.gguf' of the flags" in capsys.readouterr().err


def test_check_sets_the_exit_status(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["estimate", "deepseek-v4-flash", "--gpu", "RTX 3090", "--gpu", "RTX 5060 Ti", "--gpu", CARD]
    assert main([*line, "--check"]) == 0
    engine.buffers = TOO_MUCH
    assert main(line) == 0
    assert main([*line, "--check"]) == 1
    assert main([*line, "--check", "--json"]) == 1
    assert capsys.readouterr().err == ""


def test_the_table_is_plain_when_it_is_not_for_a_terminal(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["estimate", "deepseek-v4-flash", "--gpu", CARD]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("", "")])
def test_colour_is_for_terminals_that_want_it(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if variable:
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["estimate", "deepseek-v4-flash", "--gpu", CARD]) == 0
    assert ("\x1b[" in capsys.readouterr().out) == (variable == "")


def test_help_names_every_option_and_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in command_options()["estimate"])
    assert max(map(len, out.splitlines())) <= 80


def test_the_helps_defaults_are_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "-h"]) == 0
    out = capsys.readouterr().out
    flags = Flags()
    for line, default in (("-b, ", flags.n_batch), ("-ub, ", flags.n_ubatch), ("-np, ", flags.n_parallel)):
        assert str(default) in next(row for row in out.splitlines() if row.strip().startswith(line))


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141), (SourceError("two\nlines"), 2)]
)
def test_what_ends_a_command(
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
) -> None:
    engine.error = error
    assert main(["estimate", "deepseek-v4-flash", "--no-gpu"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("memplan: error: two lines\n" if status == 2 else "")


def test_a_fault_is_one_line_unless_debugging(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.error = ZeroDivisionError("by zero")
    monkeypatch.delenv("MEMPLAN_DEBUG", raising=False)
    assert main(["estimate", "deepseek-v4-flash", "--no-gpu"]) == 2
    err = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("MEMPLAN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["estimate", "deepseek-v4-flash", "--no-gpu"])
