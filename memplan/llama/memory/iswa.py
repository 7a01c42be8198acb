"""Two caches: one for layers with full attention, one for layers that attend to a window (``llama_kv_cache_iswa``).

Follows src/llama-kv-cache-iswa.cpp (constructor) and src/llama-model.cpp (``create_memory``), v0.5.0;
releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import CacheBuilder, KVCache, window_cells


def iswa_memory(
    build: CacheBuilder, reuse: Mapping[int, int] | None = None, layers: Iterable[int] | None = None
) -> Memory:
    """A cache for the layers that the model runs, ``swa`` for those that slide; ``reuse``: layers without their own.

    ``layers``: others than those, such as MTP blocks.
    """
    hp, params = build.hp, build.params
    shared = reuse or {}
    every = range(hp.n_layer) if layers is None else tuple(layers)
    size = window_cells(hp.n_swa, build, params.n_seq_max if params.kv_unified else 1)

    def cache(name: str, cells: int | None, sliding: bool) -> KVCache:
        alike = [il for il in every if hp.slides(il) is sliding]
        own = [il for il in alike if il not in shared]
        return build.kv(own, cells, name=name, reuse={il: shared[il] for il in alike if il in shared})

    return Memory({"kv": cache("", None, False), "swa": cache("swa", size, True)})
