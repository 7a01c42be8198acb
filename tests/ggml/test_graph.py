"""The order of nodes and leafs."""

from __future__ import annotations

import pytest

from memplan import estimate, parse_flags, parse_gpus, read_model
from memplan.errors import BadHyperParameter
from memplan.ggml import graph as graph_module
from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.gguf.types import F32


def test_sources_come_first_left_to_right() -> None:
    a, b = ops.new(F32, 4, name="a"), ops.new(F32, 4, name="b")
    left, right = ops.sqrt(b), ops.sqrt(a)
    total = ops.add(left, right)
    graph = Graph()
    graph.expand(total)
    assert graph.nodes == [left, right, total]
    assert graph.leafs == [b, a]


def test_a_tensor_is_visited_once_and_counted_each_time() -> None:
    a = ops.new(F32, 4, name="a")
    s = ops.sqrt(a)
    total = ops.add(ops.mul(s, s), s)
    graph = Graph()
    graph.expand(s)
    graph.expand(total)
    assert [t.op for t in graph.nodes] == ["SQRT", "MUL", "ADD"]
    assert (a.uses, s.uses, total.uses) == (1, 3, 0)


def test_what_has_no_name_is_numbered() -> None:
    a = ops.new(F32, 4)
    graph = Graph()
    graph.expand(ops.sqrt(ops.sqrt(a)))
    assert [t.name for t in graph.nodes] == ["node_0", "node_1"]
    assert a.name == "leaf_0"


def test_depth_is_not_bounded_by_the_stack() -> None:
    t = ops.new(F32, 4)
    for _ in range(20_000):
        t = ops.sqrt(t)
    graph = Graph()
    graph.expand(t)
    assert len(graph.nodes) == 20_000


def test_a_graph_that_is_longer_than_any_that_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, flags, rig = read_model("qwen3-8b"), parse_flags(["-c", "2048"]), parse_gpus(["RTX 3090"])
    for nodes, said in ((10, "a part that is built"), (200, "parts put together")):
        monkeypatch.setattr(graph_module, "MOST_NODES", nodes)
        with pytest.raises(BadHyperParameter, match=f"more than {nodes} nodes, which memplan does not follow"):
            assert estimate(model, flags, rig), said
