from __future__ import annotations

import pytest

from memplan.comparing.result import BufferChange
from memplan.explaining.result import Peak, Placed
from memplan.output.compare import sentences, signed


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "+0.0"), (350 << 20, "+350.0"), (-1536 << 20, "-1,536.0"), (4096, "+4,096 B"), (1 << 17, "+0.1")],
)
def test_small_changes_are_told_in_bytes(size: int, text: str) -> None:
    assert signed(size) == text


@pytest.mark.parametrize(
    ("alive", "lost", "said"),
    [
        (-8448, 350 << 20, "live tensors -8,448 B, gaps between them +350.0 MiB"),
        (-8 << 20, 512, "live tensors -8.0 MiB, gaps between them +512 B"),
        (8448, -8448, "live tensors +8,448 B, gaps between them -8,448 B"),
    ],
)
def test_a_figure_in_a_sentence_has_one_unit(alive: int, lost: int, said: str) -> None:
    tensor = Placed("q-2", "q", "MUL_MAT", "f32", (1, 1, 1, 1), 2, 4, 0, 0, 0, 1, "")
    peak = Peak(0, 4, 0, tensor, (tensor,), (), ())
    buffer = BufferChange("CUDA0", 0, 0, (peak,), (peak,), True, None, None, alive, lost, (), (), ())
    assert said in list(sentences(buffer, "a", "b"))
