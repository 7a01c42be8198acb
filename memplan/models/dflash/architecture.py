"""What block drafters answer as an architecture, in each of their two forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memplan.llama.memory.iswa import iswa_memory
from memplan.llama.refusals import Refusal, died
from memplan.models.base import Architecture
from memplan.models.deepseek4.architecture import DeepSeek4
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.models.dflash.graph import PlainGraph, StagesGraph
from memplan.models.dflash.hparams import DraftHParams, PlainHParams, StagesHParams, load_plain, load_stages
from memplan.models.dflash.switches import STAGES_SINCE
from memplan.models.dflash.tensors import wanted_plain, wanted_stages

if TYPE_CHECKING:
    from memplan.gguf.header import Header
    from memplan.llama.flags import Flags
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.llama.weights import Have, Wanted
    from memplan.releases import Release


def block(hp: DraftHParams, flags: Flags) -> int:
    """Tokens of a block: those that are drafted, and but for DSpark the one before them."""
    return max(1, flags.n_draft + (flags.drafting != "draft-dspark" or not hp.from_anchor))


class Stages(DeepSeek4):
    """Stages of DeepSeek-V4's kind: its fused ops, and its room for nodes."""

    name = "dflash"
    graph = StagesGraph
    injects = frozenset({"fc.weight", "attn_kv.weight"})
    since = STAGES_SINCE
    one_cache_type = False
    """Values have a cache."""
    before = "key not found in model: dflash.attention.sliding_window_pattern"

    def load_hparams(self, k: Keys, release: Release) -> StagesHParams:
        """``load_arch_hparams``."""
        return load_stages(k, release)

    def tensors(self, hp: DeepSeek4HParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """``load_arch_tensors``."""
        assert isinstance(hp, StagesHParams)  # what ``load_hparams`` made
        return wanted_stages(hp, have, release)

    def memory(self, hp: DeepSeek4HParams, build: CacheBuilder, release: Release) -> Memory:
        """Sliding keys; values have room, too, and nothing writes them."""
        return iswa_memory(build)

    def drafted_at_once(self, hp: DeepSeek4HParams, flags: Flags) -> int:
        """A block."""
        assert isinstance(hp, StagesHParams)  # what ``load_hparams`` made
        return block(hp, flags)

    def layer_inputs(self, hp: DeepSeek4HParams) -> frozenset[int]:
        """``target_layer_ids``."""
        assert isinstance(hp, StagesHParams)  # what ``load_hparams`` made
        return hp.targets

    def check_graph(self, hp: DeepSeek4HParams, memory: Memory, release: Release) -> Refusal | None:
        """Why llama.cpp dies while it builds the first graph."""
        return died("hc == 4") if hp.hc_mult != 4 else None


class DFlash(Architecture[PlainHParams]):
    """``llama_model_dflash``, in its plain form."""

    name = "dflash"
    graph = PlainGraph
    injects = frozenset({"fc.weight", "attn_k.weight", "attn_v.weight"})

    def of_file(self, header: Header) -> Architecture[Any]:
        """A file with hyper-connections has stages."""
        return STAGES if header.metadata.get("dflash.hyper_connection.count") else self

    def load_hparams(self, k: Keys, release: Release) -> PlainHParams:
        """``load_arch_hparams``."""
        return load_plain(k, release)

    def tensors(self, hp: PlainHParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """``load_arch_tensors``."""
        return wanted_plain(hp, have, release)

    def drafted_at_once(self, hp: PlainHParams, flags: Flags) -> int:
        """A block."""
        return block(hp, flags)

    def layer_inputs(self, hp: PlainHParams) -> frozenset[int]:
        """``target_layer_ids``."""
        return hp.targets


STAGES = Stages()
ARCHITECTURE = DFlash()
