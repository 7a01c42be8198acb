"""DeepSeek-V4's graph, tensor by tensor, with the names llama.cpp gives them.

Follows ``src/models/deepseek4.cpp`` and the shared pieces of ``src/llama-graph.cpp`` (v0.5.0): hyper-connections, the
three kinds of attention (raw window, CSA with its indexer, HCA), compressors with their states, routed and shared
experts, output head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F16, F32, I32, I64, GGMLType
from memplan.llama.context import Batch, Fused

if TYPE_CHECKING:
    from memplan.llama.hparams import HParams

CSA_RATIO = 4
HCA_RATIO = 128
ROPE_NORMAL = 0


@dataclass(frozen=True, slots=True)
class Compressed:
    """Sizes of one compressed cache: ratio, state rows a stream, cells a stream, snapshots of the state."""

    ratio: int
    state_rows: int
    cells: int
    overlap: bool
    n_rs_seq: int = 0


class Inputs:
    """The inputs of one compressed cache (``dsv4_build_comp_inputs``), sized for the worst case of a batch."""

    __slots__ = (
        "k_rot",
        "kq_mask",
        "state_persist_dst_idxs",
        "state_persist_src_idxs",
        "state_pos",
        "state_read_idxs",
        "state_restore",
        "state_snapshot",
        "state_write_idxs",
        "state_write_pos",
    )

    def __init__(self, name: str, c: Compressed, batch: Batch, n_stream: int, mask_type: GGMLType) -> None:
        # every sequence may end within a block of its own (dsv4_build_reserve_comp_plan)
        n_blocks = batch.n_tokens // c.ratio + max(1, batch.n_seqs)
        n_persist = min(batch.n_tokens, c.state_rows * n_stream)
        n_read = (2 if c.overlap else 1) * c.ratio * n_blocks
        prefix = f"dsv4_{name}_"
        self.state_pos = ops.new_input(I32, batch.n_tokens, name=prefix + "state_pos")
        self.state_persist_src_idxs = ops.new_input(I32, n_persist, name=prefix + "state_persist_src_idxs")
        self.state_persist_dst_idxs = ops.new_input(I32, n_persist, name=prefix + "state_persist_dst_idxs")
        self.state_restore = self._idxs(prefix + "state_restore", c.state_rows * n_stream * min(c.n_rs_seq, 1))
        self.state_snapshot = self._idxs(prefix + "state_snapshot", c.state_rows * n_stream * c.n_rs_seq)
        self.state_read_idxs = ops.new_input(I32, n_read, name=prefix + "state_read_idxs")
        self.state_write_idxs = ops.new_input(I64, n_blocks, name=prefix + "state_write_idxs")
        self.state_write_pos = ops.new_input(I32, n_blocks, name=prefix + "state_write_pos")
        self.kq_mask = ops.new_input(
            mask_type, c.cells, batch.n_tokens // n_stream, 1, n_stream, name=prefix + "kq_mask"
        )
        self.k_rot: Tensor | None = None

    @staticmethod
    def _idxs(name: str, n: int) -> tuple[Tensor, Tensor] | None:
        """Row numbers to copy from and to; none when there is nothing to copy."""
        if n == 0:
            return None
        return ops.new_input(I32, n, name=f"{name}_src_idxs"), ops.new_input(I32, n, name=f"{name}_dst_idxs")


def hadamard(cur: Tensor, rot: Tensor) -> Tensor:
    """Rows turned by a Hadamard matrix (``llama_mul_mat_hadamard``)."""
    n = rot.ne[0]
    rows = cur.nelements // n
    res = ops.reshape(cur, n, rows) if cur.is_contiguous else ops.cont(cur, n, rows)
    return ops.reshape(ops.mul_mat(rot, res), *cur.ne)


class DeepSeek4Graph:
    """Builds one graph; see ``build``.

    Args:
        hp: the model.  batch: what it is reserved for.  fused: which ops are fused.
        source: makes the leaf of a weight, cache or state by role and layer (-1: no layer's), with its buffer.
        raw_cells: cells a stream of the raw cache.  csa, hca: the compressed caches.
        type_k: the caches' type.
    Attributes:
        graph: the nodes and leafs.
        fused_nodes: fused op, its node and its layer, in order (``add_fused_node``).
        pinned: nodes that llama.cpp's callback would pin to their layer's device: norms and each layer's last node.
        on_host: nodes pinned to the CPU when the caches are not offloaded.
    """

    def __init__(
        self,
        hp: HParams,
        batch: Batch,
        fused: Fused,
        source: Callable[[str, int], Tensor],
        raw_cells: int,
        csa: Compressed,
        hca: Compressed,
        type_k: GGMLType,
    ) -> None:
        self.hp = hp
        self.batch = batch
        self.fused = fused
        self.source = source
        self._leafs: dict[tuple[str, int], Tensor] = {}
        self.raw_cells = raw_cells
        self.csa_size = csa
        self.hca_size = hca
        self.type_k = type_k
        self.n_stream = max(1, batch.n_seqs)
        self.graph = Graph()
        self.fused_nodes: list[tuple[str, Tensor, int]] = []
        self.pinned: list[tuple[Tensor, int]] = []
        self.on_host: list[Tensor] = []

    # --- small pieces -------------------------------------------------------------------------------------------------

    @staticmethod
    def cb(t: Tensor, name: str, il: int) -> Tensor:
        """Name ``t`` as llama.cpp's callback does."""
        t.name = f"{name}-{il}" if il >= 0 else name
        return t

    def leaf(self, role: str, il: int = -1) -> Tensor:
        """The one leaf of this graph for a weight, cache or state."""
        t = self._leafs.get((role, il))
        if t is None:
            t = self._leafs[role, il] = self.source(role, il)
        return t

    def w(self, il: int, name: str) -> Tensor:
        """A layer's weight."""
        return self.leaf(f"{name}.weight", il)

    def norm(self, cur: Tensor, weight: Tensor, il: int) -> Tensor:
        """RMS norm with weights (``build_norm``)."""
        cur = ops.rms_norm(cur)
        self.cb(cur, "norm", il)
        self.pinned.append((cur, il))
        return ops.mul(cur, weight)

    def rope(self, cur: Tensor, pos: Tensor, back: bool = False) -> Tensor:
        """Rotary positions on the last ``n_rot`` elements of each head."""
        n_rot = self.hp.n_rot
        return ops.rope(cur, pos, n_rot, ROPE_NORMAL, offset=cur.ne[0] - n_rot, back=back)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def build_inputs(self) -> Tensor:
        """Token embeddings, positions, masks, indices (``build_inp_*``, ``build_inp_dsv4``)."""
        hp, n, n_stream = self.hp, self.batch.n_tokens, self.n_stream
        graph = self.graph
        self.inp_tokens = ops.new_input(I32, n, name="inp_tokens")
        embd_in = ops.new_input(F32, hp.n_embd, n, name="inp_embd")
        cur = ops.get_rows(self.leaf("token_embd.weight"), self.inp_tokens)
        # both ways in are part of the graph; the one with embeddings is not computed (ggml_build_forward_select)
        graph.expand(cur)
        graph.expand(embd_in)
        self.cb(cur, "embd", -1)
        self.inp_pos = ops.new_input(I32, n, name="inp_pos")
        self.out_ids = ops.new_input(I32, self.batch.n_outputs, name="out_ids")
        mask_type = F16 if self.fused.flash_attn else F32
        self.k_idxs = ops.new_input(I64, n)
        self.raw_mask = ops.new_input(mask_type, self.raw_cells, n // n_stream, 1, n_stream, name="attn_inp_kq_mask")
        self.raw_rot = self.k_rot(hp.n_embd_head_k)
        self.csa = Inputs("csa", self.csa_size, self.batch, n_stream, mask_type)
        self.hca = Inputs("hca", self.hca_size, self.batch, n_stream, mask_type)
        self.lid = Inputs("lid", self.csa_size, self.batch, n_stream, F16 if self.fused.lid else F32)
        self.csa.k_rot = self.k_rot(hp.n_embd_head_k)
        self.hca.k_rot = self.k_rot(hp.n_embd_head_k)
        self.lid.k_rot = self.k_rot(hp.indexer_head_size)
        graph.expand(self.raw_mask)
        return cur

    def k_rot(self, n_embd_head: int) -> Tensor | None:
        """The rotation a cache needs: quantised ones and the indexer's (``llama_kv_cache``, ``build_input_k_rot``)."""
        quantised = self.type_k.is_quantized and n_embd_head % 64 == 0
        if not quantised and n_embd_head != self.hp.indexer_head_size:
            return None
        n = 64
        while n_embd_head % (2 * n) == 0:
            n *= 2
        return ops.new_input(F32, n, n, name="attn_inp_k_rot")

    # --- hyper-connections --------------------------------------------------------------------------------------------

    @staticmethod
    def hc_affine(x: Tensor, scale: Tensor, base: Tensor) -> Tensor:
        """``x`` scaled and shifted (``dsv4_hc_affine``)."""
        return ops.add(ops.mul(x, scale), base)

    def hc_sum(self, x: Tensor, weights: Tensor, il: int) -> Tensor:
        """The streams summed with weights (``build_hc_pre``, first form)."""
        n_embd, hc, n, _ = x.ne
        if self.fused.hc_pre and il >= 0:
            res = ops.dsv4_hc_pre(x, weights)
            self.fused_nodes.append(("DSV4_HC_PRE", res, il))
            return res
        out: Tensor | None = None
        for i in range(hc):
            xh = ops.view_2d(x, n_embd, n, x.nb[2], i * x.nb[1])
            wh = ops.view_2d(weights, 1, n, weights.nb[1], i * weights.nb[0])
            cur = ops.mul(xh, wh)
            out = cur if out is None else ops.add(out, cur)
        assert out is not None  # hc is 4
        return out

    def hc_sinkhorn(self, comb: Tensor) -> Tensor:
        """Rows and columns normalised in turn (``build_hc_sinkhorn``)."""
        comb = ops.soft_max(comb)
        eps = ops.fill(ops.new(F32, 1))
        comb = ops.add(comb, eps)
        for i in range(self.hp.hc_sinkhorn_iters):
            if i:
                comb = ops.div(comb, ops.add(ops.sum_rows(comb), eps))
            by_column = ops.cont(ops.permute(comb, 1, 0, 2, 3))
            col_sum = ops.add(ops.sum_rows(by_column), eps)
            comb = ops.div(comb, ops.permute(col_sum, 1, 0, 2, 3))
        return comb

    def hc_pre(self, x: Tensor, part: str, il: int) -> tuple[Tensor, Tensor, Tensor]:
        """Input of a block, and the weights with which its output goes back (``build_hc_pre``)."""
        hp = self.hp
        hc = hp.hc_mult
        n = x.ne[2]
        fn, scale, base = (self.w(il, f"hc_{part}_{which}") for which in ("fn", "scale", "base"))
        flat = ops.rms_norm(ops.reshape(x, hc * hp.n_embd, n))
        mixes = self.cb(ops.mul_mat(fn, flat), "hc_mixes", il)

        def columns(n0: int, first: int) -> Tensor:
            return ops.view_2d(mixes, n0, n, mixes.nb[1], mixes.type.row_size(first))

        pre = self.hc_affine(columns(hc, 0), ops.view_1d(scale, 1, 0), ops.view_1d(base, hc, 0))
        pre = self.cb(ops.scale(ops.unary(pre, "SIGMOID")), "hc_pre", il)
        post = self.hc_affine(columns(hc, hc), ops.view_1d(scale, 1, 4), ops.view_1d(base, hc, 4 * hc))
        post = self.cb(ops.scale(ops.unary(post, "SIGMOID")), "hc_post", il)
        if self.fused.hc_comb:
            comb = ops.dsv4_hc_comb(mixes, scale, base, hc)
            self.fused_nodes.append(("DSV4_HC_COMB", comb, il))
        else:
            comb = self.hc_affine(
                columns(hc * hc, 2 * hc), ops.view_1d(scale, 1, 8), ops.view_1d(base, hc * hc, 8 * hc)
            )
            comb = self.hc_sinkhorn(ops.reshape(comb, hc, hc, n))
        self.cb(comb, "hc_comb", il)
        return self.hc_sum(x, pre, il), post, comb

    def hc_post(self, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, il: int) -> Tensor:
        """The block's output spread over the streams again (``build_hc_post``)."""
        if self.fused.hc_post:
            res = ops.dsv4_hc_post(x, residual, post, comb)
            self.fused_nodes.append(("DSV4_HC_POST", res, il))
            return res
        hc = self.hp.hc_mult
        n_embd, n = x.ne[0], x.ne[1]
        out: Tensor | None = None
        for dst in range(hc):
            cur = ops.mul(x, ops.view_2d(post, 1, n, post.nb[1], dst * post.nb[0]))
            for src in range(hc):
                res_src = ops.view_2d(residual, n_embd, n, residual.nb[2], src * residual.nb[1])
                mix = ops.view_2d(comb, 1, n, comb.nb[2], dst * comb.nb[0] + src * comb.nb[1])
                cur = ops.add(cur, ops.mul(res_src, mix))
            cur = ops.reshape(cur, n_embd, 1, n)
            out = cur if out is None else ops.concat(out, cur, 1)
        assert out is not None  # hc is 4
        return out

    def hc_head(self, x: Tensor) -> Tensor:
        """The streams joined for the output (``build_hc_head``)."""
        flat = ops.rms_norm(ops.reshape(x, self.hp.hc_mult * self.hp.n_embd, x.ne[2]))
        mixes = self.cb(ops.mul_mat(self.leaf("output_hc_fn.weight"), flat), "hc_head_mixes", -1)
        pre = self.hc_affine(mixes, self.leaf("output_hc_scale.weight"), self.leaf("output_hc_base.weight"))
        pre = self.cb(ops.scale(ops.unary(pre, "SIGMOID")), "hc_head_pre", -1)
        return self.hc_sum(x, pre, -1)

    # --- compressors --------------------------------------------------------------------------------------------------

    def pool(self, values: Tensor, scores: Tensor, inp: Inputs, norm: Tensor, name: str, il: int) -> Tensor:
        """Blocks of rows weighted into one row each, normed and turned to their position."""
        values = ops.cont(ops.permute(values, 1, 0, 2, 3))
        scores = ops.cont(ops.permute(scores, 1, 0, 2, 3))
        comp = ops.sum_rows(ops.mul(values, ops.soft_max(scores)))
        comp = self.cb(ops.cont(ops.permute(comp, 1, 0, 2, 3)), name, il)
        comp = self.cb(self.norm(comp, norm, il), name, il)
        return self.cb(self.rope(comp, inp.state_write_pos), name, il)

    def compress_hca(self, kv_state: Tensor, score_state: Tensor, norm: Tensor, il: int) -> Tensor:
        """``build_hca_compressed_kv_from_state``."""
        inp, name, n = self.hca, "hca_state_compress", self.hp.n_embd_head_k
        n_blocks = inp.state_write_pos.ne[0]
        kv = ops.reshape(ops.get_rows(kv_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        score = ops.reshape(ops.get_rows(score_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        return self.pool(self.cb(kv, name, il), self.cb(score, name, il), inp, norm, name, il)

    def compress_overlap(
        self, kv_state: Tensor, score_state: Tensor, inp: Inputs, norm: Tensor, n: int, name: str, il: int
    ) -> Tensor:
        """``build_overlap_compressed_kv_from_state``: each block also reads the one before."""
        n_blocks = inp.state_write_pos.ne[0]
        n_read = CSA_RATIO * n_blocks
        kv_state = self.append_zero_row(kv_state)
        score_state = self.append_zero_row(score_state)
        kv_rows = ops.get_rows(kv_state, inp.state_read_idxs)
        score_rows = ops.get_rows(score_state, inp.state_read_idxs)

        def half(rows: Tensor, offset: int) -> Tensor:
            part = ops.cont(ops.view_2d(rows, n, n_read, rows.nb[1], offset))
            return ops.reshape(part, n, CSA_RATIO, n_blocks)

        current = n_read * kv_rows.nb[1] + kv_rows.type.row_size(n)
        kv_prev = self.cb(half(kv_rows, 0), name, il)
        score_prev = self.cb(half(score_rows, 0), name, il)
        kv_cur = half(kv_rows, current)
        score_cur = half(score_rows, current)
        values = ops.concat(kv_prev, kv_cur, 1)
        scores = ops.concat(score_prev, score_cur, 1)
        return self.pool(values, scores, inp, norm, name, il)

    @staticmethod
    def append_zero_row(t: Tensor) -> Tensor:
        """``dsv4_append_zero_row``: what a block before the first one reads."""
        row = ops.reshape(ops.scale(ops.view_1d(t, t.ne[0], 0)), t.ne[0], 1)
        return ops.concat(t, row, 1)

    def state(self, which: str, part: str, il: int) -> Tensor:
        """The compressor state's rows of all streams and snapshots (``get_kv_all``, ``get_score_all``)."""
        t = self.leaf(f"dsv4_{which}_state_{part}", il)
        return ops.view_2d(t, t.ne[0], t.ne[1] * t.ne[2], t.nb[1], 0)

    def copy_state(self, which: str, part: str, source: Tensor, idxs: tuple[Tensor, Tensor], il: int) -> Tensor:
        """Rows of ``source`` copied into the state."""
        rows = ops.get_rows(source, idxs[0])
        return ops.set_rows(self.state(which, part, il), rows, idxs[1])

    def restored_state(self, which: str, inp: Inputs, il: int) -> tuple[Tensor, Tensor]:
        """The state as the batch finds it: keys and scores (``dsv4_build_state_restore``)."""
        kv, score = self.state(which, "kv", il), self.state(which, "score", il)
        if inp.state_restore is not None:
            kv = self.copy_state(which, "kv", kv, inp.state_restore, il)
            score = self.copy_state(which, "score", score, inp.state_restore, il)
        return kv, score

    def with_new_rows(self, which: str, restored: Tensor, new: Tensor) -> Tensor:
        """The state's current rows, snapshots left out, with the batch's new ones behind them."""
        size = self.hca_size if which == "hca" else self.csa_size
        n_rows = size.state_rows * self.n_stream
        return ops.concat(ops.view_2d(restored, restored.ne[0], n_rows, restored.nb[1], 0), new, 1)

    def persist(
        self, which: str, inp: Inputs, restored: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], il: int
    ) -> None:
        """What the next batch needs goes into the state, snapshots first (``dsv4_build_state_snapshot``)."""
        parts = ("kv", "score")
        if inp.state_snapshot is not None:
            for part, old, cur in zip(parts, restored, new, strict=True):
                self.graph.expand(self.copy_state(which, part, ops.concat(old, cur, 1), inp.state_snapshot, il))
        idxs = (inp.state_persist_src_idxs, inp.state_persist_dst_idxs)
        for part, cur in zip(parts, new, strict=True):
            self.graph.expand(self.copy_state(which, part, cur, idxs, il))

    def new_state(self, which: str, prefix: str, inp: Inputs, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """The batch's rows for a compressor: keys, and scores with their position's bias."""
        kv = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_kv"), cur), f"{which}_state_kv", il)
        score = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_gate"), cur), f"{which}_state_score", il)
        ape_rows = ops.get_rows(self.w(il, f"{prefix}_compressor_ape"), inp.state_pos)
        return kv, self.cb(ops.add(score, ape_rows), f"{which}_state_score_ape", il)

    def write_compressed(self, which: str, inp: Inputs, comp: Tensor, il: int) -> None:
        """New compressed rows into their cache."""
        if inp.k_rot is not None:
            comp = self.cb(hadamard(comp, inp.k_rot), f"{which}_state_compress_rot", il)
        self.graph.expand(self.cpy_k(f"cache_k@{which}", comp, inp.state_write_idxs, il))

    def csa_compressors(self, cur: Tensor, il: int) -> None:
        """A CSA layer's two compressors: the attention's and the indexer's."""
        hp = self.hp
        for which, prefix, inp, n in (
            ("csa", "attn", self.csa, hp.n_embd_head_k),
            ("lid", "indexer", self.lid, hp.indexer_head_size),
        ):
            new = self.new_state(which, prefix, inp, cur, il)
            restored = self.restored_state(which, inp, il)
            kv, score = (self.with_new_rows(which, r, c) for r, c in zip(restored, new, strict=True))
            norm = self.w(il, f"{prefix}_compressor_norm")
            comp = self.compress_overlap(kv, score, inp, norm, n, f"{which}_state_compress", il)
            self.write_compressed(which, inp, comp, il)
            self.persist(which, inp, restored, new, il)

    def hca_compressor(self, cur: Tensor, il: int) -> None:
        """An HCA layer's compressor."""
        new = self.new_state("hca", "attn", self.hca, cur, il)
        restored = self.restored_state("hca", self.hca, il)
        kv, score = (self.with_new_rows("hca", r, c) for r, c in zip(restored, new, strict=True))
        comp = self.compress_hca(kv, score, self.w(il, "attn_compressor_norm"), il)
        self.write_compressed("hca", self.hca, comp, il)
        self.persist("hca", self.hca, restored, new, il)

    # --- caches -------------------------------------------------------------------------------------------------------

    def cpy_k(self, cache: str, k_cur: Tensor, k_idxs: Tensor, il: int) -> Tensor:
        """Rows written into a cache (``llama_kv_cache::cpy_k``)."""
        k = self.leaf(cache, il)
        n = k_cur.ne[0] * k_cur.ne[1]
        k_cur = ops.view_2d(k_cur, n, k_cur.ne[2], k_cur.nb[2], 0)
        if k.ne[2] > 1:
            k = ops.reshape(k, n, k.ne[1] * k.ne[2])
        return ops.set_rows(k, k_cur, k_idxs)

    def get_k(self, cache: str, n_embd_head: int, il: int) -> Tensor:
        """A cache as attention reads it: (head size, 1, cells, streams) (``llama_kv_cache::get_k``)."""
        k = self.leaf(cache, il)
        row, size = k.type.row_size, k.ne[1]
        ne = (n_embd_head, 1, size, k.ne[2])
        return ops.view(k, ne, (k.type.type_size, row(n_embd_head), row(k.ne[0]), row(k.ne[0] * size)))

    # --- attention ----------------------------------------------------------------------------------------------------

    def lid_top_k(self, qr: Tensor, cur: Tensor, il: int) -> Tensor:
        """The compressed keys that each token attends to (``build_lid_top_k``)."""
        hp, inp = self.hp, self.lid
        n_head, head = hp.indexer_n_head, hp.indexer_head_size
        n = cur.ne[1]
        q = ops.reshape(ops.mul_mat(self.w(il, "indexer.attn_q_b"), qr), head, n_head, n)
        q = self.cb(q, "lid_q", il)
        q = self.cb(self.rope(q, self.inp_pos), "lid_q_rope", il)
        assert inp.k_rot is not None  # k_rot() always gives the indexer one
        q = self.cb(hadamard(q, inp.k_rot), "lid_q_rot", il)
        weights = self.cb(ops.scale(ops.mul_mat(self.w(il, "indexer.proj"), cur)), "lid_weights", il)
        k = self.get_k("cache_k@lid", head, il)
        k = self.cb(ops.view(k, (k.ne[0], k.ne[1], inp.kq_mask.ne[0], k.ne[3]), k.nb), "lid_k", il)
        s = k.ne[3]
        qne, qnb = q.ne, q.nb
        q = ops.view(q, (qne[0], qne[1], qne[2] // s, s), (qnb[0], qnb[1], qnb[2], qnb[3] // s))
        wne, wnb = weights.ne, weights.nb
        weights = ops.view(weights, (wne[0], wne[1] // s, wne[2], s), (wnb[0], wnb[1], wnb[2] // s, wnb[3] // s))
        if self.fused.lid:
            score = self.cb(ops.lightning_indexer(q, k, weights, inp.kq_mask), "lid_score_masked", il)
            self.fused_nodes.append(("LIGHTNING_INDEXER", score, il))
        else:
            q = self.cb(ops.permute(q, 0, 2, 1, 3), "lid_q", il)
            k = self.cb(ops.permute(k, 0, 2, 1, 3), "lid_k", il)
            kq = self.cb(ops.mul_mat(k, q), "lid_kq", il)
            kq = self.cb(ops.cont(ops.permute(kq, 2, 1, 0, 3)), "lid_kq", il)
            score = ops.sum_rows(ops.mul(ops.unary(kq, "RELU"), weights))
            score = self.cb(ops.cont(ops.permute(score, 2, 1, 0, 3)), "lid_score", il)
            score = self.cb(ops.add(score, inp.kq_mask), "lid_score_masked", il)
        top_k = ops.cont(ops.top_k(score, min(score.ne[0], hp.indexer_top_k)))
        return self.cb(top_k, "lid_top_k", il)

    def top_k_mask(self, kq_mask: Tensor, top_k: Tensor, il: int) -> Tensor:
        """The mask with all but the chosen keys closed (``build_top_k_mask``)."""
        m = ops.fill(kq_mask)
        m = ops.view(m, (1, m.ne[0], m.ne[1], m.ne[3]), (m.nb[0], m.nb[0], m.nb[1], m.nb[2]))
        k = ops.view(
            top_k, (top_k.ne[0], top_k.ne[1], top_k.ne[3], 1),
            (top_k.nb[0], top_k.nb[1], top_k.nb[2], top_k.ne[3] * top_k.nb[3]),
        )  # fmt: skip
        zeros = ops.fill(ops.new(F16 if self.fused.flash_attn else F32, 1, k.ne[0], k.ne[1], k.ne[2]))
        m = ops.set_rows(m, zeros, k)
        m = ops.view(m, (m.ne[1], m.ne[2], 1, m.ne[3]), (m.nb[0], m.nb[2], m.nb[3], m.nb[3]))
        return self.cb(ops.add(m, kq_mask), "csa_top_k_mask", il)

    def attn_mha(self, q: Tensor, k: Tensor, mask: Tensor, sinks: Tensor, n_kv_max: int, il: int) -> Tensor:
        """Attention over keys that are also the values (``build_attn_mha``)."""
        s = k.ne[3]
        q = ops.view(q, (q.ne[0], q.ne[1], q.ne[2] // s, s), (q.nb[0], q.nb[1], q.nb[2], q.nb[3] // s))
        q = ops.permute(q, 0, 2, 1, 3)
        v = k
        k = ops.permute(k, 0, 2, 1, 3)
        v = ops.permute(v, 0, 2, 1, 3)
        if self.fused.flash_attn:
            if k.type is F32:
                k = ops.cast(k, F16)
            if v.type is F32:
                v = ops.cast(v, F16)
            cur = ops.flash_attn_ext(q, k, v, mask, sinks, n_kv_max)
            self.fused_nodes.append(("FLASH_ATTN", cur, il))
            cur = ops.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        else:
            kq = self.cb(ops.mul_mat(k, q), "kq", il)
            kq = self.cb(ops.soft_max(kq, mask, sinks), "kq_soft_max", il)
            v = self.cb(ops.cont(ops.transpose(v)), "v_cont", il)
            kqv = self.cb(ops.mul_mat(v, kq), "kqv", il)
            cur = ops.permute(kqv, 0, 2, 1, 3)
            cur = ops.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
            self.on_host.append(cur)
        self.graph.expand(cur)
        return cur

    def attend(self, q: Tensor, kv: Tensor, qr: Tensor, cur: Tensor, ratio: int, il: int) -> Tensor:
        """One layer's attention of its kind (``build_raw_attention``, ``build_csa_lid_attention``, ...)."""
        hp, graph, rot = self.hp, self.graph, self.raw_rot
        top_k = self.lid_top_k(qr, cur, il) if ratio == CSA_RATIO else None
        if rot is not None:
            q = hadamard(q, rot)
            kv = hadamard(kv, rot)
        graph.expand(q)
        graph.expand(kv)
        graph.expand(self.cpy_k("cache_k", kv, self.k_idxs, il))
        k = self.get_k("cache_k", hp.n_embd_head_k, il)
        mask, n_kv_max, name = self.raw_mask, 0, "attn_raw"
        if ratio:
            which, inp = ("csa", self.csa) if ratio == CSA_RATIO else ("hca", self.hca)
            self.cb(k, f"{which}_raw_k", il)
            comp = self.get_k(f"cache_k@{which}", hp.n_embd_head_k, il)
            comp = ops.view(comp, (comp.ne[0], comp.ne[1], inp.kq_mask.ne[0], comp.ne[3]), comp.nb)
            k = self.cb(ops.concat(k, self.cb(comp, f"{which}_comp_k", il), 2), f"{which}_k_all", il)
            comp_mask = inp.kq_mask
            name = "attn_hca"
            if top_k is not None:
                comp_mask = self.top_k_mask(inp.kq_mask, top_k, il)
                n_kv_max = min(mask.ne[0], hp.n_swa) + top_k.ne[0]
                name = "attn_csa_lid"
            mask = ops.concat(mask, comp_mask, 0)
            self.cb(mask, "hca_kq_mask" if top_k is None else "csa_lid_kq_mask", il)
        out = self.attn_mha(q, k, mask, self.w(il, "attn_sinks"), n_kv_max, il)
        if rot is not None:
            out = hadamard(out, rot)
        return self.cb(out, name, il)

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """``build_attention_impl``."""
        hp = self.hp
        n_head, head, n = hp.n_head, hp.n_embd_head_k, cur.ne[1]
        groups, o_lora = hp.o_group_count, hp.o_lora_rank
        qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "qr", il)
        qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "qr_norm", il)
        q = ops.rms_norm(ops.reshape(ops.mul_mat(self.w(il, "attn_q_b"), qr), head, n_head, n))
        q = self.cb(self.rope(self.cb(q, "q_norm", il), self.inp_pos), "q", il)
        kv = self.norm(ops.mul_mat(self.w(il, "attn_kv"), cur), self.w(il, "attn_kv_a_norm"), il)
        kv = self.cb(ops.reshape(kv, head, 1, n), "kv_norm", il)
        kv = self.cb(self.rope(kv, self.inp_pos), "kv", il)
        ratio = hp.compress_ratios[il]
        if ratio == CSA_RATIO:
            self.csa_compressors(cur, il)
        elif ratio == HCA_RATIO:
            self.hca_compressor(cur, il)
        out = self.attend(q, kv, qr, cur, ratio, il)
        out = ops.reshape(out, head, n_head, n)
        out = self.cb(self.rope(out, self.inp_pos, back=True), "attn_derope", il)
        out = ops.permute(ops.reshape(out, n_head // groups * head, groups, n), 0, 2, 1, 3)
        oa = self.cb(ops.mul_mat(self.w(il, "attn_output_a"), out), "attn_wo_a", il)
        oa = ops.cont(ops.permute(oa, 0, 2, 1, 3), o_lora * groups, n)
        return self.cb(ops.mul_mat(self.w(il, "attn_output_b"), oa), "attn_out", il)

    # --- feed-forward -------------------------------------------------------------------------------------------------

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
            total = self.cb(ops.clamp(total), "ffn_moe_weights_sum_clamped", il)
            weights = self.cb(ops.div(weights, total), "ffn_moe_weights_norm", il)
            weights = ops.reshape(weights, 1, used, n)
        if hp.expert_weights_scale not in (0.0, 1.0):
            weights = self.cb(ops.scale(weights), "ffn_moe_weights_scaled", il)
        graph.expand(weights)
        cur = ops.reshape(cur, cur.ne[0], 1, n)
        up = self.cb(ops.mul_mat_id(self.w(il, "ffn_up_exps"), cur, selected), "ffn_moe_up", il)
        gate = self.cb(ops.mul_mat_id(self.w(il, "ffn_gate_exps"), cur, selected), "ffn_moe_gate", il)
        cur = self.gated(gate, up, hp.swiglu_clamp_exp[il], "ffn_moe_swiglu", il)
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
        """SwiGLU, with limits where the model has them."""
        if limit > 1e-6:
            return self.cb(ops.glu(gate, up, "SWIGLU_CLAMP"), f"{name}_limited", il)
        return self.cb(ops.glu(gate, up, "SWIGLU"), name, il)

    def shared_expert(self, cur: Tensor, il: int) -> Tensor:
        """``build_ffn`` with the shared expert's weights."""
        up = self.cb(ops.mul_mat(self.w(il, "ffn_up_shexp"), cur), "ffn_up", il)
        gate = self.cb(ops.mul_mat(self.w(il, "ffn_gate_shexp"), cur), "ffn_gate", il)
        cur = self.gated(gate, up, self.hp.swiglu_clamp_shexp[il], "ffn_swiglu", il)
        return self.cb(ops.mul_mat(self.w(il, "ffn_down_shexp"), cur), "ffn_shexp", il)

    # --- the whole ----------------------------------------------------------------------------------------------------

    def layer(self, inp: Tensor, il: int) -> Tensor:
        """One block: attention and feed-forward, each between hyper-connections."""
        graph = self.graph
        cur, post, comb = self.hc_pre(inp, "attn", il)
        self.cb(cur, "hc_attn_pre", il)
        cur = self.cb(self.norm(cur, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur = self.attention(cur, il)
        mid = self.cb(self.hc_post(cur, inp, post, comb, il), "hc_attn_post", il)
        cur, post, comb = self.hc_pre(mid, "ffn", il)
        self.cb(cur, "hc_ffn_pre", il)
        for t in (mid, post, comb):
            graph.expand(t)
        cur = self.cb(self.norm(cur, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        moe_out = self.moe(cur, il)
        cur = self.cb(ops.add(moe_out, self.shared_expert(cur, il)), "ffn_out", il)
        out = self.cb(self.hc_post(cur, mid, post, comb, il), "l_last", il)
        self.pinned.append((out, il))
        return out

    def build(self) -> Graph:
        """The whole graph (``llama_model_deepseek4::graph``)."""
        hp, graph, n = self.hp, self.graph, self.batch.n_tokens
        cur = self.build_inputs()
        hc = hp.hc_mult
        cur = ops.repeat_4d(ops.reshape(cur, hp.n_embd, 1, n), (hp.n_embd, hc, n, 1))
        self.cb(cur, "hc_init", -1)
        for il in range(hp.n_layer):
            cur = self.layer(cur, il)
        cur = ops.get_rows(ops.reshape(cur, hp.n_embd * hc, n), self.out_ids)
        cur = ops.reshape(cur, hp.n_embd, hc, self.batch.n_outputs)
        cur = self.cb(self.hc_head(cur), "hc_head", -1)
        cur = self.cb(self.norm(cur, self.leaf("output_norm.weight"), -1), "result_norm", -1)
        cur = self.cb(ops.mul_mat(self.leaf("output.weight"), cur), "result_output", -1)
        graph.expand(cur)
        return graph
