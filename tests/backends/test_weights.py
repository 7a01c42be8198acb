from __future__ import annotations

import pytest

from memplan.backends.buffers import CPU, CPU_REPACK, CUDA_HOST
from memplan.backends.cpu import CpuBackend
from memplan.backends.weights import StateSpace, weight_supported
from memplan.ggml.tensor import Shape
from memplan.gguf.types import BY_NAME
from tests.backends.shapes import cuda

EXPERTS: Shape = (4096, 2048, 256, 1)
TABLE: Shape = (4096, 129280, 1, 1)
ROW: Shape = (4096, 1, 1, 1)


@pytest.mark.parametrize(
    ("type", "ne", "op", "on_cuda", "on_cpu", "repacked"),
    [
        ("iq2_xxs", EXPERTS, "MUL_MAT_ID", True, True, False),
        ("mxfp4", EXPERTS, "MUL_MAT_ID", True, True, True),
        ("q4_K", EXPERTS, "MUL_MAT_ID", True, True, True),
        ("q2_K", EXPERTS, "MUL_MAT_ID", True, True, False),
        ("mxfp4", (4096, 2048, 1, 1), "MUL_MAT", True, True, True),
        ("q8_0", (4096, 2048, 1, 1), "MUL_MAT", True, True, False),
        ("tq1_0", (4096, 2048, 1, 1), "MUL_MAT", False, True, False),
        ("q4_0", TABLE, "GET_ROWS", True, True, False),
        ("f32", ROW, "MUL", True, True, False),
        ("bf16", ROW, "ADD", False, True, False),
        ("f32", ROW, "ADD_ID", True, True, False),
        ("f32", ROW, "DIV", True, True, False),
        ("f32", (64, 1, 1, 1), "ROPE", True, True, False),
        ("f32", ROW, "SCALE", True, True, False),
        ("i32", (6, 129280, 1, 1), "GET_ROWS", True, True, False),
        ("i32", ROW, "NONE", True, True, True),
        ("f32", (4, 8192, 1, 1), "SSM_CONV", True, True, False),
        ("f32", (4, 8200, 1, 1), "SSM_CONV", False, True, False),
    ],
)
def test_probe(type: str, ne: Shape, op: str, on_cuda: bool, on_cpu: bool, repacked: bool) -> None:
    gpu, cpu, t = cuda(), CpuBackend(), BY_NAME[type]
    assert weight_supported(gpu, gpu.buft, t, ne, op) is on_cuda
    assert weight_supported(cpu, CPU, t, ne, op) is on_cpu
    assert weight_supported(cpu, CUDA_HOST, t, ne, op) is on_cpu
    assert weight_supported(cpu, CPU_REPACK, t, ne, op) is repacked


def test_another_devices_memory() -> None:
    assert not weight_supported(cuda(index=0), cuda(index=1).buft, BY_NAME["f16"], ROW, "MUL_MAT")


@pytest.mark.parametrize(("d_state", "d_inner", "ok"), [(128, 4096, True), (64, 4096, False), (128, 4160, False)])
def test_decays_of_a_state_space(d_state: int, d_inner: int, ok: bool) -> None:
    """64 heads of 64 or 65."""
    gpu, cpu, ssm = cuda(), CpuBackend(), StateSpace(d_state, d_inner, 8)
    assert weight_supported(gpu, gpu.buft, BY_NAME["f32"], (1, 64, 1, 1), "SSM_SCAN", ssm) is ok
    assert weight_supported(cpu, CPU, BY_NAME["f32"], (1, 64, 1, 1), "SSM_SCAN", ssm)


def test_unknown_probe() -> None:
    with pytest.raises(ValueError, match="RWKV_WKV6"):
        weight_supported(cuda(), CPU, BY_NAME["f16"], ROW, "RWKV_WKV6")
