from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.slots import advice_line, none_fits_line, render_slots, slots_json
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.sweeping.slots import SlotTable, slot_table

pytestmark = pytest.mark.slow

MODEL = builtin_header("deepseek-v4-flash")
R31 = (
    r"blk\.(0|1|2|3|4|5|6|7|8)\.ffn_(up|gate|down)_exps=CUDA0,"
    r"blk\.(22|23|24|25|26|27|28|29|30)\.ffn_(up|gate|down)_exps=CUDA1,exps=CPU"
)


def slots(
    flags: str,
    gpu: str,
    counts: tuple[int, ...],
    release: str = "v0.5.0",
    app: str = "server",
    filled: int | None = None,
) -> SlotTable:
    question = Question.of(MODEL, parse_flags(flags.split(), app), parse_gpus([gpu]), release, filled=filled)
    return slot_table(question, counts)


def test_the_default_of_four_slots_does_not_fit_and_one_does() -> None:
    """The fork asks CUDA0 for 417662695680 bytes by default; with -np 1 about 3.2 GiB a card."""
    table = slots(f"-c 262144 -ub 2048 -fa on -ot {R31}", "2*RTX 3090", (1,), "lid-cuda", filled=0)
    rows = {(row.slots, row.unified): row for row in table.rows if row.path == table.usual == "fused"}
    default, one = rows[4, True], rows[1, False]
    assert default.default and not one.default
    assert [d.compute for d in default.estimate.devices] == [417662695680, 452388103936]
    assert [d.compute for d in one.estimate.devices] == [3222465792, 3545147136]
    assert one.estimate.fits and not default.estimate.starts
    assert table.advice is not None and table.advice.fewer is not None
    assert table.advice.fewer.words == ("-np", "1")
    assert advice_line(table.advice) == (
        "without -np, llama-server takes 4 slots that share 262,144 tokens: CUDA1 is 430,833 MiB short, and 1 more"
        " device is short; what fits: -np 1 (262,144 tokens for its slot), or -np 4 (65,536 tokens each)"
    )
    assert render_slots(table).count("what fits") == 1


def test_rows_are_what_estimates_say() -> None:
    table = slots("-c 65536 -cmoe", "2*RTX 3090", (2, 4))
    assert [(row.slots, row.unified) for row in table.rows] == [(2, False), (2, True), (4, False), (4, True)] * 2
    assert [row.path for row in table.rows] == ["fused"] * 4 + ["unfused"] * 4
    assert [row.estimate.n_ctx_seq for row in table.rows[:4]] == [32768, 65536, 16384, 65536]
    (default,) = [row for row in table.rows[:4] if row.default]
    plain = estimate(MODEL, parse_flags(["-c", "65536", "-cmoe"]), parse_gpus(["2*RTX 3090"]))
    assert default.estimate.buffers == plain.buffers
    assert table.advice is None
    for fused, unfused in zip(table.rows[:4], table.rows[4:], strict=True):
        assert unfused.estimate.devices[1].compute > fused.estimate.devices[1].compute


def test_what_was_asked_for_is_a_row_of_its_own() -> None:
    table = slots("-c 65536 -cmoe -np 3 -kvu", "2*RTX 3090", (1,))
    marked = [(row.slots, row.unified, row.default, row.given) for row in table.rows if row.default or row.given]
    assert marked == [(3, True, False, True), (4, True, True, False)] * 2
    text = render_slots(table, ["-cmoe"], unicode=False)
    assert text.isascii()
    assert text.count("default") == text.count("as given") == 2


def test_the_default_of_llama_cli_is_one() -> None:
    table = slots("-c 4096 -cmoe", "RTX 3090", (1, 2), app="cli")
    assert [(row.slots, row.unified) for row in table.rows if row.default] == [(1, False)] * 2


def test_slots_that_cannot_be_show_why() -> None:
    table = slots("-c 4096 -cmoe -ctk q8_0", "RTX 3090", (1,))
    assert all(row.estimate.refused is not None for row in table.rows)
    assert "refused: does not support different K (q8_0) and V (f16) cache types" in render_slots(table)
    assert table.advice is None
    # a batch too small for a token of every slot
    table = slots("-c 4096 -cmoe -b 32 -ub 32", "RTX 3090", (1, 64))
    refused = {row.slots for row in table.rows if row.estimate.refused is not None}
    assert refused == {64}
    assert "n_outputs_max" in render_slots(table)


def test_a_release_without_a_fused_indexer_has_one_block() -> None:
    table = slots("-c 4096 -cmoe", "RTX 3090", (1,), "b9842")
    assert {row.path for row in table.rows} == {table.usual} == {"unfused"}
    assert "b9842 has no fused indexer" in render_slots(table)


def test_many_gpus_share_a_column() -> None:
    table = slots("-c 4096 -cmoe", "8*RTX 3090", (1,))
    text = render_slots(replace(table, rows=table.rows[:2]))
    assert "most compute  on" in text and "CUDA7 compute" not in text


@pytest.mark.parametrize(
    ("flags", "gpu", "said"),
    [
        ("-c 4096", "RTX 3090", "no slot count fits: the weights alone exceed the GPU; add -cmoe, or ask memplan plan"),
        ("-c 4096", "2*RTX 3090", "no slot count fits: the weights alone exceed the GPUs; add -cmoe, or ask memplan"),
        ("-c 4096 -ncmoe 1", "RTX 3090", "no slot count fits: the weights alone exceed the GPU; ask memplan plan"),
        ("-c 4096 -ts 9,1", "2*RTX PRO 6000:60000", "no slot count fits: the weights alone exceed CUDA0; add -cmoe"),
        ("-c 1048576 -ub 4096 -b 4096 -cmoe", "RTX 3090:12000", "fits, of those tried: weights do, caches and compute"),
        ("-c 4096 -cmoe -ctk q8_0", "RTX 3090", "no slot count starts: give both: -ctk q8_0 -ctv q8_0"),
    ],
)
def test_that_nothing_fits_is_the_last_line(flags: str, gpu: str, said: str) -> None:
    table = slots(flags, gpu, (1,))
    assert table.advice is None
    assert said in none_fits_line(table)
    assert render_slots(table).count(none_fits_line(table)) == 1


def test_that_nothing_fits_is_not_said_when_something_does() -> None:
    table = slots("-c 4096 -cmoe", "RTX 3090", (1,))
    assert none_fits_line(table) == ""
    assert "no slot count" not in render_slots(table)


def test_progress_has_a_total() -> None:
    told: list[tuple[int, int]] = []
    flags = parse_flags(["-c", "4096", "-cmoe"])
    table = slot_table(
        Question.of(MODEL, flags, parse_gpus(["2*RTX 3090"]), "v0.5.0"),
        (1,),
        progress=lambda done, of: told.append((done, of)),
    )
    assert told == [(done, len(table.rows) + 1) for done in range(len(table.rows) + 1)]


def test_only_a_model_with_an_indexer_has_one_in_json() -> None:
    question = Question.of(builtin_header("qwen3-8b"), parse_flags(["-c", "4096"]), parse_gpus(["RTX 5090"]), "v0.5.0")
    found = json.loads(slots_json(slot_table(question, (1,))))
    assert "indexer" not in found and all("indexer" not in row for row in found["rows"])
