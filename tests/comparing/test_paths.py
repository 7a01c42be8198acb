"""The indexer's two paths: figures that are known, and how far each goes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from memplan.backends.devices import Rig
from memplan.comparing.paths import IndexerPaths, both_paths
from memplan.estimator import estimate
from memplan.explaining.result import Explanation
from memplan.gguf.header import Header
from memplan.llama.context import Paths
from memplan.llama.flags import Flags
from memplan.models.builtin import builtin_header
from memplan.rig import parse_gpus
from memplan.sweeping.axes import make_axis
from memplan.sweeping.sweep import Subject, Sweeper

MODEL = builtin_header("deepseek-v4-flash")


@pytest.fixture
def few_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try three contexts only: a graph of 33,600 nodes takes its time."""
    values = (4096, 32768, 262144)

    def candidates(sweeper: Sweeper, name: str) -> object:
        return make_axis(name, values), values

    monkeypatch.setattr("memplan.comparing.paths.candidates", candidates)


def paths(flags: str, gpu: str, release: str) -> IndexerPaths:
    return both_paths(Subject(MODEL, tuple(flags.split()), parse_gpus([gpu]), release))


@pytest.mark.usefixtures("few_contexts")
def test_a_build_whose_gpus_have_no_fused_indexer() -> None:
    """Build 9988 asks one RTX PRO 6000 for 136867676672 bytes of compute with these flags, and fails."""
    found = paths("-c 512000 -b 4096 -ub 2048 -np 1 -kvu -fa on", "RTX PRO 6000", "b9988")
    assert found.usual == "unfused"
    fused, unfused = found.sides
    assert (fused.path, unfused.path) == ("fused", "unfused")
    assert unfused.explanation.estimate.devices[0].compute == 136867676672
    assert fused.explanation.estimate.devices[0].compute < 136867676672 // 10
    # lid_kq and its copy: (context / 4) x ubatch x 64 heads x 4 bytes each
    kq = [t for t in found.tensors if t.tensor.base == "lid_kq" and t.device == "CUDA0"]
    assert [(t.path, t.tensor.op, t.copy, t.at_peak, t.count) for t in kq] == [
        ("unfused", "MUL_MAT", False, 1, 21),
        ("unfused", "CONT", True, 1, 21),
    ]
    assert {t.tensor.bytes for t in kq} == {512000 // 4 * 2048 * 64 * 4}
    assert found.comparison is not None
    group = found.comparison.buffers[0].groups[0]
    assert (group.base, group.fate, group.change) == ("lid_kq", "only after", 2 * kq[0].tensor.bytes)
    # the mask is f32 for the unfused chain, f16 for the op
    masks = {t.path: (t.tensor.type, t.tensor.bytes) for t in found.tensors if t.tensor.base == "dsv4_lid_kq_mask"}
    assert masks["unfused"] == ("f32", 2 * masks["fused"][1])
    assert {"lid_score", "lid_score_masked"} <= {t.tensor.base for t in found.tensors}
    assert (fused.largest.value, unfused.largest.value) == (262144, 32768)


def test_from_which_context_on_the_unfused_path_no_longer_fits() -> None:
    found = paths("-c 65536 -np 1 -cmoe", "2*RTX 3090", "v0.5.0")
    assert found.usual == "fused"
    fused, unfused = (side.largest for side in found.sides)
    assert (fused.value, fused.beyond) == (1048576, None)
    assert unfused.value is not None and unfused.beyond is not None
    assert unfused.beyond[0] == unfused.value + 256
    assert unfused.estimate.fits and not unfused.beyond[1].fits


@pytest.mark.usefixtures("few_contexts")
def test_a_build_that_has_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def estimated(h: Header, f: Flags, rig: Rig, release: str, ops: Iterable[str], paths: Paths) -> Explanation:
        return Explanation(estimate(h, f, rig, release, ops, paths))

    monkeypatch.setattr("memplan.comparing.paths.explain", estimated)
    found = paths("-c 4096 -np 1 -cmoe", "RTX 3090", "b9842")
    assert (found.usual, found.comparison, found.tensors) == ("unfused", None, ())
    assert [side.path for side in found.sides] == ["unfused"]
    assert found.sides[0].largest.value is not None
