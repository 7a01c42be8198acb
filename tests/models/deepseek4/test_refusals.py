from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimator import estimate
from memplan.ggml.graph import GraphTooLargeError, check_size, hash_size
from memplan.gguf.types import BY_NAME
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.rig import parse_gpus

FLASH = builtin_header("deepseek-v4-flash")


@pytest.mark.parametrize(("rounds", "starts"), [(31, True), (32, False), (100, False)])
def test_graphs_that_b9842_has_no_room_for(rounds: int, starts: bool) -> None:
    # 32 times 1,328 tensors make room for 42,496; asked of llama.cpp itself
    key = "deepseek4.hyper_connection.sinkhorn_iterations"
    header = replace(FLASH, metadata={**FLASH.metadata, key: rounds})
    flags = parse_flags(["-c", "8192", "-np", "1", "-fa", "on"])
    found = estimate(header, flags, parse_gpus(["RTX PRO 6000"]), "b9842")
    assert (found.refused is None) == starts
    if found.refused is None:
        assert found.nodes == (42119, 42119)
        assert found.buffers["CUDA0"].compute == 820356608
    else:
        assert found.refused.message == "GGML_ASSERT(obj_new) failed"


def test_room_for_a_graph() -> None:
    assert [hash_size(n) for n in (1024, 1031, 1944, 42496)] == [1031, 1031, 2053, 65537]
    check_size(1944, 1700, 353, 250)
    with pytest.raises(GraphTooLargeError, match="fatal error"):
        check_size(1944, 1700, 354, 250)
    with pytest.raises(GraphTooLargeError, match="obj_new"):
        check_size(1944, 1900, 300, 250)


def test_what_unified_slots_cost_before_masks_followed_attention() -> None:
    def notes(words: str, release: str) -> str:
        return "; ".join(estimate(FLASH, parse_flags(words.split()), parse_gpus(["RTX PRO 6000"]), release).notes)

    assert "without flash attention" in notes("-c 4096", "b9842")
    assert "without flash attention" not in notes("-c 4096 -np 2", "b9842")
    assert "without flash attention" not in notes("-c 4096", "v0.5.0")


def test_hyper_connections_of_another_type_are_asserted_against() -> None:
    header = FLASH
    name = "blk.0.hc_attn_scale.weight"
    other = {**header.tensors, name: replace(header.tensors[name], type=BY_NAME["f16"])}
    found = estimate(replace(header, tensors=other), parse_flags(["-c", "512", "-np", "1"]), parse_gpus(["RTX 3090"]))
    assert found.refused is not None and found.refused.message == "GGML_ASSERT(scale->type == GGML_TYPE_F32) failed"
