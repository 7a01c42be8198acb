from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.errors import FlagError
from memplan.llama.shells import CMD, POWERSHELL, SH, SYSTEMD, Shell, commands, shell_of

SH_SCRIPT = """\
#!/bin/bash
# starts it
MODEL=/data/m.gguf
ARGS=(
  -c $((32 * 1024))   # tokens
  -ngl 99
)
export CUDA_VISIBLE_DEVICES="1,0"
MORE="-b 4096 -ub 2048"
cd /x && LLAMA_ARG_FIT=off ./llama-server -m "$MODEL" "${ARGS[@]}" $MORE --port ${PORT:-8080} \\
  -t $(nproc) -ot 'blk\\.1\\.=CPU' > /dev/null 2>&1 &
echo done
"""

BAT = """\
@echo off\r
REM starts it\r
set CUDA_VISIBLE_DEVICES=0\r
set "MODEL=C:\\models\\m x.gguf"\r
llama-server.exe ^\r
  -m "%MODEL%" -ot "blk.1.=CPU" ^\r
  -c 4096\r
pause\r
"""

PS1 = """\
$env:CUDA_VISIBLE_DEVICES = "1,0"
$Model = 'C:\\m\\it''s.gguf'
& "C:\\l\\llama-server.exe" `
  -m $Model `
  --alias "a `"b`""
"""


def words(text: str, shell: Shell) -> list[tuple[str, ...]]:
    return [command.words for command in commands(text, shell)]


def test_a_script_of_sh() -> None:
    cd, server, echo = commands(SH_SCRIPT, SH)
    assert (cd.words, echo.words) == (("cd", "/x"), ("echo", "done"))
    assert " ".join(server.words) == (
        r"LLAMA_ARG_FIT=off ./llama-server -m /data/m.gguf -c 32768 -ngl 99 -b 4096 -ub 2048 --port 8080"
        r" -t $(nproc) -ot blk\.1\.=CPU"
    )
    assert (server.line, dict(server.environment)) == (10, {"CUDA_VISIBLE_DEVICES": "1,0"})


def test_a_script_of_cmd() -> None:
    server, _ = commands(BAT, CMD)
    assert server.words == ("llama-server.exe", "-m", r"C:\models\m x.gguf", "-ot", "blk.1.=CPU", "-c", "4096")
    assert server.environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_script_of_powershell() -> None:
    (server,) = commands(PS1, POWERSHELL)
    assert server.words == (r"C:\l\llama-server.exe", "-m", r"C:\m\it's.gguf", "--alias", 'a "b"')
    assert dict(server.environment) == {"CUDA_VISIBLE_DEVICES": "1,0"}


def test_a_line_of_systemd_keeps_an_escape_that_it_does_not_know() -> None:
    (found,) = commands(r'/bin/x -ot blk\.(1|2)\.=CPU --alias "a b" $OPTS', SYSTEMD, {"OPTS": "-c 1 -b 2"})
    assert found.words == ("/bin/x", "-ot", r"blk\.(1|2)\.=CPU", "--alias", "a b", "-c", "1", "-b", "2")


def test_a_variable_that_nobody_sets_stays_as_it_is_written() -> None:
    assert words("a -m $MODEL ${X}", SH) == [("a", "-m", "$MODEL", "${X}")]
    assert words("a -m %MODEL%", CMD) == [("a", "-m", "%MODEL%")]


def test_a_line_that_begins_with_a_dash_goes_on() -> None:
    assert words("llama-server\n -m x\n\n -c 4\nls", SH) == [("llama-server", "-m", "x", "-c", "4"), ("ls",)]


@pytest.mark.parametrize(
    ("text", "shell"),
    [
        (SH_SCRIPT, SH),
        (BAT, CMD),
        (PS1, POWERSHELL),
        (r"C:\llama\llama-server -m C:\m.gguf", CMD),
        ("a `\n -c 1", POWERSHELL),
        ("a -c 1", SH),
    ],
)
def test_the_shell_is_known_by_its_text(text: str, shell: Shell) -> None:
    assert shell_of(text) is shell


@pytest.mark.parametrize("shell", [SH, CMD, POWERSHELL, SYSTEMD])
def test_a_quote_without_its_end(shell: Shell) -> None:
    with pytest.raises(FlagError, match=r"^character [0-9]+ opens a quote without its end [^;]*$"):
        commands('llama-server -m "x', shell)


@given(
    st.text(alphabet="a=$%({)}[]@;|&<>\\^`'\"# \t\n-1:*", max_size=40), st.sampled_from([SH, CMD, POWERSHELL, SYSTEMD])
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_to_its_end_or_refused(text: str, shell: Shell) -> None:
    try:
        found = commands(text, shell)
    except FlagError:
        return
    assert all(command.words for command in found)
