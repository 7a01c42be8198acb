from __future__ import annotations

from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.sweeping.axes import Axis, make_axis
from memplan.sweeping.effective import is_unfused, remarks
from memplan.sweeping.sweep import Sweeper
from tests.estimates import REFUSAL, made_up

MODEL = builtin_header("deepseek-v4-flash")


def said(flags: tuple[str, ...], *axes: Axis) -> tuple[str, ...]:
    sweep = Sweeper(Question.of(MODEL, parse_flags(flags), parse_gpus(["RTX PRO 6000"]), "latest"), axes).run()
    return remarks(sweep.axes, [(point.values, point.estimate) for point in sweep.points])


def test_values_that_are_taken_as_they_are_need_no_word() -> None:
    assert said(("-np", "1"), make_axis("ctx", [4096, 8192]), make_axis("indexer", ["fused", "unfused"])) == ()


def test_a_fused_indexer_that_the_release_has_not_got() -> None:
    llama, indexer = make_axis("llama", ["b9924", "v0.5.0"]), make_axis("indexer", ["fused", "unfused"])
    assert said(("-np", "1", "-c", "4096"), llama, indexer) == (
        "b9924 has no fused indexer: with it, fused stands for unfused",
    )
    assert not is_unfused(indexer, "fused", made_up())


def test_batches_and_contexts_that_llama_cpp_cuts() -> None:
    flags = ("-np", "1", "-c", "4096")
    text = "-ub above 2,048 is taken as 2,048: no more than -b or the context"
    assert said(flags, make_axis("ub", [512, 4096, 8192])) == (text,)
    assert said(flags, make_axis("b", [512, 8192])) == ("-b above 4,096 is taken as 4,096: no more than the context",)
    assert said(("-np", "1"), make_axis("ctx", [0])) == ("-c 0 is the model's own context: 1,048,576 tokens",)


def test_whose_the_context_is() -> None:
    np = make_axis("np", [1, 2])
    assert said(("-c", "4096"), np) == ("the context is that of all slots together: each has its part",)
    assert said(("-c", "4096", "-kvu"), np) == ("the context is that of all slots together: they share it",)


def test_refusals_say_enough_themselves() -> None:
    assert remarks([make_axis("np", [2])], [((2,), made_up(refused=REFUSAL))]) == ()
