"""Ministral and Devstral: Llama's graph, with queries that grow with their positions where the file says so.

Follows src/models/mistral3.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.llama.hparams import HParams, common
from memplan.models.llama import LlamaGraph, LlamaLike

if TYPE_CHECKING:
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Mistral3HParams(HParams):
    """``f_attn_temp_scale``: how much queries grow with their positions, 0 for not at all."""

    f_attn_temp_scale: float


class Mistral3Graph(LlamaGraph[Mistral3HParams]):
    """``llama_model_mistral3::graph``."""

    @property
    def scales_queries(self) -> bool:
        """Whether queries are multiplied by position."""
        return self.hp.f_attn_temp_scale != 0


class Mistral3(LlamaLike[Mistral3HParams]):
    """``llama_model_mistral3``."""

    name = "mistral3"
    graph = Mistral3Graph

    def load_hparams(self, k: Keys, release: Release) -> Mistral3HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        scale = k.f32("attention.temperature_scale", 0.0)
        for key in ("yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier"):
            k.f32(f"rope.scaling.{key}", 0.0)
        said = "invalid n_ctx_orig_yarn for attention temperature scaling"
        k.check(scale == 0 or fields["n_ctx_orig_yarn"] > 0, said)
        return Mistral3HParams(**fields, f_attn_temp_scale=scale)


ARCHITECTURE = Mistral3()
