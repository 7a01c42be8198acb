from __future__ import annotations

import pytest

from memplan.output.compare import signed


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "+0.0"), (350 << 20, "+350.0"), (-1536 << 20, "-1,536.0"), (4096, "+4,096 B"), (1 << 17, "+0.1")],
)
def test_small_changes_are_told_in_bytes(size: int, text: str) -> None:
    assert signed(size) == text
