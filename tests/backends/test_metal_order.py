"""The order in which Metal computes nodes, on graphs small enough to follow by hand."""

from __future__ import annotations

import pytest

from memplan.backends.metal_order import graph_optimize
from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import F32


def leaf(*ne: int) -> Tensor:
    return new_tensor(F32, *ne)


def named(name: str, t: Tensor) -> Tensor:
    t.name = name
    return t


def nodes_of(*ends: Tensor) -> list[Tensor]:
    graph = Graph()
    for end in ends:
        graph.expand(end)
    return graph.nodes


def order(nodes: list[Tensor], table: bool = True) -> list[str]:
    found, _ = graph_optimize(nodes, table)
    assert sorted(map(id, found)) == sorted(map(id, nodes))
    return [t.name for t in found]


@pytest.mark.parametrize("table", [False, True])
def test_what_need_not_wait_is_pulled_up(table: bool) -> None:
    a2 = named("a2", ops.mul_mat(leaf(64, 64), named("a1", ops.mul_mat(leaf(64, 64), leaf(64, 4)))))
    b1 = named("b1", ops.mul_mat(leaf(64, 64), leaf(64, 4)))
    assert order(nodes_of(a2, b1), table) == ["a1", "b1", "a2"]


def test_the_search_ends_at_an_op_that_is_not_moved() -> None:
    a2 = named("a2", ops.mul_mat(leaf(64, 64), named("a1", ops.mul_mat(leaf(64, 64), leaf(64, 4)))))
    sorted_ = named("sorted", ops.argsort(leaf(64, 4)))
    b1 = named("b1", ops.mul_mat(leaf(64, 64), leaf(64, 4)))
    assert order(nodes_of(a2, sorted_, b1)) == ["a1", "a2", "sorted", "b1"]


@pytest.mark.parametrize("table", [False, True])
def test_a_norm_and_its_product_stay_together(table: bool) -> None:
    x = named("x", ops.mul_mat(leaf(64, 64), leaf(64, 4)))
    product = named("product", ops.mul(named("norm", ops.rms_norm(x)), leaf(64)))
    free = named("free", ops.mul_mat(leaf(64, 64), leaf(64, 4)))
    assert order(nodes_of(product, free), table) == ["x", "free", "norm", "product"]


def test_what_a_chain_reads_lives_until_its_end_since_v0_5_0() -> None:
    x, w = named("x", ops.mul_mat(leaf(64, 64), leaf(64, 4))), named("w", leaf(64))
    nodes = nodes_of(named("product", ops.mul(ops.rms_norm(x), w)))
    assert [(t.name, until.name) for t, until in graph_optimize(nodes, True)[1]] == [("x", "product"), ("w", "product")]
    assert graph_optimize(nodes, False)[1] == []


def test_experts_are_weighted_and_summed_as_one() -> None:
    experts, weights = ops.mul_mat(leaf(64, 64), leaf(64, 2, 4)), leaf(1, 2, 4)
    weighted = named("weighted", ops.mul(experts, weights))
    views = [ops.view_2d(weighted, 64, 4, weighted.nb[2], i * weighted.nb[1]) for i in range(2)]
    total = named("total", ops.add(*views))
    free = named("free", ops.mul_mat(leaf(64, 64), leaf(64, 4)))
    found = order(nodes_of(total, free))
    assert found.index("total") - found.index("weighted") == 3 and found[1] == "free"
