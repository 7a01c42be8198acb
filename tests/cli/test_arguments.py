from __future__ import annotations

import pytest

from memplan.cli.arguments import Known, sort_words
from memplan.cli.command import Arguments
from memplan.cli.commands import find_command
from memplan.errors import FlagError


def parsed(*words: str) -> Arguments:
    found = find_command("estimate").make_context("estimate", list(words)).obj
    assert isinstance(found, Arguments)
    return found


def test_memplans_options_stand_anywhere_among_llama_servers_flags() -> None:
    found = parsed(
        "-c", "4096", "--gpu", "RTX 3090", "m.gguf", "-ctk", "q8_0", "--gpu=2*RTX 4090", "--json", "-ngl", "9",
        "--check", "--llama", "v0.4.0", "--app", "cli", "--without-op", "A", "--without_op", "B", "-ncmoe", "3",
    )  # fmt: skip
    assert found.model == "m.gguf"
    assert found.flags == ("-c", "4096", "-ctk", "q8_0", "-ngl", "9", "-ncmoe", "3")
    assert found.gpus == ["RTX 3090", "2*RTX 4090"]
    assert (found.llama, found.app, found.without_ops) == ("v0.4.0", "cli", ["A", "B"])
    assert {"--json", "--check"} <= set(found.given) and not found.no_gpu


def test_defaults() -> None:
    found = parsed("m.gguf")
    assert (found.llama, found.app, found.rig, found.given) == ("latest", "server", None, set())


@pytest.mark.parametrize(
    ("program", "app"),
    [
        ("llama-server", "server"),
        ("./llama-server", "server"),
        ("build/bin/llama-server", "server"),
        (r"C:\llama\llama-server.exe", "server"),
        ("llama-cli", "cli"),
    ],
)
def test_the_programs_name_may_come_first(program: str, app: str) -> None:
    found = parsed(program, "-m", "m.gguf", "-c", "1")
    assert (found.model, found.app, found.flags) == ("", app, ("-m", "m.gguf", "-c", "1"))
    assert parsed(program, "--app", "server").app == "server"


@pytest.mark.parametrize(
    ("program", "command", "app"),
    [("llama", "serve", "server"), ("/usr/bin/llama", "server", "server"), (r"C:\x\llama.exe", "cli", "cli")],
)
def test_a_command_of_llama_may_come_first(program: str, command: str, app: str) -> None:
    found = parsed(program, command, "-m", "m.gguf", "-c", "1")
    assert (found.model, found.app, found.flags) == ("", app, ("-m", "m.gguf", "-c", "1"))
    assert parsed(f"llama {command} -m m.gguf").app == app
    assert parsed("llama").model == "llama" and parsed("llama", "-c", "1").model == "llama"


def test_a_whole_command_line_in_quotes() -> None:
    line = "llama-server -m 'my model.gguf' \\\n  -c 4096 \\\r\n -ot 'blk\\.1\\.=CPU' -fa on"
    found = parsed(line, "--gpu", "RTX 3090")
    assert found.flags == ("-m", "my model.gguf", "-c", "4096", "-ot", r"blk\.1\.=CPU", "-fa", "on")
    assert found.gpus == ["RTX 3090"]
    assert parsed("-c 4096 -np 1").flags == ("-c", "4096", "-np", "1")
    assert parsed("-c 4096 ^\n-np 1").flags == ("-c", "4096", "-np", "1")


def test_stray_line_continuations_are_passed_over() -> None:
    assert parsed("m.gguf", "\\", "-c", "1", "\n", "\\\n", "`", "^").flags == ("-c", "1")


def test_a_path_with_spaces_is_one_word() -> None:
    assert parsed("/my models/m x.gguf").model == "/my models/m x.gguf"


def test_values_are_never_options() -> None:
    found = parsed("m", "--prompt", "--json", "--gpu", "-c")
    assert found.flags == ("--prompt", "--json")
    assert found.given == {"--gpu"}
    assert found.gpus == ["-c"]


def test_help_anywhere() -> None:
    known = Known({"--json": "--json"}, ["--json"])
    assert "--help" in sort_words(["m", "-c", "1", "-h"], known).own
    assert "--help" in sort_words(["--usage"], known).own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "b"), "more than one model: 'a' and 'b'"),
        (("a", "llama-server", "b"), "more than one model"),
        (("--gpu",), "--gpu needs a value"),
        (("--jsn",), "did you mean --json"),
        (("--gpus", "x"), "did you mean --gpu"),
        (("",), "an empty argument"),
        (("llama-server -m 'x",), "no closing quotation"),
        (("-z",), "unknown flag '-z'"),
        (("--json=1",), "--json takes no value"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(FlagError) as caught:
        parsed(*words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m", "-o", "plan.sh"), "-o: this command writes to stdout; redirect it: > plan.sh"),
        (("m", "--output", "my plan.sh"), "> 'my plan.sh'"),
        (("m", "--output-file=a.txt"), "--output-file: this command writes to stdout; redirect it: > a.txt"),
        (("m", "-o"), "> FILE"),
        (("m", "-o", "--json"), "> FILE"),
        (("m", "--json=yes"), "'--json=yes': --json takes no value"),
        (("m", "--no-gpu=1"), "--no-gpu takes no value"),
        (("m", "--help=yes"), "--help takes no value"),
        (("m", "-cmoe=3"), "'-cmoe=3': -cmoe takes no value"),
        (("m", "--cpu-moe=3"), "--cpu-moe takes no value"),
        (("m", "--ctx-size=3"), "a space, not an equals sign: --ctx-size 3"),
        (("m", "--margin", "512"), "--margin is an option of memplan sweep, plan, not of this command"),
        (("m", "--margin", "512"), "--margin is an option of memplan sweep, plan, not of this command"),
        (("m", "--gppu", "a"), "did you mean --gpu"),
    ],
)
def test_options_of_others_and_values_too_many(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(FlagError) as caught:
        parsed(*words)
    assert said in str(caught.value)


def test_a_command_with_an_output_of_its_own_keeps_it() -> None:
    assert sort_words(["m", "-o", "a.png"], Known({"-o": "--output"})).own == {"--output": ["a.png"]}
