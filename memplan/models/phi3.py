"""Phi-3 and Phi-4: queries, keys and values in one weight, gate and up of the feed-forward layer too.

Follows src/models/phi3.cpp, v0.5.0; releases from b9842 on do the same. A sliding window is read and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.hparams import HParams, common
from memplan.llama.weights import Have, Wanted, qkv, rope_factors
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


class Phi3Graph(KVGraph[HParams]):
    """``llama_model_phi3::graph``."""

    unscaled = ("ffn_",)

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then the feed-forward part."""
        (inp,) = given
        factors = self.rope_factors(il)
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.rope(q, self.inp_pos, il, factors), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il, factors), "Kcur", il)
        q = self.cb(ops.scale(q), "Qcur", il)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield ops.add(cur, inp)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.cb(self.build_ffn(cur, il, "SWIGLU"), "ffn_out", il)
        return self.cb(ops.add(ffn_inp, cur), "l_out", il)


class Phi3(Architecture[HParams]):
    """``llama_model_phi3``."""

    name = "phi3"
    graph = Phi3Graph
    equal_heads = True

    def load_hparams(self, k: Keys, release: Release) -> HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        k.u32("attention.sliding_window", 0)
        return HParams(**fields)

    def block(self, hp: HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e = hp.n_embd
        p, ff = f"blk.{il}.", hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, e, hp.n_embd_k_gqa(il), hp.n_embd_k_gqa(il))
        yield Wanted(p + "attn_output.weight", (e, e))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield Wanted(p + "ffn_down.weight", (ff, e))
        yield Wanted(p + "ffn_up.weight", (e, 2 * ff))
        yield from rope_factors(il, hp.n_rot(), "longrope")


ARCHITECTURE = Phi3()
