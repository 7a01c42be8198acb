from __future__ import annotations

import pytest

from memplan.backends.buffers import CPU, CPU_REPACK, CUDA_HOST
from memplan.ggml import ops
from memplan.ggml.backend import UNLIMITED
from memplan.ggml.ops import GGMLAssertError
from memplan.ggml.tensor import new_tensor
from memplan.gguf.types import BY_NAME, F16, F32
from memplan.releases import V0_4_0, V0_5_0
from tests.backends.shapes import attention, cuda


def test_what_they_say_of_themselves() -> None:
    b = cuda(index=1).buft
    assert (b.name, b.alignment, b.is_host, b.max_size) == ("CUDA1", 128, False, UNLIMITED)
    rows = [(b.name, b.alignment, b.is_host) for b in (CPU, CUDA_HOST, CPU_REPACK)]
    assert rows == [("CPU", 32, True), ("CUDA_Host", 32, True), ("CPU_REPACK", 32, False)]


@pytest.mark.parametrize(
    ("type", "ne0", "rows", "padding"),
    [
        ("f32", 100, 3, 0),
        ("q8_0", 512, 3, 0),
        ("q8_0", 128, 3, 34 * 12),  # (512 - 128) / 32 blocks of 34 bytes
        ("q2_K", 256, 5, 84),
        ("mxfp4", 4096 + 32, 2, 17 * 15),
    ],
)
def test_quantised_rows_are_padded_once_a_tensor(type: str, ne0: int, rows: int, padding: int) -> None:
    t = new_tensor(BY_NAME[type], ne0, rows)
    assert cuda().buft.alloc_size(t) == t.nbytes + padding
    assert CPU.alloc_size(t) == t.nbytes


def test_permuted_quantised_tensor_aborts() -> None:
    t = ops.transpose(new_tensor(BY_NAME["q8_0"], 64, 96))
    with pytest.raises(GGMLAssertError, match=r"nb\[0\] == ggml_element_size"):
        cuda().buft.alloc_size(t)


RESULT = 512 * 64 * 512 * 4
COPY = 2 * 512 * 1024


@pytest.mark.parametrize(
    ("type", "shared", "old", "new"),
    [
        ("f16", True, 0, 0),
        ("f16", False, 0, 0),
        ("q8_0", True, COPY, COPY),
        ("q8_0", False, 2 * COPY, 2 * COPY),
        ("bf16", True, COPY, COPY),
        ("f32", True, COPY, COPY),
        ("q5_1", True, 0, COPY),  # not supported in v0.4.0, so no kernel asks for a copy
    ],
)
def test_flash_attention_converts_behind_its_result(type: str, shared: bool, old: int, new: int) -> None:
    t = attention(type, shared=shared)
    assert t.nbytes == RESULT
    for card in ("P40", "V100", "T4", "3090", "5090"):
        assert cuda(card, V0_4_0).buft.alloc_size(t) == RESULT + old
        assert cuda(card, V0_5_0).buft.alloc_size(t) == RESULT + new


def test_copies_start_at_128_bytes() -> None:
    t = attention("bf16", head=40, heads=3, keys=32, tokens=1, shared=False)
    assert t.nbytes % 128
    padded = (t.nbytes + 127) // 128 * 128
    assert cuda().buft.alloc_size(t) == padded + 2 * (2 * 40 * 32)


def test_the_vector_kernel_reads_its_own_types_without_a_copy() -> None:
    one = {"head": 128, "heads": 8, "keys": 4096, "tokens": 1, "shared": False}
    same = attention("q8_0", **one)  # type: ignore[arg-type]
    mixed = attention("q8_0", "q4_0", **one)  # type: ignore[arg-type]
    for card in ("P40", "3090", "5090"):
        assert cuda(card).buft.alloc_size(same) == same.nbytes
        assert cuda(card).buft.alloc_size(mixed) == mixed.nbytes + 2 * (2 * 128 * 4096)
    assert cuda(release=V0_4_0).buft.alloc_size(mixed) == mixed.nbytes


def test_plain_tensors_take_their_strides() -> None:
    v = ops.view_2d(new_tensor(F32, 64, 8), 16, 8, 256, 0)
    assert cuda().buft.alloc_size(v) == CPU.alloc_size(v) == 7 * 256 + 64
    assert CPU.alloc_size(new_tensor(F16, 0)) == 0
