"""Scratch of single ops; the pieces are those that llama.cpp's host code was seen to take (sizes as its pool has them).

``tests/llama/test_run_time.py`` holds whole prompts to llama.cpp's pools.
"""

from __future__ import annotations

import pytest

from memplan.backends.cards import find_card
from memplan.backends.cuda import CudaBackend
from memplan.backends.cuda_pool import pool_bytes, workspace_bytes
from memplan.ggml import ops
from memplan.ggml.backend import Scratch
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import BF16, BY_NAME, F16, F32, I32
from memplan.releases import B9842, B10068, B11434, V0_4_0, V0_5_0, Release
from tests.backends.shapes import attention

MIB = 1 << 20


def device(card: str = "RTX 3090", release: Release = V0_5_0) -> CudaBackend:
    known = find_card(card)
    assert known is not None
    return CudaBackend(0, known.gpu(), release)


def pieces(t: Tensor, card: str = "RTX 3090", release: Release = V0_5_0) -> list[int]:
    """What an op takes, each piece rounded up to 128 bytes."""
    return [-(-size // 128) * 128 for _, size in device(card, release).scratch(t).pieces]


def product(type: str, rows: int, width: int = 4096, tokens: int = 512) -> Tensor:
    return ops.mul_mat(new_tensor(BY_NAME[type], width, rows), new_tensor(F32, width, tokens))


def experts(type: str, tokens: int = 512, width: int = 4096, rows: int = 2048, n: int = 256, used: int = 6) -> Tensor:
    b = new_tensor(F32, width, 1, tokens)
    return ops.mul_mat_id(new_tensor(BY_NAME[type], width, rows, n), b, new_tensor(I32, used, tokens))


def top_k(columns: int, rows: int = 512) -> Tensor:
    return ops.top_k(new_tensor(F32, columns, rows), min(columns, 512))


def test_top_k_sorts_all_scores_beside_copies_of_them() -> None:
    assert pieces(top_k(4096), release=B9842) == [8388608, 8388608, 8388608, 16781824]
    assert pieces(top_k(8192, 256), release=B10068) == [8388608, 8388608, 8388608, 16777472]
    assert pieces(top_k(8192, 256)) == [8388608, 8388608, 8388608, 8388608, 16777472]
    assert pieces(top_k(1024)) == [2 * MIB]  # in shared memory, but for the result


def test_sorts_go_in_chunks_of_64_mib_and_keep_what_the_widest_chunk_took() -> None:
    whole = [64 * MIB] * 4 + [128 * MIB + 2 * 2048 + 512]
    assert pieces(top_k(32768)) == whole == pieces(top_k(65536)) == pieces(top_k(33024))
    assert sum(pieces(top_k(65536), release=B9842)) > 2 * sum(whole[:3])  # all rows at once


def test_columns_up_to_1024_are_argsorted_without_scratch() -> None:
    assert pieces(ops.argsort(new_tensor(F32, 256, 512))) == []
    assert len(pieces(ops.argsort(new_tensor(F32, 2048, 512)))) == 4


def test_quantised_products_take_their_activations_and_shared_tiles() -> None:
    activations = 512 * 4096 * 144 // 128 + 128 * 144
    assert pieces(product("q4_K", 4096)) == [activations, 82 * 128 * 128 * 4]
    assert pieces(product("q4_K", 41 * 256)) == [activations]  # 328 tiles, four a multiprocessor
    assert pieces(product("q4_K", 4096), "P40") == [activations - 64 * 144]  # tiles of 64, never shared
    assert pieces(product("q4_K", 4096, tokens=8)) == [8 * 4096 // 32 * 36]


def test_products_of_experts_take_each_token_once_an_expert() -> None:
    ids, bounds = 512 * 6 * 4, 257 * 4 + 124
    assert pieces(experts("q2_K"), "RTX 5090")[:4] == [ids, ids, bounds, 512 * 6 * 4096 * 144 // 128]
    assert pieces(experts("q2_K"), "RTX 5090", B9842)[3] == 512 * 6 * 4096 * 144 // 128 + 128 * 144
    assert pieces(experts("q2_K"), "RTX 5090", B11434)[3] == 512 * 6 * 4096 * 144 // 128 + 128 * 144
    fp4 = pieces(experts("mxfp4"), "RTX 5090"), pieces(experts("mxfp4"), "RTX 4090")
    assert fp4[1][3] == 2 * fp4[0][3]  # Blackwell takes FP4 activations


def test_turing_has_no_room_for_the_widest_tiles_of_q2_k() -> None:
    wide, narrow = (pieces(product(type, 3200), "T4")[1] for type in ("q3_K", "q2_K"))
    assert (wide, narrow) == (40 * 128 * 128 * 4, 40 * 80 * 128 * 4)


def test_products_through_cublas_convert_what_has_another_type() -> None:
    assert pieces(product("f16", 1024)) == [512 * 4096 * 2, 512 * 1024 * 2]
    assert pieces(product("bf16", 1024)) == [512 * 4096 * 2]
    assert pieces(product("f32", 1024)) == []
    assert pieces(product("f16", 1024), "V100") == [512 * 4096 * 2]  # the result is f32 already
    assert pieces(product("q4_K", 1024), "V100") == [1024 * 4096 * 2, 512 * 4096 * 2]  # no MMQ from 64 tokens on
    assert pieces(product("bf16", 1024), "T4") == [1024 * 4096 * 4]
    assert pieces(product("bf16", 1024), "T4", V0_4_0) == [512 * 4096 * 2]
    f32 = ops.mul_mat(new_tensor(F16, 4096, 256), new_tensor(F32, 4096, 512), f32=True)
    assert pieces(f32) == [256 * 4096 * 4]  # the router's product


def test_batches_of_matrices_go_by_pointers_where_steps_differ() -> None:
    keys, q = new_tensor(F16, 512, 1024), new_tensor(F32, 512, 64, 64)
    assert pieces(ops.mul_mat(keys, q))[2:] == [16 * 64, 8 * 64]
    alike = ops.mul_mat(new_tensor(F16, 512, 1024, 64), q)
    assert len(pieces(alike)) == 2


def test_the_unfused_indexer_holds_its_scores_once_more() -> None:
    """b9842: keys of 2048 tokens by 64 heads of 512."""
    keys, q = new_tensor(F16, 128, 1, 2048), new_tensor(F32, 128, 64, 512)
    kq = ops.mul_mat(ops.permute(keys, 0, 2, 1, 3), ops.permute(q, 0, 2, 1, 3))
    assert pieces(kq, release=B9842) == [8388608, 134217728, 1024, 512]


@pytest.mark.parametrize("type", [F16, BF16, F32])
def test_a_few_columns_take_nothing(type: object) -> None:
    matrix = new_tensor(type, 4096, 1024)  # type: ignore[arg-type]
    assert pieces(ops.mul_mat(matrix, new_tensor(F32, 4096, 1))) == []
    assert device().scratch(ops.mul_mat(matrix, new_tensor(F32, 4096, 16))) == Scratch()


def test_hadamard_matrices_are_not_multiplied() -> None:
    rot, rows = new_tensor(F32, 128, 128), new_tensor(F32, 128, 4096)
    assert not device().scratch(ops.mul_mat(rot, rows, hadamard=True)).cublas
    assert device().scratch(ops.mul_mat(rot, rows)).cublas


def test_attention_leaves_parts_of_tiles_where_multiprocessors_share_them() -> None:
    assert pieces(attention(keys=1024, tokens=256), "RTX PRO 6000") == [24834048]
    assert pieces(attention(keys=1024, tokens=256), "RTX 5060 Ti") == [4755456]
    assert pieces(attention(keys=1024, tokens=256), "RTX 3090") == []  # 256 tiles keep 82 busy enough
    assert pieces(attention(keys=1024, tokens=2048), "RTX 3090") == [256 * 4]


def test_gathered_keys_are_listed_and_shorter_caches_count_too() -> None:
    sparse = attention(keys=32768, tokens=64, n_kv_max=640)
    assert pieces(sparse, "RTX 3090") == [(640 * 64 + 64) * 4]
    assert pieces(sparse, "RTX 3090", V0_4_0) == [640 * 64 * 4]
    assert pieces(sparse, "RTX PRO 6000") == [24834048]  # what it took before it gathered


def test_pools_grow_in_steps_and_workspaces_come_with_v0_4_0() -> None:
    assert [pool_bytes(n) for n in (0, 1, 2 * MIB, 2 * MIB + 1)] == [0, 2 * MIB, 2 * MIB, 4 * MIB]
    of = [workspace_bytes(device(card, release).pool) // MIB for card, release in (
        ("RTX 3090", V0_5_0), ("H200", V0_4_0), ("RTX 5090", V0_5_0), ("RTX 5090", B10068),
    )]  # fmt: skip
    assert of == [4, 32, 32, 0]
