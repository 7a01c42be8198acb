"""Golden answers as parameters of tests, and how often each is replayed.

Of the answers that take the same ways through the package as five others, most stand in
``tests/data/golden/thorough.json``, by test file: ``pytest -m thorough`` replays these as well, beside the suite. A new
answer belongs to the suite as long as nobody puts it there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "data" / "golden"
THOROUGH: dict[str, list[str]] = json.loads((GOLDEN / "thorough.json").read_text())

Case = Mapping[str, Any]


def parameters(file: str, cases: Sequence[Case], name: Callable[[Case], str]) -> list[Any]:
    """The cases of a test file, by name: one of four that are not thorough is in the quick part of the suite."""
    seldom = frozenset(THOROUGH[file])
    assert seldom <= set(map(name, cases)), "an answer that is not there any more"
    found, n = [], 0
    for case in cases:
        if name(case) in seldom:
            marks = [pytest.mark.thorough, pytest.mark.slow]
        else:
            marks, n = [pytest.mark.slow] if n % 4 else [], n + 1
        found.append(pytest.param(case, id=name(case), marks=marks))
    return found
