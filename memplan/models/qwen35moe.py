"""Qwen3.5 and 3.6 with experts: beside the routed ones a shared one, whose result is gated.

Follows src/models/qwen35moe.cpp, read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from memplan.ggml import ops
from memplan.llama.weights import Have, Wanted, ffn, gate_up_exps
from memplan.models.mtp import MTPBlock
from memplan.models.qwen35 import DeltaNetArchitecture, DeltaNetGraph, DeltaNetHParams, DeltaNetMTP, Qwen35HParams

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class ExpertHParams(DeltaNetHParams):
    """``n_ff_exp``, ``n_ff_shexp``: widths of a routed and of the shared expert."""

    n_ff_exp: int
    n_ff_shexp: int
    expert_weights_scale: float


@dataclass(frozen=True, kw_only=True)
class Qwen35MoeHParams(ExpertHParams, Qwen35HParams):
    """Experts, and four positions a token."""


E = TypeVar("E", bound=ExpertHParams)


class ExpertGraph(DeltaNetGraph[E]):
    """Delta nets and experts."""

    def build_layer_ffn(self, cur: Tensor, il: int) -> Tensor:
        """Routed experts and the shared one."""
        routed = self.cb(self.build_moe_ffn(cur, il, w_scale=self.hp.expert_weights_scale), "ffn_moe_out", il)
        shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shexp", il)
        gate = self.cb(self.mm(il, "ffn_gate_inp_shexp", cur), "shared_expert_gate", il)
        gate = self.cb(ops.unary(gate, "SIGMOID"), "shared_expert_gate_sigmoid", il)
        return ops.add(routed, self.cb(ops.mul(shared, gate), "ffn_shexp_gated", il))


class Qwen35MoeGraph(ExpertGraph[Qwen35MoeHParams]):
    """``llama_model_qwen35moe::graph``."""

    rope_type = ops.ROPE_IMROPE


class Qwen35MoeMTPGraph(DeltaNetMTP[Qwen35MoeHParams], Qwen35MoeGraph):
    """``llama_model_qwen35moe::graph_mtp``."""


class ExpertArchitecture(DeltaNetArchitecture[E]):
    """What Qwen3-Next, Qwen3.5 and 3.6 with experts have in common."""

    def fields(self, k: Keys, release: Release) -> dict[str, Any]:
        """Hyper-parameters by field."""
        fields = super().fields(k, release)
        k.check(fields["n_expert"] > 0, "expert_count must not be zero")
        n_ff = fields["n_ff"][0]
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"], 0)[0]
        return fields | {
            "n_ff_exp": n_ff_exp or n_ff // max(1, fields["n_expert_used"][0]),
            "n_ff_shexp": k.u32("expert_shared_feed_forward_length", 0) or n_ff,
            "expert_weights_scale": k.f32("expert_weights_scale", 0.0),
        }

    def feed_forward(self, hp: E, have: Have, il: int, *, skip: bool) -> Iterator[Wanted]:
        """Experts and the shared one."""
        p, e, ff, shared = f"blk.{il}.", hp.n_embd, hp.n_ff_exp, hp.n_ff_shexp
        yield Wanted(p + "ffn_gate_inp.weight", (e, hp.n_expert))
        yield Wanted(p + "ffn_down_exps.weight", (ff, e, hp.n_expert))
        yield from gate_up_exps(have, il, e, ff, hp.n_expert, skip=skip)
        yield Wanted(p + "ffn_gate_inp_shexp.weight", (e,))
        yield from ffn(il, e, shared, "_shexp", parts="gate up down")


class Qwen35Moe(ExpertArchitecture[Qwen35MoeHParams]):
    """``llama_model_qwen35moe``."""

    name = "qwen35moe"
    graph: type[ExpertGraph[Qwen35MoeHParams]] = Qwen35MoeGraph

    def load_hparams(self, k: Keys, release: Release) -> Qwen35MoeHParams:
        """``load_arch_hparams``."""
        k.u32_a_layer("rope.dimension_sections", 4)
        return Qwen35MoeHParams(**self.fields(k, release))


class Qwen35MoeMTP(MTPBlock[Qwen35MoeHParams], Qwen35Moe):
    """Its own MTP block."""

    graph = Qwen35MoeMTPGraph


ARCHITECTURE = Qwen35Moe(mtp=Qwen35MoeMTP())
