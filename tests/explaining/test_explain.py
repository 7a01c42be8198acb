"""Explanations of golden cases: what is alive at a peak is all of it, and lies where nothing else does."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.estimator import answer
from memplan.explaining.explain import explain
from memplan.explaining.record import Recorder
from memplan.explaining.result import ComputeBuffer, Explanation
from memplan.llama.flags import parse_flags
from memplan.question import Question
from memplan.releases import RELEASES, V0_5_0, Release
from memplan.rig import parse_gpus
from tests.golden import builtin, rig
from tests.llama.golden import GOLDEN, Case, cases

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("MEMPLAN_EXAMPLES", "6"))
# rigs of CUDA alone, and contexts that do not draft
FILES = sorted(path.stem for path in GOLDEN.glob("*.jsonl") if path.stem not in ("rpc", "vulkan", "drafts"))
BY_NAME = {release.name: release for release in RELEASES}
CASES = [
    case
    for name in FILES
    for case in cases(name)
    # models of made-up shapes stand in their case; the built-in ones are enough here
    if str(case["model"]).startswith(("flash-", "pro-"))
    and case.get("release") in BY_NAME
    and "buffers" in case.get("truth", ())
]


def explained(case: Case) -> Explanation:
    flags = parse_flags(case["args"], case["app"])
    return explain(builtin(case["model"]), flags, rig(case), BY_NAME[case["release"]], case["deny"])


def check(buffer: ComputeBuffer) -> None:
    """The peaks' tensors and gaps tile the buffer."""
    assert buffer.bytes == sum(peak.bytes for peak in buffer.peaks)
    for peak in buffer.peaks:
        assert sum(p.bytes for p in peak.live) + peak.lost == peak.bytes
        assert sum(group.bytes for group in peak.groups) == peak.bytes - peak.lost
        end = 0
        for offset, size in sorted([(p.offset, p.bytes) for p in peak.live] + [(g.offset, g.bytes) for g in peak.gaps]):
            assert offset == end
            end = offset + size
        assert end == peak.bytes
        assert peak.tensor in peak.live
        assert all(p.first <= peak.node <= p.last for p in peak.live)


def test_there_are_cases() -> None:
    assert len(CASES) > 100


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(CASES))
def test_what_lives_at_a_peak_adds_up_to_the_buffer(case: Case) -> None:
    x = explained(case)
    truth = case["truth"]["buffers"]
    assert x.buffers
    for buffer in x.buffers:
        check(buffer)
        # llama.cpp's own figure is 0 or 1 for a buffer that holds nothing
        told = truth.get(buffer.buffer, {}).get("compute", 0)
        assert buffer.bytes == told or (buffer.bytes == 0 and told == 1)
        assert buffer.bytes == x.estimate.buffers[buffer.buffer].compute
    held: Counter[tuple[str, bool]] = Counter()
    for resident in x.residents:
        held[resident.buffer, resident.kind == "weight"] += resident.bytes
    for name, use in x.estimate.buffers.items():
        assert (held[name, True], held[name, False]) == (use.model, use.context)
    assert len(x.splits) == x.estimate.splits[0]
    assert [split.first for split in x.splits[1:]] == [split.last + 1 for split in x.splits[:-1]]


@pytest.mark.parametrize("number", [3, 41, 97])
def test_no_two_tensors_ever_overlap(number: int) -> None:
    case = CASES[number % len(CASES)]
    flags = parse_flags(case["args"], case["app"])
    made = answer(Question.of(builtin(case["model"]), flags, rig(case), case["release"], case["deny"])).made
    assert made
    context = made.context
    graph = context.graphs.whole(context.params.prompt_batch, context.fused).graph
    recorder = Recorder(graph, context.sched.bufts)
    context.sched.reserve_size(graph, recorder)
    lives = recorder.finish()
    changes = sorted(
        [(life.start, 1, life) for life in lives] + [(life.end, 0, life) for life in lives], key=lambda c: c[:2]
    )
    there: list[tuple[int, int, int, int]] = []
    for _, begins, life in changes:
        stay = (life.space, life.chunk, life.offset, life.offset + life.size)
        at = bisect_left(there, stay)
        if not begins:
            assert there.pop(at) == stay
            continue
        assert at == 0 or there[at - 1][:2] != stay[:2] or there[at - 1][3] <= stay[2]
        assert at == len(there) or there[at][:2] != stay[:2] or stay[3] <= there[at][2]
        there.insert(at, stay)
    assert not there


UNFUSED: Release = replace(V0_5_0, indexer_probe=True)


def test_which_tensor_is_it() -> None:
    rig = parse_gpus(["RTX PRO 6000"])
    x = explain(
        builtin("flash-antirez-q2"), parse_flags(["-c", "131072", "-np", "1"]), rig, UNFUSED, ["LIGHTNING_INDEXER"]
    )
    gpu = x.buffers[0]
    check(gpu)
    assert gpu.decides is not None
    assert gpu.decides.base == "lid_kq"
    assert gpu.decides.count == 2
    # two of (context / 4) x ubatch x 64 heads x 4 bytes
    assert gpu.decides.bytes == 2 * (131072 // 4) * 512 * 64 * 4
    assert {p.op for p in x.largest[:2]} == {"MUL_MAT", "CONT"}
    assert [p.name for p in gpu.peaks[0].live[:2]] == ["lid_kq-2", "lid_kq-2"]


def test_which_tensor_it_was_before_the_indexer_was_fused() -> None:
    x = explain(
        builtin("flash-antirez-q2"), parse_flags(["-c", "131072", "-np", "1"]), parse_gpus(["RTX PRO 6000"]), "b9924"
    )
    assert x.estimate.nodes[0] == 33689
    check(x.buffers[0])
    assert x.buffers[0].bytes == x.estimate.devices[0].compute
    assert x.buffers[0].decides is not None
    assert (x.buffers[0].decides.base, x.buffers[0].decides.bytes) == ("lid_kq", 8 << 30)


def test_pipeline_parallelism_keeps_four_copies() -> None:
    x = explain(builtin("flash-antirez-q2"), parse_flags(["-c", "4096", "-np", "1"]), parse_gpus(["2*RTX PRO 6000"]))
    assert x.estimate.pipeline_parallel
    assert {i.copies for split in x.splits for i in split.inputs} == {4}
    copies = [p for p in x.buffers[1].tensors if p.base == "copy of l_last"]
    assert len(copies) == 4
    assert len({p.offset for p in copies}) == 4


def test_experts_on_the_host_are_copied_to_a_gpu() -> None:
    x = explain(
        builtin("flash-antirez-q2"), parse_flags(["-c", "4096", "-np", "1", "-cmoe"]), parse_gpus(["2*RTX 3090"])
    )
    weights = [(split.device, i) for split in x.splits for i in split.inputs if i.weight]
    assert len(weights) == 3 * 43
    assert {i.source for _, i in weights} == {"CUDA_Host"}
    assert x.buffers[0].decides is not None
    assert x.buffers[0].decides.base.startswith("copy of ffn_")
    sizes = {p.name: p.bytes for p in x.buffers[0].tensors}
    assert all(sizes[f"CUDA0#{i.name}#0"] == i.bytes for device, i in weights if device == "CUDA0")


def test_chunks_add_up_to_their_buffer() -> None:
    flags = parse_flags(["-c", "65536", "-np", "1", "-ncmoe", "10"])
    x = explain(builtin("flash-antirez-q2"), flags, parse_gpus(["4*RX 7900 XTX"]), "b10568")
    gpu = x.buffers[0]
    check(gpu)
    assert len(gpu.peaks) == 3
    assert sum(p.bytes for p in gpu.live) + gpu.lost == gpu.bytes
    assert sum(group.bytes for group in gpu.groups) == gpu.bytes - gpu.lost
    # lid_kq and its copy lie in chunks of their own
    assert gpu.decides is not None
    assert (gpu.decides.base, gpu.decides.count, gpu.decides.bytes) == ("lid_kq", 2, 2 * (65536 // 4) * 512 * 64 * 4)


def test_inputs_without_a_name_are_what_reads_them() -> None:
    """The zeros of ``dsv4_build_kq_zero_bias``, keys x tokens x heads, one for each layer (R31)."""
    x = explain(builtin("flash-antirez-q2"), parse_flags(["-c", "8192"]), parse_gpus(["RTX PRO 6000"]), "lid-cuda")
    decides = x.buffers[0].decides
    assert decides is not None
    assert (decides.base, decides.count) == ("input of FILL for kq_plus_kq_b", 41)
    assert decides.layers == tuple(range(2, 43))  # it is fullest in layer 2
    zeros = {p.layer: p for p in x.buffers[0].live if p.base == decides.base}
    assert {zeros[il].shape for il in (2, 4, 42)} == {(2816, 128, 64, 4)}
    assert zeros[2].title.startswith("leaf_") and zeros[2].title.endswith(" (input of FILL for kq_plus_kq_b)")
    host = {p.base for p in x.buffers[1].tensors}
    assert "input of SET_ROWS for cache_k" in host
    assert not any("leaf_" in p.base for b in x.buffers for p in b.tensors)


def test_a_refusal_has_nothing_to_explain() -> None:
    flags = parse_flags(["-c", "4096", "-ctk", "q8_0"])
    x = explain(builtin("flash-antirez-q2"), flags, parse_gpus(["RTX PRO 6000"]))
    assert x.estimate.refused is not None
    assert not (x.buffers or x.splits or x.largest or x.residents)


def test_without_a_gpu() -> None:
    x = explain(builtin("flash-antirez-q2"), parse_flags(["-c", "4096", "-np", "1"]), parse_gpus([]))
    assert [buffer.device for buffer in x.buffers] == ["CPU"]
    check(x.buffers[0])
