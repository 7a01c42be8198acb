"""Attention over caches of keys and values.

Follows src/llama-graph.cpp (``build_qkv``, ``build_attn_inp_kv``, ``build_attn_inp_kv_iswa``, ``build_attn``,
``build_attn_mha``) and src/llama-kv-cache.cpp (``cpy_k``, ``cpy_v``, ``get_k``, ``get_v``, ``build_input_*``), v0.5.0;
releases from b9842 on do the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F16, F32, I64
from memplan.llama.graph.base import GraphBase, H
from memplan.llama.memory.kv import KVCache

ROWS_SCALED_SINCE = 10909
"""The first build seen, after v0.4.0, in which what asks for rows of queries, keys and values calls ``build_qkv``."""


@dataclass(frozen=True, slots=True)
class AttnInputs:
    """The inputs of attention over one cache; ``suffix`` is what the cache's roles end with."""

    suffix: str
    k_idxs: Tensor
    v_idxs: Tensor | None
    kq_mask: Tensor
    k_rot: Tensor | None
    v_rot: Tensor | None


@dataclass(frozen=True, slots=True)
class IswaInputs:
    """The inputs of attention over two caches, for layers with full attention and for those that slide."""

    full: AttnInputs
    sliding: AttnInputs


class Attention(GraphBase[H]):
    """One layer's attention."""

    def build_qkv(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer, (head size, heads, tokens), from joined or separate weights."""
        hp, n = self.hp, cur.ne[1]
        heads = (
            (hp.n_embd_head_k(il), hp.n_head[il]),
            (hp.n_embd_head_k(il), hp.n_head_kv[il]),
            (hp.n_embd_head_v(il), hp.n_head_kv[il]),
        )
        parts = []
        if self.source.has("attn_qkv.weight", il):
            joined = self.cb(self.mm(il, "attn_qkv", cur), "wqkv", il)
            biased = self.biased(joined, il, "attn_qkv")
            if biased is not joined:
                self.cb(biased, "wqkv_b", il)
            offset = 0
            row = biased.type.row_size
            for size, n_head in heads:
                parts.append(ops.view_3d(biased, (size, n_head, n), row(size), biased.nb[1], row(offset)))
                offset += size * n_head
        else:
            for which, (size, n_head) in zip("qkv", heads, strict=True):
                name = f"{which.upper()}cur"
                part = self.cb(self.mm(il, f"attn_{which}", cur), name, il)
                part = self.cb(self.biased(part, il, f"attn_{which}"), name, il)
                parts.append(ops.reshape(part, size, n_head, n))
        for part, which in zip(parts, "QKV", strict=True):
            self.cb(part, f"{which}cur", il)
        return parts[0], parts[1], parts[2]

    def build_qkv_rows(self, cur: Tensor, il: int, *widths: int) -> list[Tensor]:
        """The same as rows of a token, ``widths`` elements of each (``build_qkv`` that does not reshape)."""
        n = cur.ne[1]
        if not self.source.has("attn_qkv.weight", il):
            return [self.biased(self.mm(il, f"attn_{which}", cur), il, f"attn_{which}") for which in "qkv"]
        joined = self.cb(self.mm(il, "attn_qkv", cur), "wqkv", il)
        biased = self.biased(joined, il, "attn_qkv")
        if biased is not joined:
            self.cb(biased, "wqkv_b", il)
        starts = [biased.type.row_size(sum(widths[:i])) for i in range(len(widths))]
        views = [ops.view_2d(biased, w, n, biased.nb[1], at) for w, at in zip(widths, starts, strict=True)]
        return [ops.cont(view) for view in views]

    @property
    def unscaled_rows(self) -> tuple[str, ...]:
        """``unscaled`` of Step-3.5 and MiniMax-M2: what the feed-forward part reads, and once what makes such rows."""
        return ("ffn_",) if self.release.build >= ROWS_SCALED_SINCE else ("ffn_", "attn_q", "attn_k", "attn_v")

    def build_attn_inp_kv(self, cache: KVCache) -> AttnInputs:
        """Where the batch's keys and values go, and which cells each token sees (``build_attn_inp_kv``)."""
        n = self.batch.n_tokens
        has_v = any(t.role.startswith("cache_v") for t in cache.tensors)
        tag = "" if not cache.name else f"_{cache.name}"
        k_idxs = ops.new_input(I64, n, name=f"attn_inp_k_idxs{tag}")
        v_idxs = None
        if has_v:
            n_v = n * self.hp.n_embd_v_gqa_max if cache.v_trans else n
            v_idxs = ops.new_input(I64, n_v, name=f"attn_inp_v_idxs{tag}")
        return AttnInputs(
            suffix=f"@{cache.name}" if cache.name else "",
            k_idxs=k_idxs,
            v_idxs=v_idxs,
            kq_mask=self.build_kq_mask(cache, f"attn_inp_kq_mask{tag}"),
            k_rot=_rot(cache.k_rot, f"attn_inp_k_rot{tag}"),
            v_rot=_rot(cache.v_rot, f"attn_inp_v_rot{tag}"),
        )

    def build_attn_inp_kv_iswa(self) -> IswaInputs:
        """The same for both caches (``build_attn_inp_kv_iswa``)."""
        return IswaInputs(self.build_attn_inp_kv(self.kv_cache()), self.build_attn_inp_kv(self.kv_cache("swa")))

    def build_attn_inp_k(self, cache: KVCache) -> AttnInputs:
        """The same for a cache of latent keys, which are never turned (``build_attn_inp_k``)."""
        tag = f"_{cache.name}" if cache.name else ""
        k_idxs = ops.new_input(I64, self.batch.n_tokens, name=f"attn_inp_k_idxs{tag}")
        mask = self.build_kq_mask(cache, f"attn_inp_kq_mask{tag}")
        return AttnInputs(f"@{cache.name}" if cache.name else "", k_idxs, None, mask, None, None)

    def build_kq_mask(self, cache: KVCache, name: str) -> Tensor:
        """(cells, tokens of a stream, 1, streams), in f16 for flash attention (``build_attn_inp_kq_mask``)."""
        kind = F16 if "FLASH_ATTN" in self.fused else F32
        n_kv, n_stream = self.cells(cache)
        return ops.new_input(kind, n_kv, self.batch.n_tokens // n_stream, 1, n_stream, name=name)

    def build_attn(
        self,
        inp: AttnInputs | IswaInputs,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        il: int,
        *,
        out: str = "attn_output",
    ) -> Tensor:
        """Attention over a cache, into which the batch's keys and values go first; of two, that of the layer's kind.

        ``k``, ``v``: None where another layer has written them.  ``out``: the output projection, "" for none.  Sinks
        are taken where the layer has any. (``build_attn``)
        """
        graph, iswa = self.graph, isinstance(inp, IswaInputs)
        if isinstance(inp, IswaInputs):
            inp = inp.sliding if self.hp.slides(il) else inp.full
        if inp.k_rot is not None:
            q = self.hadamard(q, inp.k_rot)
            k = k if k is None else self.hadamard(k, inp.k_rot)
        if inp.v_rot is not None:
            v = v if v is None else self.hadamard(v, inp.v_rot)
        for t in (q, k, v) if iswa else (q, v, k):
            if t is not None:
                graph.expand(t)
        if k is not None:
            graph.expand(self.cpy_k(f"cache_k{inp.suffix}", k, inp.k_idxs, il))
        if v is not None and inp.v_idxs is not None:
            graph.expand(self.cpy_v(f"cache_v{inp.suffix}", v, inp.v_idxs, il))
        cur = self.attend(inp, q, il)
        if out:
            cur = self.biased(self.mm(il, out, cur), il, out)
        return cur

    def build_attn_k(
        self,
        inp: AttnInputs,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        v_mla: Tensor,
        il: int,
        *,
        mask: Tensor | None = None,
        n_kv_max: int = 0,
        out: str = "attn_output",
    ) -> Tensor:
        """Attention over latent keys, of which the values are the first part (``build_attn`` with one cache of keys).

        ``v_mla``: what results are multiplied with.  ``mask``: in place of the inputs' own, with at most ``n_kv_max``
        cells open.
        """
        graph = self.graph
        for t in (q, v, k):
            graph.expand(t)
        graph.expand(self.cpy_k(f"cache_k{inp.suffix}", k, inp.k_idxs, il))
        keys = self.get_k(f"cache_k{inp.suffix}", k.ne[0], 1, il)
        values = ops.view(keys, (v.ne[0], *keys.ne[1:]), keys.nb)
        cur = self.build_attn_mha(
            q, keys, values, inp.kq_mask if mask is None else mask, il, v_mla=v_mla, n_kv_max=n_kv_max
        )
        return self.biased(self.mm(il, out, self.cb(cur, "kqv_out", il)), il, out)

    def attend(self, inp: AttnInputs, q: Tensor, il: int) -> Tensor:
        """Attention over what a cache holds; its values are turned back where they were turned."""
        hp = self.hp
        keys = self.get_k(f"cache_k{inp.suffix}", hp.n_embd_head_k(il), hp.n_head_kv[il], il)
        values = self.get_v(f"cache_v{inp.suffix}", hp.n_embd_head_v(il), hp.n_head_kv[il], il)
        cur = self.build_attn_mha(q, keys, values, inp.kq_mask, il, sinks=self.maybe("attn_sinks.weight", il))
        self.cb(cur, "kqv_out", il)
        return cur if inp.v_rot is None else self.hadamard(cur, inp.v_rot)

    def build_attn_mha(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        il: int,
        *,
        sinks: Tensor | None = None,
        v_mla: Tensor | None = None,
        n_kv_max: int = 0,
        bias: bool = False,
    ) -> Tensor:
        """(elements of all heads, tokens) from q, k and v, one head after the other (``build_attn_mha``).

        ``v_mla``: what latent values are multiplied with afterwards.  ``bias``: whether zeros are added to the scores,
        which keeps flash attention off.
        """
        v_trans = v.nb[1] > v.nb[2]
        s = k.ne[3]
        q = ops.view(q, (q.ne[0], q.ne[1], q.ne[2] // s, s), (q.nb[0], q.nb[1], q.nb[2], q.nb[3] // s))
        q, k, v = (ops.permute(t, 0, 2, 1, 3) for t in (q, k, v))
        if "FLASH_ATTN" in self.fused and not bias:
            if v_trans:
                v = ops.transpose(v)
            k, v = (ops.cast(t, F16) if t.type is F32 else t for t in (k, v))
            cur = ops.flash_attn_ext(q, k, v, mask, sinks, n_kv_max)
            self.fused_nodes.append(("FLASH_ATTN", cur, il))
            if v_mla is not None:
                cur = self.cb(ops.mul_mat(v_mla, ops.permute(cur, 0, 2, 1, 3)), "fattn_mla", il)
                cur = ops.cont(ops.permute(cur, 0, 2, 1, 3))
            cur = ops.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        else:
            kq = self.cb(ops.mul_mat(k, q, f32=True), "kq", il)
            if bias:
                zeros = ops.fill(ops.new(F32, mask.ne[0], mask.ne[1], q.ne[2], mask.ne[3]))
                kq = self.cb(ops.add(kq, zeros), "kq_plus_kq_b", il)
            kq = self.cb(ops.soft_max(kq, mask, sinks), "kq_soft_max", il)
            if not v_trans:
                v = self.cb(ops.cont(ops.transpose(v)), "v_cont", il)
            kqv = self.cb(ops.mul_mat(v, kq), "kqv", il)
            if v_mla is not None:
                kqv = self.cb(ops.mul_mat(v_mla, kqv), "kqv_mla", il)
            cur = ops.permute(kqv, 0, 2, 1, 3)
            cur = ops.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
            self.on_host.append(cur)
        self.graph.expand(cur)
        return cur

    # --- the cache ----------------------------------------------------------------------------------------------------

    def cpy_k(self, role: str, k_cur: Tensor, k_idxs: Tensor, il: int) -> Tensor:
        """The batch's rows written into a cache (``llama_kv_cache::cpy_k``)."""
        return self._set_rows(self.leaf(role, il), k_cur, k_idxs)

    def cpy_v(self, role: str, v_cur: Tensor, v_idxs: Tensor, il: int) -> Tensor:
        """The same for values, element by element where they are kept transposed (``llama_kv_cache::cpy_v``)."""
        v = self.leaf(role, il)
        if not self._v_trans(role):
            return self._set_rows(v, v_cur, v_idxs)
        n, n_tokens = v_cur.ne[0] * v_cur.ne[1], v_cur.ne[2]
        merges = v_cur.type.row_size(n) == v_cur.nb[2]
        v_cur = ops.reshape(v_cur, n, n_tokens) if merges else ops.cont(v_cur, n, n_tokens)
        v_cur = self.padded_values(v_cur, v.ne[0])
        return ops.set_rows(ops.reshape(v, 1, v.nelements), ops.reshape(v_cur, 1, v_cur.nelements), v_idxs)

    def padded_values(self, v_cur: Tensor, n: int) -> Tensor:
        """Values as wide as the widest layer's, where layers differ."""
        return v_cur if v_cur.ne[0] >= n else ops.pad(v_cur, n - v_cur.ne[0])

    @staticmethod
    def _set_rows(cache: Tensor, cur: Tensor, idxs: Tensor) -> Tensor:
        n = cur.ne[0] * cur.ne[1]
        cur = ops.view_2d(cur, n, cur.ne[2], cur.nb[2], 0)
        if cache.ne[2] > 1:
            cache = ops.reshape(cache, n, cache.ne[1] * cache.ne[2])
        return ops.set_rows(cache, cur, idxs)

    def _cache(self, role: str) -> KVCache:
        """The cache that a role's tensors are part of."""
        name = role.partition("@")[2]
        return next(c for c in self.memory.caches.values() if isinstance(c, KVCache) and c.name == name)

    def _v_trans(self, role: str) -> bool:
        return self._cache(role).v_trans

    def get_k(self, role: str, n_embd_head: int, n_head: int, il: int) -> Tensor:
        """A cache as attention reads it: (head size, heads, cells, streams) (``llama_kv_cache::get_k``)."""
        t = self.leaf(role, il)
        row, n, size = t.type.row_size, t.ne[0], t.ne[1]
        n_kv, n_stream = self.cells(self._cache(role))
        nb = (t.type.type_size, row(n_embd_head), row(n), row(n * size))
        return ops.view(t, (n_embd_head, n_head, n_kv, n_stream), nb)

    def get_v(self, role: str, n_embd_head: int, n_head: int, il: int) -> Tensor:
        """The same for values; (cells, heads, head size, streams) where they are transposed (``get_v``)."""
        if not self._v_trans(role):
            return self.get_k(role, n_embd_head, n_head, il)
        t = self.leaf(role, il)
        row, n, size = t.type.row_size, t.ne[0], t.ne[1]
        n_kv, n_stream = self.cells(self._cache(role))
        nb = (t.type.type_size, row(size * n_embd_head), row(size), row(size * n))
        return ops.view(t, (n_kv, n_head, n_embd_head, n_stream), nb)


def _rot(n: int, name: str) -> Tensor | None:
    """The matrix that turns a cache's heads, if they are turned (``build_input_k_rot``)."""
    return ops.new_input(F32, n, n, name=name) if n else None
