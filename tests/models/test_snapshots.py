"""Recurrent states with snapshots to roll back to, as drafts need them; qwen3next has none, nemotron since v0.4.0.

``tests/data/golden/snapshots.jsonl`` has llama.cpp's answers for the context that is drafted for.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.estimator import answer
from memplan.llama.flags import parse_flags
from memplan.question import Question
from tests.golden import Case, rig
from tests.golden import stored as header
from tests.test_golden import COLUMNS, allocated

PATH = Path(__file__).parent.parent / "data" / "golden" / "snapshots.jsonl"
CASES: list[Case] = list(map(json.loads, PATH.read_text().splitlines()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_states_and_graphs_with_snapshots(case: Case) -> None:
    flags = parse_flags(case["args"], case["app"])
    found = answer(Question.of(header(case["model"]), flags, rig(case), case["release"], case["deny"])).estimate
    uses = {name: {c: getattr(use, c) for c in COLUMNS} for name, use in found.buffers.items()}
    assert allocated(uses) == allocated(case["truth"]["buffers"])
