"""What an architecture is: a file that says which hyper-parameters, weights, memory and graph its models have.

As in llama.cpp an architecture answers ``load_arch_hparams``, ``load_arch_tensors``, its case of ``create_memory`` and
``build_arch_graph``. docs/new-architecture.md goes through one from the first key to exact answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from memplan.ggml import ops
from memplan.ggml.plan.parts import PartError
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.llama.context import Fused, Paths, Probe
from memplan.llama.graph import AttnInputs, Crossing, GraphContext, IswaInputs
from memplan.llama.graph.base import H
from memplan.llama.memory.iswa import iswa_memory
from memplan.llama.memory.kv import CacheBuilder, kv_memory
from memplan.llama.refusals import Refusal, died
from memplan.llama.weights import Have, Wanted, head

if TYPE_CHECKING:
    from memplan.gguf.header import Header
    from memplan.llama.flags import Flags
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.releases import Release

Cuts = Generator[Crossing, Any, Crossing]
"""A layer in halves: ``h = yield h`` hands on what crosses the cut, and goes on with what comes back."""


class ModelGraph(GraphContext[H]):
    """A graph that is made of a head, layers and a tail, so that like layers need be built only once."""

    inp_attn: AttnInputs | IswaInputs
    inp_out_ids: Tensor

    def head(self) -> Crossing:
        """Inputs and embeddings: what the first layer reads."""
        raise NotImplementedError

    def attention_inputs(self) -> None:
        """The inputs of attention: over one cache of keys and values, or over two where some layers slide."""
        slides = "swa" in self.memory.caches
        self.inp_attn = self.build_attn_inp_kv_iswa() if slides else self.build_attn_inp_kv(self.kv_cache())

    def layer(self, il: int, *given: Tensor) -> Crossing | Cuts:
        """One layer, from what crossed over to it to what it hands on; a generator cuts it in halves."""
        raise NotImplementedError

    def tail(self, *given: Tensor) -> Tensor:
        """From the last layer to the logits; by default the last norm and one product."""
        return self.build_output(*given)

    def is_last(self, il: int) -> bool:
        """Whether ``il`` is the last layer that runs, after which only the tokens that are asked for are needed."""
        return il == self.hp.n_layer - 1

    @classmethod
    def layers(cls, hp: H) -> range:
        """The layers that it runs."""
        return range(hp.n_layer)

    def build(self) -> None:
        """The whole graph (``build_arch_graph``, ``llama_model::build_graph``)."""
        given = many(self.head())
        for il in self.layers(self.hp):
            self.hand_over(il, given)
            step = self.layer(il, *given)
            given = rest_of_layer(step, next(step)) if isinstance(step, Generator) else many(step)
        self.hand_over(il + 1, given)
        self.end(given)

    def rows_asked_for(self, il: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """In the last layer, the rows of the tokens that are asked for; in all others, all (``inp_out_ids``)."""
        return tuple([ops.get_rows(t, self.inp_out_ids) for t in tensors]) if self.is_last(il) else tensors

    def hand_over(self, il: int, given: tuple[Tensor, ...]) -> None:
        """What layer ``il`` is about to read is given out, if a drafter wants it (``t_layer_inp``)."""
        if il in self.given_out.layer_inputs:
            self.give_input(il, given)

    def give_input(self, il: int, given: tuple[Tensor, ...]) -> None:
        """Mark a layer's input as an output."""
        given[0].flags |= FLAG_OUTPUT

    def end(self, given: tuple[Tensor, ...]) -> Tensor:
        """The tail, and what is sampled of it."""
        logits = self.tail(*given)
        if self.given_out.sampled:
            self.build_sampling(logits, self.given_out.sampled)
        return logits


class KVGraph(ModelGraph[H]):
    """A graph whose layers all attend to keys and values, and hand on nothing but embeddings."""

    def head(self) -> Tensor:
        """Embeddings."""
        cur = self.embeddings()
        self.inp_pos = self.build_inp_pos()
        self.attention_inputs()
        self.inp_out_ids = self.build_inp_out_ids()
        return cur

    def embeddings(self) -> Tensor:
        """Those of the tokens."""
        return self.build_inp_embd()


def many(crossing: Any) -> tuple[Tensor, ...]:
    """What crosses over, as a tuple."""
    return crossing if isinstance(crossing, tuple) else (crossing,)


def rest_of_layer(step: Cuts, crossing: Crossing) -> tuple[Tensor, ...]:
    """What a layer hands on once it is given what crosses its cut."""
    try:
        step.send(crossing)
    except StopIteration as stop:
        return many(stop.value)
    raise PartError("a layer is cut more than once")


class Architecture(ABC, Generic[H]):
    """One architecture. ``name``: as ``general.architecture`` has it.  ``graph``: what builds its graph."""

    name: str
    graph: type[ModelGraph[H]]
    since: int = 0
    """The first build seen that knows it, where the oldest that are followed do not (``LLM_ARCH_NAMES``); of an MTP
    block, that has its graph."""
    before = ""
    """What llama.cpp says of a file before; empty: that it does not know the architecture."""
    paths: tuple[str, ...] = ()
    """Parts that can be fused or not, by the names that ``--path`` takes."""
    graph_followed = True
    """Whether the graph is known, and with it compute buffers."""
    tied_output = True
    """Whether the embedding is the output too, where a file has no weight of that name."""
    one_cache_type = False
    """Whether K and V caches must have one type (``is_mla``), since ``Release.equal_cache_types``."""
    equal_heads = False
    """Whether the graph asserts that a head's values are as long as its keys."""
    whole_rope = False
    """Whether it asserts that, and that all of a head is rotated."""
    long_graphs = False
    """Whether graphs have room for many more nodes: unfused, or for each stream, they are long."""
    own_streams = False
    """Whether each slot keeps caches of its own, also where slots are unified."""
    always_drafts_since: int | None = None
    """The first build seen that loads MTP blocks always, until they are skipped (``Release.skips_mtp_blocks``)."""
    injects: frozenset[str] = frozenset()
    """Of a block drafter: the weights that what it reads of a prompt is multiplied with, by name without layer."""
    unnamed: Mapping[str, str] = MappingProxyType({})
    """What large inputs without a name are, by what memplan calls them (``explaining/names.py``)."""

    def __init__(self, mtp: Architecture[Any] | None = None) -> None:
        """``mtp``: what makes the graph of a context that drafts with the model's own MTP block; None: not modelled."""
        self.mtp = mtp

    def of_file(self, header: Header) -> Architecture[Any]:
        """The form that a file's models have, where there are several."""
        return self

    def graph_of(self, release: Release) -> type[ModelGraph[H]]:
        """What builds the graph in a release."""
        return self.graph

    @abstractmethod
    def load_hparams(self, k: Keys, release: Release) -> H:
        """The hyper-parameters (``load_arch_hparams``). Raises MissingKey and BadHyperParameter."""

    def tensors(self, hp: H, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """The weights that are asked for, in order (``load_arch_tensors``); ``have``: those of the file."""
        yield from head(hp, have, tied=self.tied_output)
        for il in range(hp.n_layer):
            yield from self.block(hp, have, il, release)
        since = self.always_drafts_since
        always = since is not None and since <= release.build and not release.skips_mtp_blocks
        for il in range(hp.n_layer, hp.n_layer_all):
            yield from self.mtp_block(hp, have, il, release, skip=not (load_mtp or always))

    def block(self, hp: H, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """The weights of a layer, in order."""
        raise NotImplementedError

    def mtp_block(self, hp: H, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """Those of an MTP block, which is not loaded with ``skip``; none where llama.cpp asks for none."""
        return iter(())

    def cached_layers(self, hp: H, release: Release) -> range:
        """The layers that have caches."""
        return range(hp.n_layer_all if self.caches_mtp_blocks(release) else hp.n_layer)

    def caches_mtp_blocks(self, release: Release) -> bool:
        """Whether MTP blocks have caches, too, whether anything drafts or not."""
        return False

    def memory(self, hp: H, build: CacheBuilder, release: Release) -> Memory:
        """What a context remembers (``create_memory``): by default one cache, or two where some layers slide."""
        layers = self.cached_layers(hp, release)
        return iswa_memory(build, layers=layers) if hp.is_swa else kv_memory(build, layers)

    def layer_kind(self, hp: H, il: int) -> Hashable:
        """What tells a layer's graph from others', beside its weights, its cache and its own hyper-parameters."""
        return ()

    def fused(self, release: Release, paths: Paths) -> Fused:
        """The ops of its own that are fused until a probe turns them off."""
        return frozenset()

    def probes(self, release: Release, paths: Paths) -> tuple[Probe, ...]:
        """Those of them that are tried, in llama.cpp's order (``resolve_fused_ops``)."""
        return ()

    def max_nodes(self, n_tokens: int, n_tensors: int) -> int:
        """Nodes that a graph has room for (``llama_context::graph_max_nodes``, src/llama-context.cpp, v0.5.0)."""
        return max(40 * n_tokens, 32 * n_tensors) if self.long_graphs else max(1024, 8 * n_tensors)

    def check_graph(self, hp: H, memory: Memory, release: Release) -> Refusal | None:
        """Why llama.cpp dies while it builds the first graph; None if it does not."""
        if (self.equal_heads or self.whole_rope) and hp.n_embd_head_v() != hp.n_embd_head_k():
            return died("n_embd_head == hparams.n_embd_head_k()")
        if self.whole_rope and hp.n_embd_head_v() != hp.n_rot():
            return died("n_embd_head == n_rot")
        return None

    def reserves_one_sequence(self, hp: H, release: Release) -> bool:
        """Whether a context reserves a prompt once more with all of it in one sequence (``sched_reserve``)."""
        return False

    def drafted_at_once(self, hp: H, flags: Flags) -> int:
        """Tokens of a slot that are computed at once while it drafts; ``flags``: the drafter's."""
        return 1

    def layer_inputs(self, hp: H) -> frozenset[int]:
        """Of a block drafter: the target's layers whose inputs it reads (``target_layer_ids``)."""
        return frozenset()

    def notes(self, flags: Flags, release: Release) -> tuple[str, ...]:
        """What to know about these settings that is true of this architecture alone."""
        return ()

    def checkpoint(self, hp: H, memory: Memory, n_ctx_seq: int) -> int:
        """Bytes of one context checkpoint of llama-server: what of the caches cannot be rolled back; 0 for none."""
        return memory.kept(hp.n_swa, n_ctx_seq)

    def asked(self, release: Release) -> bool:
        """Whether a llama.cpp of the release was asked about this architecture, rather than its source read alone."""
        return release.others_asked

    def inexact(
        self, hp: H, flags: Flags, release: Release, cuda: bool, without_ops: Sequence[str], paths: Paths
    ) -> str:
        """Why an answer for these settings is not exact; empty where it is."""
        return ""
