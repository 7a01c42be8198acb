"""Attention over two caches, one for layers with full attention and one for layers that slide.

Follows src/llama-graph.cpp (``build_attn_inp_kv_iswa``, ``build_attn``), v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ggml.tensor import Tensor
from memplan.llama.graph.attention import Attention, AttnInputs
from memplan.llama.graph.base import H


@dataclass(frozen=True, slots=True)
class IswaInputs:
    """The inputs of attention over the two caches."""

    full: AttnInputs
    sliding: AttnInputs


class IswaAttention(Attention[H]):
    """One layer's attention over the cache of its kind."""

    def build_attn_inp_kv_iswa(self) -> IswaInputs:
        """Where the batch's keys and values go in both caches, and which cells each token sees."""
        return IswaInputs(self.build_attn_inp_kv(self.kv_cache()), self.build_attn_inp_kv(self.kv_cache("swa")))

    def build_attn_iswa(
        self, both: IswaInputs, q: Tensor, k: Tensor | None, v: Tensor | None, il: int, *, out: str = "attn_output"
    ) -> Tensor:
        """Attention over the cache of the layer's kind; ``k``, ``v``: None where another layer has written them.

        ``out``: the output projection, "" for none.
        """
        inp = both.sliding if self.hp.slides(il) else both.full
        graph = self.graph
        if inp.k_rot is not None:
            q = self.hadamard(q, inp.k_rot)
            k = k if k is None else self.hadamard(k, inp.k_rot)
        if inp.v_rot is not None:
            v = v if v is None else self.hadamard(v, inp.v_rot)
        for t in (q, k, v):
            if t is not None:
                graph.expand(t)
        if k is not None:
            graph.expand(self.cpy_k(f"cache_k{inp.suffix}", k, inp.k_idxs, il))
        if v is not None and inp.v_idxs is not None:
            graph.expand(self.cpy_v(f"cache_v{inp.suffix}", v, inp.v_idxs, il))
        cur = self.attend(inp, q, il)
        return self.biased(self.mm(il, out, cur), il, out) if out else cur
