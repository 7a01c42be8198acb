"""What DeepSeek-V4 answers as an architecture: paths, probes, refusals, and where the rest stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from memplan.llama.context import LIGHTNING_INDEXER, Fused, Paths, Probe
from memplan.llama.memory.iswa import iswa_memory
from memplan.llama.refusals import ABORT, OTHER, Refusal, died
from memplan.models.base import Architecture
from memplan.models.deepseek4.drafting import MTPGraph
from memplan.models.deepseek4.graph import DeepSeek4Graph, Layers
from memplan.models.deepseek4.hparams import CSA_RATIO, DeepSeek4HParams, load_hparams
from memplan.models.deepseek4.hybrid_memory import hybrid_memory
from memplan.models.deepseek4.memory import DeepSeek4Memory, create_memory
from memplan.models.deepseek4.switches import switches
from memplan.models.deepseek4.tensors import wanted
from memplan.releases import Indexer, Release

if TYPE_CHECKING:
    from memplan.llama.flags import Flags
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.llama.weights import Have, Wanted

HYPER_CONNECTIONS = (
    Probe("DSV4_HC_PRE", "fused DeepSeek V4 HC pre"),
    Probe("DSV4_HC_COMB", "fused DeepSeek V4 HC comb"),
    Probe("DSV4_HC_POST", "fused DeepSeek V4 HC post"),
)


class DeepSeek4(Architecture[DeepSeek4HParams]):
    """``llama_model_deepseek4``."""

    name = "deepseek4"
    graph: type[Layers] = DeepSeek4Graph
    one_cache_type = True
    long_graphs = True
    paths = ("indexer", "hyper-connections")

    def load_hparams(self, k: Keys, release: Release) -> DeepSeek4HParams:
        """``load_arch_hparams``."""
        return load_hparams(k, release)

    def tensors(self, hp: DeepSeek4HParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """``load_arch_tensors``."""
        return wanted(hp, have, load_mtp, release)

    def memory(self, hp: DeepSeek4HParams, build: CacheBuilder, release: Release) -> Memory:
        """``llama_kv_cache_dsv4``; of antirez' fork ``llama_memory_hybrid_iswa``."""
        return hybrid_memory(hp, build) if release.hybrid_memory else create_memory(hp, build, release)

    def fused(self, release: Release, paths: Paths) -> Fused:
        """What the release has ops for, if not ruled out."""
        fused = set()
        if release.indexer is not Indexer.UNFUSED and paths["indexer"] != "unfused":
            fused.add(LIGHTNING_INDEXER.op)
        if switches(release).hyper_connection_ops and paths["hyper-connections"] != "unfused":
            fused |= {probe.op for probe in HYPER_CONNECTIONS}
        return frozenset(fused)

    def probes(self, release: Release, paths: Paths) -> tuple[Probe, ...]:
        """What is neither asked for nor ruled out is tried."""
        indexer = release.indexer_probe and paths["indexer"] == "auto"
        hyper_connections = switches(release).hyper_connection_ops and paths["hyper-connections"] == "auto"
        return (*((LIGHTNING_INDEXER,) if indexer else ()), *(HYPER_CONNECTIONS if hyper_connections else ()))

    def check_graph(self, hp: DeepSeek4HParams, memory: Memory, release: Release) -> Refusal | None:
        """Why llama.cpp dies while it builds the first graph, in the order in which it comes to it.

        Follows ``llama_kv_cache::build_input_k_rot`` and src/models/deepseek4.cpp (``build_hc_pre``,
        ``build_attention_impl``, ``build_hca_compressed_kv_from_state``, ``build_overlap_compressed_kv_from_state``).
        """
        assert isinstance(memory, DeepSeek4Memory)  # what ``memory`` made
        compressed = [memory.keys(name) for name in ("csa", "hca", "lid")]
        if any(cache.k_rot and not cache.tensors for cache in compressed):
            # a cache without layers has a head of no elements, which every power of two divides: up to an overflow to
            # zero
            return Refusal(OTHER, ABORT, "Floating point exception", "use a model with layers of all kinds")
        if hp.hc_mult != 4:
            return died("hc == 4")
        if hp.n_embd_head_k() != hp.n_embd_head_v():
            return died("n_embd_head == n_embd_head_v")
        if hp.n_head[0] % hp.o_group_count:
            return died("n_head % n_groups == 0")
        ratio = next((r for r in hp.compress_ratios[: hp.n_layer] if r), 0)
        heads = [hp.n_embd_head_k()] * bool(ratio) + [hp.indexer_head_size] * (CSA_RATIO in hp.compress_ratios)
        if any(head < hp.n_rot() for head in heads):
            return died("n_embd_head >= n_embd_head_rope")
        return None

    own_streams = True
    unnamed = MappingProxyType({
        "input of FILL for kq_plus_kq_b": (
            "room for zeros that are added to attention's scores (keys x tokens x heads), which keeps unified slots"
            " from flash attention; one for each layer, all there from the start"
        ),
        "input of FILL for csa_top_k_mask": (
            "room for zeros that open a CSA layer's mask for the keys that the indexer chose; one for each such layer,"
            " all there from the start"
        ),
    })
    """``build_top_k_mask``; in older builds ``dsv4_build_kq_zero_bias``."""

    def notes(self, flags: Flags, release: Release) -> tuple[str, ...]:
        """What unified slots cost before masks followed attention."""
        unified = flags.kv_unified and flags.n_parallel > 1 and flags.flash_attn != "off"
        if not unified or switches(release).masks_follow_attention:
            return ()
        return (
            f"in {release.name} unified slots run without flash attention, over the keys of all slots, so compute"
            " buffers take many times what they take with -np 1",
        )

    def checkpoint(self, hp: DeepSeek4HParams, memory: Memory, n_ctx_seq: int) -> int:
        """One slot's raw keys within the window, and one snapshot of its compressors' states (``state_write``)."""
        if not isinstance(memory, DeepSeek4Memory):
            return 0  # not known of a fork
        cells = min(hp.n_swa, n_ctx_seq)
        raw = sum(t.type.row_size(t.ne[0]) for t in memory.keys("raw").tensors) * cells
        states = [memory.state(name) for name in ("csa", "hca", "lid")]
        return raw + sum(len(state.tensors) * state.n_embd_state * state.state_size * 4 for state in states)

    def asked(self, release: Release) -> bool:
        """Every llama.cpp that was asked at all."""
        return release.asked

    def inexact(
        self,
        hp: DeepSeek4HParams,
        flags: Flags,
        release: Release,
        cuda: bool,
        without_ops: Sequence[str],
        paths: Paths,
    ) -> str:
        """Where nobody knows whether the release's indexer reads such keys; ``cuda``: whether a CUDA device runs it."""
        asked = cuda and paths["indexer"] != "unfused" and LIGHTNING_INDEXER.op not in without_ops
        if not asked or flags.type_k not in release.cuda_indexer_keys_unknown:
            return ""
        return (
            f"it is not known whether {release.name}'s CUDA indexer reads {flags.type_k} keys:"
            " taken as not, so that the op runs on the host"
        )


class DeepSeek4MTP(DeepSeek4):
    """The model's own MTP block, in a context that drafts."""

    graph = MTPGraph
    since = 10235

    def memory(self, hp: DeepSeek4HParams, build: CacheBuilder, release: Release) -> Memory:
        """Sliding keys of the block alone; values have room, too, and nothing writes them."""
        return iswa_memory(build, layers=self.graph.layers(hp))

    def check_graph(self, hp: DeepSeek4HParams, memory: Memory, release: Release) -> Refusal | None:
        """Why llama.cpp dies while it builds the first graph."""
        if hp.n_layer_nextn != 1:
            return died("hparams.n_layer_nextn == 1")
        if hp.n_layer < hp.hash_layer_count:
            return died("(uint32_t) il >= hparams.dsv4_hash_layer_count")
        return None


ARCHITECTURE = DeepSeek4(mtp=DeepSeek4MTP())
