"""Shapes, strides and sizes of tensors."""

from __future__ import annotations

import pytest

from memplan.ggml.tensor import Shape, Tensor, new_tensor, packed_strides
from memplan.gguf.types import F16, F32, Q8_0


def strided(ne: Shape, nb: Shape) -> Tensor:
    return Tensor("VIEW", F32, ne, nb, [])


def test_packed_strides_count_blocks() -> None:
    assert packed_strides(F32, (3, 5, 7, 2)) == (4, 12, 60, 420)
    assert packed_strides(Q8_0, (64, 5, 1, 1)) == (34, 68, 340, 340)


def test_a_new_tensor_fills_up_its_shape() -> None:
    t = new_tensor(F16, 8, 3)
    assert t.ne == (8, 3, 1, 1)
    assert t.nbytes == 48
    assert t.nelements == 24
    assert t.nrows == 3


def test_bytes_count_to_the_last_element_of_a_view() -> None:
    # 2 x 3 floats, rows 100 bytes apart: two whole strides and one row
    assert strided((2, 3, 1, 1), (4, 100, 300, 300)).nbytes == 208
    assert strided((2, 0, 1, 1), (4, 100, 300, 300)).nbytes == 0


def test_quantised_bytes_count_whole_blocks() -> None:
    assert new_tensor(Q8_0, 64, 4).nbytes == 4 * 68


@pytest.mark.parametrize(
    ("ne", "nb", "contiguous", "rows", "transposed"),
    [
        ((2, 3, 1, 1), (4, 8, 24, 24), True, True, False),
        ((2, 3, 1, 1), (4, 100, 300, 300), False, True, False),
        ((3, 2, 1, 1), (8, 4, 24, 24), False, False, True),
        # a stride that no element uses does not matter
        ((2, 1, 1, 1), (4, 100, 300, 300), True, True, False),
        ((2, 5, 3, 1), (4, 24, 8, 120), False, True, False),
    ],
)
def test_layouts(ne: Shape, nb: Shape, contiguous: bool, rows: bool, transposed: bool) -> None:
    t = strided(ne, nb)
    assert t.is_contiguous is contiguous
    assert t.is_contiguous_rows is rows
    assert t.is_transposed is transposed


def test_repr_names_op_and_shape() -> None:
    assert repr(new_tensor(F32, 2, name="x")) == "<NONE 'x' f32 [2, 1, 1, 1]>"
