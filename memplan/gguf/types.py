"""ggml's tensor types: ids, names, block sizes.

Follows ggml/include/ggml.h (enum ggml_type), ggml/src/ggml.c (type_traits) and ggml/src/ggml-common.h (block layouts),
read in v0.5.0. A row is stored in blocks of ``block_size`` elements, ``type_size`` bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class GGMLType:
    """One tensor type of ggml.

    ``id``: its number in a GGUF file. ``name``: ggml_type_name's spelling (``q8_0``, ``q2_K``, ``iq2_xxs``).
    ``block_size``: elements in a block. ``type_size``: bytes in a block. ``is_quantized``: as ggml says.
    There is one object a type, so ``is`` and ``==`` are the same question, also after copying or pickling.
    """

    id: int
    name: str
    block_size: int
    type_size: int
    is_quantized: bool

    def row_size(self, ne0: int) -> int:
        """Bytes of a row of ``ne0`` elements, a multiple of the block size (ggml/src/ggml.c: ggml_row_size, v0.5.0)."""
        return ne0 // self.block_size * self.type_size

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[int], GGMLType], tuple[int]]:
        return _by_id, (self.id,)


def _by_id(id: int) -> GGMLType:
    return TYPES[id]


_TABLE = tuple(
    GGMLType(*row)
    for row in (
        (0, "f32", 1, 4, False),
        (1, "f16", 1, 2, False),
        (2, "q4_0", 32, 18, True),
        (3, "q4_1", 32, 20, True),
        (6, "q5_0", 32, 22, True),
        (7, "q5_1", 32, 24, True),
        (8, "q8_0", 32, 34, True),
        (9, "q8_1", 32, 36, True),
        (10, "q2_K", 256, 84, True),
        (11, "q3_K", 256, 110, True),
        (12, "q4_K", 256, 144, True),
        (13, "q5_K", 256, 176, True),
        (14, "q6_K", 256, 210, True),
        (15, "q8_K", 256, 292, True),
        (16, "iq2_xxs", 256, 66, True),
        (17, "iq2_xs", 256, 74, True),
        (18, "iq3_xxs", 256, 98, True),
        (19, "iq1_s", 256, 50, True),
        (20, "iq4_nl", 32, 18, True),
        (21, "iq3_s", 256, 110, True),
        (22, "iq2_s", 256, 82, True),
        (23, "iq4_xs", 256, 136, True),
        (24, "i8", 1, 1, False),
        (25, "i16", 1, 2, False),
        (26, "i32", 1, 4, False),
        (27, "i64", 1, 8, False),
        (28, "f64", 1, 8, False),
        (29, "iq1_m", 256, 56, True),
        (30, "bf16", 1, 2, False),
        (34, "tq1_0", 256, 54, True),
        (35, "tq2_0", 256, 66, True),
        (39, "mxfp4", 32, 17, True),
        (40, "nvfp4", 64, 36, True),
        (41, "q1_0", 128, 18, True),
        (42, "q2_0", 64, 18, True),
    )
)

TYPES: Mapping[int, GGMLType] = {t.id: t for t in _TABLE}
"""Every type that a file may hold, by id."""

BY_NAME: Mapping[str, GGMLType] = {t.name: t for t in _TABLE}
"""The same, by name."""

REMOVED: Mapping[int, tuple[str, str]] = (
    {4: ("q4_2", "q4_0"), 5: ("q4_3", "q4_1")}
    | {31 + i: (f"q4_0_{s}", "q4_0") for i, s in enumerate(("4_4", "4_8", "8_8"))}
    | {36 + i: (f"iq4_nl_{s}", "iq4_nl") for i, s in enumerate(("4_4", "4_8", "8_8"))}
)
"""Ids that ggml once used and no longer loads: the name of each, and the type to use instead."""

F32, F16, BF16 = BY_NAME["f32"], BY_NAME["f16"], BY_NAME["bf16"]
I32, I64 = BY_NAME["i32"], BY_NAME["i64"]
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL = (BY_NAME[n] for n in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"))
