from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.backends.devices import Gpu, Rig
from memplan.errors import FlagError
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.result import BufferUse, Estimate
from memplan.rig import parse_gpus
from memplan.sweeping.axes import parse_axis
from memplan.sweeping.largest import (
    BISECTION,
    SCAN,
    candidates,
    find_limit,
    largest,
    largest_of,
    slack,
)
from memplan.sweeping.sweep import Sweeper, sweep
from tests.estimates import REFUSAL, made_up

pytestmark = pytest.mark.slow

FREE = 10_000
RIG_OF_ONE = Rig((Gpu("card", FREE, FREE, (8, 6)),))
MODEL = builtin_header("deepseek-v4-flash")


def question(flags: str, gpu: str) -> Question:
    return Question.of(MODEL, parse_flags(flags.split()), parse_gpus([gpu]), "latest")


def using(need: Callable[[int], int | None]) -> tuple[list[int], Callable[[int], Estimate]]:
    """An engine that needs ``need(value)`` bytes, or refuses; and what it was asked."""
    asked: list[int] = []

    def ask(value: int) -> Estimate:
        asked.append(value)
        bytes_needed = need(value)
        refused = REFUSAL if bytes_needed is None else None
        return made_up(rig=RIG_OF_ONE, buffers={"CUDA0": BufferUse(bytes_needed or 0)}, refused=refused)

    return asked, ask


@given(st.integers(1, 5000), st.integers(-100, 6000))
def test_monotone_needs_are_bisected(count: int, fitting: int) -> None:
    asked, ask = using(lambda value: FREE - fitting + value)
    found = largest(range(1, count + 1), ask)
    expected = min(count, fitting)
    assert found.value == (expected if expected >= 1 else None)
    assert found.method == BISECTION
    assert len(asked) == found.tried <= 9 + 13 + 9
    if expected < count:
        assert found.beyond is not None
        assert found.beyond[0] == max(expected, 0) + 1
        assert not found.beyond[1].fits
    else:
        assert found.beyond is None


@given(st.lists(st.one_of(st.none(), st.integers(0, 2 * FREE)), min_size=1, max_size=200))
def test_short_axes_of_any_shape_are_answered_rightly_when_scanned(needs: list[int | None]) -> None:
    _, ask = using(lambda value: needs[value])
    found = largest(range(len(needs)), ask)
    fitting = [i for i, need in enumerate(needs) if need is not None and need <= FREE]
    if found.method == SCAN:
        assert found.value == (max(fitting) if fitting else None)
    if found.value is not None:
        assert found.value in fitting
    assert found.beyond is None or not found.beyond[1].fits


def test_a_need_that_falls_again_is_scanned() -> None:
    # with more slots the need rises beyond the card, then falls below it
    _, ask = using(lambda value: FREE + 100 if 20 <= value < 40 else FREE - 100 if value < 50 else FREE + 200)
    found = largest(range(64), ask)
    assert (found.value, found.method) == (49, SCAN)


def test_refusals_at_the_top_are_beyond() -> None:
    _, ask = using(lambda value: None if value > 700 else 5)
    found = largest(range(1, 1001), ask)
    assert (found.value, found.method) == (700, BISECTION)
    assert found.beyond is not None and found.beyond[1].refused


def test_slack_counts_the_host_when_its_memory_is_known() -> None:
    estimate = made_up()
    assert slack(estimate) == min(*(device.left for device in estimate.devices), estimate.host.left or 0)
    assert slack(made_up(refused=REFUSAL)) is None


def test_the_context_that_fits_next_to_the_one_that_does_not() -> None:
    sweeper = Sweeper(question("-np 1 -ub 2048", "RTX PRO 6000:97886:91000:12.0"), [])
    axis, values = candidates(sweeper, "ctx")
    assert values[:2] == (256, 512) and values[-1] == 1048576
    sweeper = Sweeper(sweeper.question, [axis])
    found = largest_of(sweeper, axis, values, ())
    assert found.value is not None and found.beyond is not None
    assert found.beyond[0] == found.value + 256
    assert found.estimate.fits and not found.estimate.tight and found.beyond[1].tight
    assert found.estimate.n_ctx == found.value
    assert found.tried < 30


def test_given_values_are_the_candidates() -> None:
    axis = parse_axis("ub=512,256,1024")
    sweeper = Sweeper(question("-cmoe", "2*RTX 3090"), [parse_axis("ctx=4096,8192"), axis])
    assert candidates(sweeper, "ubatch") == (axis, (256, 512, 1024))
    found = largest_of(sweeper, axis, (256, 512, 1024), (4096,))
    assert found.value == 1024


@pytest.mark.parametrize(("over", "name"), [("fa=on,off", "fa"), ("np=1", "nkvo"), ("np=1", "llama"), ("np=1", "cxt")])
def test_axes_without_an_order(over: str, name: str) -> None:
    sweeper = Sweeper(question("", "RTX 3090"), [parse_axis(over)])
    with pytest.raises(FlagError):
        candidates(sweeper, name)


def test_the_largest_setting_in_one_call() -> None:
    rig = parse_gpus(["RTX PRO 6000:97886:91000:12.0"])
    found = find_limit(MODEL, ["-np", "1", "-ub", "2048"], rig, values="4096:1048576")
    assert found.value is not None and found.beyond is not None
    assert found.beyond[0] == 2 * found.value
    assert found.estimate.n_ctx == found.value and found.estimate.fits and not found.beyond[1].fits
    everything = find_limit(MODEL, ["-np", "1", "-ub", "2048"], rig)
    assert everything.value is not None and found.value <= everything.value < found.beyond[0]
    assert find_limit(MODEL, ["-cmoe"], parse_gpus(["2*RTX 3090"]), "ubatch", [512, 256, 1024]).value == 1024
    with pytest.raises(FlagError, match="takes no numbers"):
        find_limit(MODEL, [], rig, "fa")


def test_the_smallest_setting_in_one_call() -> None:
    """What -ncmoe is looked for with; the margin is kept on every GPU."""
    rig, flags = parse_gpus(["2*RTX 3090"]), ["-np", "1", "-c", "65536"]
    exact, roomy = (find_limit(MODEL, flags, rig, "ncmoe", bound="smallest", margin=margin) for margin in (0, 2 << 30))
    assert exact.value is not None and exact.beyond is not None and exact.beyond[0] == exact.value - 1
    assert exact.estimate.fits and not exact.beyond[1].fits
    assert roomy.value is not None and roomy.value > exact.value
    assert min(device.left for device in roomy.estimate.devices) >= 2 << 30
    with pytest.raises(FlagError, match="which values to try"):
        find_limit(MODEL, flags, rig, "threads", bound="smallest")
    with pytest.raises(FlagError, match="must be largest or smallest"):
        find_limit(MODEL, flags, rig, bound="most")  # type: ignore[arg-type]


def test_a_ubatch_is_tried_up_to_the_batch() -> None:
    found = find_limit(MODEL, ["-np", "1", "-c", "65536", "-cmoe", "-b", "1024"], parse_gpus(["2*RTX 3090"]), "ub")
    assert (found.value, found.beyond, found.estimate.n_ubatch) == (1024, None, 1024)


OLDER = ("b9988", ["-c", "32768", "-np", "8", "-cmoe", "--spec-type", "draft-eagle3", "--spec-draft-n-max", "16"])
"""Whose states have no snapshot for each drafted token; with them a few MiB fewer experts fit."""


def test_a_limit_and_a_sweep_for_an_older_release_are_that_release_s() -> None:
    release, flags = OLDER
    rig = parse_gpus(["RTX 3090"])
    found = find_limit(MODEL, flags, rig, "np", [2, 4, 8], release=release)
    assert found.value is not None
    told = estimate(MODEL, parse_flags([*flags, "-np", str(found.value)]), rig, release)
    assert (found.estimate.llama, found.estimate.buffers) == (release, told.buffers)
    point = sweep(MODEL, flags, rig, {"np": [found.value], "llama": "v0.5.0,b9988"}).points[1]
    assert point.estimate.buffers == told.buffers


def test_contexts_go_up_to_what_the_flags_make_of_the_model() -> None:
    shorter = question("--override-kv deepseek4.context_length=int:65536", "RTX 3090")
    assert candidates(Sweeper(shorter, []), "ctx")[1][-1] == 65536


def test_contexts_are_tried_in_steps_of_a_caches_padding() -> None:
    model = builtin_header("llama-4-scout")
    asked = Question.of(model, parse_flags(["-np", "1"]), parse_gpus(["RTX 3090"]), "latest")
    _, values = candidates(Sweeper(asked, []), "ctx")
    assert values == tuple(range(256, 10485760 + 1, 256))
