from __future__ import annotations

import gc

import pytest

import memplan
from memplan.cli import main
from memplan.garbage import NEW_OBJECTS, gc_paused, seldom


def test_put_off_ends_as_it_began() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_seldom_ends_as_it_began() -> None:
    before = gc.get_threshold()
    with seldom():
        assert gc.get_threshold() == (NEW_OBJECTS, *before[1:])
    assert gc.get_threshold() == before
    gc.set_threshold(0)  # no search at all
    try:
        with seldom():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_commands_leave_the_threshold_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    assert main(["estimate", "no-such-model"]) == 2
    assert gc.get_threshold() == before
    assert gc.isenabled()


@pytest.mark.slow
def test_estimates_leave_no_cycles() -> None:
    model, rig = memplan.read_model("qwen3-30b-a3b"), memplan.parse_gpus(["2*RTX 3090"])
    memplan.estimate(model, memplan.parse_flags(["-c", "2048"]), rig)  # what is imported leaves some
    gc.collect()
    with gc_paused():
        for words in ("-c 4096 -np 1", "-c 4096 -np 2 -cmoe", "-c 8192 -np 1 -fa off"):
            memplan.estimate(model, memplan.parse_flags(words.split()), rig)
        found = gc.collect()
    assert found == 0
