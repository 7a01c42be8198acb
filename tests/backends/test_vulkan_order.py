"""The order in which Vulkan computes nodes, on graphs small enough to follow by hand."""

from __future__ import annotations

import pytest

from memplan.backends.vulkan_order import RULES, graph_optimize
from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import F32, I32
from memplan.releases.other_backends import VulkanOrder

OLD, NEW = RULES[VulkanOrder.SQRT_SOFTPLUS], RULES[VulkanOrder.NORMS]


def leaf(*ne: int) -> Tensor:
    return new_tensor(F32, *ne)


def nodes_of(*ends: Tensor) -> list[Tensor]:
    graph = Graph()
    for end in ends:
        graph.expand(end)
    return graph.nodes


def named(name: str, t: Tensor) -> Tensor:
    t.name = name
    return t


def order(nodes: list[Tensor], rules: object = NEW) -> list[str]:
    found, _ = graph_optimize(nodes, rules)  # type: ignore[arg-type]
    assert sorted(map(id, found)) == sorted(map(id, nodes))
    return [t.name for t in found]


def test_nodes_that_do_not_wait_are_pulled_together() -> None:
    x, y = leaf(64, 4), leaf(64, 4)
    a1 = named("a1", ops.sqr(x))
    a2 = named("a2", ops.sqrt(a1))
    b1 = named("b1", ops.sqr(y))
    b2 = named("b2", ops.sqrt(b1))
    assert order(nodes_of(a2, b2)) == ["a1", "b1", "a2", "b2"]


def test_views_come_behind_what_is_computed() -> None:
    x, y = leaf(64, 4), leaf(64, 4)
    seen = named("seen", ops.reshape(named("a", ops.sqr(x)), 256))
    last = named("last", ops.sqr(y))
    assert order(nodes_of(seen, last)) == ["a", "last", "seen"]


def test_a_node_is_not_looked_for_beyond_the_window() -> None:
    steps = [named(f"a{i}", leaf(64)) for i in range(1)]
    for i in range(1, 25):
        steps.append(named(f"a{i}", ops.sqr(steps[-1])))
    free = named("free", ops.sqr(leaf(64)))
    found = order(nodes_of(steps[-1], free))
    assert found.index("free") == 24 - 20 + 2  # pulled up once it is the twentieth from the first that waits


@pytest.mark.parametrize(("rules", "together"), [(OLD, False), (NEW, True)])
def test_a_unary_operator_is_followed_by_its_product_since_v0_5_0(rules: object, together: bool) -> None:
    gate = named("gate", ops.unary(leaf(64, 4), "SILU"))
    product = named("product", ops.mul(gate, leaf(64, 4)))
    free = named("free", ops.sqr(leaf(64, 4)))
    found = order(nodes_of(product, free), rules)
    assert (found.index("product") - found.index("gate") == 1) is together


@pytest.mark.parametrize(("rules", "waits"), [(OLD, False), (RULES[VulkanOrder.TOP_K], True), (NEW, True)])
def test_what_is_read_through_a_view_is_written_first_since_v0_4_0(rules: object, waits: bool) -> None:
    cache, ids = leaf(64, 8), new_tensor(I32, 4)
    state = ops.sqrt(ops.sqr(leaf(64, 2)))
    written = named("written", ops.cpy(state, ops.view_2d(cache, 64, 2, cache.nb[1], 0)))
    seen = ops.reshape(cache, 64, 8)
    read = named("read", ops.get_rows(seen, ids))
    found = order(nodes_of(seen, written, read), rules)
    assert (found.index("written") < found.index("read")) is waits


def test_what_a_gating_reads_lives_until_its_end_since_v0_5_0() -> None:
    logits, bias = named("logits", ops.sqr(leaf(256, 8))), named("bias", leaf(256))
    probs = ops.sqrt(ops.unary(logits, "SOFTPLUS"))
    rows = ops.reshape(probs, 1, 256, 8)
    chosen = ops.argsort_top_k(ops.add(probs, bias), 6)
    weights = ops.reshape(ops.get_rows(rows, chosen), 6, 8)
    weights = ops.div(weights, ops.clamp(ops.sum_rows(weights)))
    end = named("end", ops.scale(ops.reshape(weights, 1, 6, 8)))
    nodes = nodes_of(end)
    assert [t.op for t in nodes[1:4]] == ["UNARY", "SQRT", "RESHAPE"]
    _, deps = graph_optimize(nodes, NEW)
    assert [(t.name, until.name) for t, until in deps] == [("logits", "end"), ("bias", "end")]
    assert graph_optimize(nodes, OLD)[1] == []
