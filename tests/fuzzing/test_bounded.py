"""A few hundred inputs of each kind in the suite; scripts/fuzz.py runs for longer."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.targets import TARGETS

EXAMPLES = {"http": 40, "log": 60, "diagnosis": 40, "flags": 300, "pattern": 200, "model": 100}
SLOW = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_a_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    checks = list(HealthCheck)

    @settings(max_examples=EXAMPLES.get(name, 150), deadline=None, suppress_health_check=checks, database=None)
    @given(st.integers(0, 2**32 - 1))
    def run(seed: int) -> None:
        began = time.perf_counter()
        TARGETS[name](random.Random(seed))
        assert time.perf_counter() - began < SLOW

    run()
