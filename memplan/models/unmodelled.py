"""What is known of architectures that are not modelled: where weights lie, and caches of the commonest kind.

Follows src/llama-model.cpp (``create_memory``: its default case), v0.5.0. The graph is not known, so nothing is said of
compute buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.llama.hparams import HParams, common
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import kv_memory
from memplan.llama.weights import Have, Wanted, tied_output
from memplan.models.base import Architecture, ModelGraph

if TYPE_CHECKING:
    from memplan.llama.context import Paths
    from memplan.llama.flags import Flags
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release

_OTHER_MEMORY = (
    "ssm", "wkv", "kda", "shortconv", "full_attention_interval", "attention.sliding_window", "attention.kv_lora_rank",
    "attention.indexer", "attention.shared_kv_layers", "attention.causal", "attention.relative_buckets_count",
    "attention.compress_ratios", "hyper_connection", "token_shift_count", "diffusion",
)  # fmt: skip
"""Beginnings of keys of models whose memory is, or may be, of another kind than one cache for each layer."""


@dataclass(frozen=True, kw_only=True)
class CommonHParams(HParams):
    """What all architectures have in common; ``plain_cache``: nothing speaks of another memory than a cache a layer."""

    plain_cache: bool


class Unmodelled(Architecture[CommonHParams]):
    """An architecture by its name alone."""

    graph = ModelGraph[CommonHParams]
    graph_followed = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def load_hparams(self, k: Keys, release: Release) -> CommonHParams:
        """What all architectures have in common."""
        fields = common(k, release)
        others = tuple([f"{self.name}.{other}" for other in _OTHER_MEMORY])
        plain = min(fields["n_head_kv"]) > 0 and not any(key.startswith(others) for key in k.header.metadata)
        return CommonHParams(plain_cache=plain, **fields)

    def tensors(self, hp: CommonHParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """All that the file has, each with the op that its name stands for."""
        embedding = have.get("token_embd.weight")
        yield from (Wanted(name, info.shape) for name, info in have.items())
        if embedding is not None and len(embedding.shape) == 2:
            yield from [w for w in tied_output(have, *embedding.shape) if w.duplicated]

    def memory(self, hp: CommonHParams, build: CacheBuilder, release: Release) -> Memory:
        """One cache for all layers, unless the file says something else."""
        return kv_memory(build) if hp.plain_cache else Memory({})

    def asked(self, release: Release) -> bool:
        """Said by ``inexact``."""
        return True

    def inexact(
        self, hp: CommonHParams, flags: Flags, release: Release, cuda: bool, without_ops: Sequence[str], paths: Paths
    ) -> str:
        """That compute buffers are missing."""
        known = "weights and caches" if hp.plain_cache else "weights"
        return f"architecture {self.name} is not modelled: {known} alone; compute buffers are missing"
