from __future__ import annotations

import pytest

from memplan.backends.buffers import CPU, CPU_REPACK, CUDA_HOST
from memplan.backends.cpu import CpuBackend
from memplan.ggml import ops
from memplan.ggml.backend import Buffer
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import BY_NAME, F16, F32, I32, Q8_0
from tests.backends.shapes import attention, cuda

X = new_tensor(F32, 256, 32)


@pytest.mark.parametrize(
    ("op", "ok"),
    [
        (ops.mul_mat(new_tensor(Q8_0, 256, 64), X), True),
        (ops.mul_mat(new_tensor(F16, 256, 64), new_tensor(F16, 256, 4)), True),
        (ops.mul_mat(new_tensor(F32, 256, 64), new_tensor(F16, 256, 4)), False),
        (ops.mul_mat(new_tensor(BY_NAME["q4_K"], 256, 64), new_tensor(BY_NAME["q8_K"], 256, 4)), True),
        (ops.mul_mat(new_tensor(BY_NAME["q4_1"], 256, 64), new_tensor(Q8_0, 256, 4)), False),
        (ops.cast(X, BY_NAME["iq2_xxs"]), False),
        (ops.cast(X, BY_NAME["q2_K"]), True),
        (ops.transpose(X), True),
        (attention("iq4_nl"), True),
        (ops.top_k(X, 4), True),
    ],
)
def test_ops(op: Tensor, ok: bool) -> None:
    assert CpuBackend().supports_op(op) is ok


@pytest.mark.parametrize(
    ("type", "rows", "ok"),
    [
        ("mxfp4", 64, True),
        ("q4_0", 64, True),
        ("q4_K", 64, True),
        ("iq4_nl", 64, True),
        ("q4_K", 60, False),
        ("q2_K", 64, False),
        ("q6_K", 64, False),
        ("q8_0", 64, False),
        ("f16", 64, False),
    ],
)
def test_repacked_weights(type: str, rows: int, ok: bool) -> None:
    w = new_tensor(BY_NAME[type], 256, rows)
    w.buffer = Buffer(CPU_REPACK, weights=True)
    op = ops.mul_mat(w, X)
    assert CpuBackend().supports_op(op) is ok


def test_repacked_weights_serve_products_of_their_own_shape_only() -> None:
    cpu = CpuBackend()
    experts = new_tensor(BY_NAME["mxfp4"], 256, 64, 8)
    experts.buffer = Buffer(CPU_REPACK, weights=True)
    ids, x = new_tensor(I32, 6, 32), new_tensor(F32, 256, 1, 32)
    assert cpu.supports_op(ops.mul_mat_id(experts, x, ids))
    assert not cpu.supports_op(ops.mul_mat(experts, new_tensor(F32, 256, 32, 8)))
    x.buffer = Buffer(cuda().buft)
    assert not cpu.supports_op(ops.mul_mat_id(experts, x, ids))
    table = new_tensor(BY_NAME["q4_0"], 256, 64)
    table.buffer = Buffer(CPU_REPACK, weights=True)
    assert not cpu.supports_op(ops.get_rows(table, new_tensor(I32, 4)))
    table.buffer = Buffer(CUDA_HOST, weights=True)
    assert cpu.supports_op(ops.get_rows(table, new_tensor(I32, 4)))


def test_buffers_it_reads_and_what_it_never_does() -> None:
    cpu = CpuBackend()
    assert all(cpu.supports_buft(b) for b in (CPU, CUDA_HOST, CPU_REPACK))
    assert not cpu.supports_buft(cuda().buft)
    assert not cpu.offload_op(ops.mul_mat(new_tensor(F32, 256, 64), X))
    assert cpu.graph_optimize([X]) == ([X], [])
    assert (cpu.name, cpu.buft) == ("CPU", CPU)
