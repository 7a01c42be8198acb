"""``memplan verify`` with scripts in the place of llama.cpp's programs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.diagnosing import measure as measure_module
from memplan.diagnosing.measure import find_measurer, taken_flags
from memplan.errors import ProgramError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand in for llama.cpp's programs"),
]

VERSION = "version: v0.5.0 (build 11200, commit 5f0c2b1de)"
DEVICES = "Available devices:\n  CUDA0: NVIDIA RTX PRO 6000 Blackwell Workstation Edition (97886 MiB, 97250 MiB free)"
# what llama.cpp v0.5.0 says for -c 131072 -np 1 there
FIGURES = "CUDA0 81687 903 413 \nHost 1010 0 81 "
LINE = ["verify", "deepseek-v4-flash", "-c", "131072", "-np", "1", "--host", "0.0.0.0", "--jinja"]


def script(path: Path, *cases: tuple[str, str], otherwise: str = "") -> str:
    """A program that prints a text when it has an argument, and notes what it was called with."""
    lines = ["#!/bin/sh", f'echo "$@" >> {shlex.quote(str(path))}.calls', 'case " $* " in']
    lines += [f'*" {word} "*) cat <<"END"\n{text}\nEND\n;;' for word, text in cases]
    lines += [f"*) {otherwise or 'true'};;", "esac"]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def fit_params(folder: Path, figures: str = FIGURES, version: str = VERSION) -> str:
    cases = (("--version", version), ("--list-devices", DEVICES), ("--fit-print on", figures))
    return script(folder / "llama-fit-params", *cases)


def test_figures_that_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--program", fit_params(tmp_path), "--check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-fit-params b11200 beside memplan for v0.5.0\n")
    assert "they agree in every figure" in out
    assert "unaccounted in llama.cpp's own breakdown, with 131,072 tokens a slot:" in out
    assert "CUDA0  386 MiB of CUDA's pool, 32 MiB of cuBLAS's workspace; the rest, some 300 MiB of kernels' code" in out
    called = (tmp_path / "llama-fit-params.calls").read_text().splitlines()[-1].split()
    assert called[0] == "-m" and called[2:] == ["-c", "131072", "-np", "1", "--fit-print", "on"]
    assert not Path(called[1]).exists()  # the file with a hole is gone


def test_figures_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = fit_params(tmp_path, FIGURES.replace("413", "700"))
    assert main([*LINE, "--program", program]) == 0
    assert "they differ in 1 of 6 figures" in capsys.readouterr().out
    assert main([*LINE, "--program", program, "--check", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in answer["figures"] if not row["agrees"]] == ["compute"]


def test_a_build_that_is_not_modelled_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--program", fit_params(tmp_path, version="version: 999999 (abc)")]) == 0
    assert "build 999999 is newer than any modelled release" in capsys.readouterr().out
    assert main([*LINE, "--program", fit_params(tmp_path, version="version: unknown")]) == 0
    assert "does not say which build it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "build", "release"),
    [
        ("version: 0.5.0 (build 11200, commit 5f0c2b1de)", "b11200", "v0.5.0"),
        ("version: 0.5.0-dev (build 1, commit 0ad4a86)", "v0.5.0", "v0.5.0"),  # a shallow clone counts from 1
        ("version: v0.4.0 (build 0, commit unknown)", "v0.4.0", "v0.4.0"),
        ("version: 10068 (505b1ed15)", "b10068", "b10068"),
        ("version: 1 (505b1ed15)", "(of an unknown build)", "v0.5.0"),
    ],
)
def test_versions(
    version: str, build: str, release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert main([*LINE, "--program", fit_params(tmp_path, version=f"{version}\nbuilt with GNU 11.4.0")]) == 0
    assert capsys.readouterr().out.startswith(f"llama-fit-params {build} beside memplan for {release}\n")


ABORTED = """\
0.00.018.442 I llama_fit_params: printing estimated memory in MiB to stdout (device, model, context, compute) ...
/build/ggml/src/ggml-cuda/ggml-cuda.cu:916: GGML_ASSERT(tensor->nb[0] == ggml_element_size(tensor)) failed
[New LWP 21164]
30\t../sysdeps/unix/sysv/linux/wait4.c: No such file or directory.
#0  0x00007fe1296f1c17 in __GI___wait4 (pid=21179) at ../sysdeps/unix/sysv/linux/wait4.c:30
[Inferior 1 (process 21159) detached]
"""


@pytest.mark.parametrize(
    ("flags", "release", "said", "kind"),
    [
        (
            "-ctk q8_0 -ctv f16",
            "v0.5.0",
            "terminate called after throwing an instance\n  what():  failed to create llama_context from model",
            "k-v-types-differ",
        ),
        ("-ngl 40 -ctk q8_0 -ctv q8_0", "b10068", ABORTED, "permuted-quantized-tensor"),
    ],
)
def test_a_refusal_that_is_predicted(
    flags: str, release: str, said: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (("--version", VERSION), ("--list-devices", DEVICES))
    program = script(tmp_path / "llama-fit-params", *cases, otherwise=f"cat >&2 <<'END'\n{said}\nEND\nexit 134")
    line = ["verify", "deepseek-v4-flash", "-c", "65536", "-np", "1", *flags.split(), "--llama", release]
    line += ["--gpu", "2*RTX 3090", "--program", program]
    assert main([*line, "--check"]) == 0
    out = capsys.readouterr().out
    assert f"it does not start ({kind})" in out and "they agree\n" in out
    assert ("what():" in out) or ("GGML_ASSERT" in out and "wait4" not in out)
    assert main([*line, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["agrees"] is True and answer["refused"]["predicted"] == kind and answer["figures"] == []
    # it starts after all
    assert main([*line[:-1], fit_params(tmp_path), "--check"]) == 1
    assert "they differ" in capsys.readouterr().out


def test_a_refusal_that_is_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = (("--version", VERSION), ("--list-devices", DEVICES))
    said = "echo 'error: invalid argument: -ncffn' >&2; exit 1"
    program = script(tmp_path / "llama-fit-params", *cases, otherwise=said)
    assert main([*LINE, "--program", program]) == 2
    err = capsys.readouterr().err
    assert "no figures: 'error: invalid argument: -ncffn'; memplan predicts that it starts" in err


def test_weights_that_the_cpu_repacks_are_in_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # what llama.cpp v0.5.0 says without a GPU
    program = fit_params(tmp_path, "Host 8393 75 268 ")
    line = ["verify", "deepseek-v4-flash:antirez-q4", "-c", "4096", "-np", "1", "--no-gpu", "--program", program]
    assert main([*line, "--check"]) == 0
    assert "148,608 MiB of weights that the CPU repacks are in neither" in capsys.readouterr().out
    assert main([*line[:-1], fit_params(tmp_path, "Host 12393 75 268 ")]) == 0
    assert "depends on the CPU: memplan follows AVX2" in capsys.readouterr().out


def test_the_program_that_has_all_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (("--version", VERSION), ("serve --list-devices", DEVICES), ("--fit-print on", FIGURES))
    llama = script(tmp_path / "llama", *cases)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for program in ([], ["--program", llama]):
        assert main([*LINE, *program, "--check"]) == 0
        assert capsys.readouterr().out.startswith("llama b11200 beside memplan for v0.5.0\n")
    called = (tmp_path / "llama.calls").read_text().splitlines()[-1].split()
    assert called[0] == "fit-params" and called[-2:] == ["--fit-print", "on"]
    other = script(tmp_path / "llama", ("--version", "llama 1.0, a farm simulator"))
    with pytest.raises(ProgramError, match="neither llama-fit-params nor llama-server"):
        find_measurer("")
    assert find_measurer(other) == other


def test_unified_slots_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "deepseek-v4-flash", "-c", "4096", "--program", fit_params(tmp_path)]) == 0
    assert "has no --kv-unified" in capsys.readouterr().out
    assert "-np 4" in (tmp_path / "llama-fit-params.calls").read_text()


def test_llama_server_is_ended_before_it_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = (Path(__file__).parent.parent / "data/logs/good-v0.5.0.log").read_text()
    dry = log.replace("no_alloc              = 0", "no_alloc              = 1").partition("srv  llama_server")[0]
    cases = (("--version", VERSION), ("--list-devices", DEVICES))
    server = script(tmp_path / "llama-server", *cases, otherwise=f"cat <<'END'\n{dry}\nEND\nexec sleep 60")
    assert main([*LINE, "--program", server]) == 0
    assert "they agree in every figure" in capsys.readouterr().out
    real = script(tmp_path / "llama-server", *cases, otherwise=f"cat <<'END'\n{log}\nEND\nexec sleep 60")
    assert main([*LINE, "--program", real]) == 2
    assert "it did not measure before loading" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("figures", "otherwise", "said"),
    [
        ("", "", "no figures"),
        ("CUDA0 1 2\nHost", "", "no figures"),
        ("CUDA0 1 2 3", "", "no figures: 'CUDA0 1 2 3'"),
    ],
)
def test_answers_that_are_none(
    figures: str, otherwise: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LINE, "--program", fit_params(tmp_path, figures)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and said in err


def test_programs_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    failing = script(tmp_path / "failing", otherwise="echo 'error: oh dear' >&2; exit 3")
    other = script(tmp_path / "false", otherwise="echo 'false (coreutils) 9.1'; echo 'Written by X.'; exit 1")
    for program, said in (
        (str(tmp_path / "absent"), "no such program"),
        (str(tmp_path / "broken"), "cannot be run"),
        (failing, "oh dear"),
        (other, "false is not a llama.cpp program: --version says 'false (coreutils) 9.1'"),
    ):
        assert main([*LINE, "--program", program, "--no-gpu"]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
    assert main(["verify", "--program", failing]) == 2
    assert "which model?" in capsys.readouterr().err


def test_programs_that_do_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (("--version", VERSION), ("--list-devices", DEVICES))
    monkeypatch.setattr(measure_module, "TIMEOUT", 0.3)
    started = time.monotonic()
    for name, said in (("llama-fit-params", "no answer in 0 s"), ("llama-server", "did not measure before loading")):
        slow = script(tmp_path / name, *cases, otherwise="echo starting; sleep 20")
        assert main([*LINE, "--program", slow]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and said in err
    assert time.monotonic() - started < 15


def test_a_program_that_says_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("llama-fit-params", "llama-server"):
        endless = script(tmp_path / name, ("--list-devices", DEVICES), ("--version", VERSION), otherwise="exec yes")
        assert main([*LINE, "--program", endless]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and ("MiB of output" in err or "did not measure" in err)
    unbroken = script(tmp_path / "llama-server", ("--version", VERSION), otherwise="yes | tr -d '\\n'")
    assert main([*LINE, "--no-gpu", "--program", unbroken]) == 2
    assert main(["verify", "deepseek-v4-flash", "--program", ""]) == 2
    assert "--program: an empty name" in capsys.readouterr().err


def test_what_is_waited_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan.cli.waiting.PATIENCE", 0.01)
    slow = script(tmp_path / "llama-fit-params", ("--version", VERSION), otherwise=f"sleep 0.5; echo '{FIGURES}'")
    assert main([*LINE, "--gpu", "RTX PRO 6000", "--program", slow]) == 0
    out, err = capsys.readouterr()
    assert "memplan: waiting for llama-fit-params (Ctrl-C ends it)" in err and "waiting" not in out


@pytest.mark.parametrize(
    ("rig", "said"),
    [
        (("--gpu", "2*RTX PRO 6000"), "llama-fit-params lists 1 GPU (NVIDIA RTX PRO 6000"),
        (("--gpu", "RTX 3090"), "you gave NVIDIA GeForce RTX 3090"),
        (("--gpu", "RTX PRO 6000:97886:97000"), "97,250 MiB free for llama-fit-params, you gave 97,000"),
        (("--no-gpu",), "you gave none"),
    ],
)
def test_another_rig_than_the_programs_is_said(
    rig: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = fit_params(tmp_path, FIGURES.replace("413", "700"))
    assert main([*LINE, *rig, "--program", program]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_end_in_between_leaves_nothing(name: str, status: int, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    cases = (("--version", VERSION), ("--list-devices", DEVICES))
    slow = script(tmp_path / "llama-fit-params", *cases, otherwise=f"sleep 30; touch {tmp_path}/lives")
    command = [sys.executable, "-m", "memplan", *LINE, "--program", slow]
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        for _ in range(600):
            calls = tmp_path / "llama-fit-params.calls"
            if calls.exists() and "--fit-print" in calls.read_text():
                break
            time.sleep(0.05)
        group = int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=True).stdout)
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (status, b"", b"")
    assert list(folder.iterdir()) == []
    left = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    living = [line.split() for line in left.splitlines() if line.split()[0] == str(group)]
    assert all(state.startswith("Z") for _, state in living), living


def test_where_programs_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    with pytest.raises(ProgramError, match="neither llama-fit-params nor llama-server is on PATH"):
        find_measurer("")
    (tmp_path / "opt").mkdir()
    server = script(tmp_path / "opt" / "llama-server")
    (tmp_path / "bin" / "llama-server").symlink_to(server)
    assert find_measurer("") == str(tmp_path / "bin" / "llama-server")
    fit = script(tmp_path / "opt" / "llama-fit-params")
    assert find_measurer("") == fit
    (tmp_path / "bin" / "llama-fit-params").symlink_to(fit)
    assert find_measurer("") == str(tmp_path / "bin" / "llama-fit-params")


def test_what_drafts_is_on_neither_side_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama-fit-params takes neither -md nor --spec-type (common/arg.cpp, v0.5.0)."""
    drafter = ["-md", "deepseek-v4-flash-dspark"]
    assert main([*LINE, *drafter, "--program", fit_params(tmp_path), "--check"]) == 0
    out = capsys.readouterr().out
    assert "they agree in every figure" in out
    assert "does not measure what drafts" in out and "MiB on CUDA0" in out
    assert main([*LINE, "-md", "none.gguf", "--program", fit_params(tmp_path)]) == 2
    assert "none.gguf" in capsys.readouterr().err


def test_flags_that_are_handed_on() -> None:
    line = "--port 8080 -c 4096 -ot a=CPU --n-cpu-moe 3 -kvu --jinja -fa on --offline --spec-type draft-mtp"
    assert list(taken_flags(line.split())) == ["-c", "4096", "-ot", "a=CPU", "--n-cpu-moe", "3", "-fa", "on"]
    assert measure_module.TIMEOUT >= 60


def test_no_folder_for_the_file_with_a_hole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryDirectory", none)
    assert main([*LINE, "--program", fit_params(tmp_path)]) == 2
    assert "no temporary folder can be made: No usable temporary directory" in capsys.readouterr().err
