from __future__ import annotations

import copy
import pickle
import re

import pytest

from memplan.gguf import types
from memplan.gguf.types import BY_NAME, REMOVED, TYPES


def test_the_gguf_package_agrees_on_every_type_it_knows() -> None:
    gguf = pytest.importorskip("gguf")
    sizes = {int(t): (t.name.lower(), *size) for t, size in gguf.GGML_QUANT_SIZES.items()}
    # the package counts q8_1's two scales as f32; ggml keeps them as f16, in 36 bytes
    assert sizes.pop(9) == ("q8_1", 32, 40)
    assert len(sizes) > 30
    for id_, (name, block, size) in sizes.items():
        mine = TYPES[id_]
        assert (mine.name.lower(), mine.block_size, mine.type_size) == (name, block, size)


def test_types_newer_than_the_package() -> None:
    q2_0, q8_1 = BY_NAME["q2_0"], BY_NAME["q8_1"]
    assert (q2_0.id, q2_0.block_size, q2_0.type_size) == (42, 64, 18)
    assert (q8_1.id, q8_1.block_size, q8_1.type_size) == (9, 32, 36)


def test_ids_are_all_spoken_for() -> None:
    assert sorted([*TYPES, *REMOVED]) == list(range(43))
    assert len(BY_NAME) == len(TYPES)
    assert all(re.fullmatch(r"[a-z0-9_]+(_K)?", name) for name in BY_NAME)
    assert all(new in BY_NAME for _, new in REMOVED.values())


def test_quantized_means_blocks() -> None:
    assert all(t.is_quantized == (t.block_size > 1) for t in TYPES.values())


def test_row_size() -> None:
    assert types.Q8_0.row_size(4096) == 4096 // 32 * 34
    assert types.F16.row_size(7) == 14
    assert BY_NAME["mxfp4"].row_size(64) == 34


def test_one_object_a_type() -> None:
    t = BY_NAME["q4_K"]
    assert copy.deepcopy(t) is t
    assert pickle.loads(pickle.dumps(t)) is t
    assert str(t) == "q4_K"
