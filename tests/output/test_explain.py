from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from memplan.explaining.explain import explain
from memplan.explaining.result import Explanation
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.explain import explanation_json, render_explanation
from memplan.output.explain_words import verdict
from memplan.output.timeline import REST, timeline_chart, timeline_figure
from memplan.releases import V0_5_0
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

UNFUSED = replace(V0_5_0, indexer_probe=True)
MODEL = builtin_header("deepseek-v4-flash")


@cache
def unfused() -> Explanation:
    flags = parse_flags(["-c", "131072", "-np", "1"])
    return explain(MODEL, flags, parse_gpus(["RTX PRO 6000"]), UNFUSED, ["LIGHTNING_INDEXER"])


@cache
def on_the_host() -> Explanation:
    return explain(MODEL, parse_flags(["-c", "4096", "-np", "1", "-cmoe"]), parse_gpus(["2*RTX 3090"]))


def test_which_tensor_is_it_in_so_many_words() -> None:
    x = unfused()
    assert verdict(x.buffers[0]) == "lid_kq decides: 8,192.0 MiB, 96 %, 2 tensors of layer 2"
    text = render_explanation(x)
    assert "lid_kq decides" in text
    assert "32768 x 512 x 64" in text and "64 x 512 x 32768" in text
    assert verdict(x.buffers[1]) == "dsv4_lid_kq_mask decides: 64.0 MiB, 56 %, 1 tensor"
    assert verdict(on_the_host().buffers[1]).startswith("no single tensor decides, the largest are ")


def test_experts_and_gaps_are_named() -> None:
    x = on_the_host()
    said = verdict(x.buffers[0])
    assert said.startswith("copy of ffn_")
    text = render_explanation(x, top=3)
    assert "lost in" in text and "more" in text and "in all" in text
    assert "CUDA_Host to CUDA0" in text
    assert "cache_k (csa)" in render_explanation(x, top=100)


def test_one_device_and_plain_text() -> None:
    text = render_explanation(on_the_host(), device="CUDA1", unicode=False)
    assert text.isascii()
    assert "CUDA1: compute buffer" in text and "CUDA0: compute buffer" not in text
    assert "The largest tensors" not in text
    assert "\x1b[" in render_explanation(on_the_host(), device="CUDA1", colour=True)


def test_json_adds_up() -> None:
    found = json.loads(explanation_json(unfused()))
    for buffer in found["buffers"]:
        assert buffer["bytes"] == found["estimate"]["buffers"][buffer["buffer"]]["compute"]
        for peak in buffer["peaks"]:
            assert sum(p["bytes"] for p in peak["live"]) + sum(g["bytes"] for g in peak["gaps"]) == peak["bytes"]
    assert found["buffers"][0]["peaks"][0]["groups"][0]["base"] == "lid_kq"
    assert len(found["splits"]) == found["estimate"]["graph"]["splits"][0]
    assert {"weight", "cache", "state"} == {r["kind"] for r in found["residents"]}


@pytest.mark.parametrize("which", [unfused, on_the_host])
def test_timelines_end_where_the_buffer_does(which: object) -> None:
    assert callable(which)
    x = which()
    chart = timeline_chart(x)
    assert chart.nodes == x.estimate.nodes[0]
    assert [t.device for t in chart.timelines] == [b.device for b in x.buffers if b.device != "CPU"]
    for timeline in chart.timelines:
        assert len(timeline.reach) == chart.nodes
        assert max(timeline.reach) == timeline.size == timeline.reach[timeline.node]
        for alive in zip(*timeline.bands, timeline.reach, strict=True):
            assert sum(alive[:-1]) <= alive[-1]
        assert timeline.labels[-1] == REST
    host = timeline_chart(x, "CPU").timelines
    assert [t.device for t in host] == ["CPU (CUDA_Host)"]


def test_the_picture_marks_the_peak() -> None:
    pytest.importorskip("matplotlib")
    chart = timeline_chart(unfused())
    timeline = chart.timelines[0]
    figure = timeline_figure(chart)
    whole, near = figure.axes
    assert whole.get_xlim() == (0, chart.nodes)
    assert near.get_xlim() == (timeline.node - 45, timeline.node + 45)
    for axes in (whole, near):
        (peak,) = [line for line in axes.get_lines() if line.get_label() == "_peak"]
        assert (peak.get_xdata()[0], peak.get_ydata()[0]) == (timeline.node, timeline.size)
        assert f"fullest at node {timeline.node:,}: 8,508 MiB" in [text.get_text() for text in axes.texts]
        legend = axes.get_legend()
        assert legend is not None
        assert {"lid_kq", REST, "gaps between them"} <= {text.get_text() for text in legend.get_texts()}
    assert "lid_kq decides" in whole.get_title(loc="left")
    assert len(timeline_figure(timeline_chart(on_the_host()), dark=True).axes) == 2


@cache
def in_chunks() -> Explanation:
    flags = parse_flags(["-c", "65536", "-np", "1", "-ncmoe", "10"])
    return explain(MODEL, flags, parse_gpus(["4*RX 7900 XTX"]), "b10568")


def test_chunks_are_one_buffer_in_words() -> None:
    x = in_chunks()
    assert verdict(x.buffers[0]) == "lid_kq decides: 4,096.0 MiB, 83 %, 2 tensors of layer 2"
    assert "in 3 chunks (843.3 + 2,048.0 + 2,048.0 MiB)" in render_explanation(x, device="Vulkan0")


def test_chunks_in_a_timeline() -> None:
    """No node fills all of them: what is marked is the node that fills most, as far as it does."""
    chart = timeline_chart(in_chunks(), "Vulkan0")
    (timeline,) = chart.timelines
    most = max(timeline.reach)
    assert timeline.reach[timeline.node] == most < timeline.size
    assert timeline.bands[timeline.labels.index("lid_kq")][timeline.node] == 4096 << 20
    assert "in 3 chunks" in timeline.peak_label
    assert [note.partition(":")[0] for note in chart.notes] == ["not exact"]
    assert timeline_chart(unfused()).notes == ()
    pytest.importorskip("matplotlib")
    figure = timeline_figure(chart)
    (peak,) = [line for line in figure.axes[0].get_lines() if line.get_label() == "_peak"]
    assert (peak.get_xdata()[0], peak.get_ydata()[0]) == (timeline.node, most)
    assert any(text.get_text().startswith("not exact: Vulkan") for text in figure.texts)


def test_inputs_that_are_alike_are_one_line() -> None:
    x = explain(MODEL, parse_flags(["-c", "8192"]), parse_gpus(["RTX PRO 6000"]), "lid-cuda")
    assert "decides: " in verdict(x.buffers[0]) and ", 41 tensors of layers 2-42" in verdict(x.buffers[0])
    lines = render_explanation(x, device="CUDA0").splitlines()
    assert any(line.startswith("llama.cpp has no name for it: room for zeros that are added to") for line in lines)
    assert sum("21 alike: leaf_99 (input of FILL for kq_plus_kq_b)" in line for line in lines) == 1


def test_the_copies_of_an_input_are_together_in_sentence_and_table() -> None:
    x = explain(MODEL, parse_flags(["-c", "8192", "-np", "4"]), parse_gpus(["8*RTX 3090"]))
    assert x.estimate.pipeline_parallel
    (buffer,) = (buffer for buffer in x.buffers if buffer.device == "CUDA1")
    assert "copy of l_last (128.0 MiB in 4 tensors, 27 %)" in verdict(buffer)
    rows = [line for line in render_explanation(x, device="CUDA1").splitlines() if "4 copies: CUDA1#l_last-5#0" in line]
    assert len(rows) == 1 and rows[0].split()[:2] == ["128.0", "27"]
    assert buffer.peak is not None
    shown = render_explanation(x, device="CUDA1", top=1000).partition("Splits of")[0]
    assert sum(
        int(line.partition(" copies: ")[0].split()[-1]) for line in shown.splitlines() if " copies: " in line
    ) == (sum(p.does == "copy" for p in buffer.peak.live))
