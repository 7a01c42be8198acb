"""What a built-in model is: a name, hyper-parameters, and recipes for the types of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from memplan.gguf.header import Value
from memplan.models.recipes import COMMON, Recipe


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One built-in model.

    ``name``: what it is called by.  ``about``: one line.  ``arch``: its architecture.  ``keys``: its metadata behind
    the architecture's name.  ``default``: the recipe of the bare name.  ``extra``: optional tensors that its files
    have, by kind (``attn_q.bias``).  ``absent``: tensors that are not in them all the same, by name.
    ``shapes``: of tensors by which a loader goes, where keys do not tell, by kind.  ``mtp``: values that a layer for
    multi-token prediction has, where they are not those of the last layer.
    """

    name: str
    about: str
    arch: str
    keys: Mapping[str, Value]
    default: str
    recipes: Mapping[str, Recipe] = field(default_factory=lambda: COMMON)
    extra: tuple[str, ...] = ("output.weight",)
    absent: frozenset[str] = frozenset()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    mtp: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """``general.name``."""
        return f"{self.about.partition(':')[0]} (header only)"

    def metadata(self, recipe: Recipe) -> Mapping[str, Value]:
        """The keys of a file made by a recipe: with a layer for multi-token prediction (MTP) or without."""
        if not recipe.nextn:
            return self.keys
        layers = self.keys["block_count"]
        assert isinstance(layers, int)  # a row of this file
        longer = {
            key: (*v, self.mtp.get(key, v[-1]))
            for key, v in self.keys.items()
            if isinstance(v, tuple) and len(v) == layers
        }
        return {**self.keys, **longer, "block_count": layers + 1, "nextn_predict_layers": 1}


_SECTIONS: Mapping[str, str] = {
    name: f"{section}.{name.removeprefix('indexer_')}"
    for section, names in {
        "attention": "head_count head_count_kv key_length value_length layer_norm_rms_epsilon layer_norm_epsilon"
        " q_lora_rank kv_lora_rank temperature_scale shared_kv_layers sliding_window sliding_window_pattern"
        " key_length_swa value_length_swa key_length_mla value_length_mla",
        "rope.scaling": "type factor original_context_length yarn_beta_fast yarn_beta_slow yarn_log_multiplier",
        "rope": "freq_base freq_base_swa dimension_count dimension_count_swa dimension_sections",
        "attention.indexer": "indexer_head_count indexer_key_length indexer_top_k indexer_block_size"
        " indexer_local_blocks",
        "kda": "head_dim",
        "ssm": "conv_kernel inner_size state_size time_step_rank group_count",
    }.items()
    for name in names.split()
}
"""Full keys of names that stand in a section of their own."""


def gguf_keys(common: Mapping[str, Value] = MappingProxyType({}), **own: Value) -> dict[str, Value]:
    """Metadata by GGUF's names, sections left out; ``common``: what a family has in common."""
    return {**common, **{_SECTIONS.get(name, name): value for name, value in own.items()}}
