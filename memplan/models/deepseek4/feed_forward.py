"""Routed and shared experts.

Follows ``src/llama-graph.cpp`` (``build_moe_ffn``, ``build_ffn``) as ``src/models/deepseek4.cpp`` calls them, v0.5.0,
and for older forms b10568.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.models.deepseek4.pieces import Pieces


class FeedForward(Pieces):
    """One layer's experts."""

    inp_tokens: Tensor

    def moe(self, cur: Tensor, il: int) -> Tensor:
        """Routed experts (``build_moe_ffn``); the first layers route by token (``ffn_gate_tid2eid``)."""
        hp, graph, n = self.hp, self.graph, cur.ne[1]
        used = hp.n_expert_used
        selected = None
        if il < hp.hash_layer_count:
            selected = ops.get_rows(self.w(il, "ffn_gate_tid2eid"), self.inp_tokens)
        logits = self.cb(ops.mul_mat(self.w(il, "ffn_gate_inp"), cur), "ffn_moe_logits", il)
        probs = self.cb(ops.sqrt(ops.unary(logits, "SOFTPLUS")), "ffn_moe_probs", il)
        if selected is None:
            biased = self.cb(ops.add(probs, self.leaf("exp_probs_b.bias", il)), "ffn_moe_probs_biased", il)
            selected = ops.argsort_top_k(biased, used)
            self.cb(selected.src[0], "ffn_moe_argsort", il)
        self.cb(selected, "ffn_moe_topk", il)
        probs = ops.reshape(probs, 1, hp.n_expert, n)
        weights = self.cb(ops.get_rows(probs, selected), "ffn_moe_weights", il)
        if hp.expert_weights_norm:
            weights = ops.reshape(weights, used, n)
            total = self.cb(ops.sum_rows(weights), "ffn_moe_weights_sum", il)
            total = self.cb(self.clamp(total), "ffn_moe_weights_sum_clamped", il)
            weights = self.cb(ops.div(weights, total), "ffn_moe_weights_norm", il)
            weights = ops.reshape(weights, 1, used, n)
        if hp.expert_weights_scale not in (0.0, 1.0):
            weights = self.cb(ops.scale(weights), "ffn_moe_weights_scaled", il)
        graph.expand(weights)
        cur = ops.reshape(cur, cur.ne[0], 1, n)
        up = self.cb(ops.mul_mat_id(self.w(il, "ffn_up_exps"), cur, selected), "ffn_moe_up", il)
        gate = self.cb(ops.mul_mat_id(self.w(il, "ffn_gate_exps"), cur, selected), "ffn_moe_gate", il)
        cur = self.gated(gate, up, hp.swiglu_clamp_exp[il], "ffn_moe", il)
        experts = self.cb(ops.mul_mat_id(self.w(il, "ffn_down_exps"), cur, selected), "ffn_moe_down", il)
        experts = self.cb(ops.mul(experts, weights), "ffn_moe_weighted", il)
        graph.expand(experts)
        parts = []
        for i in range(used):
            part = ops.view_2d(experts, experts.ne[0], n, experts.nb[2], i * experts.nb[1])
            parts.append(part)
            graph.expand(part)
        out = parts[0]
        for part in parts[1:]:
            out = ops.add(out, part)
            graph.expand(out)
        if used == 1:
            out = ops.cont(out)
        return self.cb(out, "ffn_moe_out", il)

    def gated(self, gate: Tensor, up: Tensor, limit: float, name: str, il: int) -> Tensor:
        """SwiGLU, with limits where the model has them: ``name`` is ``ffn`` or ``ffn_moe``."""
        if limit <= 1e-6:
            return self.cb(ops.glu(gate, up, "SWIGLU"), f"{name}_swiglu", il)
        if self.release.swiglu_clamp:
            return self.cb(ops.glu(gate, up, "SWIGLU_CLAMP", limit), f"{name}_swiglu_limited", il)
        up = self.cb(self.clamp(up), f"{name}_up_clamped", il)
        gate = self.cb(self.clamp(gate), f"{name}_gate_clamped", il)
        return self.cb(ops.glu(gate, up, "SWIGLU"), f"{name}_swiglu_limited", il)

    def clamp(self, t: Tensor) -> Tensor:
        """``t`` held between two limits (``ggml_clamp``)."""
        return ops.clamp_inplace(t) if self.release.clamps_inplace else ops.clamp(t)

    def shared_expert(self, cur: Tensor, il: int) -> Tensor:
        """``build_ffn`` with the shared expert's weights."""
        up = self.cb(ops.mul_mat(self.w(il, "ffn_up_shexp"), cur), "ffn_up", il)
        gate = self.cb(ops.mul_mat(self.w(il, "ffn_gate_shexp"), cur), "ffn_gate", il)
        cur = self.gated(gate, up, self.hp.swiglu_clamp_shexp[il], "ffn", il)
        return self.cb(ops.mul_mat(self.w(il, "ffn_down_shexp"), cur), "ffn_shexp", il)
