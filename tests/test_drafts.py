"""llama.cpp's own answers for the context in which llama-server drafts, replayed in process, by both planners."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memplan.estimator import answer, estimate
from memplan.gguf.header import Header, parse_header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.result import BufferUse, Estimate
from tests.test_golden import COLUMNS, Case, allocated, rig

DATA = Path(__file__).parent / "data" / "golden" / "drafts.jsonl"
HEADERS = DATA.parent.parent / "headers"
CASES: list[Case] = sorted(
    map(json.loads, DATA.read_text().splitlines()), key=lambda case: (case["model"], case["release"])
)


@cache
def header(model: str) -> Header:
    file = HEADERS / f"{model}.gguf.gz"
    if file.exists():
        return parse_header(io.BytesIO(gzip.decompress(file.read_bytes())), model)
    if model == "flash-dspark":
        return builtin_header("deepseek-v4-flash-dspark")
    size, _, recipe = model.partition("-")
    return builtin_header(f"deepseek-v4-{size}:{recipe}")


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    check_draft(answer(question(case)).estimate, case["truth"])
    if case in CASES[::7]:
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


def test_a_drafter_that_is_not_given_is_said() -> None:
    flags = parse_flags(["-c", "8192", "-md", "drafter.gguf", "--spec-type", "draft-dspark"])
    found = estimate(header("flash-mtp-q2"), flags, rig(CASES[0]))
    assert found.draft is None
    assert "what drafts is not counted: the draft model is not given" in found.notes
