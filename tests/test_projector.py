"""A multimodal projector: its weights, on the device that llama.cpp puts them on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.errors import FlagError
from memplan.estimator import estimate
from memplan.gguf.header import TensorInfo
from memplan.gguf.types import F16, F32
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.chart import make_chart
from memplan.output.terminal_plot import render_chart
from memplan.planning.api import plan
from memplan.planning.plan import Plan
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.sweeping.axes import parse_axis
from memplan.sweeping.largest import find_limit
from memplan.sweeping.sweep import Sweeper, sweep

TENSORS = {
    "mm.0.weight": TensorInfo("mm.0.weight", (1024, 4096), F16, 0),
    "v.blk.0.ln1.weight": TensorInfo("v.blk.0.ln1.weight", (1025,), F32, 8 << 20),
}
PROJECTOR = replace(
    builtin_header("qwen3.5-9b"), metadata={"general.architecture": "clip"}, tensors=TENSORS, name="p.gguf"
)
BYTES = (8 << 20) + 4224
"""Two tensors, each padded to 128 bytes."""


def taken(line: str, release: str = "v0.5.0") -> dict[str, int]:
    flags = parse_flags(["-c", "4096", "--mmproj", "p.gguf", *line.split()])
    rig = parse_gpus(["2*RTX 3090"])
    found = estimate(builtin_header("qwen3.5-9b"), flags, rig, release, projector=PROJECTOR)
    bare = estimate(builtin_header("qwen3.5-9b"), flags, rig, release)
    for device, without in zip(found.devices, bare.devices, strict=True):
        assert device.left == without.left - device.projector
    return {use.name: use.projector for use in found.devices} | {"host": found.host.projector}


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("", "CUDA0"),
        ("-dev CUDA1", "CUDA1"),
        ("-mmdev CUDA1", "CUDA1"),
        ("-dev CUDA1 -mmdev CUDA0", "CUDA0"),
    ],
)
def test_where_it_lies(line: str, where: str) -> None:
    assert taken(line) == {"CUDA0": 0, "CUDA1": 0, "host": 0} | {where: BYTES}


@pytest.mark.parametrize("line", ["--no-mmproj-offload", "-mmdev none"])
def test_on_the_host_it_is_padded_less(line: str) -> None:
    assert taken(line) == {"CUDA0": 0, "CUDA1": 0, "host": (8 << 20) + 4128}


def test_before_it_did_not_follow_the_devices() -> None:
    assert taken("-dev CUDA1", "v0.4.0")["CUDA0"] == BYTES


def test_pictures_show_it_as_a_part_of_its_own() -> None:
    model, flags, rig = builtin_header("qwen3.5-9b"), parse_flags(["-np", "1"]), parse_gpus(["RTX 3090"])
    sweeper = Sweeper(Question.of(model, flags, rig, "v0.5.0", projector=PROJECTOR), [parse_axis("ctx=4096,8192")])
    chart = make_chart(sweeper, sweeper.run(), "ctx")
    (panel,) = chart.panels
    assert [series.label for series in panel.series] == ["weights", "context", "compute", "run time", "projector"]
    assert panel.series[-1].ys == (BYTES, BYTES)
    assert "projector" in render_chart(chart)


def test_from_python_it_is_counted_everywhere() -> None:
    model, rig = builtin_header("qwen3.5-9b"), parse_gpus(["RTX 3090"])
    (point,) = sweep(model, ["-np", "1"], rig, ["ctx=4096"], projector=PROJECTOR).points
    limit = find_limit(model, ["-np", "1"], rig, values=[4096], projector=PROJECTOR)
    found = plan(model, ["-np", "1", "-c", "4096"], rig, projector=PROJECTOR)
    assert isinstance(found, Plan)
    assert {e.projector for e in (point.estimate, limit.estimate, found.estimate)} == {("CUDA0", BYTES)}


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(FlagError, match=r"-mmdev .*CUDA7.*no such device"):
        taken("-mmdev CUDA7")
