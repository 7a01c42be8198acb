"""Feed-forward layers: dense, and experts chosen token by token.

Follows src/llama-graph.cpp (``build_ffn``, ``build_moe_ffn``), v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.llama.graph.base import GraphBase, H

_NO_LIMIT = 1e-6
"""Limits of a gated unit that are at most this are none."""

_GATED = {"SILU": "SWIGLU", "GELU": "GEGLU", "RELU": "REGLU", "SWIGLU_OAI": "SWIGLU_OAI"}


class FeedForward(GraphBase[H]):
    """One layer's feed-forward part."""

    def build_ffn(self, cur: Tensor, il: int, act: str = "SILU", *, suffix: str = "") -> Tensor:
        """A dense feed-forward layer with a gate beside it, or without one where the model has none.

        ``act``: SILU, GELU, RELU, SWIGLU_OAI, or RELU_SQR; SWIGLU and GEGLU halve a joined ``ffn_up``.  ``suffix``:
        ``_shexp`` for shared experts. A weight that is not there is passed over, be it the whole layer's.
        """
        up = self.cb(self._product(il, f"ffn_up{suffix}", cur), "ffn_up", il)
        up = self._with_bias(up, il, f"ffn_up{suffix}", "up")
        if self.source.has(f"ffn_gate{suffix}.weight", il):
            gate = self.cb(self.mm(il, f"ffn_gate{suffix}", cur), "ffn_gate", il)
            gate = self._with_bias(gate, il, f"ffn_gate{suffix}", "gate")
            cur = self.gated(gate, up, act, self.swiglu_limit(il, shared=True), "ffn", il)
        else:
            cur = self.activated(up, act, "ffn", il)
        return self.biased(self._product(il, f"ffn_down{suffix}", cur), il, f"ffn_down{suffix}")

    def _product(self, il: int, name: str, cur: Tensor) -> Tensor:
        return self.mm(il, name, cur) if self.source.has(f"{name}.weight", il) else cur

    def _with_bias(self, cur: Tensor, il: int, name: str, which: str) -> Tensor:
        biased = self.biased(cur, il, name)
        return cur if biased is cur else self.cb(biased, f"ffn_{which}_b", il)

    def swiglu_limit(self, il: int, *, shared: bool) -> float:
        """The limit of a layer's gated unit, in routed or in shared experts; 0 for none."""
        return 0.0

    def gated(self, gate: Tensor, up: Tensor, act: str, limit: float, name: str, il: int) -> Tensor:
        """A gated unit: ``name`` is ``ffn`` or ``ffn_moe``."""
        if act == "SILU" and limit > _NO_LIMIT:
            return self.cb(self.limited_swiglu(gate, up, limit, name, il), f"{name}_swiglu_limited", il)
        kind = _GATED[act]
        return self.cb(ops.glu(gate, up, kind), f"{name}_{kind.lower()}", il)

    def limited_swiglu(self, gate: Tensor, up: Tensor, limit: float, name: str, il: int) -> Tensor:
        """SwiGLU with limits, from small ops."""
        up = self.cb(self.clamp(up), f"{name}_up_clamped", il)
        act = self.cb(ops.unary(gate, "SILU"), f"{name}_silu", il)
        return ops.mul(self.cb(self.clamp(act), f"{name}_silu_clamped", il), up)

    def activated(self, cur: Tensor, act: str, name: str, il: int) -> Tensor:
        """A unit without a gate."""
        if act == "RELU_SQR":
            if name == "ffn_moe":
                return self.cb(ops.sqr(ops.unary(cur, "RELU")), "ffn_moe_relu_sqr", il)
            return self.cb(ops.sqr(self.cb(ops.unary(cur, "RELU"), "ffn_relu", il)), "ffn_sqr(relu)", il)
        if act in ("SWIGLU", "GEGLU"):
            return self.cb(ops.glu(cur, None, act), f"{name}_{act.lower()}", il)
        return self.cb(ops.unary(cur, act), f"{name}_{act.lower()}", il)

    # --- experts ------------------------------------------------------------------------------------------------------

    def build_moe_ffn(
        self,
        cur: Tensor,
        il: int,
        *,
        gating: str = "SOFTMAX",
        act: str = "SILU",
        norm_w: bool = True,
        w_scale: float = 0.0,
        weight_before_ffn: bool = False,
        probs_in: Tensor | None = None,
        selected: Tensor | None = None,
    ) -> Tensor:
        """Routed experts (``build_moe_ffn``).

        ``gating``: SOFTMAX, SIGMOID, SOFTMAX_WEIGHT (after the choice) or SQRT_SOFTPLUS.  ``norm_w``: whether weights
        are divided by their sum.  ``w_scale``: what they are multiplied with, 0 or 1 for nothing.
        ``weight_before_ffn``: whether the input is weighted, not the result.  ``probs_in``: logits made elsewhere.
        ``selected``: experts chosen elsewhere.
        """
        hp, graph, n = self.hp, self.graph, cur.ne[1]
        n_embd, used = cur.ne[0], hp.n_expert_used[il]
        logits = probs_in
        if logits is None:
            logits = self.mm(il, "ffn_gate_inp", cur, f32=gating == "SQRT_SOFTPLUS")
            self.cb(logits, "ffn_moe_logits", il)
        biased = self.biased(logits, il, "ffn_gate_inp")
        if biased is not logits:
            logits = self.cb(biased, "ffn_moe_logits_biased", il)
        probs = self.cb(self.expert_probs(logits, gating), "ffn_moe_probs", il)
        if selected is None:
            selected = self.select_experts(logits, probs, il)
        self.cb(selected, "ffn_moe_topk", il)
        weights = ops.get_rows(ops.reshape(probs, 1, hp.n_expert, n), selected)
        self.cb(weights, "ffn_moe_weights", il)
        if gating == "SOFTMAX_WEIGHT":
            weights = ops.soft_max(ops.reshape(weights, used, n))
            weights = self.cb(ops.reshape(weights, 1, used, n), "ffn_moe_weights_softmax", il)
        if norm_w:
            weights = ops.reshape(weights, used, n)
            total = self.cb(ops.sum_rows(weights), "ffn_moe_weights_sum", il)
            total = self.cb(self.clamp(total), "ffn_moe_weights_sum_clamped", il)
            weights = self.cb(ops.div(weights, total), "ffn_moe_weights_norm", il)
            weights = ops.reshape(weights, 1, used, n)
        if w_scale not in (0.0, 1.0):
            weights = self.cb(ops.scale(weights), "ffn_moe_weights_scaled", il)
        graph.expand(weights)
        cur = ops.reshape(cur, n_embd, 1, n)
        if weight_before_ffn:
            cur = self.cb(ops.mul(ops.repeat_4d(cur, (n_embd, used, n, 1)), weights), "ffn_moe_weighted", il)
        cur = self.expert_units(cur, selected, act, il)
        experts = self.cb(self.experts_down(cur, selected, il), "ffn_moe_down", il)
        experts = self._with_expert_bias(experts, il, "down", selected)
        if not weight_before_ffn:
            experts = self.cb(ops.mul(experts, weights), "ffn_moe_weighted", il)
        graph.expand(experts)
        parts = []
        for i in range(used):
            part = ops.view_2d(experts, n_embd, n, experts.nb[2], i * experts.nb[1])
            parts.append(part)
            graph.expand(part)
        out = parts[0]
        for part in parts[1:]:
            out = ops.add(out, part)
            graph.expand(out)
        if used == 1:
            out = ops.cont(out)
        return self.cb(out, "ffn_moe_out", il)

    @staticmethod
    def expert_probs(logits: Tensor, gating: str) -> Tensor:
        """What experts are weighted with, from the router's logits."""
        if gating == "SOFTMAX":
            return ops.soft_max(logits)
        if gating == "SIGMOID":
            return ops.unary(logits, "SIGMOID")
        if gating == "SQRT_SOFTPLUS":
            return ops.sqrt(ops.unary(logits, "SOFTPLUS"))
        return logits

    def select_experts(self, logits: Tensor, probs: Tensor, il: int) -> Tensor:
        """The experts of each token: the best, perhaps out of the best groups."""
        hp, n = self.hp, probs.ne[1]
        bias = self.maybe("exp_probs_b.bias", il)
        if bias is not None:
            probs = self.cb(ops.add(probs, bias), "ffn_moe_probs_biased", il)
        if hp.n_expert_groups > 1:
            n_groups, each = hp.n_expert_groups, hp.n_expert // hp.n_expert_groups
            groups = ops.reshape(probs, each, n_groups, n)
            best = ops.argsort_top_k(groups, 2)
            scores = ops.get_rows(ops.reshape(groups, 1, each, n_groups, n), best)
            scores = ops.sum_rows(ops.reshape(scores, 2, n_groups, n))
            chosen = ops.argsort_top_k(ops.reshape(scores, n_groups, n), hp.n_group_used)
            self.cb(chosen, "ffn_moe_group_topk", il)
            kept = ops.get_rows(groups, chosen)
            probs = ops.reshape(ops.set_rows(ops.fill(groups), kept, chosen), hp.n_expert, n)
            self.cb(probs, "ffn_moe_probs_masked", il)
        selected = ops.argsort_top_k(probs, hp.n_expert_used[il])
        self.cb(selected.src[0], "ffn_moe_argsort", il)
        return selected

    def experts_down(self, cur: Tensor, selected: Tensor, il: int) -> Tensor:
        """The chosen experts' results."""
        return self.mm_id(il, "ffn_down_exps", cur, selected)

    def expert_units(self, cur: Tensor, selected: Tensor, act: str, il: int) -> Tensor:
        """The chosen experts' gated units: up and gate from one product, from two, or up alone."""
        if self.source.has("ffn_gate_up_exps.weight", il):
            both = self.cb(self.mm_id(il, "ffn_gate_up_exps", cur, selected), "ffn_moe_gate_up", il)
            both = self._with_expert_bias(both, il, "gate_up", selected)
            n_ff = both.ne[0] // 2
            ne, nb = (n_ff, both.ne[1], both.ne[2]), both.nb
            gate = self.cb(ops.view_3d(both, ne, nb[1], nb[2]), "ffn_moe_gate", il)
            up = self.cb(ops.view_3d(both, ne, nb[1], nb[2], n_ff * nb[0]), "ffn_moe_up", il)
            return self.gated(gate, up, act, 0.0, "ffn_moe", il)
        up = self.cb(self.mm_id(il, "ffn_up_exps", cur, selected), "ffn_moe_up", il)
        up = self._with_expert_bias(up, il, "up", selected)
        if not self.source.has("ffn_gate_exps.weight", il):
            return self.activated(up, act, "ffn_moe", il)
        gate = self.cb(self.mm_id(il, "ffn_gate_exps", cur, selected), "ffn_moe_gate", il)
        gate = self._with_expert_bias(gate, il, "gate", selected)
        return self.gated(gate, up, act, self.swiglu_limit(il, shared=False), "ffn_moe", il)

    def _with_expert_bias(self, cur: Tensor, il: int, which: str, selected: Tensor) -> Tensor:
        bias = self.maybe(f"ffn_{which}_exps.bias", il)
        return cur if bias is None else self.cb(ops.add_id(cur, bias, selected), f"ffn_moe_{which}_biased", il)
