"""What every piece of a graph uses: names, leafs, products, norms, rotations, inputs.

Follows src/llama-graph.cpp (``llm_graph_context``: ``build_norm``, ``build_lora_mm``, ``build_inp_*``), v0.5.0, and
src/llama-arch.cpp (``llm_arch_supports_mixed_batch``), b11434; releases from b9842 on do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from memplan.ggml import ops
from memplan.ggml.graph import UNLIMITED, Graph
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32, I32, I64
from memplan.llama.batch import NOTHING_GIVEN, GivenOut
from memplan.llama.hparams import HParams
from memplan.llama.memory.kv import KVCache, cells_read

if TYPE_CHECKING:
    from memplan.ggml.backend import Buffer
    from memplan.llama.batch import Batch
    from memplan.llama.context import Fused
    from memplan.llama.memory.base import Memory
    from memplan.releases import Release

NORM, NEOX = 0, 2
"""LLAMA_ROPE_TYPE_NORM: pairs of neighbours turn together. LLAMA_ROPE_TYPE_NEOX: pairs half a head apart."""

Crossing = Tensor | tuple[Tensor, ...]
"""What one stretch of a graph hands to the next."""

H = TypeVar("H", bound=HParams)


class Source(Protocol):
    """Makes the leafs of a graph."""

    def leaf(self, role: str, il: int) -> Tensor:
        """A weight, cache or state by role (``attn_norm.weight``, ``cache_k``) and layer (-1: none)."""

    def has(self, role: str, il: int) -> bool:
        """Whether the model has it."""

    def is_shared(self, role: str, il: int) -> bool:
        """Whether a layer's weight is that of every layer whose weights lie in the same buffer."""


class GraphBase(Generic[H]):
    """A graph in the making.

    Attributes:
        hp: the model.  batch: what the graph is for.  fused: which ops are fused.  memory: caches and states.
        release: whose forms the pieces have.
        graph: the nodes and leafs.  roles: what each weight, cache and state is.
        fused_nodes: fused op, its node and its layer, in order (``add_fused_node``).
        pinned: nodes that llama.cpp's callback would pin to their layer's device: norms and each layer's last node.
        on_host: nodes pinned to the CPU when the caches are not offloaded.
        shares: whether a weight of several layers is one tensor; False where like layers stand for each other.
        shared: such weights, as each layer has them.
    """

    rope_type = NEOX
    """How heads are turned (``llama_model_rope_type``)."""
    mixed_batches: bool = True
    """Whether a batch may hold tokens and embeddings (``llm_arch_supports_mixed_batch``)."""

    def __init__(
        self,
        hp: H,
        batch: Batch,
        fused: Fused,
        memory: Memory,
        release: Release,
        source: Source,
        max_nodes: int = UNLIMITED,
        given_out: GivenOut = NOTHING_GIVEN,
    ) -> None:
        self.hp = hp
        self.batch = batch
        self.fused = fused
        self.memory = memory
        self.release = release
        self.source = source
        self.given_out = given_out
        self.graph = Graph(max_nodes)
        self.roles: dict[Tensor, str] = {}
        self.fused_nodes: list[tuple[str, Tensor, int]] = []
        self.pinned: list[tuple[Tensor, int]] = []
        self.on_host: list[Tensor] = []
        self.shares = True
        self.shared: set[Tensor] = set()
        self._leafs: dict[tuple[str, int], Tensor] = {}
        self._shared: dict[tuple[str, Buffer | None], Tensor] = {}

    @staticmethod
    def cb(t: Tensor, name: str, il: int) -> Tensor:
        """Name ``t`` as llama.cpp's callback does."""
        t.name = f"{name}-{il}" if il >= 0 else name
        return t

    def leaf(self, role: str, il: int = -1) -> Tensor:
        """The one leaf of this graph for a weight, cache or state.

        Raises GGMLAssertError for a weight that the file may lack and the graph relies on: llama.cpp crashes.
        """
        t = self._leafs.get((role, il))
        if t is None:
            try:
                t = self.source.leaf(role, il)
            except KeyError:
                name = role if il < 0 else f"blk.{il}.{role}"
                raise ops.GGMLAssertError(f"Segmentation fault (the file has no {name})") from None
            if self.source.is_shared(role, il):
                if self.shares:
                    t = self._shared.setdefault((role, t.buffer), t)
                self.shared.add(t)
            self._leafs[role, il] = t
            self.roles[t] = role
        return t

    def maybe(self, role: str, il: int = -1) -> Tensor | None:
        """The same, or None where the model has none."""
        return self.leaf(role, il) if self.source.has(role, il) else None

    def w(self, il: int, name: str) -> Tensor:
        """A layer's weight."""
        return self.leaf(f"{name}.weight", il)

    @property
    def unscaled(self) -> tuple[str, ...]:
        """Starts of the kinds of weights whose scales are loaded and not used: the architecture hands them to none."""
        return ()

    def _scale(self, il: int, name: str) -> Tensor | None:
        return None if name.startswith(self.unscaled) else self.maybe(f"{name}.scale", il)

    def mm(self, il: int, name: str, cur: Tensor, *, f32: bool = False) -> Tensor:
        """A product with a layer's weight, scaled where the file has a scale (``build_lora_mm``).

        ``f32``: to be computed in f32, which decides what it takes at run time.
        """
        res = ops.mul_mat(self.w(il, name), cur, f32=f32)
        scale = self._scale(il, name)
        return res if scale is None else ops.mul(res, scale)

    def mm_id(self, il: int, name: str, cur: Tensor, ids: Tensor) -> Tensor:
        """A product with the chosen experts (``build_lora_mm_id``)."""
        res = ops.mul_mat_id(self.w(il, name), cur, ids)
        scale = self._scale(il, name)
        if scale is None:
            return res
        n_expert = scale.ne[0]
        s = ops.repeat_4d(ops.reshape(scale, 1, n_expert, 1), (1, n_expert, cur.ne[2], 1))
        return ops.mul(res, ops.get_rows(s, ids))

    def biased(self, cur: Tensor, il: int, name: str) -> Tensor:
        """``cur`` with a layer's bias added, if there is one."""
        bias = self.maybe(f"{name}.bias", il)
        return cur if bias is None else ops.add(cur, bias)

    def norm(
        self, cur: Tensor, weight: Tensor | None, il: int, *, bias: Tensor | None = None, rms: bool = True
    ) -> Tensor:
        """A norm, with weights and a bias or without (``build_norm``); ``rms``: whether rows keep their mean."""
        cur = ops.rms_norm(cur) if rms else ops.norm(cur)
        if weight is None:
            return cur
        self.cb(cur, "norm", il)
        self.pinned.append((cur, il))
        cur = ops.mul(cur, weight)
        return cur if bias is None else ops.add(self.cb(cur, "norm_w", il), bias)

    def clamp(self, t: Tensor) -> Tensor:
        """``t`` held between two limits (``ggml_clamp``)."""
        return ops.clamp_inplace(t) if self.release.clamps_inplace else ops.clamp(t)

    def rope(self, cur: Tensor, pos: Tensor, il: int, freq_factors: Tensor | None = None) -> Tensor:
        """Heads turned to their positions (``ggml_rope_ext``)."""
        return ops.rope(cur, pos, self.hp.n_rot(il), self.rope_type, freq_factors=freq_factors)

    def rope_factors(self, il: int) -> Tensor | None:
        """The frequency factors of a layer, if the file has any (``llama_model::get_rope_factors``)."""
        factors = self.maybe("rope_freqs.weight", il)
        if factors is not None:
            return factors
        stretched = self.n_ctx_seq > self.hp.n_ctx_orig_yarn
        return self.maybe(f"rope_factors_{'long' if stretched else 'short'}.weight", il)

    def hadamard(self, cur: Tensor, rot: Tensor) -> Tensor:
        """Heads turned by a Hadamard matrix, row by row (``llama_mul_mat_hadamard``)."""
        n = rot.ne[0]
        rows = cur.nelements // n
        res = ops.reshape(cur, n, rows) if cur.is_contiguous else ops.cont(cur, n, rows)
        return ops.reshape(ops.mul_mat(rot, res, hadamard=True), *cur.ne)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def build_inp_embd(self) -> Tensor:
        """Token embeddings (``build_inp_embd``)."""
        n = self.batch.n_tokens
        self.inp_tokens = ops.new_input(I32, n, name="inp_tokens")
        embd = ops.new_input(F32, self.hp.n_embd, n, name="inp_embd")
        cur = ops.get_rows(self.leaf("token_embd.weight"), self.inp_tokens)
        # every way in is part of the graph; those with embeddings are not computed (ggml_build_forward_select)
        self.graph.expand(cur)
        self.graph.expand(embd)
        if self.mixed_batches and self.release.mixed_batches:
            self._expand_mixed()
        return self.cb(cur, "embd", -1)

    def build_scaled_inp_embd(self) -> Tensor:
        """Token embeddings times a constant; where a batch may hold others as well, row by row."""
        cur = self.build_inp_embd()
        if self.release.mixed_batches:
            rows = ops.new_input(F32, 1, self.batch.n_tokens, name="inp_scale_rows")
            return self.cb(ops.mul(cur, rows), "inp_scaled", -1)
        return self.cb(ops.scale(cur), "inp_scaled", -1)

    def _expand_mixed(self) -> None:
        """Rows of tokens put among rows of embeddings, for a batch of both; not computed either."""
        n = self.batch.n_tokens
        tokens = ops.new_input(I32, n, name="inp_mixed_tokens")
        slots = ops.new_input(I64, n, name="inp_mixed_slots")
        rows = ops.dup(ops.new_input(F32, self.hp.n_embd, n, name="inp_mixed_embd"))
        self.graph.expand(ops.set_rows(rows, ops.get_rows(self.leaf("token_embd.weight"), tokens), slots))

    def build_inp_pos(self) -> Tensor:
        """The positions of the batch's tokens (``build_inp_pos``)."""
        return ops.new_input(I32, self.batch.n_tokens * self.hp.n_pos_per_embd, name="inp_pos")

    @property
    def n_ctx_seq(self) -> int:
        """Tokens of one sequence: cells of the first cache of keys and values."""
        return next(cache.size for cache in self.memory.caches.values() if isinstance(cache, KVCache))

    def kv_cache(self, name: str = "kv") -> KVCache:
        """One of the memory's caches of keys and values."""
        cache = self.memory.caches[name]
        assert isinstance(cache, KVCache)  # what the architecture made by this name
        return cache

    def cells(self, cache: KVCache) -> tuple[int, int]:
        """Cells and streams of a cache that this graph reads (``llama_kv_cache::get_n_kv``); all for a reserve."""
        batch = self.batch
        if batch.filled is None:
            return cells_read(cache.size, None), cache.n_stream
        shared = cache.n_stream == 1
        return cells_read(cache.size, batch.filled + shared * batch.others), 1 if shared else batch.n_seqs

    def build_inp_attn_scale(self) -> Tensor:
        """What queries are multiplied with, by position (``build_inp_attn_scale``)."""
        return ops.new_input(F32, 1, 1, self.batch.n_tokens, name="inp_attn_scale")

    def build_inp_out_ids(self) -> Tensor:
        """Which tokens are asked for (``build_inp_out_ids``)."""
        return ops.new_input(I32, self.batch.n_outputs, name="out_ids")

    def build_output(self, cur: Tensor) -> Tensor:
        """The last norm and the logits, which end most graphs."""
        cur = self.cb(self.norm(cur, self.leaf("output_norm.weight"), -1), "result_norm", -1)
        cur = self.cb(self.logits(self.mm(-1, "output", cur)), "result_output", -1)
        self.graph.expand(cur)
        return cur

    def logits(self, cur: Tensor) -> Tensor:
        """What is made of the last product; nothing by default."""
        return cur

    def softcapped(self, cur: Tensor) -> Tensor:
        """Logits held within limits, smoothly."""
        return ops.scale(ops.unary(ops.scale(cur), "TANH"))

    def build_output_of_all(self, cur: Tensor, out_ids: Tensor) -> Tensor:
        """The same where drafts read the last norm of all tokens; the logits are of those that are asked for."""
        hidden = self.cb(self.norm(cur, self.leaf("output_norm.weight"), -1), "h_nextn", -1)
        rows = self.cb(ops.get_rows(hidden, out_ids), "result_norm", -1)
        logits = self.cb(self.logits(self.mm(-1, "output", rows)), "result_output", -1)
        for t in (hidden, rows, logits):
            t.flags |= FLAG_OUTPUT
        self.graph.expand(logits)
        return logits
