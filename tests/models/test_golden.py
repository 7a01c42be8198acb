"""llama.cpp's answers for models of other architectures, replayed in process, by both planners.

``tests/data/golden/archs/ARCHITECTURE.jsonl`` has the answers, ``tests/data/headers/MODEL.gguf.gz`` the headers of the
models that were asked about, with their real shapes and types; ``vulkan.jsonl`` has several models on Vulkan devices,
some of them beside CUDA's.
"""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from pathlib import Path

import pytest

from memplan.estimator import answer
from memplan.gguf.header import Header, parse_header
from memplan.llama.flags import parse_flags
from memplan.models.registry import ARCHITECTURES
from memplan.question import Question
from tests.test_golden import Case, check, rig

DATA = Path(__file__).parent.parent / "data"
CASES: list[Case] = [
    case
    for path in sorted((DATA / "golden" / "archs").glob("*.jsonl"))
    for case in sorted(map(json.loads, path.read_text().splitlines()), key=lambda c: (c["model"], c["release"]))
]


@cache
def header(model: str) -> Header:
    return parse_header(io.BytesIO(gzip.decompress((DATA / "headers" / f"{model}.gguf.gz").read_bytes())), model)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}-{case['release']}-{case['id']}")
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    flags = parse_flags(case["args"], case["app"])
    question = Question.of(header(case["model"]), flags, rig(case), case["release"], case["deny"])
    check(answer(question).estimate, case["truth"])
    if case in CASES[::7]:
        check(answer(question, plain=True).estimate, case["truth"])


def test_every_architecture_has_answers() -> None:
    asked = {header(case["model"]).metadata["general.architecture"] for case in CASES}
    assert asked == set(ARCHITECTURES) - {"deepseek4", "dflash"}  # see tests/test_golden.py and tests/test_drafts.py
