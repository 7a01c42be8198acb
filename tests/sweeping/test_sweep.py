from __future__ import annotations

from typing import get_args

import pytest

import memplan
from memplan.errors import FlagError
from memplan.estimator import Answer, answer
from memplan.llama.context import AS_RELEASED, Path
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.sweeping.axes import parse_axis
from memplan.sweeping.sweep import Sweeper, sweep

MODEL = builtin_header("deepseek-v4-flash")
RIG = parse_gpus(["2*RTX 3090"])


def test_each_point_is_the_estimate_with_its_values() -> None:
    result = sweep(MODEL, ["-cmoe", "-c", "512", "--parallel", "3"], RIG, {"ctx": "4096,8192", "np": [1, 2]})
    assert [point.values for point in result.points] == [(4096, 1), (4096, 2), (8192, 1), (8192, 2)]
    for (ctx, np), estimate in ((point.values, point.estimate) for point in result.points):
        flags = parse_flags(["-cmoe", "-c", str(ctx), "-np", str(np)])
        assert estimate.buffers == memplan.estimate(MODEL, flags, RIG).buffers
        assert estimate.flags.n_parallel == np
    assert result.axis("ctx") == 0
    assert result.axis("-np") == 1
    with pytest.raises(FlagError, match="not swept"):
        result.axis("ub")


def test_axes_that_are_no_flags() -> None:
    over = ["llama=v0.4.0,v0.5.0", "indexer=fused,unfused", "gpu=RTX PRO 6000,2*RTX PRO 6000", "app=server,cli"]
    result = sweep(MODEL, ["-c", "4096", "-np", "1"], RIG, over)
    assert len(result.points) == 16
    for (llama, indexer, gpu, app), estimate in ((point.values, point.estimate) for point in result.points):
        assert estimate.llama == llama
        assert estimate.without_ops == ()
        assert [note.split(":")[0] for note in estimate.notes if "--path" in note] == [f"--path indexer={indexer}"]
        assert len(estimate.devices) == (2 if str(gpu).startswith("2") else 1)
        assert estimate.flags.app == app


def test_the_indexers_paths_are_those_of_estimate() -> None:
    flags = ["-c", "32768", "-np", "1"]
    points = sweep(MODEL, flags, RIG, ["indexer=fused,unfused"]).points
    for point, way in zip(points, get_args(Path)[1:], strict=True):
        asked = memplan.estimate(MODEL, parse_flags(flags), RIG, paths=AS_RELEASED.with_("indexer", way))
        assert point.estimate.buffers == asked.buffers
    assert points[0].estimate.buffers["CUDA0"].compute < points[1].estimate.buffers["CUDA0"].compute


def test_a_release_without_a_fused_indexer_has_one_path() -> None:
    fused, unfused = sweep(MODEL, ["-c", "4096", "-np", "1"], RIG, ["indexer=fused,unfused"], "b9842").points
    assert fused.estimate.buffers == unfused.estimate.buffers


def test_each_point_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def spied(question: Question) -> Answer:
        asked.append(question.flags.words())
        return answer(question)

    monkeypatch.setattr("memplan.sweeping.sweep.answer", spied)
    sweeper = Sweeper(Question.of(MODEL, parse_flags(["-cmoe"]), RIG, "latest"), [parse_axis("ctx=4096,8192")])
    told: list[tuple[int, int]] = []
    sweeper.run(lambda done, of: told.append((done, of)))
    sweeper.run()
    assert asked == [("-cmoe", "-c", "4096"), ("-cmoe", "-c", "8192")]
    assert told == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (["ctx=1,2", "c=1"], "sets what --over ctx sets already"),
        (["kvu=on", "no-kvu=on"], "sets already"),
        (["llama=v0.5.0", "llama=v0.4.0"], "sets already"),
        (["ctx=1:4000:1", "np=1:10:1"], "at most 20000"),
        (["np=0"], "-np 0"),
        (["ot=exps=CUDA7"], "no such buffer type"),
    ],
)
def test_what_cannot_be_swept(over: list[str], said: str) -> None:
    with pytest.raises(FlagError, match=said):
        sweep(MODEL, ["-cmoe"], RIG, over)
