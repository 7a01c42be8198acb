from __future__ import annotations

from memplan.llama.kv_overrides import override_metadata
from memplan.models.open import open_model

FLASH = open_model("deepseek-v4-flash")
USED = "deepseek4.expert_used_count"


def test_nothing_to_override() -> None:
    assert override_metadata(FLASH, ()) is FLASH


def test_the_first_override_of_a_key_holds() -> None:
    changed = override_metadata(FLASH, ((USED, 4), (USED, 5)))
    assert (changed.metadata[USED], FLASH.metadata[USED]) == (4, 6)
    assert changed.tensors is FLASH.tensors


def test_a_key_that_the_file_lacks_is_added() -> None:
    changed = override_metadata(FLASH, (("a.b", 4), ("a.c", True), ("a.d", 0.5), ("a.e", "x")))
    assert [changed.value_types[key] for key in ("a.b", "a.c", "a.d", "a.e")] == ["u32", "bool", "f32", "str"]


def test_another_kind_of_value_and_arrays_are_ignored() -> None:
    ratios = "deepseek4.attention.compress_ratios"
    for override in ((USED, 4.0), (USED, True), (USED, "4"), (ratios, 4)):
        assert override_metadata(FLASH, (override,)).metadata == FLASH.metadata
