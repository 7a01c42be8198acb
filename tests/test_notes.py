from __future__ import annotations

from dataclasses import replace

from memplan.backends.devices import Rig
from memplan.llama.override_use import WeightUse
from memplan.notes import AS_PLACED, ops_note, settings_notes
from memplan.output.sweep import closing_notes
from memplan.result import Estimate
from tests.estimates import MODEL, REFUSAL, RIG, TOO_MUCH, made_up

COPIED = WeightUse(copied=True)


def noted(estimate: Estimate, use: WeightUse = AS_PLACED) -> str:
    return "\n".join(settings_notes(estimate, use))


def test_one_slot_that_fits_needs_no_note() -> None:
    assert settings_notes(made_up()) == ()


def test_slots() -> None:
    assert "4 slots (llama-server's choice without -np), unified" in noted(made_up("-c 4096"))
    assert "1,503 MiB in all; with -np 1 caches take about 376 MiB" in noted(made_up("-c 4096"))
    shared = replace(made_up("-c 4096"), model=replace(MODEL, own_streams=False))
    assert "unified: they share 4,096 tokens" in noted(shared)
    said = "2 slots share the context: 2,048 tokens each"
    assert noted(made_up("-c 4096 -np 2")) == f"{said}; -c 8192 gives 4,096 to each"
    all_of_it = replace(made_up("-c 4096 -np 2"), model=replace(MODEL, n_ctx_train=2048))
    assert noted(all_of_it) == said
    assert "without -np" not in noted(made_up("-c 4096 -np 2 -kvu"))


def test_pipeline_parallelism_and_disabled_ops() -> None:
    assert "four copies" in noted(replace(made_up(), pipeline_parallel=True))
    assert "tries once more" not in noted(replace(made_up(), pipeline_parallel=True))
    assert "tries once more without" in noted(replace(made_up(buffers=TOO_MUCH), pipeline_parallel=True))
    assert "Lightning Indexer" in noted(replace(made_up(), disabled=("Lightning Indexer",)))


def test_weights_on_the_host() -> None:
    text = noted(made_up("-np 1"), COPIED)
    assert "CUDA0's compute buffer takes 2,184 MiB where the others take 1,195 MiB" in text
    assert noted(made_up("-np 1 -cmoe")) == ""
    assert "neighbours" not in noted(made_up("-np 1", rig=Rig(RIG.gpus[:1])), COPIED)


def test_overrides_that_move_nothing() -> None:
    idle = WeightUse(idle=("-ot 'x=CPU' matches no tensor of this model",))
    assert noted(made_up("-np 1"), idle) == "-ot 'x=CPU' matches no tensor of this model"


def test_ops_that_gpus_lack() -> None:
    usual = made_up()
    without = replace(usual, without_ops=("A", "B"))
    assert ops_note(without, usual) == "without A, B on the GPUs nothing is allocated otherwise"
    assert ops_note(replace(without, splits=(45, 9)), usual) == (
        "without A, B on the GPUs a prompt's graph has 45 splits in place of 3, and data is copied from one device to"
        " another at each"
    )
    first = replace(usual.devices[0], compute=usual.devices[0].compute + (512 << 20))
    said = ops_note(replace(without, devices=(first, *usual.devices[1:])), usual)
    assert said == "without A, B on the GPUs CUDA0's compute buffer takes 2,696 MiB in place of 2,184 MiB"
    assert ops_note(replace(made_up(rig=Rig(())), without_ops=("A",)), made_up(rig=Rig(()))) == ""


def test_more_proportions_than_gpus() -> None:
    assert noted(made_up("-np 1 -ts 1,1,1,1")) == "-ts has 4 values; llama.cpp takes the first 3, one a GPU"


def test_a_main_gpu_that_is_not_read() -> None:
    assert noted(made_up("-np 1 -mg 7")) == "-mg 7 has no effect: llama.cpp reads it with -sm none alone"
    assert noted(made_up("-np 1 -mg 1 -sm none")) == noted(made_up("-np 1 -mg 0")) == ""


def test_fit() -> None:
    assert "would change what was not given" in noted(made_up("-np 1", buffers=TOO_MUCH))
    assert "gives up when -ot is given" in noted(made_up("-np 1 -ot a=CUDA0", buffers=TOO_MUCH))
    assert noted(made_up("-np 1 -fit off", buffers=TOO_MUCH)) == ""


def test_a_refusal_has_none() -> None:
    assert settings_notes(made_up("-c 4096", refused=REFUSAL)) == ()


def test_more_context_than_the_model_was_trained_for() -> None:
    known = replace(made_up("-c 2097152 -np 1"), model=replace(MODEL, n_ctx_train=1048576))
    assert noted(known) == (
        "more context than the 1,048,576 tokens that the model was trained for: memory is taken for all of it, and"
        " llama-server uses 1,048,576 a slot"
    )
    assert noted(replace(known, n_ctx_seq=1048576)) == ""
    assert noted(replace(known, refused=REFUSAL)) == ""
    assert "is worth little" in noted(replace(known, flags=replace(known.flags, app="cli")))
    assert closing_notes([known, made_up(), known]).count(noted(known)) == 1
