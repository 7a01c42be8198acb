"""Scales beside every weight that can have one, as NVFP4 files keep them: some architectures load them in vain.

``tests/data/golden/scales.jsonl`` has llama.cpp's answers for the models of ``tests/data/headers`` with such scales in
all layers but MTP blocks, which ask for none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memplan.estimator import answer
from memplan.gguf.header import Header, TensorInfo
from memplan.gguf.types import F32
from memplan.llama.flags import parse_flags
from memplan.llama.weights import parts_of
from memplan.question import Question
from tests.golden import Case, rig
from tests.golden import stored as header
from tests.test_golden import check

pytestmark = pytest.mark.slow

PATH = Path(__file__).parent.parent / "data" / "golden" / "scales.jsonl"
CASES: list[Case] = list(map(json.loads, PATH.read_text().splitlines()))
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate")
EXPERTS = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
OTHERS = ("ffn_gate", "ffn_down", "ffn_up", "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp")


def scaled(plain: Header) -> Header:
    """The model with scales: one a weight, of experts one each."""
    arch = plain.metadata["general.architecture"]
    layers, nextn = plain.metadata[f"{arch}.block_count"], plain.metadata.get(f"{arch}.nextn_predict_layers", 0)
    assert isinstance(layers, int) and isinstance(nextn, int)
    tensors = dict(plain.tensors)
    for t in plain.tensors.values():
        il, kind, suffix = parts_of(t.name)
        if il is not None and il < layers - nextn and suffix == "weight" and kind in (*ATTENTION, *EXPERTS, *OTHERS):
            name = t.name.replace(".weight", ".scale")
            shape = (t.shape[2],) if kind in EXPERTS else (1,)
            tensors.setdefault(name, TensorInfo(name, shape, F32, plain.nbytes))
    return replace(plain, tensors=tensors)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    flags = parse_flags(case["args"], case["app"])
    check(answer(Question.of(scaled(header(case["model"])), flags, rig(case), case["release"])).estimate, case["truth"])
