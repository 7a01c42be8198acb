"""MiniMax-M3: grouped-query attention over blocks of tokens that an indexer chooses, experts with shared ones.

Follows src/models/minimax-m3.cpp, src/llama-kv-cache-msa.cpp and src/llama-graph.cpp (``build_attn_inp_kv_msa``),
v0.5.0 and v0.4.0. Without flash attention, or with slots that share one stream, attention is over all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.gguf.types import F16, F32, I32, I64
from memplan.llama.graph import AttnInputs
from memplan.llama.hparams import HParams, common, expert_gating
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import cells_read
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, ModelGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.gguf.types import GGMLType
    from memplan.llama.graph.base import Crossing
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class MiniMaxM3HParams(HParams):
    """``indexer_block_size``: tokens of a block.  ``indexer_top_k``: blocks that are chosen, for each head."""

    n_layer_dense_lead: int
    n_ff_exp: tuple[int, ...]
    n_expert_shared: int
    expert_weights_scale: float
    expert_weights_norm: bool
    gating: str
    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    indexer_block_size: int


class MiniMaxM3Graph(ModelGraph[MiniMaxM3HParams]):
    """``llama_model_minimax_m3::graph``."""

    unscaled = ("ffn_",)
    inp_attn: AttnInputs

    def head(self) -> Crossing:
        """Embeddings; and the mask in f32, where blocks are chosen for more than one token a stream."""
        cur, hp, n = self.build_inp_embd(), self.hp, self.batch.n_tokens
        self.inp_pos = self.build_inp_pos()
        cache = self.kv_cache("base")
        unshared = self.batch.n_seqs == 1 or cache.n_stream > 1
        self.sparse = "FLASH_ATTN" in self.fused and unshared
        self.inp_attn = self.build_attn_inp_kv(cache)
        if not self.sparse:
            self.inp_out_ids = self.build_inp_out_ids()
            return cur
        self.idx_idxs = ops.new_input(I64, n, name="attn_inp_k_idxs_idx")
        mask = self.inp_attn.kq_mask
        self.n_kv, self.n_tps, self.ns = mask.ne[0], mask.ne[1], mask.ne[3]
        # positions that are held: none yet when a context is reserved (llama_kv_cache_msa_context::get_n_pos)
        block = hp.indexer_block_size
        # GGML_PAD, which pads to powers of two alone
        self.n_ps = (cells_read(self.n_kv, self.batch.filled or 0) + block - 1) & ~(block - 1)
        self.nblk = self.n_ps // block
        self.bias = ops.new_input(F32, self.nblk, n)
        self.pos_mask = ops.new_input(F32, self.n_ps, n)
        self.pos_slot = ops.new_input(I32, self.n_ps, self.ns)
        if self.n_tps == 1:
            self.pos_slot_f = ops.new_input(F32, self.n_ps, self.ns)
            self.inp_out_ids = self.build_inp_out_ids()
            return cur
        self.cell_blk = ops.new_input(I32, self.n_kv, self.ns)
        mask = ops.cast(mask, F32)
        self.inp_out_ids = self.build_inp_out_ids()
        return cur, mask

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, over chosen blocks in all but the first layers; then a dense layer or experts."""
        inp, *more = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        if self.sparse and il >= self.hp.n_layer_dense_lead:
            cur = self.sparse_attention(cur, q, k, v, more[0] if more else None, il)
        else:
            cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp, *more = yield (self.cb(ops.add(cur, inp), "ffn_inp", il), *more)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        return self.cb(ops.add(self.feed_forward(cur, il), ffn_inp), "l_out", il), *more

    def tail(self, *given: Tensor) -> Tensor:
        """The logits."""
        return self.build_output(given[0])

    def feed_forward(self, cur: Tensor, il: int) -> Tensor:
        """A dense layer, or routed experts beside shared ones."""
        hp = self.hp
        if il < hp.n_layer_dense_lead:
            return self.cb(self.build_ffn(cur, il, "SWIGLU_OAI"), "ffn_out", il)
        moe = self.build_moe_ffn(
            cur, il, gating=hp.gating, act="SWIGLU_OAI", norm_w=hp.expert_weights_norm, w_scale=hp.expert_weights_scale
        )
        shared = self.cb(self.build_ffn(cur, il, "SWIGLU_OAI", suffix="_shexp"), "ffn_shexp", il)
        return self.cb(ops.add(moe, shared), "ffn_out", il)

    def sparse_attention(self, cur: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, il: int) -> Tensor:
        """Attention over the blocks that the indexer chooses; ``mask``: in f32, for more than one token a stream."""
        hp, graph, inp, n = self.hp, self.graph, self.inp_attn, cur.ne[1]
        size, heads = hp.indexer_head_size, hp.indexer_n_head
        iq, ik = self.mm(il, "indexer.q_proj", cur), self.mm(il, "indexer.k_proj", cur)
        iq = self.norm(ops.reshape(iq, size, heads, n), self.w(il, "indexer.q_norm"), il)
        ik = self.norm(ops.reshape(ik, size, 1, n), self.w(il, "indexer.k_norm"), il)
        iq, ik = self.rope(iq, self.inp_pos, il), self.rope(ik, self.inp_pos, il)
        graph.expand(self.cpy_k("cache_k@idx", ik, self.idx_idxs, il))
        keys = self.get_k("cache_k@idx", size, 1, il)
        if inp.k_rot is not None:
            q, k = self.hadamard(q, inp.k_rot), self.hadamard(k, inp.k_rot)
        if inp.v_rot is not None:
            v = self.hadamard(v, inp.v_rot)
        for t in (q, k, v):
            graph.expand(t)
        assert inp.v_idxs is not None  # a cache of values has them
        graph.expand(self.cpy_k("cache_k", k, inp.k_idxs, il))
        graph.expand(self.cpy_v("cache_v", v, inp.v_idxs, il))
        k = self.get_k("cache_k", hp.n_embd_head_k(il), hp.n_head_kv[il], il)
        v = self.get_v("cache_v", hp.n_embd_head_v(il), hp.n_head_kv[il], il)
        if mask is None:
            out = self.attend_to_gathered(iq, keys, q, k, v, il)
        else:
            streams = [self.attend_to_blocks(iq, keys, q, k, v, mask, at, il) for at in range(self.ns)]
            out = streams[0]
            for other in streams[1:]:
                out = ops.concat(out, other, 1)
        if inp.v_rot is not None:
            out = self.hadamard(out, inp.v_rot)
        return self.mm(il, "attn_output", self.cb(out, "kqv_out", il))

    def attend_to_gathered(self, iq: Tensor, keys: Tensor, q: Tensor, k: Tensor, v: Tensor, il: int) -> Tensor:
        """One token a stream: the chosen blocks' keys and values are gathered."""
        hp, ns, n_ps, nblk, blk = self.hp, self.ns, self.n_ps, self.nblk, self.hp.indexer_block_size
        size, heads, n_top = hp.indexer_head_size, hp.indexer_n_head, min(hp.indexer_top_k, self.nblk)
        d, n_head_kv = k.ne[0], k.ne[1]
        rows = ops.view_3d(keys, (size, self.n_kv, ns), keys.nb[2], keys.nb[3])
        by_pos = ops.get_rows(rows, self.pos_slot)
        scores = ops.mul_mat(ops.reshape(by_pos, size, n_ps, 1, ns), ops.reshape(iq, size, heads, 1, ns), f32=True)
        scores = ops.add_inplace(scores, ops.reshape(self.pos_mask, n_ps, 1, 1, ns))
        best = self.cb(ops.pool_2d(scores, (blk, 1), (blk, 1), (0, 0)), "msa_bs", il)
        chosen = ops.top_k(ops.add(best, ops.reshape(self.bias, nblk, 1, 1, ns)), n_top)
        first = ops.reshape(ops.scale(ops.cast(chosen, F32)), 1, n_top, heads, ns)
        tokens = ops.add(ops.repeat_4d(first, (blk, n_top, heads, ns)), ops.reshape(ops.arange(blk), blk, 1, 1))
        token_rows = ops.cast(ops.reshape(tokens, blk * n_top * heads, ns), I32)
        slots = ops.get_rows(ops.reshape(self.pos_slot_f, 1, n_ps, ns), token_rows)
        slots = ops.reshape(slots, blk, n_top, heads, ns)
        rows_of_heads = ops.add(ops.scale(slots), ops.reshape(ops.arange(n_head_kv), 1, 1, heads))
        cache_rows = ops.cast(ops.reshape(rows_of_heads, blk * n_top * heads, ns), I32)
        k3 = ops.view_3d(k, (d, n_head_kv * self.n_kv, ns), k.nb[1], k.nb[3])
        v3 = ops.view_3d(v, (d, n_head_kv * self.n_kv, ns), v.nb[1], v.nb[3])
        kg, vg = ops.get_rows(k3, cache_rows), ops.get_rows(v3, cache_rows)
        mg = ops.get_rows(ops.reshape(self.pos_mask, 1, n_ps, ns), token_rows)

        def gathered(t: Tensor, cached: GGMLType) -> Tensor:
            wanted = F16 if cached.is_quantized else cached
            t = ops.reshape(t, d, blk * n_top, 1, heads * ns)
            return t if t.type is wanted else ops.cast(t, wanted)

        mask = ops.cast(ops.reshape(mg, blk * n_top, 1, 1, heads * ns), F16)
        return self.attend_by_group(q, gathered(kg, k.type), gathered(vg, v.type), mask, il)

    def attend_to_blocks(
        self, iq: Tensor, keys: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, at: int, il: int
    ) -> Tensor:
        """One stream of a prompt: all keys, under a mask that leaves the chosen blocks open."""
        hp, n_kv, n_ps, n_tps, nblk = self.hp, self.n_kv, self.n_ps, self.n_tps, self.nblk
        size, heads, blk = hp.indexer_head_size, hp.indexer_n_head, hp.indexer_block_size
        n_top, first = min(hp.indexer_top_k, nblk), at * n_tps
        iq = ops.view_3d(iq, (size, heads, n_tps), iq.nb[1], iq.nb[2], first * iq.nb[2])
        ik = ops.view_2d(keys, size, n_kv, keys.nb[2], at * keys.nb[3])
        slots = ops.view_1d(self.pos_slot, n_ps, at * self.pos_slot.nb[1])
        nb = self.pos_mask.nb[1]
        pos_mask = ops.view_3d(self.pos_mask, (n_ps, 1, n_tps), nb, nb, first * nb)
        cells = ops.view_1d(self.cell_blk, n_kv, at * self.cell_blk.nb[1])
        own_mask = ops.view_3d(mask, (n_kv, n_tps, 1), mask.nb[1], mask.nb[3], at * mask.nb[3])
        nb = self.bias.nb[1]
        bias = ops.view_3d(self.bias, (nblk, 1, n_tps), nb, nb, first * nb)
        q = ops.view_3d(q, (q.ne[0], q.ne[1], n_tps), q.nb[1], q.nb[2], first * q.nb[2])
        k, v = (ops.view(t, (t.ne[0], t.ne[1], n_kv, 1), t.nb, at * t.nb[3]) for t in (k, v))
        scores = ops.mul_mat(ops.get_rows(ik, slots), ops.reshape(iq, size, heads * n_tps), f32=True)
        scores = ops.add_inplace(ops.reshape(scores, n_ps, heads, n_tps), pos_mask)
        best = self.cb(ops.pool_2d(scores, (blk, 1), (blk, 1), (0, 0)), "msa_bs", il)
        chosen = ops.top_k(self.cb(ops.add(best, bias), "msa_bsf", il), n_top)
        closed = ops.repeat_4d(ops.cast(ops.scale(bias), F16), (nblk, heads, n_tps, 1))
        zero = ops.scale(ops.cast(chosen, F32))
        blocks = ops.set_rows(
            ops.reshape(closed, 1, nblk, heads * n_tps),
            ops.reshape(zero, 1, n_top, heads * n_tps),
            ops.reshape(chosen, n_top, heads * n_tps),
        )
        blocks = ops.cont(ops.permute(ops.reshape(blocks, nblk, heads, n_tps), 0, 2, 1, 3))
        self.cb(blocks, "msa_block_mask", il)
        by_block = ops.cont(ops.transpose(ops.reshape(blocks, nblk, n_tps * heads)))
        by_cell = ops.cont(ops.transpose(ops.get_rows(by_block, cells)))
        full = ops.add_inplace(ops.reshape(by_cell, n_kv, n_tps, heads), own_mask)
        full = self.cb(ops.cast(ops.reshape(full, n_kv, n_tps, 1, heads), F16), "msa_mask4", il)
        k, v = (ops.permute(t, 0, 3, 1, 2) for t in (k, v))
        return self.attend_by_group(q, k, v, full, il)

    def attend_by_group(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, il: int) -> Tensor:
        """Flash attention with a group of heads for a sequence (``build_attn_msa_fa``)."""
        d, n_head, n = q.ne[0], q.ne[1], q.ne[2]
        groups, n_kv_head = k.ne[3], self.hp.n_head_kv[il]
        each = n_head // n_kv_head
        q = ops.reshape(q, d, each, groups, n_head * n // (each * groups))
        out = ops.flash_attn_ext(ops.permute(q, 0, 2, 3, 1), k, v, mask, None, 0)
        out = ops.permute(self.cb(out, "msa_fattn", il), 0, 1, 3, 2)
        if not out.is_contiguous:
            out = ops.cont(out)
        return ops.reshape(out, d * n_head, n)


class MiniMaxM3(Architecture[MiniMaxM3HParams]):
    """``llama_model_minimax_m3``."""

    name = "minimax-m3"
    tied_output = False
    since = 10142
    graph = MiniMaxM3Graph
    equal_heads = True
    long_graphs = True

    def load_hparams(self, k: Keys, release: Release) -> MiniMaxM3HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        k.u32("expert_gating_func")
        block = k.u32("attention.indexer.block_size")
        k.check(block > 0, "attention.indexer.block_size is zero")
        k.u32("attention.indexer.local_blocks")
        return MiniMaxM3HParams(
            **fields,
            n_layer_dense_lead=k.u32("leading_dense_block_count", 0),
            n_ff_exp=k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"]),
            n_expert_shared=k.u32("expert_shared_count"),
            expert_weights_scale=k.f32("expert_weights_scale", 0.0),
            expert_weights_norm=k.flag("expert_weights_norm", False),
            gating=expert_gating(k),
            indexer_n_head=k.u32("attention.indexer.head_count"),
            indexer_head_size=k.u32("attention.indexer.key_length"),
            indexer_top_k=k.u32("attention.indexer.top_k"),
            indexer_block_size=block,
        )

    def block(self, hp: MiniMaxM3HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n, size = hp.n_embd, hp.n_expert, hp.indexer_head_size
        p, heads, ff = f"blk.{il}.", hp.n_embd_head_k(il) * hp.n_head[il], hp.n_ff_exp[il]
        yield from qkv(have, il, e, heads, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il))
        yield Wanted(p + "attn_output.weight", (heads, e))
        yield Wanted(p + "attn_norm.weight", (e,))
        yield Wanted(p + "attn_q_norm.weight", (hp.n_embd_head_k(il),))
        yield Wanted(p + "attn_k_norm.weight", (hp.n_embd_head_k(il),))
        yield Wanted(p + "ffn_norm.weight", (e,))
        if il < hp.n_layer_dense_lead:
            yield from ffn(il, e, hp.n_ff[il])
            return
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield Wanted(p + "exp_probs_b.bias", (n,))
        yield from ffn(il, e, ff, "_exps", n)
        shared = ff * hp.n_expert_shared
        yield from ffn(il, e, shared, "_shexp")
        yield Wanted(p + "indexer.q_proj.weight", (e, hp.indexer_n_head * size))
        yield Wanted(p + "indexer.k_proj.weight", (e, size))
        yield Wanted(p + "indexer.q_norm.weight", (size,))
        yield Wanted(p + "indexer.k_norm.weight", (size,))

    def memory(self, hp: MiniMaxM3HParams, build: CacheBuilder, release: Release) -> Memory:
        """Keys and values, and the indexer's in all but the first layers (``llama_kv_cache_msa``)."""
        sparse = range(hp.n_layer_dense_lead, hp.n_layer)
        idx = build.kv(sparse, name="idx", head=hp.indexer_head_size)
        return Memory({"base": build.kv(range(hp.n_layer)), "idx": idx})


ARCHITECTURE = MiniMaxM3()
