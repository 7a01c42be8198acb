"""Plans that place what drafts as well."""

from __future__ import annotations

import pytest

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.planning.api import plan
from memplan.planning.drafter import drafter_places, drafting_ms
from memplan.planning.plan import NoPlan, Plan
from memplan.planning.speed import find_bandwidths
from memplan.question import Question
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

MODEL, DRAFTER = builtin_header("deepseek-v4-flash"), builtin_header("deepseek-v4-flash-dspark")
LINE = ["-c", "16384", "-np", "1"]


def asked(gpus: str, *words: str) -> Question:
    return Question.of(MODEL, parse_flags([*LINE, *words]), parse_gpus([gpus]), "v0.5.0", draft=DRAFTER)


def test_where_it_may_lie() -> None:
    places, others = drafter_places(asked("2*RTX 3090"))
    assert places == [(), ("-devd", "CUDA1"), ("-cmoed",)]
    assert ("-devd", "CUDA0", "-cmoed") in others
    assert drafter_places(asked("2*RTX 3090", "-dev", "CUDA0"))[0] == [(), ("-cmoed",)]
    for words in (["-ngld", "0"], ["--cpu-moe-draft"], ["--device-draft", "CUDA1"]):
        assert drafter_places(asked("2*RTX 3090", *words)) == (((),), ())
    assert drafter_places(Question.of(MODEL, parse_flags(LINE), parse_gpus(["RTX 3090"]), "v0.5.0")) == (((),), ())


def test_reading_it_takes_longer_on_the_host() -> None:
    on_gpu, on_host = (asked("RTX PRO 6000", "-ncmoe", "20", *words) for words in ((), ("-cmoed",)))
    speeds = find_bandwidths(on_gpu.rig.gpus)
    assert 0 < drafting_ms(on_gpu, speeds) < drafting_ms(on_host, speeds)


@pytest.mark.parametrize(("gpus", "words"), [("RTX 3060", ("-cmoed",)), ("4*RTX 3090", ("-devd", "CUDA3"))])
def test_it_is_placed_where_there_is_room(gpus: str, words: tuple[str, ...]) -> None:
    found = plan(MODEL, LINE, parse_gpus([gpus]), draft=DRAFTER)
    assert isinstance(found, Plan)
    assert found.args[: len(words)] == words
    assert " ".join(words) in found.notes[0]
    again = estimate(MODEL, parse_flags([*found.fixed, *found.args]), parse_gpus([gpus]), draft=DRAFTER)
    assert again.fits and again.draft is not None and again.devices == found.estimate.devices


def test_flags_that_leave_it_without_the_output_have_no_plan() -> None:
    found = plan(MODEL, [*LINE, "-devd", "CUDA0"], parse_gpus(["2*RTX 5090"]), draft=DRAFTER)
    assert isinstance(found, NoPlan)
    assert found.refused is not None and "-devd" in found.refused.fix


@pytest.mark.parametrize(("release", "line"), [("b10068", ["-md", "x"]), ("v0.5.0", ["--spec-type", "draft-mtp"])])
def test_where_nothing_can_draft_nothing_is_searched(release: str, line: list[str]) -> None:
    draft = DRAFTER if "-md" in line else None
    found = plan(MODEL, [*LINE, *line], parse_gpus(["2*RTX 5090"]), draft=draft, release=release)
    assert isinstance(found, NoPlan) and found.estimates < 10
    assert found.refused is not None and "cannot be made" in found.why


def test_larger_than_all_cards_it_is_kept_on_the_host() -> None:
    model = builtin_header("qwen3-8b")
    found = plan(model, ["-c", "4096"], parse_gpus(["RTX 4060:8188:7000"]), draft=builtin_header("qwen3-32b"))
    assert isinstance(found, Plan)
    assert found.args[:2] == ("-ngld", "0")
