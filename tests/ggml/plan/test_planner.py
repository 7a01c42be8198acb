"""The quick planner gives what the plain replay gives, whatever the settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.backends.cuda import CudaBackend
from memplan.backends.devices import Gpu, Rig
from memplan.estimator import answer
from memplan.ggml.tensor import Tensor
from memplan.gguf.header import Header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import header_of
from memplan.models.catalogue import MODELS, deepseek4
from memplan.models.recipes import DEEPSEEK4 as RECIPES
from memplan.question import Question
from memplan.releases import RELEASES
from memplan.result import Estimate

LAYERS = 9
SMALL = deepseek4(
    changed={
        "block_count": LAYERS, "embedding_length": 512, "attention.q_lora_rank": 256, "attention.output_lora_rank": 256,
        "expert_count": 16, "expert_feed_forward_length": 256, "vocab_size": 1024, "attention.head_count": 16,
    }
)  # fmt: skip
MIB = 1 << 20


@cache
def header(recipe: str) -> Header:
    """A small model, its layers of the same kinds as the large ones'."""
    return header_of(replace(MODELS["deepseek-v4-flash"], keys=SMALL), RECIPES[recipe], "small")


DENIED = (
    (), ("LIGHTNING_INDEXER",), ("DSV4_HC_PRE", "DSV4_HC_COMB", "DSV4_HC_POST"), ("FLASH_ATTN_EXT",), ("TOP_K",),
    ("MUL_MAT_ID",), ("RMS_NORM", "GLU"), ("SET_ROWS",), ("DSV4_HC_POST",),
)  # fmt: skip

OVERRIDES: tuple[list[str], ...] = (
    [],
    ["-cmoe"],
    ["-ncmoe", "4"],
    ["-ot", r"blk\.[2-5]\.ffn_(up|gate|down)_exps=CUDA0,exps=CPU"],
    ["-ot", r"blk\.3\.ffn_down_exps=CPU"],
    ["-ot", r"attn_kv=CPU"],
    ["-ot", r"attn_q_b=CUDA0,token_embd=CUDA0"],
    ["-ot", r"output\.weight=CPU,hc_ffn_fn=CPU"],
    ["-ot", r"indexer=CPU,attn_sinks=CPU"],
)


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, list[str], int, tuple[str, ...], str]:
    """A model, flags, a number of GPUs, refused ops, a release."""
    n_gpus = draw(st.integers(0, 4))
    args = ["-c", str(draw(st.sampled_from([256, 1000, 4096, 20000]))), "-b", "2048"]
    args += ["-ub", str(draw(st.sampled_from([1, 31, 64, 512])))]
    args += ["-np", str(draw(st.sampled_from([1, 2, 3]))), *draw(st.sampled_from([[], ["-kvu"]]))]
    args += ["-fa", draw(st.sampled_from(["on", "off", "auto"]))]
    cache_type = draw(st.sampled_from(["f16", "f16", "q8_0", "f32"]))
    args += ["-ctk", cache_type, "-ctv", cache_type]
    if n_gpus:
        args += draw(st.sampled_from(OVERRIDES))
        args += draw(st.sampled_from([[], [], ["-ngl", "0"], ["-ngl", "4"], ["-ngl", str(LAYERS)]]))
        args += draw(st.sampled_from([[], [], ["-nkvo"], ["--no-op-offload"], ["--no-host"], ["--swa-full"]]))
    if n_gpus > 1:
        args += draw(st.sampled_from([[], ["-ts", "3,1"], ["-ts", "0,1,1"]]))
    denied = draw(st.sampled_from(DENIED)) if n_gpus else ()
    release = draw(st.sampled_from([r.name for r in RELEASES]))
    return draw(st.sampled_from(sorted(RECIPES))), args, n_gpus, denied, release


@pytest.mark.slow
@settings(max_examples=24, deadline=None)
@given(questions())
def test_quick_and_plain_agree(question: tuple[str, list[str], int, tuple[str, ...], str]) -> None:
    recipe, args, n_gpus, denied, release = question
    rig = Rig(tuple(Gpu(f"GPU {i}", 24000 * MIB, (23000 - 4000 * i) * MIB, (8, 6)) for i in range(n_gpus)))
    flags = parse_flags(args)
    asked = Question.of(header(recipe), flags, rig, release, denied)
    quick, plain = (answer(asked, plain).estimate for plain in (False, True))
    assert figures(quick) == figures(plain)


def test_a_shared_expert_that_moves_over_nodes_of_the_next_layer() -> None:
    rig = Rig((Gpu("one", 24000 * MIB, 23000 * MIB, (8, 6)),))
    flags = parse_flags(["-c", "256", "-b", "2048", "-ub", "1", "-np", "1", "-fa", "on"])
    asked = Question.of(header("q8_0"), flags, rig, "b11434")
    quick, plain = (answer(asked, plain).estimate for plain in (False, True))
    assert figures(quick) == figures(plain)


def figures(e: Estimate) -> tuple[object, ...]:
    """All that the two must agree on."""
    return e.refused, e.buffers, e.nodes, e.splits, e.disabled, e.pipeline_parallel


def test_what_was_found_for_one_size_does_not_pass_for_another_that_backends_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supports_op = CudaBackend.supports_op

    def refuses_long_ones(self: CudaBackend, t: Tensor) -> bool:
        wide = t.op in {"FLASH_ATTN_EXT", "LIGHTNING_INDEXER"} and max(t.src[1].ne) > 3000
        return not wide and supports_op(self, t)

    monkeypatch.setattr(CudaBackend, "supports_op", refuses_long_ones)
    rig = Rig((Gpu("choosy", 24000 * MIB, 23000 * MIB, (8, 6)), Gpu("choosy", 24000 * MIB, 20000 * MIB, (8, 6))))
    splits = set()
    for ctx in ("4096", "20000", "4096", "60000", "2048"):
        flags = parse_flags(["-c", ctx, "-np", "1", "-ub", "64", "-fa", "on"])
        asked = Question.of(header("mxfp4"), flags, rig, RELEASES[-1])
        quick, plain = (answer(asked, plain).estimate for plain in (False, True))
        assert figures(quick) == figures(plain), ctx
        splits.add(quick.splits)
    assert len(splits) > 1
