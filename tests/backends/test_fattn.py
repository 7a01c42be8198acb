from __future__ import annotations

import pytest

from memplan.backends.fattn import MMA, TILE, VEC, best_kernel
from memplan.releases import V0_4_0, V0_5_0
from tests.backends.shapes import attention

ONE = {"head": 128, "heads": 8, "tokens": 1, "shared": False}


@pytest.mark.parametrize(
    ("kwargs", "cc", "old", "new"),
    [
        ({}, 610, TILE, TILE),
        ({}, 700, MMA, MMA),
        ({"tokens": 2}, 700, TILE, TILE),
        ({"tokens": 1}, 1200, MMA, MMA),
        (ONE, 610, TILE, TILE),
        ({**ONE, "type_k": "q8_0"}, 610, VEC, VEC),
        ({**ONE, "type_k": "q8_0", "tokens": 2}, 860, MMA, MMA),
        ({**ONE, "type_k": "q8_0", "tokens": 2}, 890, VEC, VEC),
        ({**ONE, "mask": False}, 860, VEC, VEC),
        (ONE, 860, MMA, MMA),
        (ONE, 890, VEC, VEC),
        ({**ONE, "keys": 8192}, 890, MMA, MMA),
        ({**ONE, "heads": 4, "keys": 8192}, 890, VEC, VEC),
        ({**ONE, "head": 256}, 890, VEC, MMA),
        ({**ONE, "heads": 1}, 700, VEC, VEC),
        ({**ONE, "heads": 4}, 720, TILE, TILE),
        ({**ONE, "head": 72}, 1200, TILE, TILE),
    ],
)
def test_kernels(kwargs: dict[str, object], cc: int, old: str, new: str) -> None:
    t = attention(**kwargs)  # type: ignore[arg-type]
    assert (best_kernel(t, cc, V0_4_0), best_kernel(t, cc, V0_5_0)) == (old, new)
