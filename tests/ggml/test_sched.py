"""Assignment, splits and copies on small graphs."""

from __future__ import annotations

import pytest

from memplan.ggml import ops
from memplan.ggml.backend import Backend, Buffer, BufferType, Optimized
from memplan.ggml.graph import Graph
from memplan.ggml.sched import Sched, SchedAbortError
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F16, F32
from memplan.releases import SplitInputs
from tests.ggml.toys import HOST, ToyBackend, ToyBuffer

GPU = ToyBuffer("GPU0")
GPU1 = ToyBuffer("GPU1")


def weight(buft: BufferType, *dims: int) -> Tensor:
    t = ops.new(F32, *dims, name="w")
    t.buffer = Buffer(buft, weights=True)
    return t


def graph_of(*results: Tensor) -> Graph:
    graph = Graph()
    for t in results:
        graph.expand(t)
    return graph


def sched(
    *gpus: ToyBackend,
    parallel: bool = False,
    op_offload: bool = True,
    split_inputs: SplitInputs = SplitInputs.ANY,
    sinks_place_attention: bool = False,
) -> Sched:
    backends: list[Backend] = [*gpus, ToyBackend("CPU", HOST)]
    return Sched(backends, [b.buft for b in backends], parallel, op_offload, split_inputs, sinks_place_attention)


def test_ops_run_where_their_weights_lie() -> None:
    x = ops.new_input(F32, 8, 4)
    y = ops.mul_mat(weight(GPU, 8, 8), x)
    z = ops.mul_mat(weight(HOST, 8, 8), y)
    s = sched(ToyBackend("GPU0", GPU))
    s.split_graph(graph_of(z))
    assert (y.backend, z.backend) == (0, 1)
    assert [[t is x or t is y for t in split.inputs] for split in s.splits] == [[True], [True]]


def test_neighbours_follow_a_gpu_but_not_the_cpu() -> None:
    x = ops.new_input(F32, 8, 4)
    before = ops.sqrt(ops.sqrt(x))
    y = ops.mul_mat(weight(GPU, 8, 8), before)
    after = ops.sqrt(y)
    s = sched(ToyBackend("GPU0", GPU))
    s.split_graph(graph_of(after))
    assert {t.backend for t in (before, y, after)} == {0}
    assert len(s.splits) == 1


def test_what_a_gpu_refuses_falls_to_the_host_with_splits_around_it() -> None:
    x = ops.new_input(F32, 8, 4)
    y = ops.mul_mat(weight(GPU, 8, 8), x)
    norm = ops.rms_norm(y)
    z = ops.mul_mat(weight(GPU, 8, 8), norm)
    s = sched(ToyBackend("GPU0", GPU, refuses=frozenset({"RMS_NORM"})))
    s.split_graph(graph_of(z))
    assert [split.backend for split in s.splits] == [0, 1, 0]
    assert z.src[1].name == f"GPU0#{norm.name}#0"


def test_a_wanted_op_is_offloaded_and_its_weight_copied() -> None:
    x = ops.new_input(F32, 8, 4)
    w = weight(HOST, 8, 8)
    y = ops.mul_mat(w, x)
    gpu = ToyBackend("GPU0", GPU, wants=frozenset({"MUL_MAT"}))
    s = sched(gpu)
    sizes = s.reserve_size(graph_of(y))
    assert y.backend == 0
    assert s.splits[0].inputs == [w, x]
    # weight and input copied, and the result
    assert sizes[0] == 256 + 128 + 128
    alone = ops.mul_mat(weight(HOST, 8, 8), ops.new_input(F32, 8, 4))
    assert sched(gpu, op_offload=False).reserve_size(graph_of(alone))[0] == 0


def test_each_weight_from_the_host_starts_a_split_so_that_their_places_are_used_again() -> None:
    x = ops.new_input(F32, 8, 8)
    for _ in range(4):
        x = ops.mul_mat(weight(HOST, 8, 8), x)
    s = sched(ToyBackend("GPU0", GPU, wants=frozenset({"MUL_MAT"})))
    sizes = s.reserve_size(graph_of(x))
    assert len(s.splits) == 4
    assert sizes[0] == 3 * 256


def test_pipeline_parallelism_keeps_four_copies_of_each_input() -> None:
    def build() -> Graph:
        y = ops.mul_mat(weight(GPU, 8, 8), ops.new_input(F32, 8, 8))
        return graph_of(ops.mul_mat(weight(GPU1, 8, 8), y))

    gpus = ToyBackend("GPU0", GPU), ToyBackend("GPU1", GPU1)
    assert sched(*gpus).reserve_size(build()) == [512, 512, 256]
    assert sched(*gpus, parallel=True).reserve_size(build()) == [256 * 5, 256 * 5, 256 * 4]


def sum_of_inputs(count: int) -> Graph:
    """A graph whose nodes on the GPU need ``count`` inputs, one each."""
    total = ops.mul_mat(weight(GPU, 8, 8), ops.new_input(F32, 8))
    for _ in range(count - 1):
        total = ops.add(total, ops.new_input(F32, 8))
    return graph_of(total)


@pytest.mark.parametrize(
    ("takes", "inputs"),
    [(SplitInputs.AT_MOST_30, [30, 30, 5]), (SplitInputs.DOUBLED, [30, 30, 5]), (SplitInputs.ANY, [65])],
)
def test_a_full_split_gives_way_to_a_new_one_where_a_release_does_so(takes: SplitInputs, inputs: list[int]) -> None:
    s = sched(ToyBackend("GPU0", GPU), split_inputs=takes)
    s.split_graph(sum_of_inputs(65))
    assert [len(split.inputs) for split in s.splits] == inputs


def pairs_of_inputs(count: int) -> Graph:
    """The same, but for the last node, which needs two at once."""
    total = ops.mul_mat(weight(GPU, 8, 8), ops.new_input(F32, 8))
    for _ in range(count - 3):
        total = ops.add(total, ops.new_input(F32, 8))
    pair = ops.concat(ops.new_input(F32, 8), ops.new_input(F32, 8), 1)
    pair.flags |= FLAG_OUTPUT
    return graph_of(total, ops.add(pair, ops.view_1d(total, 8, 0)))


def test_a_node_with_too_many_inputs_aborts_or_doubles_the_room() -> None:
    with pytest.raises(SchedAbortError, match="n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS"):
        sched(ToyBackend("GPU0", GPU), split_inputs=SplitInputs.AT_MOST_30).split_graph(pairs_of_inputs(31))
    s = sched(ToyBackend("GPU0", GPU), split_inputs=SplitInputs.DOUBLED)
    s.split_graph(pairs_of_inputs(31))
    assert [len(split.inputs) for split in s.splits] == [31]
    s.split_graph(sum_of_inputs(65))
    assert [len(split.inputs) for split in s.splits] == [60, 5]


def test_inputs_that_pipelining_keeps_are_limited_where_splits_are() -> None:
    gpu = ToyBackend("GPU0", GPU)
    with pytest.raises(SchedAbortError, match="n_graph_inputs < GGML_SCHED_MAX_SPLIT_INPUTS"):
        sched(gpu, parallel=True, split_inputs=SplitInputs.AT_MOST_30).split_graph(sum_of_inputs(31))
    sched(gpu, parallel=True, split_inputs=SplitInputs.DOUBLED).split_graph(sum_of_inputs(31))


class WideFirst(ToyBackend):
    """Computes what is wide first, and keeps the first node of a split until its last."""

    def looks_far(self, nodes: list[Tensor]) -> bool:
        return True

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        order = sorted(nodes, key=lambda t: -t.ne[0])
        return order, [(order[0], order[-1])]


def test_a_backend_may_change_the_order_of_a_splits_nodes_and_stretch_lifetimes() -> None:
    x = ops.new_input(F32, 8, 8)
    wide = [ops.mul_mat(weight(GPU, 8, 64), x) for _ in range(3)]
    narrow = [ops.mul_mat(weight(GPU, 64, 16), t) for t in wide]

    graph = graph_of(*narrow)
    assert [t in wide for t in graph.nodes] == [True, False] * 3
    s = sched(WideFirst("GPU0", GPU))
    sizes = s.reserve_size(graph)
    assert graph.nodes == wide + narrow == s.splits[0].nodes
    # the copy of the input, all that is wide, two of three that are narrow: only the second wide place is free for one
    assert sizes[0] == 256 + 3 * 2048 + 2 * 512


def test_old_schedulers_place_attention_by_its_sinks() -> None:
    q, k = ops.new_input(F32, 64, 8, 4), ops.new_input(F16, 64, 256, 1)
    mask = ops.new_input(F16, 256, 8)

    def home(sinks_place_attention: bool) -> int:
        t = ops.flash_attn_ext(q, k, k, mask, weight(GPU1, 4), 0)
        s = sched(*(ToyBackend(b.name, b) for b in (GPU, GPU1)), sinks_place_attention=sinks_place_attention)
        return s.from_location(t)

    assert (home(True), home(False)) == (1, -1)


def test_a_weight_that_nothing_can_use_is_an_abort_in_ggmls_words() -> None:
    y = ops.mul_mat(weight(GPU1, 8, 8), ops.new_input(F32, 8))
    with pytest.raises(SchedAbortError, match=r"pre-allocated tensor \(w\) in a buffer \(GPU1\) that cannot run"):
        sched(ToyBackend("GPU0", GPU)).split_graph(graph_of(y))


def test_an_op_that_no_device_has_is_an_abort() -> None:
    everywhere = frozenset({"SQRT"})
    backends = [ToyBackend("GPU0", GPU, everywhere), ToyBackend("CPU", HOST, everywhere)]
    with pytest.raises(SchedAbortError, match="cur_backend_id"):
        Sched(list(backends), [GPU, HOST], False, True).split_graph(graph_of(ops.sqrt(ops.new(F32, 4))))
