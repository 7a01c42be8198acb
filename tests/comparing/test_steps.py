"""What each release between two moves of one question."""

from __future__ import annotations

import pytest

from memplan.comparing.result import BufferMove, ReleaseStep
from memplan.comparing.steps import release_steps
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.compare import moved_here
from memplan.question import Question
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

MIB = 1 << 20
EMBEDDING = 297861120
"""Bytes of the token embeddings, in q4_K."""


def question(release: str, flags: str = "-c 4096 -np 1 -cmoe") -> Question:
    return Question.of(
        builtin_header("deepseek-v4-flash:ud-q2"), parse_flags(flags.split()), parse_gpus(["2*RTX 3090"]), release
    )


def test_the_release_that_moves_something_is_found() -> None:
    steps = release_steps(question("10068"), question("10236"))
    assert [step.release for step in steps if step.anything] == ["b10103"]
    step = next(step for step in steps if step.anything)
    assert step.moves == (BufferMove("CPU", "weights", -EMBEDDING), BufferMove("CUDA_Host", "weights", EMBEDDING))
    assert moved_here(step) == "CPU weights -284.1 MiB, CUDA_Host weights +284.1 MiB"
    # "b10178", of Vulkan alone, is asked as well
    assert [step.release for step in steps][:5] == ["b10088", "b10103", "b10159", "b10178", "b10199"]


def test_run_time_moves_too() -> None:
    steps = release_steps(question("b10798"), question("v0.5.0"))
    (step,) = [step for step in steps if step.anything]
    workspace = tuple([BufferMove(f"CUDA{i}", "run time", 4 * MIB) for i in range(2)])  # cuBLAS's
    assert (step.release, step.moves) == ("v0.4.0", workspace)
    assert moved_here(step) == "CUDA0 run time +4.0 MiB, CUDA1 run time +4.0 MiB"


def test_backwards_each_is_undone() -> None:
    there, back = (
        release_steps(question("10068"), question("10236")),
        release_steps(question("10236"), question("10068")),
    )
    assert back == tuple(step.undone() for step in reversed(there))
    assert sum(m.change for step in there + back for m in step.moves) == 0


def test_what_starts_or_no_longer_starts() -> None:
    typed = "-c 4096 -np 1 -cmoe -ctk q8_0 -ctv f16 -fa on"
    steps = release_steps(question("10199", typed), question("10216", typed))
    assert [(step.release, step.refused) for step in steps] == [("b10216", (False, True))]
    assert moved_here(steps[0]) == "llama.cpp no longer starts"
    assert moved_here(steps[0].undone()) == "llama.cpp starts now"


def test_splits_are_told() -> None:
    step = ReleaseStep("b10248", (), (31, 30), (False, False))
    assert step.anything and moved_here(step) == "30 splits in place of 31"
    assert not ReleaseStep("b10248", (), (30, 30), (True, True)).anything


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (question("v0.4.0"), question("v0.5.0", "-c 8192 -np 1 -cmoe")),
        (question("lid-cuda"), question("b9924")),
        (question("v0.5.0"), question("v0.5.0")),
    ],
    ids=["settings", "fork", "one release"],
)
def test_nothing_to_step_through(before: Question, after: Question) -> None:
    assert release_steps(before, after) == ()
