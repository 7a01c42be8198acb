"""Pieces of graphs that were read in a build's source, and of which no answer is at hand: b11434's."""

from __future__ import annotations

import pytest

from memplan.backends.devices import Rig
from memplan.estimator import answer
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question


def graph(model: str, release: str, flags: str = "-c 4096 -np 3 -ub 64") -> Graph:
    question = Question.of(builtin_header(model), parse_flags(flags.split()), Rig(()), release)
    made = answer(question).made
    assert made is not None
    context = made.context
    return context.graphs.whole(context.params.prompt_batch, context.fused).graph


def ops_of(tensors: list[Tensor]) -> list[str]:
    return [t.op for t in tensors]


def test_a_batch_of_tokens_and_embeddings_is_a_third_way_in() -> None:
    before, after = (graph("qwen3-30b-a3b", release) for release in ("v0.5.0", "b11434"))
    assert len(after.nodes) == len(before.nodes) + 3
    rows, copy, joined = after.nodes[1:4]
    assert ops_of([rows, copy, joined]) == ["GET_ROWS", "DUP", "SET_ROWS"]
    assert [s.name for s in (rows.src[1], copy.src[0], joined.src[1])] == [
        "inp_mixed_tokens", "inp_mixed_embd", "inp_mixed_slots",
    ]  # fmt: skip
    assert joined.src[0] is rows and joined.view_src is copy
    assert joined.uses == 0 and after.nodes[0].name == "embd"


def test_not_with_deepseek_v4() -> None:
    before, after = (graph("deepseek-v4-flash", release, "-c 4096 -np 1") for release in ("v0.5.0", "b11434"))
    assert ops_of(before.nodes) == ops_of(after.nodes)


@pytest.mark.parametrize(("model", "own_rows"), [("qwen3-next-80b-a3b", False), ("nemotron-3-nano-30b-a3b", True)])
def test_recurrent_states_are_gathered_once(model: str, own_rows: bool) -> None:
    before, after = (graph(model, release) for release in ("v0.5.0", "b11434"))

    def gathers(g: Graph) -> set[int]:
        """Rows that are gathered by a part of the input that numbers the cells."""
        by = [t.src[1].view_src for t in g.nodes if t.op == "GET_ROWS"]
        gathered = [t for t in g.nodes if t.op == "GET_ROWS"]
        return {t.ne[1] for t, base in zip(gathered, by, strict=True) if base is not None and base.name == "rs_s_copy"}

    first = next(t for t in after.nodes if t.op == "GET_ROWS" and t.src[1].name == "rs_s_copy")
    assert first.ne[1] == 3
    # a reserve is of all slots, so none of them only moves
    views = [t for t in after.nodes if t.view_src is first]
    assert [(t.ne[1], t.view_offs) for t in views[:2]] == [(3, 0), (0, 3 * first.nb[1])]
    assert gathers(before) == {3, 0}
    # a scan reads the slots' states by itself; the gather is of all but the first
    assert gathers(after) == ({2} if own_rows else set())


def test_such_answers_say_that_they_were_read() -> None:
    read = "b11434 was compared with llama.cpp for other architectures alone; qwen3moe is as its source has it"
    for model, said in (("qwen3-30b-a3b", read), ("deepseek-v4-flash", "")):
        flags = parse_flags(["-c", "4096"])
        found = answer(Question.of(builtin_header(model), flags, Rig(()), "b11434")).estimate
        assert found.approximate.startswith(said) if said else found.exact
