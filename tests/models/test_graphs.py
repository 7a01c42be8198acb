"""Graphs node by node: what memplan builds is what llama.cpp built, for every modelled release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memplan.estimator import answer
from memplan.ggml.plan.structure import structure_of
from memplan.llama.flags import parse_flags
from memplan.llama.run_time import prompt_batches
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.releases import FORKS, RELEASES
from memplan.rig import parse_gpus
from scripts import compare_graph
from scripts.compare_graph import BLOCK, build, differing, digest, golden_nodes, own_nodes
from tests.golden import stored as header

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
DIGESTS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "graphs.json").read_text())
WHOLE = GOLDEN / "graphs" / "b10068.jsonl.gz"
SAME = {"b11434": "v0.5.0"}
"""Releases of which no graph was written out, and the one whose source builds the same."""
FLAGS = ["-c", "131072", "-b", "2048", "-ub", "512", "-np", "1", "-fa", "on"]


OLDEST, *BETWEEN, NEWEST = DIGESTS


@pytest.mark.parametrize(
    "name", [OLDEST, NEWEST, *(pytest.param(name, marks=pytest.mark.thorough) for name in BETWEEN)]
)
def test_every_node_is_llama_cpp_s(name: str) -> None:
    golden = DIGESTS[name]
    graph = build(
        builtin_header("deepseek-v4-flash:antirez-q2"),
        golden["release"],
        golden["flags"],
        golden["without_ops"],
        app=golden.get("app", "server"),
    )
    found = digest(own_nodes(graph))
    assert found["nodes"] == golden["nodes"]
    wrong = [i for i, (a, b) in enumerate(zip(found["blocks"], golden["blocks"], strict=True)) if a != b]
    assert not wrong, f"the first node that differs is one of {wrong[0] * BLOCK} to {wrong[0] * BLOCK + BLOCK - 1}"


def test_there_is_a_graph_of_every_release() -> None:
    followed = {r.name for r in (*RELEASES, *FORKS) if r.graphs_followed}
    assert {golden["release"] for golden in DIGESTS.values()} | {*SAME} == followed


@pytest.mark.parametrize(("name", "as_in"), SAME.items())
def test_releases_that_build_another_s_graph(name: str, as_in: str) -> None:
    header = builtin_header("deepseek-v4-flash:antirez-q2")
    one, other = (digest(own_nodes(build(header, release, FLAGS, []))) for release in (name, as_in))
    assert one == other


def test_a_node_that_differs_is_found() -> None:
    golden = golden_nodes(WHOLE)
    assert digest(golden)["blocks"] == DIGESTS["b10068"]["blocks"]
    changed = [*golden[:700], [*golden[700][:2], "f16", *golden[700][3:]], *golden[701:-1]]
    assert differing(golden, changed) == [700, len(golden) - 1]
    blocks = digest(changed)["blocks"]
    assert [i for i, b in enumerate(blocks) if b != DIGESTS["b10068"]["blocks"][i]] == [2, len(blocks) - 1]


@pytest.mark.parametrize(("release", "status", "says"), [("b10068", 0, " 0 differ"), ("b10361", 1, "node 43\n")])
def test_the_script_says_which_nodes_differ(
    release: str, status: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["compare_graph.py", str(WHOLE), release, "deepseek-v4-flash:antirez-q2"])
    assert compare_graph.main() == status
    assert says in capsys.readouterr().out


def run(monkeypatch: pytest.MonkeyPatch, *line: str) -> int:
    monkeypatch.setattr("sys.argv", ["compare_graph.py", *line])
    try:
        return compare_graph.main()
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ((str(WHOLE), "b10068", "--without-op", "LIGHTNING_INDEXR"), "did you mean LIGHTNING_INDEXER?"),
        ((str(WHOLE), "b1"), "build 1 is older than any"),
        ((str(WHOLE), "b10068", "no-such-model"), "no-such-model"),
        (("gone.jsonl", "b10068"), "gone.jsonl"),
        ((str(GOLDEN / "graphs.json"), "b10068"), "not as scripts/ask_llama.cpp writes it"),
    ],
)
def test_wrong_input_is_one_line(
    line: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, *line) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_digest_is_the_line_that_is_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, str(WHOLE), "b10068", "--digest") == 0
    assert json.loads(capsys.readouterr().out) == DIGESTS["b10068"]


def test_flags_follow_after_two_dashes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["-c", "4096", "-np", "1"]
    assert run(monkeypatch, str(WHOLE), "b10068", "--app", "cli", "--digest", "--", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["app"], found["flags"], found["nodes"]) == ("cli", flags, 9448)
    assert run(monkeypatch, str(WHOLE), "b10068", "--", *flags) == 1  # another context: other sizes


def test_a_copy_between_devices_is_what_was_copied(tmp_path: Path) -> None:
    tensor = {"type": "f32", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16], "flags": 0, "src": []}
    weight = {**tensor, "id": "L0", "name": "CUDA0#w#0", "op": "NONE"}
    made = {**tensor, "id": "0", "name": "made", "op": "SQRT", "src": ["L0"]}
    copy = {**tensor, "id": "L1", "name": "CPU#made#0", "op": "NONE"}
    used = {**tensor, "id": "1", "name": "used", "op": "SQR", "src": ["L1"]}
    file = tmp_path / "graph.jsonl"
    file.write_text("".join(json.dumps(t) + "\n" for t in (weight, made, copy, used)))
    assert [node[-1] for node in golden_nodes(file)] == [[["f32", [4, 1, 1, 1], [4, 16, 16, 16]]], [0]]


def test_a_graph_without_a_gpu_has_no_copies_and_is_the_same(tmp_path: Path) -> None:
    """llama.cpp's CPU build lists views of inputs as sources, where a scheduler with a GPU puts copies."""
    tensor = {"type": "f32", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16], "flags": 0, "src": []}
    leaf = {**tensor, "id": "L0", "name": "inp", "op": "NONE", "flags": 1}
    view = {**tensor, "id": "0", "name": "inp (view)", "op": "VIEW", "view_of": "L0", "offset": 0, "src": ["L0"]}
    used = {**tensor, "id": "1", "name": "used", "op": "SQRT", "src": ["0"]}
    copy = {**leaf, "id": "L1", "name": "CUDA0#inp (view)#0", "flags": 0}
    lists = ([leaf, view, used], [leaf, view, copy, {**used, "src": ["L1"]}])
    nodes = []
    for i, tensors in enumerate(lists):
        file = tmp_path / f"{i}.jsonl"
        file.write_text("".join(json.dumps(t) + "\n" for t in tensors))
        nodes.append(golden_nodes(file))
    assert nodes[0] == nodes[1]


@pytest.mark.parametrize(
    "model", ["deepseek-v4-flash", "gemma4-26b-a4b", "glm45-air", "kimi-linear-48b", "llama4-scout", "minimax-m3"]
)
def test_halves_that_layers_and_batches_share_are_what_each_would_have(model: str) -> None:
    of = builtin_header(model) if model.startswith("deepseek-v4") else header(model)
    for words in ("-c 8192 -np 1", "-c 16384 -np 4", "-c 16384 -np 4 -kvu -ub 256", "-c 8192 -np 1 -fa off"):
        made = answer(Question.of(of, parse_flags(words.split()), parse_gpus(["2*RTX 3090"]), "latest")).made
        assert made is not None
        context = made.context
        for batch in (context.params.prompt_batch, *prompt_batches(context.params, 1000)):
            parts = context.graphs.in_parts(batch, context.fused)
            structure = structure_of(parts)
            nodes = [parts.parts[structure.at[i]].nodes[structure.ref[i]] for i in structure.order]
            whole = context.graphs.whole(batch, context.fused).graph.nodes
            assert [(t.op, t.type, t.ne, t.nb) for t in nodes] == [(t.op, t.type, t.ne, t.nb) for t in whole]
