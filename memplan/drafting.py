"""The second context, in which llama-server drafts: with the model's own MTP block, or with a model of its own.

Follows common/speculative.cpp (``common_base_params_to_speculative``, ``common_speculative_init_result``,
``common_speculative_impl_draft_mtp``, ``common_speculative_impl_draft_dflash``) and tools/server/server-context.cpp
(``load_model``), v0.5.0, and what b10361 and v0.4.0 do otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memplan.errors import ModelError, UnsupportedArchitecture
from memplan.ggml import ops
from memplan.ggml.backend import Buffer, BufferType
from memplan.ggml.tensor import new_tensor
from memplan.gguf.types import F32, I32
from memplan.llama import checks
from memplan.llama.batch import Batch, ContextParams, GivenOut
from memplan.llama.context import Reservation
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import CacheBuilder
from memplan.llama.placement import Placement, select_devices, too_many_devices
from memplan.llama.refusals import ABORT, OTHER, REFUSED, Refusal
from memplan.llama.run_time import Product, Work, prompt_batches
from memplan.llama.speculation import BLOCK_TYPES, DSPARK_SINCE, draft_kind
from memplan.loaded import Made, Model, load, make_context
from memplan.models.graphs import BufferMap, PartBuffers
from memplan.question import Question
from memplan.releases import Release
from memplan.workshop import Workshop

SAMPLED = BLOCK_TYPES | {"draft-mtp", "draft-eagle3"}
"""Kinds whose samplers run where the logits are."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """What drafts: a model, which may be the one that is served, and its settings.  ``own``: it has its own weights."""

    model: Model
    flags: Flags
    own: bool

    @property
    def layer_inputs(self) -> frozenset[int]:
        """The layers of the model that is served whose inputs it reads."""
        return self.model.arch.layer_inputs(self.model.hparams) if self.own else frozenset()


@dataclass(frozen=True, slots=True)
class MadeDraft(Made):
    """A second context, and what drafts in it."""

    drafter: Drafter

    def work(self, filled: int) -> Work:
        """A prompt goes through an MTP block as through the model; a block drafter multiplies what it reads of it.

        Then both draft: a token for each slot, or a block (``common_speculative_impl_draft_dflash::draft``).
        """
        context, params, model = self.context, self.context.params, self.drafter.model
        filled = min(filled, params.n_ctx_seq)
        if not filled:
            return Work(())
        each, injects = model.arch.drafted_at_once(model.hparams, self.drafter.flags), model.arch.injects
        n_seqs = max(1, min(params.n_seq_max, params.n_ubatch // each))
        others = min(filled * (params.n_seq_max - 1), params.n_ctx - filled)
        drafts = Batch(n_seqs * each, n_seqs, n_seqs * each, filled, others)
        if not injects:
            return Work((*prompt_batches(params, filled), drafts))
        read = Batch(min(params.n_ubatch, filled), 1, 0, filled)
        homes = {backend.buft: i for i, backend in enumerate(context.devices.backends)}
        products = []
        for t in model.tensors.tensors:
            home = homes.get(self.placement.tensors[t.role])
            if home is not None and t.name.removeprefix(f"blk.{t.layer}.") in injects:
                weight = new_tensor(t.type, *t.ne, name=t.name)
                weight.buffer = Buffer(self.placement.tensors[t.role], weights=True)
                name = "inp_target_features" if t.name == "fc.weight" else "inp_g_embeddings"
                node = ops.mul_mat(weight, new_tensor(F32, t.ne[0], read.n_tokens, name=name))
                products.append(Product(node, home, t.layer, read))
        return Work((drafts,), tuple(products))


@dataclass(frozen=True, slots=True)
class DraftContext:
    """A second context as it is once drafts have samplers, and what it reserves."""

    made: MadeDraft
    reserved: Reservation
    elsewhere: str = ""
    """Where its layers go instead, once memory is really taken."""


def find_drafter(question: Question, served: Model, params: ContextParams) -> Drafter | Refusal | str | None:
    """What drafts with these flags; why llama-server gives up; why it is not counted; None where nothing drafts.

    ``params``: of the context that is drafted for.
    """
    flags = question.flags
    if not flags.drafting and not flags.draft_model:
        return None
    mtp = flags.drafting == "draft-mtp"
    if not flags.draft_model:
        if not mtp:
            return None if flags.lacks_drafter else "-hf may bring a model that drafts; name it with -md"
        block = mtp_block(served, question.release)
        if not isinstance(block, Model):
            return block
        return Drafter(block, draft_flags(flags, params, question.release, own=False), own=False)
    if question.draft is None:
        return "the draft model is not given"
    if flags.drafting == "draft-dspark" and question.release.build < DSPARK_SINCE:
        said, fix = "unknown speculative type: draft-dspark", f"take llama.cpp b{DSPARK_SINCE} or newer"
        return Refusal("argument-not-of-this-release", REFUSED, said, fix)
    own = draft_flags(flags, params, question.release, own=True)
    try:
        model = load(question.draft, own, question.release)
    except UnsupportedArchitecture as fault:
        return f"the draft model: {fault}"
    if not model.arch.graph_followed:
        return f"the draft model: architecture {model.arch.name} is not modelled"
    if flags.drafting == "draft-eagle3":
        return f"{flags.drafting} with {model.arch.name} is not modelled"
    if mtp:
        block = mtp_block(model, question.release)
        kind = draft_kind(question.draft)
        if isinstance(block, Refusal) and kind in BLOCK_TYPES:
            return replace(block, fix=f"{block.fix}; this file drafts with --spec-type {kind}")
        return Drafter(block, own, own=True) if isinstance(block, Model) else block
    if model.mtp_only:
        raise ModelError(f"{question.draft.name}: MTP blocks alone, which draft with --spec-type draft-mtp")
    if flags.drafting in BLOCK_TYPES and not model.arch.layer_inputs(model.hparams):
        said = 'GGML_ASSERT(target_layer_ids_n > 0 && "DFlash model has no target_layer_ids") failed'
        return Refusal(OTHER, ABORT, said, f"take a drafter of architecture dflash, or leave out {flags.drafting}")
    return Drafter(model.beside(served), own, own=True)


def mtp_block(model: Model, release: Release) -> Model | Refusal | str:
    """A model's MTP block; why llama-server gives up; or why its context is not counted."""
    hp = model.hparams
    if not hp.n_layer_nextn:
        said = "context type MTP requested but model doesn't contain MTP layers"
        return Refusal(OTHER, REFUSED, said, "take a file that has them, or leave out --spec-type draft-mtp")
    block = model.mtp
    if block is None:
        return f"the context of {model.arch.name}'s MTP block is not modelled"
    if release.build < block.arch.since:
        return model  # llama.cpp has no graph of the block yet, and makes that of the model once more
    if f"blk.{hp.n_layer}.nextn.eh_proj.weight" not in block.graphs.weights:
        said = 'GGML_ASSERT(layer.nextn.eh_proj && "MTP block missing nextn.eh_proj") failed'
        return Refusal(OTHER, ABORT, said, "take a file that has the MTP block's tensors")
    return block


def draft_flags(flags: Flags, params: ContextParams, release: Release, *, own: bool) -> Flags:
    """The settings of the second context, most of which are the first's (``common_base_params_to_speculative``).

    ``own``: whether it loads weights of its own.
    """
    block = flags.drafting in BLOCK_TYPES
    found = replace(
        flags,
        app="server",
        n_ctx=params.n_ctx,
        type_k=flags.draft_type_k,
        type_v=flags.draft_type_v,
        n_draft=max(0, flags.n_rs_seq) if block else 0,
        n_rs_seq=0,
        embeddings=False,
    )
    if not own:
        return found
    devices = flags.draft_devices
    single = release.draft_inherits_devices and devices is not None and len(devices) == 1
    return replace(
        found,
        devices=flags.devices if devices is None and release.draft_inherits_devices else devices,
        split_mode="layer" if single else flags.split_mode,
        n_gpu_layers=flags.draft_gpu_layers,
        overrides=flags.draft_overrides,
    )


def make_draft(
    question: Question,
    workshop: Workshop,
    drafter: Drafter,
    served: Made,
    used: Mapping[str, int],
    buffers: BufferMap,
    plain: bool,
) -> DraftContext | Refusal:
    """The context in which ``drafter`` drafts for what is ``served``, or why llama-server makes none.

    ``used``: what that takes, by buffer type.  ``buffers``: where its weights lie.
    """
    model, flags, release = drafter.model, drafter.flags, question.release
    hp = model.hparams
    placement: Placement | Refusal = served.placement
    elsewhere = ""
    if drafter.own:
        refusal = checks.check_load(hp, release, model.arch.since, model.arch.before) or model.tensors.refusal
        if refusal is not None:
            return refusal
        taken = used if question.as_loaded else states(served.memory)
        placement, own = workshop.place(model.tensors, hp.n_layer_all, sharing(flags, workshop, taken))
        loaded, _ = workshop.place(model.tensors, hp.n_layer_all, sharing(flags, workshop, used))
        if isinstance(placement, Placement) and isinstance(loaded, Placement):
            elsewhere = moved(placement, loaded)
        buffers = Beside(own, buffers, frozenset(t.role for t in model.tensors.tensors))
    if isinstance(placement, Refusal):
        return placement
    one_type = model.arch.one_cache_type
    refusal = checks.check_context(hp, flags, release, one_type) or too_many_devices(placement)
    if refusal is not None:
        return refusal
    params = ContextParams.of(flags, hp)
    memory = model.arch.memory(hp, CacheBuilder(hp, flags, params, placement), release)
    refusal = model.arch.check_graph(hp, memory, release)
    if refusal is not None:
        return refusal
    first = make_context(question, workshop, model, flags, placement, memory, buffers, plain=plain)
    reserved = first.reserve()
    refusal = checks.check_flash_attn(flags, reserved.fused)
    if refusal is not None:
        return refusal
    given = GivenOut(sampled=sampled(flags, placement))
    if not given.sampled:
        return DraftContext(MadeDraft(placement, memory, first, drafter), reserved, elsewhere)
    context = make_context(
        question, workshop, model, flags, placement, memory, buffers, given=given, settled=reserved.fused, plain=plain
    )
    again = replace(context.reserve(), disabled=reserved.disabled)
    return DraftContext(MadeDraft(placement, memory, context, drafter), again, elsewhere)


def sharing(flags: Flags, workshop: Workshop, used: Mapping[str, int]) -> Flags:
    """The flags with ``-ts`` in place of the free memory of which some is ``used`` by now, by buffer type.

    A drafter's layers go by what is free when it is loaded, where ``-ts`` says nothing (``load_tensors``).
    """
    if any(flags.tensor_split):
        return flags
    devices = select_devices(flags, workshop.machine)
    return replace(flags, tensor_split=tuple([float(max(0, d.free - used.get(d.buft.name, 0))) for d in devices]))


def states(memory: Memory) -> dict[str, int]:
    """Bytes of states by buffer type: all that a llama.cpp which plans, and allocates nothing else, takes of a GPU."""
    found = [c for c in memory.caches.values() if any(t.kind == "state" for t in c.tensors)]
    return dict(Memory({str(i): c for i, c in enumerate(found)}).context)


def moved(placed: Placement, loaded: Placement) -> str:
    """Where layers go, if they go elsewhere once memory is really taken; empty where they do not."""
    if [d.name for d in (*placed.layers, placed.output)] == [d.name for d in (*loaded.layers, loaded.output)]:
        return ""
    count = Counter(d.name for d in (*loaded.layers, loaded.output))
    return ", ".join(f"{n} on {name}" for name, n in count.items())


def sampled(flags: Flags, placement: Placement) -> int:
    """Outputs of a sequence that are sampled where the output layer lies; 0 where the CPU samples.

    Follows ``llama_sampler_backend_support``: a device that lacks an op leaves samplers to the CPU.
    """
    if not flags.draft_sampling or flags.drafting not in SAMPLED:
        return 0
    n = 128 * 1024
    logits, rows = new_tensor(F32, n), new_tensor(F32, 1, n)
    best = new_tensor(I32, 10)
    best.op, best.src = "TOP_K", [logits]
    found = new_tensor(F32, 1, 10)
    found.op, found.src = "GET_ROWS", [rows, best]
    backend = placement.output.backend
    if placement.output is not placement.cpu and not (backend.supports_op(best) and backend.supports_op(found)):
        return 0
    return 1 + flags.n_draft


def draft_checkpoint(hp: HParams, made: Made, unified: bool) -> int:
    """Bytes at most that a context checkpoint of llama-server holds of the context that drafts.

    Of caches that slide, what is within the window; of a plain one, all that the slot has in it: its ``state_write``
    (src/llama-kv-cache.cpp, v0.5.0) takes no notice of what is asked for (``common_prompt_checkpoint::update_dft``).
    """
    memory, params = made.memory, made.context.params
    if "swa" in memory.caches:
        return memory.kept(hp.n_swa, params.n_ctx_seq)
    return sum(t.nbytes for t in memory.tensors) // (1 if unified else params.n_seq_max)


class Beside:
    """Where weights lie for a drafter, which takes some of those of what is served (``ctx_other``)."""

    def __init__(self, own: BufferMap, served: BufferMap, roles: frozenset[str]) -> None:
        self._own = own
        self._served = served
        self._roles = roles
        self.parts: PartBuffers = {}

    def weight(self, role: str) -> Buffer:
        """The drafter's own, or the other's."""
        return self._own.weight(role) if role in self._roles else self._served.weight(role)

    def cache(self, buft: BufferType) -> Buffer:
        """The buffer of caches and states in memory of this type."""
        return self._own.cache(buft)
