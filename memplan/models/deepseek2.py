"""DeepSeek-V2, V3, R1, Kimi-K2, GLM-4.7-Flash: latent attention, leading dense layers, experts with shared ones.

Attention runs over latent keys, of which the values are a part: queries are multiplied with ``attn_k_b`` before,
results with ``attn_v_b`` afterwards. Follows src/models/deepseek2.cpp, v0.5.0 and b9842. Files from before these two
weights were apart are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.ggml import ops
from memplan.llama.graph.base import NORM, H
from memplan.llama.hparams import HParams, common, expert_gating
from memplan.llama.memory.base import Memory
from memplan.llama.weights import Have, Wanted, ffn, gate_up_exps
from memplan.models.base import Architecture, Cuts, ModelGraph
from memplan.models.mtp import MTPBlock, MTPHead, drafting_block

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.graph import AttnInputs
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


NEXTN_SINCE = 10289
"""The first build seen that knows of MTP blocks."""


@dataclass(frozen=True, kw_only=True)
class LatentHParams(HParams):
    """What models with latent attention have.

    ``n_lora_q``, ``n_lora_kv``: ranks of queries (0: none) and of keys and values.  ``n_embd_head_k_mla``,
    ``n_embd_head_v_mla``: sizes of a head outside the cache.  ``n_layer_dense_lead``: the first so many layers have no
    experts.  ``gating``: how experts are weighted.  ``scales_queries``: whether queries are scaled by position.
    """

    n_layer_dense_lead: int
    n_lora_q: int
    n_lora_kv: int
    n_embd_head_k_mla: int
    n_embd_head_v_mla: int
    n_ff_exp: tuple[int, ...]
    n_expert_shared: int
    expert_weights_scale: float
    expert_weights_norm: bool
    gating: str
    scales_queries: bool


def latent_fields(k: Keys, release: Release, nextn_since: int = 0) -> dict[str, Any]:
    """The fields of ``LatentHParams`` by name."""
    fields = common(k, release, nextn_since)
    n_all = fields["n_layer_all"]
    # files from before the key: GLM-4.7-Flash has sigmoids
    flash = n_all - fields["n_layer_nextn"] in (47, 48) and fields["n_vocab"] == 154880
    gating = expert_gating(k, 2 if flash else 1)
    head_k, head_v = k.u32("attention.key_length_mla", 0), k.u32("attention.value_length_mla", 0)
    k.check(head_k > 0 and head_v > 0, "attention.key_length_mla is missing, so the file is of before latent attention")
    k.check(head_k > fields["n_rot_full"], f"heads of {head_k} have no part that is not rotated")
    k.f32("attention.layer_norm_rms_epsilon")
    return fields | {
        "n_layer_dense_lead": k.u32("leading_dense_block_count", 0),
        "n_lora_kv": k.u32("attention.kv_lora_rank"),
        "n_embd_head_k_mla": head_k,
        "n_embd_head_v_mla": head_v,
        "n_ff_exp": k.u32_a_layer("expert_feed_forward_length", n_all),
        "n_expert_shared": k.u32("expert_shared_count"),
        "expert_weights_scale": k.f32("expert_weights_scale", 0.0),
        "expert_weights_norm": k.flag("expert_weights_norm", False),
        "gating": gating,
        "scales_queries": k.f32("attention.temperature_scale", 0.0) != 0.0,
    }


class LatentGraph(ModelGraph[H]):
    """Attention over latent keys, and feed-forward layers as these models have them; ``H`` is a ``LatentHParams``."""

    rope_type = NORM
    inp_pos: Tensor
    inp_out_ids: Tensor
    inp_attn: AttnInputs
    inp_attn_scale: Tensor | None = None

    def latent_queries(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Queries, (head size, heads, tokens), and what they are made of: through a low rank, or not."""
        hp, n = self.latent, cur.ne[1]
        qr = cur
        if hp.n_lora_q:
            qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "q", il)
            qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "q", il)
        q = self.cb(ops.mul_mat(self.w(il, "attn_q_b" if hp.n_lora_q else "attn_q"), qr), "q", il)
        if self.release.rope_at_offset:
            q = self.cb(ops.reshape(q, hp.n_embd_head_k_mla, hp.n_head[il], n), "q", il)
        return q, qr

    @property
    def latent(self) -> LatentHParams:
        """The hyper-parameters, as these pieces read them."""
        hp = self.hp
        assert isinstance(hp, LatentHParams)  # what the architecture loaded
        return hp

    def latent_qkv(self, q: Tensor, cur: Tensor, il: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries turned into the latent space, latent keys, and the part of these that are values."""
        hp, n = self.latent, cur.ne[1]
        rank, rot, head = hp.n_lora_kv, hp.n_rot(il), hp.n_embd_head_k_mla
        row = q.type.row_size
        nope, heads = head - rot, hp.n_head[il]
        q_nope = self.cb(ops.view_3d(q, (nope, heads, n), row(head), row(head * heads)), "q_nope", il)
        q_pe = self.cb(ops.view_3d(q, (rot, heads, n), row(head), row(head * heads), row(nope)), "q_pe", il)
        both = self.cb(ops.mul_mat(self.w(il, "attn_kv_a_mqa"), cur), "kv_cmpr_pe", il)
        kv = self.cb(ops.view_2d(both, rank, n, row(rank + rot), 0), "kv_cmpr", il)
        k_pe = self.cb(ops.view_3d(both, (rot, 1, n), row(rank + rot), row(rank + rot), row(rank)), "k_pe", il)
        q_pe = self.cb(self.rope(q_pe, self.inp_pos, il), "q_pe", il)
        k_pe = self.cb(self.rope(k_pe, self.inp_pos, il), "k_pe", il)
        kv = self.cb(self.norm(kv, self.w(il, "attn_kv_a_norm"), il), "kv_cmpr", il)
        q, k, v = self.absorbed(q_nope, q_pe, kv, k_pe, il)
        if self.inp_attn_scale is not None:
            q = self.cb(ops.mul(q, self.inp_attn_scale), "Qcur_attn_temp_scaled", il)
        return q, k, v

    def absorbed(
        self, q_nope: Tensor, q_pe: Tensor, kv: Tensor, k_pe: Tensor, il: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of parts: queries made latent, and both joined with what of them has a position."""
        q_nope = self.cb(ops.permute(q_nope, 0, 2, 1, 3), "q_nope_perm", il)
        latent = self.cb(ops.mul_mat(self.w(il, "attn_k_b"), q_nope), "q_nope_absorbed", il)
        latent = self.cb(ops.permute(latent, 0, 2, 1, 3), "q_nope_absorbed_perm", il)
        q = self.cb(ops.concat(latent, q_pe, 0), "Qcur", il)
        kv = self.cb(ops.reshape(kv, kv.ne[0], 1, kv.ne[1]), "kv_cmpr_reshape", il)
        k = self.cb(ops.concat(kv, k_pe, 0), "Kcur", il)
        return q, k, self.cb(kv, "Vcur", il)

    def feed_forward(self, cur: Tensor, il: int) -> Tensor:
        """A dense layer, or routed experts beside shared ones."""
        hp = self.latent
        if il < hp.n_layer_dense_lead:
            return self.cb(self.build_ffn(cur, il), "ffn_out", il)
        moe = self.build_moe_ffn(
            cur, il, gating=hp.gating, norm_w=hp.expert_weights_norm, w_scale=hp.expert_weights_scale
        )
        shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shexp", il)
        return self.cb(ops.add(moe, shared), "ffn_out", il)


class DeepSeek2Graph(LatentGraph[LatentHParams]):
    """``llama_model_deepseek2::graph``."""

    unscaled: tuple[str, ...] = ("ffn_", "output")

    def head(self) -> Tensor:
        """Embeddings."""
        cur = self.build_inp_embd()
        if self.hp.scales_queries:
            self.inp_attn_scale = self.build_inp_attn_scale()
        self.inp_pos = self.build_inp_pos()
        self.attention_inputs()
        self.inp_out_ids = self.build_inp_out_ids()
        return cur

    def attention_inputs(self) -> None:
        """Latent keys alone."""
        self.inp_attn = self.build_attn_inp_k(self.kv_cache())

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then a dense layer or experts."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, _ = self.latent_queries(cur, il)
        q, k, v = self.latent_qkv(q, cur, il)
        cur = self.build_attn_k(self.inp_attn, q, k, v, self.w(il, "attn_v_b"), il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        return self.cb(ops.add(self.feed_forward(cur, il), ffn_inp), "l_out", il)


class LatentMTPGraph(MTPHead[LatentHParams], DeepSeek2Graph):
    """``llama_model_deepseek2::graph_mtp``, and those of DeepSeek-V3.2 and GLM-5, which attend to all keys, too."""

    unscaled: tuple[str, ...] = ("ffn_",)


def latent_memory(build: CacheBuilder, layers: range) -> Memory:
    """Latent keys alone."""
    return Memory({"kv": build.kv(layers, values=False)})


class DeepSeek2(Architecture[LatentHParams]):
    """``llama_model_deepseek2``."""

    name = "deepseek2"
    graph = DeepSeek2Graph
    one_cache_type = True

    def load_hparams(self, k: Keys, release: Release) -> LatentHParams:
        """``load_arch_hparams``."""
        fields = latent_fields(k, release, NEXTN_SINCE)
        n_layer = fields["n_layer_all"] - fields["n_layer_nextn"]
        lite = n_layer in (26, 27) or (n_layer == 48 and fields["n_vocab"] == 128256)
        return LatentHParams(**fields, n_lora_q=0 if lite else k.u32("attention.q_lora_rank"))

    def block(self, hp: LatentHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        yield from latent_attention(hp, il)
        yield from experts(hp, have, il)

    def mtp_block(self, hp: LatentHParams, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """A layer's weights, and what drafts."""
        return drafting_block(self.block(hp, have, il, release), hp, have, il, skip=skip)

    def caches_mtp_blocks(self, release: Release) -> bool:
        """In older releases."""
        return release.caches_mtp_blocks

    def memory(self, hp: LatentHParams, build: CacheBuilder, release: Release) -> Memory:
        """Latent keys alone."""
        return latent_memory(build, self.cached_layers(hp, release))


class DeepSeek2MTP(MTPBlock[LatentHParams], DeepSeek2):
    """Its own MTP block."""

    graph = LatentMTPGraph
    since = NEXTN_SINCE
    memory = DeepSeek2.memory


def latent_attention(hp: LatentHParams, il: int) -> Iterator[Wanted]:
    """A layer's attention, and the norm before its feed-forward part."""
    p, e, heads, rot, rank = f"blk.{il}.", hp.n_embd, hp.n_head[il], hp.n_rot(il), hp.n_lora_kv
    yield Wanted(p + "attn_norm.weight", (e,))
    if hp.n_lora_q:
        yield Wanted(p + "attn_q_a_norm.weight", (hp.n_lora_q,))
    yield Wanted(p + "attn_kv_a_norm.weight", (rank,))
    if hp.n_lora_q:
        yield Wanted(p + "attn_q_a.weight", (e, hp.n_lora_q))
        yield Wanted(p + "attn_q_b.weight", (hp.n_lora_q, heads * hp.n_embd_head_k_mla))
    else:
        yield Wanted(p + "attn_q.weight", (e, heads * hp.n_embd_head_k_mla))
    yield Wanted(p + "attn_kv_a_mqa.weight", (e, rank + rot))
    yield Wanted(p + "attn_k_b.weight", (hp.n_embd_head_k_mla - rot, rank, heads))
    yield Wanted(p + "attn_v_b.weight", (rank, hp.n_embd_head_v_mla, heads))
    yield Wanted(p + "attn_output.weight", (heads * hp.n_embd_head_v_mla, e))
    yield Wanted(p + "ffn_norm.weight", (e,))


def experts(hp: LatentHParams, have: Have, il: int) -> Iterator[Wanted]:
    """A layer's feed-forward part: dense in the first layers, then routed and shared experts."""
    p, e, n, ff = f"blk.{il}.ffn_", hp.n_embd, hp.n_expert, hp.n_ff[il]
    if il < hp.n_layer_dense_lead:
        yield from ffn(il, e, ff)
        return
    ff = hp.n_ff_exp[il]
    shared = ff * hp.n_expert_shared
    yield Wanted(p + "gate_inp.weight", (e, n))
    yield Wanted(f"blk.{il}.exp_probs_b.bias", (n,), optional=True)
    yield Wanted(p + "down_exps.weight", (ff, e, n))
    yield from gate_up_exps(have, il, e, ff, n)
    yield from ffn(il, e, shared, "_shexp")


ARCHITECTURE = DeepSeek2(mtp=DeepSeek2MTP())
