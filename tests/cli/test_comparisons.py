"""memplan slots, paths and compare as commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from memplan.cli import main
from memplan.cli.command import Arguments
from memplan.cli.commands import find_command
from memplan.cli.compare import sides
from memplan.explaining.explain import explained
from tests.cli.conftest import out

pytestmark = pytest.mark.slow

MODEL = "deepseek-v4-flash"
GPU = ("--gpu", "2*RTX 3090")
SMALL = (MODEL, *GPU, "-c", "4096", "-np", "1", "-cmoe")


@pytest.fixture(autouse=True)
def each_question_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is packed once for all tests that ask the same."""
    monkeypatch.setattr("memplan.explaining.explain.explained", once)
    monkeypatch.setattr("memplan.comparing.paths.explained", once)


once = cache(explained)


def test_a_side_may_have_other_hyper_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("compare", "gpt-oss-20b", "--gpu", "RTX 3090", "-c", "4096", "-np", "1", "--with", "--set expert_count=16")
    assert out(capsys, *line).splitlines()[-1].startswith("--set expert_count=16: 4,")


def test_slots(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("slots", f"llama-server -m {MODEL} -c 65536 -cmoe --port 1", *GPU, "--np", "4,1,4")
    text = out(capsys, *line)
    assert "llama-server v0.5.0 -c 65536 -cmoe --port 1: MiB" in text
    assert "Fused indexer (what v0.5.0 takes here)" in text and "Unfused indexer" in text
    rows = [row.split() for row in text.splitlines() if row.strip()[:1].isdigit()]
    assert [row[:2] for row in rows] == [["1", "65,536"], ["4", "16,384"], ["4", "65,536"]] * 2
    assert [row[-1] for row in rows] == ["fits", "fits", "default"] * 2
    assert "run time" in text.splitlines()[4]
    found = json.loads(out(capsys, *line, "--json"))
    assert [(row["slots"], row["unified"], row["default"]) for row in found["rows"][:3]] == [
        (1, False, False),
        (4, False, False),
        (4, True, True),
    ]
    estimate = json.loads(out(capsys, "estimate", MODEL, *GPU, "-c", "65536", "-cmoe", "--json"))
    assert found["rows"][2]["estimate"]["buffers"] == estimate["buffers"]
    assert found["rows"][1]["args"] == ["-np", "4"]
    assert found["advice"] is None


def test_slots_are_checked_as_they_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    # what the default's caches take is too much for this card, what one slot's take is not
    line = ("slots", MODEL, "--gpu", "RTX 3090:24268:12000:8.6", "-cmoe", "-c", "262144", "--np", "1", "--check")
    text = out(capsys, *line, status=1)
    assert text.splitlines()[-1].startswith("without -np, llama-server takes 4 slots that share 262,144 tokens: ")
    assert "what fits: -np 1 (262,144 tokens for its slot), or -np " in text
    out(capsys, *line, "-np", "1")
    out(capsys, *line, "-np", "1", "--indexer", "unfused", status=1)


def test_paths(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.sweeping.largest.CELL_PADDING", 1 << 17)
    text = out(capsys, "paths", *SMALL, "--top", "3")
    assert "v0.5.0 takes the fused path here" in text
    assert "lid_kq (its permuted copy)" in text
    assert "fused compute  unfused compute  fused run time  unfused run time  change" in text
    assert "fused: fits up to 1,048,576 tokens of context, the model's own" in text
    short = "from 262,144 on, it starts, but what kernels take does not fit on CUDA0 ("
    assert f"unfused: fits up to 131,072 tokens of context; {short}" in text
    found = json.loads(out(capsys, "paths", *SMALL, "--json"))
    assert [(path["path"], path["largest_context"], path["does_not_fit_from"]) for path in found["paths"]] == [
        ("fused", 1048576, None),
        ("unfused", 131072, 262144),
    ]
    computes = [path["estimate"]["devices"][0]["compute"] for path in found["paths"]]
    buffer = found["comparison"]["compute"][0]
    assert [buffer["before"], buffer["after"]] == computes
    assert {"lid_kq", "lid_score"} <= {t["tensor"]["base"] for t in found["tensors"]}
    # the release's own path is what an estimate takes
    estimate = json.loads(out(capsys, "estimate", *SMALL, "--json"))
    assert found["paths"][0]["estimate"]["buffers"] == estimate["buffers"]


def test_compare_releases(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("compare", MODEL, "--gpu", "RTX 4090", "-c", "64000", "-ub", "4096", "-b", "4096", "-np", "1", "-cmoe",
            "--no-op-offload", "--llama", "b10549", "--llama", "b10568")  # fmt: skip
    text = out(capsys, *line)
    assert "CUDA0  compute  2,324.1  2,674.1  +350.0" in text
    assert "the same on every device: weights, context and run time" in text
    assert "the same tensors are alive, to the byte; 350.0 MiB more are lost in gaps between them" in text
    assert (
        "in b10568, 352.0 MiB stay empty where MUL_MAT of attn_q_b.weight of layer 2 (512.0 MiB) lay: too little for"
        " FLASH_ATTN_EXT of q of layer 2 (512.0 MiB), which lies above; in b10549, q of layer 2 (512.0 MiB) fills that"
        " place, and in b10568 it takes over the place of q_norm-2"
    ) in text
    assert "- q (43 x 512.0 MiB) takes over the place of q_norm in b10568, and has a place of its own in b10549" in text
    # the release's own words tell the same cause
    assert "the result, q, now takes over the place of q_norm" in " ".join(text.split())
    assert text.splitlines()[-1] == "b10568: 350 MiB more on CUDA0; still fits; the host's memory is not checked"
    found = json.loads(out(capsys, *line, "--json"))
    assert (found["before"]["estimate"]["llama"], found["after"]["estimate"]["llama"]) == ("b10549", "b10568")
    assert (found["compute"][0]["alive"], found["compute"][0]["lost"]) == (0, 350 << 20)
    assert [(r["name"], r["build"]) for r in found["releases"]] == [("b10568", 10568)]
    moved = {"buffer": "CUDA0", "part": "compute", "change": 350 << 20}
    assert found["releases"][0]["here"]["moves"] == [moved]
    assert "most shrink a little. Here: CUDA0 compute +350.0 MiB." in " ".join(text.split())
    assert found["verdict"] == text.splitlines()[-1]


def test_compare_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "compare", *SMALL, "--with", "-ncmoe 30")
    assert text.startswith("as given: ") and "-ncmoe 30: " in text
    assert "CUDA_Host to CUDA1" in text and "30-42" in text
    text = out(capsys, "compare", *SMALL, "--with", "-np 1", "--with", "--gpu 'RTX 3090' --llama v0.4.0")
    assert "only -np 1 computes anything here" in text and "llama-server v0.4.0: 1 slot of 4,096 tokens" in text
    assert "nothing moved" in out(capsys, "compare", *SMALL, "--with", "-cmoe")
    text = out(capsys, "compare", *SMALL, "--with", "-ctk q8_0")
    assert "-ctk q8_0: llama.cpp does not start with these settings: does not support different K" in text
    text = out(capsys, "compare", *SMALL, "--indexer", "fused", "--indexer", "unfused")
    assert "no such tensor in --indexer fused" in text and "lid_kq" in text


def sides_of(*line: str) -> list[tuple[str, Arguments]]:
    ctx = find_command("compare").make_context("compare", list(line))
    return sides(ctx.obj, ctx.params["settings"] or (), ctx.params)


def asked(*line: str) -> list[tuple[str, tuple[str, ...], str, str]]:
    return [(name, side.flags, side.llama, side.app) for name, side in sides_of(*line)]


def test_what_is_set_beside_what() -> None:
    assert asked("m", "-ub", "64", "--with", "--ubatch-size 512", "--with", "-b 4096 --llama b10068 --app cli") == [
        ("--ubatch-size 512", ("--ubatch-size", "512"), "latest", "server"),
        ("-b 4096 --llama b10068 --app cli", ("-ub", "64", "-b", "4096"), "b10068", "cli"),
    ]
    # -ncmoe stands for what -cmoe says, -ot for something more
    assert [side[1] for side in asked("m", "-cmoe", "-ot", "a=CPU", "--with", "-ncmoe 3 -ot b=CPU")] == [
        ("-cmoe", "-ot", "a=CPU"),
        ("-ncmoe", "3", "-ot", "b=CPU"),
    ]
    assert [side[::3] for side in asked("m", "--app", "server", "--app", "cli")] == [
        ("--app server", "server"),
        ("--app cli", "cli"),
    ]
    rigs = sides_of("m", "--gpu", "a", "--with", "--no-gpu", "--with", "--rig r.toml -m n")
    assert [(side.model, side.gpus, side.rig, side.no_gpu) for _, side in rigs] == [
        ("m", [], None, True),
        ("n", [], "r.toml", False),
    ]


def test_compare_models(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "compare", *SMALL, f"{MODEL}:q3")
    assert "ffn_down_exps.weight" in text and "the same on every device: context" in text
    assert "deepseek-v4-flash:q3: 284.3 B parameters" in text


def test_plain_text_and_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.cli.terminal.unicode", lambda: False)
    assert out(capsys, "compare", *SMALL, "--with", "-ncmoe 30").isascii()
    monkeypatch.setattr("memplan.cli.terminal.colour", lambda: True)
    assert "\x1b[" in out(capsys, "compare", *SMALL, "--with", "-ncmoe 30")


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("slots", MODEL, *GPU, "--np", "0"), "--np 0: must be 1 or more"),
    (("slots", MODEL, *GPU, "--np", "1,x"), "--np 'x'"),
    (("slots", MODEL, *GPU, "--np", "257"), "--np 257: must be 256 or less"),
    (("slots", MODEL, *GPU, "--np"), "--np needs a value"),
    (("slots", MODEL, *GPU, "--np", ""), "--np ''"),
    (("slots", *GPU), "which model?"),
    (("slots", MODEL), "which GPUs?"),
    (("slots", MODEL, "other", *GPU), "more than one model"),
    (("compare", MODEL, "-m", "other", "--llama", "v0.4.0", "--llama", "v0.5.0", *GPU), "more than one model"),
    (("paths", MODEL, *GPU, "--top", "0"), "--top 0: must be 1 or more"),
    (("paths", MODEL, *GPU, "--llama", "b1"), "older than any release"),
    (("paths", *GPU), "which model?"),
    (("paths", MODEL, *GPU, "--hyper-connections", "x"), "--hyper-connections: 'x' is not one of"),
    (("paths", MODEL, *GPU, "--indexer", "fused"), "--indexer is an option of memplan estimate"),
    (("slots", MODEL, *GPU, "--llama", "b9842", "--indexer", "fused"), "has no fused indexer"),
    (("estimate", MODEL, *GPU, "--path", "rope=fused"), "no such path of deepseek4; it has indexer, hyper-connections"),
    (("estimate", "qwen3-30b-a3b", *GPU, "--path", "indexer=fused"), "no such path of qwen3moe; it has none"),
    (("estimate", MODEL, *GPU, "--path", "indexer"), "--path 'indexer': must be NAME=WAY"),
    (("estimate", MODEL, *GPU, "--path", "indexer=fused", "--indexer", "unfused"), "indexer is given as fused too"),
    (("paths", MODEL, *GPU, "--of", "rope"), "no such path of deepseek4"),
    (("paths", "qwen3-30b-a3b", *GPU), "qwen3moe"),
    (("compare", MODEL, *GPU), "what is to be compared?"),
    (("compare", MODEL, *GPU, "--llama", "b10068"), "compared with what? give a second --llama"),
    (("compare", MODEL, *GPU, "--llama", "b10068", "--llama", "b9988", "--llama", "latest"), "more than two sides"),
    (("compare", MODEL, *GPU, "--llama", "b10068", "--llama", "b9988", "--with", "-ub 1"), "more than two sides"),
    (("compare", MODEL, *GPU, "--indexer", "fused", "--indexer", "no"), "--indexer 'no'"),
    (("compare", MODEL, MODEL, MODEL, *GPU), "more than 2 models"),
    (("compare", MODEL, *GPU, "--with", "-ub lots"), "-ub 'lots'"),
    (("compare", MODEL, *GPU, "--with", ""), "give llama-server's flags or options"),
    (("compare", MODEL, *GPU, "--with", "--json"), "--json is an option of"),
    (("compare", MODEL, *GPU, "--with", "-ubb 2"), "unknown flag '-ubb'"),
    (("compare", MODEL, *GPU, "--with"), "--with needs a value"),
    (("compare", MODEL, *GPU, "--llama", "b10068", "--llama", "x"), "llama.cpp release 'x'"),
    (("compare", MODEL, "no-such-model", *GPU), "no-such-model"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=range(len(WRONG)))
def test_wrong_lines(line: tuple[str, ...], said: str, wrong: Callable[[Sequence[str], str], None]) -> None:
    wrong(line, said)


def test_without_a_gpu_nothing_is_said_to_fit_unchecked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan.sweeping.largest.CELL_PADDING", 1 << 19)
    unchecked = "not checked: the host, which needs up to "
    text = out(capsys, "paths", MODEL, "--no-gpu", "-c", "4096", "-np", "1")
    assert "fused: 1,048,576 tokens of context take 91,402 MiB of the host's memory, which is not checked" in text
    assert "fits" not in text and unchecked in text
    text = out(capsys, "slots", MODEL, "--no-gpu", "--np", "1", "-c", "65536")
    assert "fits" not in text and unchecked in text
    # the two paths differ in what the host computes
    rows = [row.split() for row in text.splitlines() if row.split()[:1] == ["1"]]
    assert "host compute" in text and len({row[3] for row in rows}) == 2
    assert " fits" in out(capsys, "slots", MODEL, "--no-gpu", "--host-mib", "400000", "--np", "1", "-c", "65536")
    assert "of 1 fit" not in out(capsys, "sweep", MODEL, "--no-gpu", "-c", "4096", "--over", "np=1")


def test_what_the_fused_path_is_where_no_gpu_has_the_op(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan.sweeping.largest.CELL_PADDING", 1 << 19)
    line = ("paths", MODEL, "--gpu", "RTX PRO 6000", "-c", "4096", "-np", "1", "--without-op", "LIGHTNING_INDEXER")
    text = out(capsys, *line)
    assert "v0.5.0 takes the fused path here; the host computes the op: each layer's inputs are copied" in text
    assert "so a prompt's graph has 44 splits" in text


def test_explain_takes_paths(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("explain", *SMALL, "--device", "CUDA0", "--top", "1")
    text = out(capsys, *line, "--indexer", "unfused", "--hyper-connections", "unfused")
    assert "--path indexer=unfused: built from small ops, as asked" in text
    assert "--path hyper-connections=unfused: built from small ops, as asked" in text
    own = json.loads(out(capsys, *line, "--indexer", "unfused", "--hyper-connections", "unfused", "--json"))
    same = json.loads(
        out(capsys, "estimate", *SMALL, "--indexer", "unfused", "--hyper-connections", "unfused", "--json")
    )
    assert own["estimate"]["buffers"] == same["buffers"]
    assert "--path" not in out(capsys, *line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("compare", MODEL, "--with", "--with -ub"), "--with is no setting of a side"),
        (("compare", MODEL, "--with", "--top 3"), "--top is no setting of a side"),
        (("sweep", MODEL, "--indexer", "unfused"), "--over indexer=unfused"),
        (("plot", MODEL, "--indexer", "unfused"), "--over indexer=unfused"),
        (("estimate", MODEL, "--no-gpu", "--without-op", "NONE"), "NONE computes nothing"),
        (("estimate", MODEL, "--no-gpu", "--without-op", "view"), "VIEW computes nothing"),
        (("estimate", MODEL, "--no-gpu", "--llama", "10068.5"), "write a tag (v0.5.0), a build"),
    ],
)
def test_lines_that_mean_something_else(capsys: pytest.CaptureFixture[str], line: tuple[str, ...], said: str) -> None:
    assert main(line) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_inputs_without_a_name_are_explained_where_they_move(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("compare", MODEL, "--gpu", "RTX PRO 6000", "-c", "4096", "--llama", "lid-cuda", "--llama", "b9988")
    text = out(capsys, *line)
    assert "input of FILL for kq_plus_kq_b has no name in llama.cpp: room for zeros" in text
    assert "unnamed" not in text


def test_a_side_has_its_own_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "compare", *SMALL, "--with", "-md deepseek-v4-flash-dspark", "--json")
    told = out(capsys, "compare", *SMALL, "--with", "-md deepseek-v4-flash-dspark")
    assert "not given" not in told
    assert json.loads(text) and "MiB more on CUDA0" in told.splitlines()[-1]


@pytest.mark.parametrize(("command", "head"), [("slots", "most drafter"), ("paths", " drafter ")])
def test_what_drafts_has_a_column(command: str, head: str, capsys: pytest.CaptureFixture[str]) -> None:
    slots = ("--np", "1") if command == "slots" else ("-np", "1")
    text = out(capsys, command, MODEL, *GPU, "-c", "4096", "-cmoe", *slots, "-md", "deepseek-v4-flash-dspark")
    assert head in text.partition("────")[0]


def test_slots_say_why_nothing_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("deepseek-r1", "--spec-type", "draft-mtp", "--gpu", "4*RTX PRO 6000")
    text = out(capsys, "slots", *line, "-c", "32768", "--np", "1,4")
    assert "refused: context type MTP requested" in text and "short:" not in text
    assert text.splitlines()[-1].startswith("no slot count starts: ")
    text = out(capsys, "sweep", *line, "-np", "1", "--max", "ctx")
    assert "256 is refused: context type MTP requested" in text and "short" not in text
