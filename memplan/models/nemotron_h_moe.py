"""Nemotron-H with experts in place of dense feed-forward parts: Nemotron 3.

Follows src/models/nemotron-h-moe.cpp and nemotron-h.cpp, v0.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.models.mtp import MTPBlock, MTPHead
from memplan.models.nemotron_h import NEXTN_SINCE, NemotronH, NemotronHGraph, NemotronHHParams

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor


class NemotronHMoeMTPGraph(MTPHead[NemotronHHParams], NemotronHGraph):
    """``llama_model_nemotron_h_moe::graph_mtp``."""

    takes_rows = "layer"

    def layer(self, il: int, *given: Tensor) -> tuple[Tensor, ...]:
        """Attention and experts in one."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "mtp_attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il), "mtp_attn_out", il)
        cur = self.cb(ops.add(cur, inp), "mtp_attn_residual", il)
        residual = ops.get_rows(cur, self.inp_out_ids)
        cur = self.cb(self.norm(residual, self.w(il, "post_attention_norm"), il), "mtp_attn_post_norm", il)
        return (self.cb(ops.add(self.build_ffn_layer(cur, il), residual), "mtp_post_ffn", il),)

    def head_norm(self, cur: Tensor, weight: Tensor) -> Tensor:
        """The norm before the logits, which takes the mean away."""
        return self.norm(cur, weight, -1, rms=False)


class NemotronHMoe(NemotronH):
    """``llama_model_nemotron_h_moe``: what it has of its own is the graph of its MTP block."""

    name = "nemotron_h_moe"


class NemotronHMoeMTP(MTPBlock[NemotronHHParams], NemotronHMoe):
    """Its own MTP block."""

    graph = NemotronHMoeMTPGraph
    since = NEXTN_SINCE


ARCHITECTURE = NemotronHMoe(mtp=NemotronHMoeMTP())
