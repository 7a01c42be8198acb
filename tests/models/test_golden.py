"""llama.cpp's answers for models of other architectures, replayed in process, by both planners.

``tests/data/golden/archs/ARCHITECTURE.jsonl`` has the answers, ``tests/data/headers/MODEL.gguf.gz`` the headers of the
models that were asked about, with their real shapes and types; ``vulkan.jsonl`` has several models on Vulkan devices,
some of them beside CUDA's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.estimator import answer
from memplan.llama.flags import parse_flags
from memplan.models.registry import ARCHITECTURES
from memplan.question import Question
from memplan.rig import parse_gpus
from tests.golden import Case, parameters, rig, stored
from tests.test_golden import check

DATA = Path(__file__).parent.parent / "data"
CASES: list[Case] = [
    case
    for path in sorted((DATA / "golden" / "archs").glob("*.jsonl"))
    for case in sorted(map(json.loads, path.read_text().splitlines()), key=lambda c: (c["model"], c["release"]))
]


def name(case: Case) -> str:
    return f"{case['model']}-{case['release']}-{case['id']}"


@pytest.mark.parametrize("case", parameters("models/test_golden.py", CASES, name))
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    flags = parse_flags(case["args"], case["app"])
    question = Question.of(stored(case["model"]), flags, rig(case), case["release"], case["deny"])
    check(answer(question).estimate, case["truth"])
    if case in CASES[::20]:
        check(answer(question, plain=True).estimate, case["truth"])


def test_every_architecture_has_answers() -> None:
    asked = {stored(case["model"]).metadata["general.architecture"] for case in CASES}
    assert asked == set(ARCHITECTURES) - {"deepseek4", "dflash"}  # see tests/test_golden.py and tests/test_drafts.py


@pytest.mark.parametrize(("mode", "mapped"), [("auto", False), ("on", True), ("off", False)])
def test_embeddings_by_layer_are_read_as_they_are_needed(mode: str, mapped: bool) -> None:
    """Those of 2,856 MiB where that is asked for; of more than 4 GiB in any case, as llama.cpp's answers have them."""
    flags = parse_flags(["-c", "4096", "-np", "1", "-lzm", mode])
    found = answer(Question.of(stored("gemma4-e4b"), flags, parse_gpus(["RTX 5090"]), "v0.5.0")).estimate
    assert ("CPU" in found.buffers) is mapped
    assert not mapped or found.buffers["CPU"].model == 2994733056
