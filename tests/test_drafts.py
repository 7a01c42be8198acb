"""llama.cpp's own answers for the context in which llama-server drafts, replayed in process, by both planners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memplan.errors import ModelError
from memplan.estimator import answer, estimate
from memplan.full_estimate import full_estimate
from memplan.gguf.header import Header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.notes import elsewhere_note
from memplan.output.json import estimate_object
from memplan.output.table import render_table
from memplan.output.words import verdict_line
from memplan.planning.api import plan
from memplan.planning.plan import Plan
from memplan.question import Load, Question
from memplan.result import BufferUse, Estimate
from memplan.rig import parse_gpus
from memplan.sweeping.largest import find_limit
from memplan.sweeping.sweep import sweep
from tests.golden import Case, builtin, parameters, rig, stored
from tests.test_golden import COLUMNS, allocated

DATA = Path(__file__).parent / "data" / "golden" / "drafts.jsonl"
HEADERS = DATA.parent.parent / "headers"
CASES: list[Case] = sorted(
    map(json.loads, DATA.read_text().splitlines()), key=lambda case: (case["model"], case["release"])
)


@cache
def header(model: str) -> Header:
    if (HEADERS / f"{model}.gguf.gz").exists():
        return stored(model)
    if model == "flash-dspark":
        return builtin_header("deepseek-v4-flash-dspark")
    if model.startswith("qwen3"):
        return builtin_header(model)
    return builtin(model)


def question(case: Case) -> Question:
    flags = parse_flags(case["args"], case["app"])
    draft = header(flags.draft_model) if flags.draft_model else None
    return Question.of(header(case["model"]), flags, rig(case), case["release"], case["deny"], draft=draft)


def check_draft(found: Estimate, truth: Any) -> None:
    """The main context's buffers, and the second one's; a draft that is null is a context that cannot be made."""
    if "error" in truth:
        assert found.refused is not None
        assert found.refused.kind == truth["error"]
        return
    assert found.refused is None
    assert used(found.buffers) == allocated(truth["buffers"])
    assert (found.n_ctx, found.n_ctx_seq) == (truth["n_ctx"], truth["n_ctx_seq"])
    assert (found.draft is None) == (truth["draft"] is None) == (found.draft_refused is not None)
    assert used({} if found.draft is None else found.draft.buffers) == allocated(truth["draft"] or {})


def used(buffers: Mapping[str, BufferUse]) -> dict[str, tuple[int, ...]]:
    return allocated({name: {c: getattr(use, c) for c in COLUMNS} for name, use in buffers.items()})


@pytest.mark.parametrize("case", parameters("test_drafts.py", CASES, lambda case: str(case["id"])))
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    check_draft(answer(question(case)).estimate, case["truth"])
    if case in CASES[::15]:
        check_draft(answer(question(case), plain=True).estimate, case["truth"])


def test_devices_count_what_drafts() -> None:
    case = next(case for case in CASES if case["id"] == "m0016")
    found = answer(question(case)).estimate
    assert found.draft is not None
    for device in found.devices:
        assert device.draft == found.draft.buffers[device.name].used
        assert device.left_at_start == device.free - device.model - device.context - device.compute - device.draft
    assert found.host.draft == found.draft.buffers["CUDA_Host"].used
    assert found.draft.model == found.model


@pytest.mark.parametrize(
    ("model", "line", "more"),
    [
        ("qwen3.6-27b:q4_K_M-mtp", "-np 1", 2 * 4 * 256 * 2 * 32768),  # keys and values of 4 heads, f16, all cells
        ("qwen3.6-27b:q4_K_M-mtp", "-np 4 -no-kvu", 2 * 4 * 256 * 2 * 8192),
        ("deepseek-v4-flash:mtp-q2", "-np 1", 2 * 512 * 2 * 128),  # what is within the window
    ],
)
def test_checkpoints_hold_the_context_that_drafts_as_well(model: str, line: str, more: int) -> None:
    """Follows ``state_write`` in src/llama-kv-cache.cpp and llama-kv-cache-iswa.cpp (v0.5.0)."""
    words = ["-c", "32768", "--spec-draft-n-max", "3", *line.split()]
    rig = parse_gpus(["RTX PRO 6000"])
    plain, drafting = (
        estimate(builtin_header(model), parse_flags([*words, "--spec-type", kind]), rig).server
        for kind in ("draft-simple", "draft-mtp")
    )
    assert drafting.checkpoint - plain.checkpoint == more
    assert drafting.checkpoints == drafting.checkpoint * (plain.checkpoints // plain.checkpoint)


def test_a_drafter_that_is_not_given_is_said() -> None:
    flags = parse_flags(["-c", "8192", "-md", "drafter.gguf", "--spec-type", "draft-dspark"])
    found = estimate(header("flash-mtp-q2"), flags, rig(CASES[0]))
    assert found.draft is None
    assert not found.exact
    assert "what drafts is not counted: the draft model is not given" in found.approximate


def test_a_kind_of_draft_that_is_not_modelled_is_not_exact() -> None:
    found = answer(asked("--spec-type draft-eagle3 -md flash-dspark")).estimate
    assert found.draft is None
    assert "draft-eagle3 with dflash is not modelled" in found.approximate


@pytest.mark.parametrize("kind", ["draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"])
def test_a_kind_of_draft_that_takes_a_model_of_its_own_drafts_nothing_without_it(kind: str) -> None:
    found = estimate(header("qwen3-8b"), parse_flags(["-c", "4096", "-np", "1", "--spec-type", kind]), rig(CASES[0]))
    assert found.exact
    assert f"--spec-type {kind} without -md: llama-server drafts nothing" in found.notes
    assert "what drafts" not in render_table(found)
    flags = parse_flags(["-c", "4096", "-hf", "owner/repo", "--spec-type", kind])
    assert "-hf may bring a model that drafts" in estimate(header("qwen3-8b"), flags, rig(CASES[0])).approximate


def test_several_kinds_of_drafts_are_not_exact_and_mtp_says_which_context_there_is() -> None:
    flags = parse_flags(["-c", "4096", "-np", "1", "--spec-type", "draft-simple,draft-mtp"])
    found = estimate(header("flash-mtp-q2"), flags, rig(CASES[0]))
    assert found.draft is not None
    assert found.approximate == "several kinds of --spec-type that share one more context"


def without(model: str, *names: str) -> Header:
    """A model's header without some of its tensors."""
    known = header(model)
    kept = {name: t for name, t in known.tensors.items() if not any(part in name for part in names)}
    return replace(known, tensors=kept)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (header("qwen3-8b"), "context type MTP requested but model doesn't contain MTP layers"),
        (without("glm45-air", "blk.46."), "MTP block missing nextn.eh_proj"),
    ],
    ids=["no-mtp-layers", "mtp-layers-left-out"],
)
def test_a_file_without_an_mtp_block_cannot_draft_with_it(model: Header, said: str) -> None:
    flags = parse_flags(["-c", "8192", "--spec-type", "draft-mtp"])
    found = estimate(model, flags, rig(CASES[0]))
    assert found.draft_refused is not None
    assert said in found.draft_refused.message
    assert not found.starts
    assert verdict_line(found).startswith("llama-server does not start: it cannot make the context that drafts: ")


def test_a_file_of_mtp_blocks_is_no_model_to_serve() -> None:
    with pytest.raises(ModelError, match="MTP blocks alone, which draft for another model: give it with -md"):
        estimate(header("glm45-air-only"), parse_flags(["-c", "8192"]), rig(CASES[0]))
    with pytest.raises(ModelError, match="MTP blocks alone, which draft with --spec-type draft-mtp"):
        answer(asked("--spec-type draft-simple -md x", drafter="glm45-air-only"))


@pytest.mark.parametrize("model", ["qwen3next-mtp", "nemotron3-nano-30b-mtp", "glm47-flash-mtp"])
def test_blocks_that_a_build_does_not_know_are_refused(model: str) -> None:
    refused = estimate(header(model), parse_flags(["-c", "8192"]), rig(CASES[0]), "b10068").refused
    assert refused is not None
    assert refused.kind == "tensors-not-of-this-release"


def test_a_block_that_drafts_alone_is_the_only_one() -> None:
    known = header("glm45-air")
    flags = parse_flags(
        ["-c", "8192", "--spec-type", "draft-mtp", "--override-kv", "glm4moe.nextn_predict_layers=int:2"]
    )
    found = estimate(known, flags, rig(CASES[0]))
    assert found.draft_refused is not None


@pytest.mark.thorough
@pytest.mark.slow
def test_from_python_a_drafter_is_given_as_a_header() -> None:
    case = next(case for case in CASES if case["id"] == "m0086")
    model, drafter = header("flash-mxfp4"), header("flash-dspark")
    words = ["-c", "8192", "-np", "1", "-cmoe"]
    (point,) = sweep(model, words, rig(case), ["ub=512"], draft=drafter).points
    limit = find_limit(model, words, rig(case), values=[8192], draft=drafter)
    found = plan(model, words[:-1], rig(case), draft=drafter)
    assert isinstance(found, Plan)
    for e in (point.estimate, limit.estimate, found.estimate):
        assert e.draft is not None
        assert e.draft.model.architecture == "dflash"


DSPARK = "-c 65536 -np 1 -ts 1,1 -md flash-dspark"


def asked(line: str, release: str = "v0.5.0", drafter: str = "flash-dspark") -> Question:
    case = next(case for case in CASES if case["id"] == "m0086")
    flags = parse_flags(line.split())
    return Question.of(header("flash-mxfp4"), flags, rig(case), release, draft=header(drafter))


def test_a_drafter_says_how_it_drafts() -> None:
    assert asked(DSPARK).flags.drafting == "draft-dspark"
    assert asked(DSPARK).flags.n_rs_seq == 3
    assert asked(DSPARK, "b10361").flags.drafting == ""  # it is loaded, and does nothing
    assert answer(asked(DSPARK, "b10361")).estimate.draft is not None


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        ("", {"CUDA0": 6806, "CUDA1": 3580}),
        ("-ts 3,1", {"CUDA0": 10209, "CUDA1": 178}),
        ("-devd CUDA1", {"CUDA1": 10386}),
        ("-ngld 0", {"CUDA_Host": 10386}),
        ("-ngld 2", {"CUDA0": 3403, "CUDA1": 178, "CUDA_Host": 6806}),
        ("-cmoed -devd CUDA1", {"CUDA1": 594, "CUDA_Host": 9792}),
        ("-ncmoed 1 -devd CUDA1", {"CUDA1": 7122, "CUDA_Host": 3264}),
    ],
)
def test_where_a_drafter_lies(more: str, weights: dict[str, int]) -> None:
    found = answer(asked(f"{DSPARK} {more}")).estimate
    assert found.draft is not None
    sizes = {name: round(use.model / (1 << 20)) for name, use in found.draft.buffers.items() if use.model}
    assert sizes == weights


def test_a_drafter_of_an_architecture_that_the_release_does_not_know_is_refused() -> None:
    refused = answer(asked("--spec-type draft-simple -md m3", "b10068", "minimax-m3")).estimate.draft_refused
    assert refused is not None
    assert refused.kind == "architecture-not-of-this-release"


@pytest.mark.parametrize(
    ("line", "release", "drafter", "kind", "said"),
    [
        ("", "b10068", "flash-dspark", "architecture-not-of-this-release", "key not found in model: dflash."),
        ("--spec-type draft-dspark", "b10068", "flash-dspark", "argument-not-of-this-release", "unknown speculative"),
        ("--spec-type draft-dspark", "v0.5.0", "qwen3-8b", "other", "no target_layer_ids"),
        ("--spec-type draft-mtp", "v0.5.0", "flash-dspark", "other", "doesn't contain MTP layers"),
    ],
)
def test_a_drafter_that_does_not_do(line: str, release: str, drafter: str, kind: str, said: str) -> None:
    """The first as b9842 and b10068 say it of this file; the others by the sources."""
    found = answer(asked(f"-c 8192 -np 1 -md x {line}", release, drafter)).estimate
    assert found.draft_refused is not None and not found.fits
    assert found.draft_refused.kind == kind and said in found.draft_refused.message
    assert f"to fix it: {found.draft_refused.fix}" in " ".join(render_table(found).split())
    assert estimate_object(found)["draft_refused"]["kind"] == kind


def test_a_projector_drafts_nothing_and_a_model_projects_nothing() -> None:
    clip = replace(header("qwen3-8b"), metadata={"general.architecture": "clip"})
    question = asked(DSPARK)
    with pytest.raises(ModelError, match="give it with --mmproj"):
        answer(question.with_(loads=(question.loads[0], Load(clip, "draft"))))
    with pytest.raises(ModelError, match="'dflash' is no projector's"):
        answer(question.with_(loads=(*question.loads, Load(header("flash-dspark"), "projector"))))


def test_a_drafter_needs_the_device_of_the_output_that_it_takes() -> None:
    found = answer(asked(f"{DSPARK} -devd CUDA0")).estimate
    assert found.draft is None
    assert not found.fits
    assert found.draft_refused is not None
    assert "-devd" in found.draft_refused.fix


def test_a_single_device_is_whole_and_inherited_only_since() -> None:
    old, new = (answer(asked(f"{DSPARK} -dev CUDA1", release)).estimate for release in ("v0.4.0", "v0.5.0"))
    assert old.draft is not None
    assert new.draft is not None
    assert old.draft.buffers["CUDA0"].model > 0
    assert "CUDA0" not in new.draft.buffers


def test_layers_that_go_elsewhere_once_memory_is_taken_are_said() -> None:
    question = asked("-c 65536 -np 1 -ncmoe 10 -md flash-dspark")
    found = answer(question)
    assert found.elsewhere and "give -ts, or -devd" in found.estimate.approximate
    then = answer(question.with_(loaded=True))
    assert not then.elsewhere and then.estimate.exact
    assert [d.draft for d in then.estimate.devices] != [d.draft for d in found.estimate.devices]
    assert full_estimate(question).notes[-1] == elsewhere_note(then.estimate)
    assert answer(asked(DSPARK)).estimate.exact


def test_a_drafter_is_nothing_by_itself() -> None:
    found = estimate(header("flash-dspark"), parse_flags(["-c", "4096"]), rig(CASES[0]))
    assert found.refused is not None
    assert "ctx_other" in found.refused.message
    assert "give it with -md" in found.refused.fix


def test_a_file_without_mtp_blocks_names_the_type_that_it_drafts_by() -> None:
    refused = answer(
        asked("-c 8192 -np 1 -md x --spec-type draft-mtp", "v0.5.0", "flash-dspark")
    ).estimate.draft_refused
    assert refused is not None and "--spec-type draft-dspark" in refused.fix


@pytest.mark.slow
def test_reserved_anew_or_not_the_main_context_probes_once() -> None:
    case = next(case for case in CASES if case["id"] == "m0062")
    found = answer(question(case)).estimate
    assert len(found.disabled) == len(set(found.disabled)) > 0
