"""GLM-5 in builds that were read: when its indexer is used, and which layers keep what for it."""

from __future__ import annotations

import pytest

from memplan.estimator import answer
from memplan.explaining.explain import explain
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.rig import parse_gpus


@pytest.mark.parametrize(
    ("llama", "layers"),
    [
        ("b10103", {"kv": 79}),  # the indexer is loaded only
        ("b10159", {"mla": 79, "lid": 79}),
        ("b10178", {"mla": 78, "lid": 78}),  # no caches for the MTP block
        ("b10248", {"mla": 78, "lid": 21}),  # keys in the layers alone that choose
    ],
)
def test_layers_with_caches(llama: str, layers: dict[str, int]) -> None:
    flags = parse_flags(["-c", "4096", "-np", "1"])
    made = answer(Question.of(builtin_header("glm-5.2"), flags, parse_gpus(["8*H200"]), llama)).made
    assert made is not None
    assert {name: len({t.layer for t in cache.tensors}) for name, cache in made.memory.caches.items()} == layers


@pytest.mark.parametrize(
    ("llama", "loaded"), [("b10159", False), ("b10178", True), ("b10216", False), ("b10361", False)]
)
def test_builds_that_load_an_mtp_block_that_nothing_drafts_with(llama: str, loaded: bool) -> None:
    flags = parse_flags(["-c", "4096", "-np", "1"])
    model = answer(Question.of(builtin_header("glm-5.2"), flags, parse_gpus(["8*H200"]), llama)).model
    assert any(t.name == "blk.78.attn_q_a.weight" for t in model.tensors.tensors) is loaded


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_what_opens_a_mask_for_chosen_keys_is_explained(flash_attn: str) -> None:
    flags = parse_flags(["-c", "8192", "-np", "1", "-fa", flash_attn])
    x = explain(builtin_header("glm-5.2"), flags, parse_gpus(["4*H200"]))
    bases = {p.base for buffer in x.buffers for p in buffer.tensors}
    zeros = [said for name, said in x.meanings.items() if name in bases and name.startswith("input of FILL")]
    assert len(zeros) == 1 and "the keys that the indexer chose" in zeros[0]
    assert {"FILL of copy of attn_inp_kq_mask", "ADD of copy of attn_inp_kq_mask"} <= bases & x.meanings.keys()
