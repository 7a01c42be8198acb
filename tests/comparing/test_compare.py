"""Comparisons: what moved, and what moved it, of explanations whose figures are known."""

from __future__ import annotations

import os
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.comparing.compare import compare
from memplan.comparing.result import BufferChange, Comparison
from memplan.explaining.explain import explain
from memplan.explaining.result import Explanation
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

MIB = 1 << 20
EXAMPLES = int(os.environ.get("MEMPLAN_EXAMPLES", "3"))
GROWTH = "-c 64000 -b 4096 -ub 4096 -np 1 -fa on -cmoe --no-op-offload"


@cache
def explained(flags: str, gpu: str, release: str = "v0.5.0", model: str = "deepseek-v4-flash") -> Explanation:
    return explain(builtin_header(model), parse_flags(flags.split()), parse_gpus([gpu]), release)


def grown(release: str) -> Explanation:
    return explained(GROWTH, "RTX 4090:24563:23040:8.9", release, "deepseek-v4-flash:q3")


def buffer(c: Comparison, device: str) -> BufferChange:
    return next(b for b in c.buffers if b.device == device)


def adds_up(c: Comparison) -> None:
    parts = {(p.device, p.part): p for p in c.parts}
    for b in c.buffers:
        part = parts["host" if b.device == "CPU" else b.device, "compute"]
        assert (b.before, b.after) == (part.before, part.after)
        assert b.alive + b.lost == b.change
        assert sum(group.change for group in b.groups) == b.alive


def test_rope_at_an_offset_takes_more_with_the_same_tensors() -> None:
    """b10549 and b10568 plan 2436956160 and 2803957760 bytes for these flags, with 9157 and 8521 nodes."""
    c = compare(grown("b10549"), grown("b10568"))
    adds_up(c)
    assert (c.before.estimate.nodes[0], c.after.estimate.nodes[0]) == (9157, 8521)
    moved = [p for p in c.parts if p.change]
    assert [(p.device, p.part, p.before, p.after) for p in moved] == [("CUDA0", "compute", 2436956160, 2803957760)]
    assert c.residents == ()
    gpu = buffer(c, "CUDA0")
    # not a byte more is alive: what is lost between the same tensors grows
    assert (gpu.same_moment, gpu.alive, gpu.lost, gpu.groups) == (True, 0, 350 * MIB, ())
    gap = gpu.gaps[0]
    assert (gap.side, gap.bytes, gap.other) == ("after", 352 * MIB, 0)
    assert (gap.owner.base, gap.owner.layer) == ("MUL_MAT of attn_q_b.weight", 2)
    (filling,) = gap.filled_otherwise
    assert (filling.tensor.name, filling.tensor.op, filling.alive) == ("q-2", "CONCAT", True)
    assert filling.counterpart is not None
    assert (filling.counterpart.op, filling.counterpart.in_place_of) == ("ROPE", "q_norm-2")
    assert gap.above is not None
    assert (gap.above.base, gap.above.bytes) == ("FLASH_ATTN_EXT of q", 512 * MIB)
    (life,) = [life for life in gpu.lives if life.base == "q"]
    assert (life.how, life.of, life.count, life.layers) == ("in place", "q_norm", 43, tuple(range(43)))


def test_the_other_way_about_says_the_opposite() -> None:
    there, back = (compare(grown(a), grown(b)) for a, b in (("b10549", "b10568"), ("b10568", "b10549")))
    adds_up(back)
    assert [p.change for p in back.parts] == [-p.change for p in there.parts]
    gpu = buffer(back, "CUDA0")
    assert gpu.lost == -350 * MIB
    assert (gpu.gaps[0].side, gpu.gaps[0].owner) == ("before", buffer(there, "CUDA0").gaps[0].owner)
    assert [(life.how, life.of) for life in gpu.lives if life.base == "q"] == [("own place", "q_norm")]


def test_nothing_moves_between_a_thing_and_itself() -> None:
    c = compare(grown("b10568"), grown("b10568"))
    adds_up(c)
    assert not any(p.change for p in c.parts)
    assert not c.residents
    assert not any(b.groups or b.gaps or b.lives for b in c.buffers)


def test_a_larger_ubatch_is_told_tensor_by_tensor() -> None:
    c = compare(*(explained(f"-c 131072 -np 1 -cmoe -ub {n}", "2*RTX 3090") for n in (512, 2048)))
    adds_up(c)
    caches = [r for r in c.residents if r.kind == "cache"]
    assert [(r.name, r.source, r.target) for r in caches] == [
        ("cache_k", "CUDA0", "CUDA0"),
        ("cache_k", "CUDA1", "CUDA1"),
    ]
    contexts = [p.change for p in c.parts if p.part == "context" and p.change]
    assert [r.after - r.before for r in caches] == contexts
    host = buffer(c, "CPU")
    assert {(g.base, g.fate, g.change) for g in host.groups[:2]} == {
        ("dsv4_lid_kq_mask", "larger", 96 * MIB),
        ("dsv4_csa_kq_mask", "larger", 96 * MIB),
    }
    first = buffer(c, "CUDA0")
    # the copies of experts no longer decide, the batch does
    assert not first.same_moment
    assert first.before_then is not None and first.before_then < first.before
    product = next(g for g in first.groups if g.base == "ffn_moe_down")
    assert (product.fate, product.change) == ("another moment", 192 * MIB)


def test_experts_that_move_are_named() -> None:
    c = compare(explained("-c 4096 -np 1 -cmoe", "2*RTX 3090"), explained("-c 4096 -np 1 -ncmoe 30", "2*RTX 3090"))
    adds_up(c)
    assert [(r.kind, r.source, r.target, r.count, r.layers) for r in c.residents] == [
        ("weight", "CUDA_Host", "CUDA1", 13, tuple(range(30, 43)))
    ] * 3
    moved = {p.device: p.change for p in c.parts if p.part == "weights" and p.change}
    assert moved == {"CUDA1": sum(r.after for r in c.residents), "host": -sum(r.before for r in c.residents)}


def test_tensors_that_live_longer() -> None:
    """v0.5.0's CUDA keeps the tensors of the top-k gating where v0.4.0 let them be overwritten."""
    c = compare(*(explained("-c 4096 -np 1 -ub 2048", "RTX PRO 6000", release) for release in ("v0.4.0", "v0.5.0")))
    adds_up(c)
    lives = {(life.how, life.base): life for life in buffer(c, "CUDA0").lives}
    assert lives["own place", "ffn_moe_probs"].of == "ffn_moe_logits"
    assert lives["longer", "ffn_moe_probs_biased"].count == 40


def test_another_model_and_another_rig() -> None:
    two = explained("-c 4096 -np 1 -cmoe", "2*RTX 3090")
    c = compare(explained("-c 4096 -np 1 -cmoe", "RTX PRO 6000"), two)
    adds_up(c)
    assert [p.device for p in c.parts[::4]] == ["CUDA0", "CUDA1", "host"]
    second = buffer(c, "CUDA1")
    assert (second.before, second.before_peaks, second.gaps) == (0, (), ())
    weights = [r for r in c.residents if r.kind == "weight"]
    assert {(r.source, r.target) for r in weights} == {("CUDA0", "CUDA1")}


SIDE = st.tuples(
    st.sampled_from(["4*RX 7900 XTX", "2*RTX 3090", "M2 Ultra", "Strix Halo"]),
    st.sampled_from(["b10068", "b10361", "b10568", "v0.4.0", "v0.5.0"]),
    st.sampled_from(["-c 4096", "-c 65536"]),
    st.sampled_from(["-np 1", "-np 2", "-np 2 -kvu"]),
    st.sampled_from(["", "-ub 128", "-ctk q8_0 -ctv q8_0"]),
    st.sampled_from(["-cmoe", "-ncmoe 10"]),
)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SIDE, SIDE)
def test_what_moved_is_all_there_is(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """Also where a buffer has several chunks, as Vulkan's have."""
    c = compare(*(explained(" ".join(flags), gpu, release) for gpu, release, *flags in (first, second)))
    adds_up(c)


@pytest.mark.thorough
def test_chunks_are_compared_all() -> None:
    """lid_kq and its permuted copy lie in chunks of their own, of 2 GiB each."""
    flags = "-c 65536 -np 1 -ncmoe 10"
    c = compare(*(explained(flags, "4*RX 7900 XTX", release) for release in ("b10568", "v0.5.0")))
    adds_up(c)
    first = buffer(c, "Vulkan0")
    assert [len(first.before_peaks), len(first.after_peaks), first.same_moment] == [3, 1, False]
    kq = first.groups[0]
    assert (kq.base, kq.fate, kq.change) == ("lid_kq", "only after" if kq.change > 0 else "only before", -4096 * MIB)
    assert {p.op for p in kq.before} == {"MUL_MAT", "CONT"}


def test_a_tensor_by_another_name_is_no_other_tensor() -> None:
    """What a layer ends with is ``l_out`` in b10068 and ``l_last`` in b10361."""
    c = compare(*(explained("-c 4096 -np 1 -cmoe", "2*RTX 3090", release) for release in ("b10068", "b10361")))
    adds_up(c)
    assert c.renamed == (("l_out", "l_last"),)
    moved = {group.base for b in c.buffers for group in b.groups}
    assert not any("l_out" in base for base in moved)
    assert not any(g.fate in ("only before", "only after") and "l_last" in g.base for b in c.buffers for g in b.groups)


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_refused_side_has_parts_only(refused_first: bool) -> None:
    pair = [explained("-c 4096 -ctk q8_0", "2*RTX 3090"), explained("-c 4096 -np 1 -cmoe", "2*RTX 3090")]
    c = compare(*(pair if refused_first else pair[::-1]))
    assert not (c.residents or c.buffers)
    assert len(c.parts) == 12


def test_nothing_is_said_to_move_from_a_release_whose_graphs_are_not_followed() -> None:
    c = compare(*(explained("-c 4096 -np 1", "H200", release) for release in ("antirez", "b9842")))
    assert (c.residents, c.buffers) == ((), ())
    assert any(part.change for part in c.parts)
