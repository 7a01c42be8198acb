"""Packing: in-place results, views, inputs, outputs."""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.gallocr import Gallocr
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32
from tests.ggml.toys import ToyBuffer


def pack(*results: Tensor) -> int:
    """Bytes for a graph on one device."""
    graph = Graph()
    for t in results:
        graph.expand(t)
    gallocr = Gallocr([ToyBuffer("GPU")])
    return gallocr.reserve(graph.nodes, graph.leafs, [0] * len(graph.nodes), [0] * len(graph.leafs))[0]


def test_a_result_takes_its_sources_place_when_nothing_else_needs_it() -> None:
    a = ops.new_input(F32, 64)
    assert pack(ops.sqrt(ops.sqrt(ops.sqrt(a)))) == 256


def test_a_source_that_is_needed_later_keeps_its_place() -> None:
    a = ops.new_input(F32, 64)
    s = ops.sqrt(a)
    assert pack(ops.add(ops.sqrt(s), s)) == 512


def test_an_output_keeps_its_place() -> None:
    a = ops.new_input(F32, 64)
    s = ops.sqrt(a)
    s.flags |= FLAG_OUTPUT
    assert pack(ops.sqrt(s)) == 512


def test_a_viewed_source_is_not_taken_over() -> None:
    # ggml never lets a result take the place of a view, nor of what a view still shows
    a = ops.sqrt(ops.new_input(F32, 64))
    assert pack(ops.sqrt(ops.view_1d(a, 64, 0))) == 512


def test_ops_that_cannot_work_in_place_get_a_new_one() -> None:
    a = ops.new_input(F32, 8, 8)
    assert pack(ops.mul_mat(a, a)) == 512


def test_what_is_freed_is_used_again() -> None:
    a = ops.new_input(F32, 8, 8)
    b = ops.mul_mat(a, a)
    c = ops.mul_mat(b, b)
    assert pack(ops.mul_mat(c, c)) == 512


def test_all_leafs_have_a_place_before_anything_is_computed() -> None:
    scratch = [ops.new(F32, 64) for _ in range(3)]
    total = ops.fill(scratch[0])
    for leaf in scratch[1:]:
        total = ops.add(total, ops.fill(leaf))
    assert pack(total) == 3 * 256


def test_a_smaller_result_gives_back_the_rest() -> None:
    # alignment: 16 bytes
    a = ops.new_input(F32, 6)
    assert pack(ops.sqrt(a)) == 32


def test_backends_of_one_buffer_type_share_its_space() -> None:
    buft = ToyBuffer("GPU")
    a = ops.new_input(F32, 64)
    b = ops.mul_mat(ops.reshape(a, 8, 8), ops.reshape(a, 8, 8))
    graph = Graph()
    graph.expand(b)
    homes = [i % 2 for i in range(len(graph.nodes))]
    assert Gallocr([buft, buft]).reserve(graph.nodes, graph.leafs, homes, [0]) == [512, 512]
