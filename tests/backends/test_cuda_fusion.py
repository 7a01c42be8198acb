from __future__ import annotations

import pytest

from memplan.backends.cuda_fusion import alloc_deps, graph_optimize
from memplan.ggml import ops
from memplan.ggml.backend import Buffer
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor, new_tensor
from memplan.gguf.types import BY_NAME, F32, I32
from memplan.releases import B11434, V0_4_0, V0_5_0
from tests.backends.shapes import cuda, moe


def test_weighted_sum() -> None:
    g, t = moe()
    deps = alloc_deps(g.nodes, V0_4_0)
    assert deps == [(t["down"], t["out"]), (t["scaled"], t["out"])]


def test_gating_keeps_all_of_it_until_the_node_after() -> None:
    g, t = moe()
    order, deps = cuda(release=V0_5_0).graph_optimize(g.nodes)
    assert order == g.nodes
    assert deps[-2:] == [(t["down"], t["out"]), (t["scaled"], t["out"])]
    gating = deps[:-2]
    first, last = g.nodes.index(t["logits"]) + 1, g.nodes.index(t["scaled"])
    nodes = g.nodes[first : last + 1]
    assert " ".join(x.op for x in nodes) == (
        "UNARY SQRT RESHAPE ADD ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE SCALE"
    )
    after = g.nodes[last + 1]
    assert after.op == "RESHAPE" and after is t["x"]
    assert {until for _, until in gating} == {after}
    expected: list[Tensor] = []
    for n in nodes:
        expected += [n, *n.src]
    assert [kept for kept, _ in gating] == expected


@pytest.mark.parametrize(("experts", "kept"), [(256, True), (384, False), (288, True), (576, True), (1024, False)])
def test_numbers_of_experts_with_a_gating_kernel(experts: int, kept: bool) -> None:
    """256 experts in DeepSeek-V4-Flash, 384 in Pro."""
    g, _ = moe(experts=experts)
    assert (len(alloc_deps(g.nodes, V0_5_0)) > 2) is kept


@pytest.mark.parametrize(("used", "kept"), [(2, True), (15, True), (16, False)])
def test_numbers_of_experts_summed(used: int, kept: bool) -> None:
    g, _ = moe(used=used)
    assert bool(alloc_deps(g.nodes, V0_4_0)) is kept


def test_gating_at_the_end_of_a_split() -> None:
    g, t = moe()
    end = g.nodes.index(t["scaled"]) + 1
    assert alloc_deps(g.nodes[:end], V0_5_0) == []
    deps = alloc_deps(g.nodes[:end], V0_5_0, after=t["x"])
    assert deps and {until for _, until in deps} == {t["x"]}


def test_sum_cut_by_a_split_keeps_nothing() -> None:
    g, t = moe()
    assert alloc_deps(g.nodes[: g.nodes.index(t["out"])], V0_4_0) == []


@pytest.mark.parametrize("name", ["weighted", "ids", "down", "scaled"])
def test_a_use_outside_decides(name: str) -> None:
    g, t = moe()
    count = len(alloc_deps(g.nodes, V0_5_0))
    g.expand(ops.cont(t[name]))
    # outputs of a fusion (ids, scaled) and what lies before it (down) may be used elsewhere, its inside may not
    lost = 2 if name == "weighted" else 0
    assert len(alloc_deps(g.nodes, V0_5_0)) == count - lost


def test_an_output_inside_decides() -> None:
    g, t = moe()
    t["weighted"].flags |= FLAG_OUTPUT
    assert alloc_deps(g.nodes, V0_4_0) == []


def test_nodes_that_are_not_computed() -> None:
    g, _ = moe()
    for n in g.nodes:
        n.flags = 0
    assert alloc_deps(g.nodes, V0_5_0) == []


def test_experts_with_a_scale_of_their_own() -> None:
    raw, scale, route = new_tensor(F32, 64, 2, 8), new_tensor(F32, 1, 2, 8), new_tensor(F32, 1, 2, 8)
    weighted = ops.mul(ops.mul(raw, scale), route)
    views = [ops.view_2d(weighted, 64, 8, weighted.nb[2], i * weighted.nb[1]) for i in range(2)]
    out = ops.add(*views)
    g = Graph()
    g.expand(out)
    assert alloc_deps(g.nodes, V0_5_0) == [(raw, out), (route, out), (scale, out)]


def test_softmax_gating_without_bias_and_norm() -> None:
    logits = ops.cont(new_tensor(F32, 128, 16))
    probs = ops.soft_max(logits)
    weights = ops.get_rows(ops.reshape(probs, 1, 128, 16), ops.argsort_top_k(probs, 8))
    g = Graph()
    g.expand(weights)
    g.expand(ops.cont(weights))
    deps = alloc_deps(g.nodes, V0_5_0)
    assert deps[:2] == [(probs, g.nodes[-1]), (logits, g.nodes[-1])]
    masked = ops.soft_max(logits, new_tensor(F32, 128, 16))
    weights = ops.get_rows(ops.reshape(masked, 1, 128, 16), ops.argsort_top_k(masked, 8))
    g.expand(weights)
    g.expand(ops.cont(weights))
    assert alloc_deps(g.nodes, V0_5_0) == deps


def test_softmax_after_selection_keeps_nothing() -> None:
    logits = ops.cont(new_tensor(F32, 32, 16))
    weights = ops.get_rows(ops.reshape(logits, 1, 32, 16), ops.argsort_top_k(logits, 4))
    weights = ops.reshape(ops.soft_max(ops.reshape(weights, 4, 16)), 1, 4, 16)
    g = Graph()
    g.expand(ops.cont(weights))
    assert alloc_deps(g.nodes, V0_5_0) == []


@pytest.mark.parametrize(("experts", "kept"), [(32, True), (128, True), (512, True), (160, False)])
def test_sigmoid_gating_with_bias_norm_and_scale(experts: int, kept: bool) -> None:
    logits = ops.cont(new_tensor(F32, experts, 16))
    probs = ops.unary(logits, "SIGMOID")
    ids = ops.argsort_top_k(ops.add(probs, new_tensor(F32, experts)), 8)
    weights = ops.reshape(ops.get_rows(ops.reshape(probs, 1, experts, 16), ids), 8, 16)
    weights = ops.reshape(ops.div(weights, ops.clamp(ops.sum_rows(weights))), 1, 8, 16)
    scaled = ops.scale(weights)
    g = Graph()
    g.expand(ops.cont(scaled))
    deps = alloc_deps(g.nodes, V0_5_0)
    assert {until for _, until in deps} == ({g.nodes[-1]} if kept else set())
    assert ((scaled, g.nodes[-1]) in deps) is kept


def experts(shared: str = "q4_K", routed: str = "q4_K", limits: tuple[float, float] = (0.0, 0.0)) -> Graph:
    """Two routed experts of eight and a shared one, its down product first read, in graph order."""
    x, ids = new_tensor(F32, 512, 16), new_tensor(I32, 2, 16)
    weights = [new_tensor(BY_NAME[routed], 512, 256, 8) for _ in range(2)]
    own = [new_tensor(BY_NAME[shared], 512, 256) for _ in range(2)]
    for w in (*weights, *own):
        w.buffer = Buffer(cuda().buft, weights=True)
    column = ops.reshape(x, 512, 1, 16)
    up, gate = (ops.mul_mat_id(w, column, ids) for w in weights)
    act = ops.glu(gate, up, "SWIGLU_CLAMP", limits[0])
    down = ops.mul_mat_id(new_tensor(BY_NAME[routed], 256, 512, 8), act, ids)
    g = Graph()
    g.expand(ops.mul(down, new_tensor(F32, 1, 2, 16)))
    up, gate = (ops.mul_mat(w, x) for w in own)
    g.expand(ops.mul_mat(new_tensor(BY_NAME[shared], 256, 512), ops.glu(gate, up, "SWIGLU_CLAMP", limits[1])))
    return g


def ops_of(nodes: list[Tensor]) -> str:
    return " ".join(t.op for t in nodes)


BEFORE = "RESHAPE MUL_MAT_ID MUL_MAT_ID GLU MUL_MAT_ID MUL MUL_MAT MUL_MAT GLU MUL_MAT"


def test_a_shared_expert_moves_behind_the_routed_ones() -> None:
    g = experts()
    nodes, deps = graph_optimize(g.nodes, B11434)
    assert ops_of(g.nodes) == BEFORE
    assert ops_of(nodes) == "RESHAPE MUL_MAT_ID MUL_MAT_ID GLU MUL_MAT MUL_MAT GLU MUL_MAT_ID MUL MUL_MAT"
    column, ids = nodes[1].src[1:]
    assert deps == [(column, nodes[6]), (ids, nodes[6])]
    assert graph_optimize(g.nodes, V0_5_0) == (g.nodes, [])


def change(g: Graph, what: str) -> None:
    if what == "weight on the host":
        g.nodes[2].src[0].buffer = None
    elif what == "gate read elsewhere":
        g.expand(ops.cont(next(t for t in g.nodes if t.op == "MUL_MAT")))
    elif what == "another input":
        g.nodes[0].src[0] = new_tensor(F32, 512, 16)
    elif what == "an op between":
        g.nodes.insert(2, ops.cont(new_tensor(F32, 4)))
    elif what == "other experts first":
        g.nodes[4:4] = experts().nodes[1:3]


@pytest.mark.parametrize(
    "what", ["weight on the host", "gate read elsewhere", "another input", "an op between", "other experts first"]
)
def test_shared_experts_that_stay(what: str) -> None:
    g = experts()
    change(g, what)
    assert graph_optimize(g.nodes, B11434) == (g.nodes, [])


@pytest.mark.parametrize(
    "g", [experts(shared="q6_K"), experts("f16", "f16"), experts(limits=(10.0, 7.0))], ids=["type", "f16", "limit"]
)
def test_shared_experts_unlike_the_routed_ones(g: Graph) -> None:
    assert graph_optimize(g.nodes, B11434) == (g.nodes, [])


def test_limits_that_are_the_same() -> None:
    assert graph_optimize(experts(limits=(10.0, 10.0)).nodes, B11434)[1]
