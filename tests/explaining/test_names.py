from __future__ import annotations

import pytest

from memplan.explaining.names import base_name, layers, own_layer
from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import new_tensor
from memplan.gguf.types import F32


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("lid_kq-2", 2),
        ("CUDA1#l_last-21#0", 21),
        ("blk.7.ffn_down_exps.weight", 7),
        ("CUDA0#blk.12.ffn_up_exps.weight#3", 12),
        ("cache_k_l3", 3),
        ("q-10 (view) (permuted)", 10),
        ("dsv4_lid_kq_mask", None),
        ("node_412", None),
        ("output.weight", None),
    ],
)
def test_layer_in_a_name(name: str, layer: int | None) -> None:
    assert own_layer(name) == layer


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("lid_kq-2", "lid_kq"),
        ("CUDA1#l_last-21#0", "copy of l_last"),
        ("CUDA0#blk.12.ffn_up_exps.weight#3", "copy of ffn_up_exps.weight"),
        ("cache_k_l3 (view)", "cache_k"),
        ("leaf_4", "leaf_4"),
    ],
)
def test_base_of_a_leaf(name: str, base: str) -> None:
    assert base_name(new_tensor(F32, 4, name=name)) == base


def test_a_result_without_a_name_is_called_by_its_op_and_the_nearest_name() -> None:
    x = new_tensor(F32, 8, 4, name="x-3")
    w = new_tensor(F32, 8, 2, name="blk.5.w.weight")
    first = ops.rms_norm(x)
    second = ops.mul_mat(w, ops.scale(first))
    view = ops.reshape(first, 4, 8)
    graph = Graph()
    for t in (first, second, view):
        graph.expand(t)
    assert base_name(first) == "RMS_NORM of x"
    assert base_name(second) == "MUL_MAT of w.weight"
    assert base_name(view) == "RMS_NORM of x"
    of_layer = layers(graph.nodes)
    assert of_layer[first] == 3
    assert of_layer[second] == 5
