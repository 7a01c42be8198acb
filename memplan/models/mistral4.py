"""Mistral 4: DeepSeek-V2's graph, whose experts' last product asks for f32 since v0.5.0.

Follows src/models/mistral4.cpp and ``build_moe_ffn`` of src/llama-graph.cpp, v0.5.0 and v0.4.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.models.deepseek2 import DeepSeek2, DeepSeek2Graph, DeepSeek2MTP

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor

F32_SINCE = 11149
"""The first build seen in which experts' results ask for f32 (src/llama-graph.cpp: build_moe_ffn); 11063 did not."""


class Mistral4Graph(DeepSeek2Graph):
    """``llama_model_mistral4::graph``."""

    def experts_down(self, cur: Tensor, selected: Tensor, il: int) -> Tensor:
        """In f32, which CUDA refuses, so that the CPU computes it in every layer."""
        if self.release.build < F32_SINCE:
            return super().experts_down(cur, selected, il)
        return ops.mul_mat_id(self.w(il, "ffn_down_exps"), cur, selected, f32_source=True)


class Mistral4(DeepSeek2):
    """``llama_model_mistral4``."""

    name = "mistral4"
    graph = Mistral4Graph


ARCHITECTURE = Mistral4(mtp=DeepSeek2MTP())
