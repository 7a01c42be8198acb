"""The indexer's two paths: figures that are known, and how far each goes."""

from __future__ import annotations

import pytest

from memplan.comparing.paths import BothPaths, both_paths
from memplan.estimator import answer, estimate
from memplan.explaining.result import Explanation
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.sweeping.axes import make_axis
from memplan.sweeping.sweep import Sweeper

MODEL = builtin_header("deepseek-v4-flash")
RIG = parse_gpus(["RTX PRO 6000"])


@pytest.fixture
def few_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try three contexts only: a graph of 33,600 nodes takes its time."""
    values = (4096, 32768, 262144)

    def candidates(sweeper: Sweeper, name: str) -> object:
        return make_axis(name, values), values

    monkeypatch.setattr("memplan.comparing.paths.candidates", candidates)


def paths(flags: str, gpu: str, release: str, without_ops: tuple[str, ...] = ()) -> BothPaths:
    return both_paths(Question.of(MODEL, parse_flags(flags.split()), parse_gpus([gpu]), release, without_ops))


@pytest.mark.usefixtures("few_contexts")
def test_gpus_without_the_kernel() -> None:
    found = paths("-c 131072 -ub 2048 -np 1", "RTX PRO 6000", "b10068", ("LIGHTNING_INDEXER",))
    assert found.usual == "unfused"
    fused, unfused = found.sides
    assert (fused.path, unfused.path) == ("fused", "unfused")
    flags = parse_flags(["-c", "131072", "-ub", "2048", "-np", "1"])
    released = estimate(MODEL, flags, RIG, "b10068", ("LIGHTNING_INDEXER",))
    assert unfused.explanation.estimate.buffers == released.buffers
    # lid_kq and its copy: (context / 4) x ubatch x 64 heads x 4 bytes each
    kq = [t for t in found.tensors if t.tensor.base == "lid_kq" and t.device == "CUDA0"]
    assert [(t.path, t.tensor.op, t.copy, t.at_peak, t.count) for t in kq] == [
        ("unfused", "MUL_MAT", False, 1, 21),
        ("unfused", "CONT", True, 1, 21),
    ]
    assert {t.tensor.bytes for t in kq} == {131072 // 4 * 2048 * 64 * 4}
    assert found.comparison is not None
    group = found.comparison.buffers[0].groups[0]
    assert (group.base, group.fate, group.change) == ("lid_kq", "only after", 2 * kq[0].tensor.bytes)
    # the mask is f32 for the unfused chain, f16 for the op
    masks = {t.path: (t.tensor.type, t.tensor.bytes) for t in found.tensors if t.tensor.base == "dsv4_lid_kq_mask"}
    assert masks["unfused"] == ("f32", 2 * masks["fused"][1])
    assert {"lid_score", "lid_score_masked"} <= {t.tensor.base for t in found.tensors}
    assert (fused.largest.value, fused.largest.beyond) == (262144, None)
    assert unfused.largest.value == 32768
    assert unfused.largest.beyond is not None and unfused.largest.beyond[0] == 262144
    assert unfused.largest.estimate.fits and not unfused.largest.beyond[1].fits


@pytest.mark.usefixtures("few_contexts")
def test_a_build_that_has_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.comparing.paths.explained", lambda q: Explanation(answer(q).estimate))
    found = paths("-c 4096 -np 1 -cmoe", "RTX 3090", "b9842")
    assert (found.usual, found.comparison, found.tensors) == ("unfused", None, ())
    assert [side.path for side in found.sides] == ["unfused"]
    assert found.sides[0].largest.value is not None
