"""memplan sweep, plot and explain as commands."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.cli.terminal import ProgressBar
from memplan.output.seal import sealed
from tests.cli.conftest import Engine, out
from tests.test_exported_members import loaded_by

pytestmark = pytest.mark.slow

MODEL = "deepseek-v4-flash"
GPU = ("--gpu", "2*RTX 3090")


@pytest.fixture(autouse=True)
def _fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib's list of fonts is made once, not in every test's own cache."""
    monkeypatch.setenv("MPLCONFIGDIR", str(Path(tempfile.gettempdir()) / "memplan-tests-matplotlib"))


def test_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("sweep", MODEL, *GPU, "-cmoe", "-c", "512", "--over", "ctx=4k,8k", "--over", "np=1,4")
    assert "4 of 4 fit" in out(capsys, *line)
    rows = list(csv.DictReader(io.StringIO(out(capsys, *line, "--csv"))))
    points = json.loads(out(capsys, *line, "--json"))["points"]
    assert [row["ctx"] for row in rows] == ["4096", "4096", "8192", "8192"]
    for row, point in zip(rows, points, strict=True):
        assert int(row["CUDA0 compute"]) == point["estimate"]["devices"][0]["compute"]
    estimate = json.loads(out(capsys, "estimate", MODEL, *GPU, "-cmoe", "-c", "8192", "-np", "4", "--json"))
    assert points[3]["estimate"]["buffers"] == estimate["buffers"]


def test_a_pasted_command_line_can_be_swept(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"llama-server -m {MODEL} -c 131072 -np 2 --n-cpu-moe 43 -fa on --port 8080"
    text = out(capsys, "sweep", *GPU, line, "--over", "ctx=4096", "--over", "ncmoe=20,43")
    assert "-np 2 -fa on --port 8080" in text
    assert "131,072" not in text and "--n-cpu-moe" not in text


def test_the_largest_context(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("sweep", MODEL, "--gpu", "RTX PRO 6000:97886:84000:12.0", "-np", "1", "--max", "ctx")
    found = json.loads(out(capsys, *line, "--json"))["found"][0]
    assert found["beyond"]["value"] == found["value"] + 256
    assert found["estimate"]["devices"][0]["left"] >= 300 << 20 > found["beyond"]["estimate"]["devices"][0]["left"]
    assert f"{found['value']:,}" in out(capsys, *line)
    assert out(capsys, *line, "--csv").splitlines()[0] == "largest ctx,least left,on,next,next left,method,tried"
    small = ("sweep", MODEL, "--gpu", "RTX 3090", "--max", "ctx", "--over", "ctx=4096,8192", "--check")
    assert "none" in out(capsys, *small, status=1)
    assert "0 of 1 fit" in out(capsys, "sweep", MODEL, "--gpu", "RTX 3090", "--over", "ctx=4096", "--check", status=1)


def test_rigs_releases_and_kernels_as_axes(capsys: pytest.CaptureFixture[str], engine: Engine) -> None:
    over = ("--over", "gpu=RTX 3090,2*RTX 3090+RTX 5090", "--over", "llama=v0.4.0,v0.5.0", "--over", "indexer=unfused")
    out(capsys, "sweep", MODEL, *over)
    assert [(len(asked.rig.gpus), asked.release.name, asked.paths["indexer"]) for asked in engine.asked] == [
        (1, "v0.4.0", "unfused"),
        (1, "v0.5.0", "unfused"),
        (3, "v0.4.0", "unfused"),
        (3, "v0.5.0", "unfused"),
    ]


def test_host_mib_holds_for_every_rig(capsys: pytest.CaptureFixture[str], engine: Engine) -> None:
    out(capsys, "sweep", MODEL, "--host-mib", "4096", "--over", "gpu=RTX 3090,2*RTX 3090")
    out(capsys, "sweep", MODEL, *GPU, "--host-mib", "4096", "--over", "np=1")
    assert [asked.rig.host_total for asked in engine.asked] == [4096 << 20] * 3


def test_plot_into_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.svg"
    assert main(["plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096,8192", "-o", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{path}: fits throughout, to 8,192 tokens\n"
    assert "How much context fits?" in path.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["a.svg"]


def test_plot_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "plot", MODEL, *GPU, "-cmoe", "--over", "np=1,2", "--over", "ctx=4096,8192", "--terminal")
    assert "-np 2: fits throughout" in text
    text = out(capsys, "plot", MODEL, *GPU, "-cmoe", "-c", "4096", "--over", "np=1,2,4", "--terminal")
    assert "down: -np" in text
    text = out(capsys, "plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096", "--over", "np=1,2,4", "--terminal")
    assert "down: -np" in text
    text = out(capsys, "plot", MODEL, *GPU, "-cmoe", "--over", "np=1", "--terminal")
    assert "1,048,576" in text and "down: tokens of context" in text
    text = out(
        capsys,
        "plot",
        MODEL,
        *GPU,
        "-cmoe",
        "--over",
        "ctx=4096,8192",
        "--over",
        "np=1,2",
        "--x",
        "slots",
        "--terminal",
    )
    assert "4,096 tokens: fits" in text


def test_the_terminal_needs_no_library_for_drawing() -> None:
    line = ["plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096,8192", "--terminal"]
    loaded = loaded_by(f"from memplan.cli import main\nassert main({line!r}) == 0")
    assert not loaded & {"matplotlib", "numpy", "pydantic"}
    line[-1:] = ["-o", os.devnull]
    assert "matplotlib" not in loaded_by(f"from memplan.cli import main\nassert main({line!r}) == 2")


def test_pyplot_is_never_loaded(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = ["plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096,8192", "-o", str(tmp_path / "a.png")]
    loaded = loaded_by(f"from memplan.cli import main\nassert main({line!r}) == 0")
    assert "matplotlib.figure" in loaded
    assert "matplotlib.pyplot" not in loaded


def test_explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ("explain", MODEL, *GPU, "-cmoe", "-c", "4096", "-np", "1")
    text = out(capsys, *line)
    assert "CUDA1: compute buffer" in text
    half = json.loads(out(capsys, "estimate", MODEL, *GPU, "-cmoe", "-c", "4096", "-np", "1", "-ub", "256", "--json"))
    compute = [device["compute"] for device in half["devices"]]
    assert all(f"it would be {size / 2**20:,.1f} MiB with -ub 256, " in text for size in compute)
    assert text.count("MiB with -c 2048") == 3
    assert "CUDA1" not in out(capsys, *line, "--device", "CUDA0", "--top", "2").partition("Splits")[0]
    found = json.loads(out(capsys, *line, "--json"))
    assert [buffer["device"] for buffer in found["buffers"]] == ["CUDA0", "CUDA1", "CPU"]
    refused = out(capsys, "explain", MODEL, *GPU, "-c", "4096", "-ctk", "q8_0")
    assert "does not start" in refused
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.png"
    out(capsys, *line, "--timeline", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["sweep", "plot", "explain"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, command, "--help")
    assert text.startswith(f"Usage: memplan {command} MODEL")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f" {command} " in out(capsys, "--help")


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("sweep", MODEL, *GPU), "what is to be varied?"),
    (("sweep", MODEL, *GPU, "--over"), "--over needs a value"),
    (("sweep", MODEL, *GPU, "--over", "ctx"), "NAME=VALUES"),
    (("sweep", MODEL, *GPU, "--over", "ctx=lots"), "must be a number"),
    (("sweep", MODEL, *GPU, "--over", "np=0"), "-np 0"),
    (("sweep", MODEL, *GPU, "--over", "ctk=q9"), "-ctk 'q9'"),
    (("sweep", MODEL, *GPU, "--over", "ctx=4096", "--over", "c=1"), "sets already"),
    (("sweep", MODEL, *GPU, "--over", "gpu=RTX 3090"), "sets already"),
    (("sweep", MODEL, "--over", "gpu=RTX 3091"), "RTX 3090"),
    (("sweep", MODEL, *GPU, "--over", "llama=v0"), "v0"),
    (("sweep", MODEL, *GPU, "--over", "ctx=1:4000:1", "--over", "np=1:99:1"), "at most"),
    (("sweep", MODEL, *GPU, "--max", "llama"), "--max llama: takes no numbers"),
    (("sweep", "llama-3.3-70b", *GPU, "--min", "ncmoe"), "--min ncmoe: the model has no experts"),
    (("sweep", MODEL, *GPU, "--max", "fa"), "takes no numbers"),
    (("sweep", MODEL, *GPU, "--max", "threads"), "--over threads=1:64:1"),
    (("sweep", MODEL, *GPU, "--max", "ctx", "--min", "ncmoe"), "only one of them"),
    (("sweep", MODEL, *GPU, "--over", "ctx=4k,8k", "--margin", "5"), "goes with --max or --min"),
    (("sweep", MODEL, *GPU, "--max", "ctx", "--margin", "-5"), "--margin"),
    (("sweep", MODEL, *GPU, "--over", "np=1", "--host-mib", "0"), "--host-mib 0: must be 1 or more"),
    (("plan", MODEL, *GPU, "--format", "sh", "-o", "plan.sh"), "-o: this command writes to stdout"),
    (("verify", "/nowhere/m.gguf"), "/nowhere/m.gguf"),
    (("plan", MODEL, *GPU, "--search", ""), "--search: a name is missing"),
    (("plan", MODEL, *GPU, "--search", "c,"), "--search: a name is missing"),
    (("slots", MODEL, *GPU, "--np", ",".join(map(str, range(1, 257)))), "256 counts of slots; at most 32"),
    (("preset", "show", ""), "an empty argument"),
    (("preset", "show", "x" * 5000), "there is none"),
    (("preset", "--fit", MODEL, *GPU, "--mmproj", os.devnull), "the file is empty"),
    (("preset", "--fit", MODEL, *GPU, "--mmproj", "/"), "is a folder"),
    (("estimate", MODEL, "--gpu", "RTX 3090:::1.0"), "compiled for 5.0 and above"),
    (("estimate", MODEL, *GPU, "--override-kv", "general.architecture=str:llama"), "is not modelled"),
    (("sweep", MODEL, *GPU, "--max", "ctk"), "takes no numbers"),
    (("sweep", MODEL, *GPU, "--max", "x"), "no such axis"),
    (("sweep", MODEL, *GPU, "--max", "ctx", "--max", "np"), "given twice"),
    (("sweep", MODEL, *GPU, "--over", "ctx=1", "--csv", "--json"), "--csv and --json"),
    (("sweep", MODEL, *GPU, "--over", "ctx=1", "--cvs"), "did you mean --csv"),
    (("sweep", *GPU, "--over", "ctx=1"), "which model?"),
    (("plot", MODEL, *GPU), "where to?"),
    (("plot", MODEL, *GPU, "-o"), "-o needs a value"),
    (("plot", MODEL, *GPU, "-o", "a.gif"), "ends in .png"),
    (("plot", MODEL, *GPU, "-o", "/nowhere/at/all/a.png"), "no folder"),
    (("plot", MODEL, *GPU, "-o", "a.png", "--terminal"), "give only one"),
    (("plot", MODEL, *GPU, "-o", "a.png", "--output", "b.png"), "given twice"),
    (("plot", MODEL, *GPU, "--terminal", "--json"), "--json is an option of memplan estimate, sweep"),
    (("plot", MODEL, *GPU, "--terminal", "--dark"), "--dark is for the file"),
    (("plot", MODEL, *GPU, "--terminal", "--log-y"), "--log-y is for the file"),
    (("plot", MODEL, *GPU, "--terminal", "--linear"), "--linear: bars in the terminal have no axis"),
    (("plot", MODEL, *GPU, "-o", "a.png", "--log-y"), "--log-y: parts that are stacked"),
    (("plot", MODEL, *GPU, "--terminal", "--x", "np"), "not among"),
    (("plot", MODEL, *GPU, "--terminal", "--over", "ctx=4096"), "at least two numbers"),
    (("plot", MODEL, *GPU, "--terminal", "--over", "ctx=4096,8192", "--over", "np=1:20:1"), "16 at most"),
    (("plot", MODEL, *GPU, "--terminal", "--over", "fa=on,off", "--x", "fa"), "at least two numbers"),
    (("explain", MODEL, *GPU, "--top", "0"), "--top 0: must be 1 or more"),
    (("explain", MODEL, *GPU, "--top", "x"), "--top 'x'"),
    (("explain", MODEL, *GPU, "--device", "CUDA2"), "this rig has CUDA0, CUDA1, CPU"),
    (("explain", MODEL, *GPU, "--timeline", "a.txt"), "ends in .png"),
    (("explain", MODEL, *GPU, "--timeline", ""), "ends in .png"),
    (("explain", MODEL, *GPU, "--dark"), "--timeline FILE"),
    (("explain", MODEL, *GPU, "-c", "4096", "-ctk", "q8_0", "--timeline", "refused.png"), "does not start"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=range(len(WRONG)))
def test_wrong_lines(line: tuple[str, ...], said: str, wrong: Callable[[Sequence[str], str], None]) -> None:
    wrong(line, said)


def test_an_interrupted_plot_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.png"
    old = sealed(b"<?xml?>\n")
    path.write_bytes(old)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    assert main(["plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096,8192", "-o", str(path)]) == 130
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["a.png"]
    capsys.readouterr()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_after_a_moment_and_leaves_nothing() -> None:
    now = [0.0]
    stream = Terminal()
    with ProgressBar("sweeping", stream, lambda: now[0]) as bar:
        bar(0, 10)
        assert stream.getvalue() == ""
        now[0] = 5.0
        bar(5, 10)
        assert "sweeping [###############               ] 5 of 10" in stream.getvalue()
        now[0] = 6.0
        bar(7)
    assert "7 estimates" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    silent = io.StringIO()
    with ProgressBar("sweeping", silent, lambda: now[0]) as bar:
        now[0] = 99.0
        bar(5, 10)
    assert silent.getvalue() == ""


def test_as_a_process_with_warnings_as_errors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = ["plot", MODEL, *GPU, "-cmoe", "--over", "ctx=4096,8192", "-o", str(tmp_path / "a.pdf")]
    command = [sys.executable, "-W", "error", "-m", "memplan", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    said = f"{tmp_path / 'a.pdf'}: fits throughout, to 8,192 tokens\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
