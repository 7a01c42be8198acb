"""The question: what will llama.cpp allocate on every device with these flags?

Puts the floors above together in llama.cpp's own order: hyper-parameters, weights, placement, caches, then the
context's reservations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from memplan.backends.devices import CUDA, VULKAN, Rig
from memplan.backends.make import approximate, driver_notes
from memplan.drafting import DraftContext, Drafter, draft_checkpoint, find_drafter, make_draft
from memplan.errors import ModelError
from memplan.garbage import gc_paused
from memplan.ggml.backend import BufferType
from memplan.ggml.graph import GraphTooLargeError
from memplan.ggml.ops import GGMLAssertError
from memplan.ggml.sched import SchedAbortError
from memplan.ggml.tallocr import OutOfFreeBlocksError
from memplan.gguf.header import Header
from memplan.llama import checks
from memplan.llama.batch import ContextParams, GivenOut
from memplan.llama.context import AS_RELEASED, Paths, Reservation
from memplan.llama.flags import Flags, check_devices
from memplan.llama.host_memory import REPACKED, held_while_loading, mapped_model, maps_file
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import CacheBuilder
from memplan.llama.override_use import WeightUse, weight_use
from memplan.llama.placement import Placement, select_devices, too_many_devices
from memplan.llama.refusals import OTHER, Refusal, abort_of
from memplan.llama.run_time import run_time
from memplan.llama.server_memory import server_memory
from memplan.llama.servers import server_notes, server_reasons
from memplan.loaded import Made, Model, load, make_context
from memplan.models.paths import check_paths, path_notes
from memplan.notes import AS_PLACED, pinned_note, settings_notes
from memplan.projector import with_projector
from memplan.question import Question
from memplan.releases import Release
from memplan.result import BufferUse, Draft, Estimate, HostUse, buffer_uses, device_uses, host_use
from memplan.workshop import PlacedBuffers, Workshop, workshop


def estimate(
    header: Header,
    flags: Flags,
    rig: Rig,
    release: str | Release = "latest",
    without_ops: Iterable[str] = (),
    paths: Paths = AS_RELEASED,
    draft: Header | None = None,
    filled: int | None = None,
    projector: Header | None = None,
) -> Estimate:
    """What llama.cpp would allocate for a model, or why it would not start.

    Args:
        header: the model, from ``read_model``.  flags: from ``parse_flags``.  rig: the GPUs.
        release: the llama.cpp to follow: a tag, a build, or "latest".
        without_ops: ops that every GPU is made to refuse, by ggml's names.
        paths: fused ops that are asked for or ruled out; what is forced is not probed.
        draft: the model that drafts (``-md``), from ``read_model``.  projector: that of ``--mmproj``.
        filled: tokens that each slot holds when run time is counted; None: all that a slot can hold.
    Raises:
        ModelError, FlagError, UnknownRelease: what cannot be answered, in one line.
    """
    return answer(Question.of(header, flags, rig, release, without_ops, paths, draft, filled, projector)).estimate


@dataclass(frozen=True, slots=True)
class Answer:
    """An estimate, the model, and what it was made from.

    None of that when llama.cpp would not start, or where the release's graphs are not followed.
    """

    estimate: Estimate
    model: Model
    made: Made | None = None
    draft: Made | None = None
    """What the context that drafts was made from."""
    uncounted: str = ""
    """Why what drafts is not counted, though something does."""
    elsewhere: str = ""
    """Where the layers of what drafts go instead, once memory is really taken."""

    @property
    def weight_use(self) -> WeightUse:
        """What the placement of the weights came to."""
        if self.made is None:
            return AS_PLACED
        tensors, flags = self.model.tensors.tensors, self.estimate.flags
        return weight_use(tensors, flags, self.made.placement, self.made.context.params.n_ubatch)


def answer(question: Question, plain: bool = False) -> Answer:
    """The estimate of a question, with what it was made from.

    ``plain``: make every tensor, where like layers would do. Raises ModelError, FlagError.
    """
    flags, rig, release, paths = question.flags, question.rig, question.release, question.paths
    check_devices(flags, rig)
    model = model_of(question)
    check_paths(model.arch, release, paths)
    with gc_paused():
        found = _Work(question, model, plain).answer()
    result = found.estimate
    if question.projector is not None and result.refused is None:
        result = with_projector(result, question.projector, flags, workshop_of(question).machine, release)
    notes = path_notes(model.arch, release, paths) + server_notes(flags, rig) + driver_notes(rig.gpus)
    notes += settings_notes(result, found.weight_use)
    notes += _not_pinned(found, question)
    notes += () if result.refused else model.arch.notes(flags, release)
    cuda = any(gpu.backend == CUDA for gpu in rig.gpus)
    of_model = model.arch.inexact(model.hparams, flags, release, cuda, question.without_ops, paths)
    if release.asked and not model.arch.asked(release):
        compared = f"{release.name} was compared with llama.cpp for other architectures alone"
        read = f"{compared}; {model.arch.name} is as its source has it"
        of_model = "; ".join(filter(None, (read, of_model)))
    graphs = "" if release.graphs_followed else f"{release.name}: weights and caches alone; compute buffers are missing"
    elsewhere = found.elsewhere and (
        "the draft model's layers are placed by what is free before anything is loaded; by what is then left they go"
        f" {found.elsewhere}: give -ts, or -devd"
    )
    reasons = (
        elsewhere,
        found.uncounted and f"what drafts is not counted: {found.uncounted}",
        "" if question.projector or not flags.projector else "the projector is not counted: its file is not given",
        *approximate(rig.gpus),
        *server_reasons(flags, rig),
        *flags.inexact,
        question.release_note,
        of_model,
        graphs,
    )
    inexact = "; ".join(reason for reason in (*reasons, *question.inexact) if reason)
    return replace(found, estimate=replace(result, notes=(*notes, *question.notes), approximate=inexact))


def _not_pinned(found: Answer, question: Question) -> tuple[str, ...]:
    """What of the host's compute buffer Vulkan's driver does not pin: a part that is larger than its largest buffer.

    (ggml_backend_vk_host_buffer_type_alloc_buffer, ggml_vk_create_buffer, v0.5.0.)
    """
    first = next((gpu for gpu in question.rig.gpus if gpu.backend == VULKAN), None)
    pinned = found.estimate.buffers.get("Vulkan_Host", BufferUse()).compute
    if first is None or found.made is None or pinned <= (most := first.vulkan_limits.max_buffer):
        return ()
    context = found.made.context
    part = max(context.prompt_chunks[[buft.name for buft in context.sched.bufts].index("Vulkan_Host")])
    return (pinned_note(part, most),) if part > most else ()


def model_of(question: Question) -> Model:
    """The model that is served, as the release loads it. Raises ModelError for a file that can only draft."""
    model = load(question.header, question.flags, question.release)
    if model.mtp_only:
        raise ModelError(f"{model.header.name}: MTP blocks alone, which draft for another model: give it with -md")
    return model


def workshop_of(question: Question) -> Workshop:
    """What estimates for the question's rig and release share."""
    return workshop(question.rig, question.release, question.without_ops)


def check_compute(question: Question) -> None:
    """Raises ModelError where compute buffers are not modelled, so that nothing can be planned or explained."""
    arch = model_of(question).arch
    if not (question.release.graphs_followed and arch.graph_followed):
        what = question.release.name if arch.graph_followed else f"architecture {arch.name}"
        raise ModelError(f"compute buffers of {what} are not modelled; memplan estimate says what is known")


NOTHING_RESERVED = Reservation((), [], (0, 0), (0, 0), frozenset(), ())
"""Of a release, or an architecture, whose graphs are not followed."""


FAULTS = (GGMLAssertError, SchedAbortError, OutOfFreeBlocksError, GraphTooLargeError)
"""Where llama.cpp would abort."""


class _Work:
    """One estimate in the making."""

    def __init__(self, question: Question, model: Model, plain: bool) -> None:
        self.question = question
        self.model = model
        self.flags = question.flags
        self.rig = question.rig
        self.release = question.release
        self.plain = plain
        self.workshop = workshop_of(question)

    def answer(self) -> Answer:
        """The estimate, or a refusal in its place; notes are not in it yet."""
        try:
            return self._answer()
        except FAULTS as fault:
            return self._refusal(abort_of(str(fault)))
        except ZeroDivisionError:  # the rules divide where llama.cpp does
            return self._refusal(abort_of("Floating point exception (a division by zero)"))

    def _answer(self) -> Answer:
        model, flags, hp = self.model, self.flags, self.model.hparams
        refusal = checks.check_load(hp, self.release, model.arch.since) or model.tensors.refusal
        if refusal is not None:
            return self._refusal(refusal)
        by_rows = flags.split_mode == "row" and self.release.cuda_splits_rows
        placed = replace(flags, split_mode="layer") if by_rows else flags
        placement, buffers = self.workshop.place(model.tensors, hp.n_layer_all, placed, self.mapped)
        if isinstance(placement, Refusal):
            return self._refusal(placement)
        if by_rows:
            placement = replace(placement, pipeline_parallel=False)
        one_type = model.arch.one_cache_type
        refusal = checks.check_context(hp, flags, self.release, one_type) or too_many_devices(placement)
        if refusal is not None:
            return self._refusal(refusal)
        params = ContextParams.of(flags, hp)
        memory = model.arch.memory(hp, CacheBuilder(hp, flags, params, placement), self.release)
        if not (self.release.graphs_followed and model.arch.graph_followed):
            return Answer(self._estimate(params, placement, memory, NOTHING_RESERVED, None), model)
        refusal = model.arch.check_graph(hp, memory, self.release)
        if refusal is None and model.arch.reserves_one_sequence(hp, self.release):
            refusal = checks.check_last_reserve(params, flags)
        if refusal is None and by_rows:
            gpus = zip(self.workshop.machine.gpus, self.rig.gpus, strict=True)
            totals = {device: gpu.total for device, gpu in gpus if gpu.backend == CUDA}
            refusal = checks.check_split_rows(model.tensors.tensors, flags, placement, totals, self.release)
        if refusal is not None:
            return self._refusal(refusal)
        context = make_context(self.question, self.workshop, model, flags, placement, memory, buffers, plain=self.plain)
        reserved = context.reserve()
        refusal = checks.check_flash_attn(flags, reserved.fused)
        if refusal is not None:
            return self._refusal(refusal)
        made = Made(placement, memory, context)
        drafter = find_drafter(self.question, model, params)
        if not isinstance(drafter, Drafter):
            found = self._estimate(params, placement, memory, reserved, made)
            if isinstance(drafter, Refusal):
                return Answer(replace(found, draft_refused=drafter), model, made)
            return Answer(found, model, made, uncounted=drafter or "")
        uses = buffer_uses(placement.model, memory.context, _compute(reserved))
        drafts = self._draft(drafter, made, {name: use.used for name, use in uses.items()}, buffers)
        before = reserved
        if drafter.layer_inputs:
            given = GivenOut(drafter.layer_inputs)
            context = make_context(
                self.question, self.workshop, model, flags, placement, memory, buffers,
                given=given, settled=reserved.fused, plain=self.plain,
            )  # fmt: skip
            reserved = replace(context.reserve(), disabled=reserved.disabled)
            made = Made(placement, memory, context)
        found = self._estimate(params, placement, memory, reserved, made)
        if isinstance(drafts, Refusal):
            return Answer(replace(found, draft_refused=drafts), model, made)
        found = self._with_draft(found, drafter, drafts, None if before is reserved else before)
        return Answer(found, model, made, drafts.made, elsewhere=drafts.elsewhere)

    @property
    def mapped(self) -> bool:
        """Whether the host's weights are pages of the file, as in a server that runs, which ``filled`` asks about."""
        devices = select_devices(self.flags, self.workshop.machine)
        return bool(self.question.filled) and maps_file(self.flags, devices, self.release)

    def _draft(
        self, drafter: Drafter, made: Made, used: Mapping[str, int], buffers: PlacedBuffers
    ) -> DraftContext | Refusal:
        try:
            return make_draft(self.question, self.workshop, drafter, made, used, buffers, self.plain)
        except FAULTS as fault:
            refusal = abort_of(str(fault))
            if refusal.kind == OTHER:
                return replace(refusal, fix="take a drafter that was made for this model")
            if refusal.kind != "override-to-unused-device":
                return refusal
            fix = f"let -devd name {made.placement.output.name}, too: what drafts takes the output that lies there"
            return replace(refusal, fix=fix)

    def _with_draft(
        self, found: Estimate, drafter: Drafter, drafts: DraftContext, before: Reservation | None
    ) -> Estimate:
        made = drafts.made
        model = made.placement.model if drafter.own else {}
        buffers = buffer_uses(model, made.memory.context, _compute(drafts.reserved))
        draft = Draft(drafter.model.summary, buffers)
        if before is not None:
            draft = replace(draft, before=_compute(before), nodes_before=before.nodes)
        on_gpu = dict(zip(self.rig.names, self.rig.buffer_names, strict=True))
        taken = run_time(made.context, made.work(found.filled))
        devices = tuple(
            replace(d, draft=draft.used({on_gpu[d.name]}), run_time=d.run_time + (taken.get(d.name) or 0))
            for d in found.devices
        )
        host = replace(found.host, draft=draft.used(buffers.keys() - set(self.rig.buffer_names)))
        mapped = drafter.own and maps_file(drafter.flags, made.placement.devices, self.release)
        host = self._host(host, buffers, mapped)
        server = found.server
        if server.checkpoint:
            more = draft_checkpoint(drafter.model.hparams, made, self.flags.kv_unified)
            kept = server.checkpoints // server.checkpoint * (server.checkpoint + more)
            server = replace(server, checkpoint=server.checkpoint + more, checkpoints=kept)
        return replace(found, draft=draft, devices=devices, host=host, server=server)

    def _estimate(
        self,
        params: ContextParams,
        placement: Placement,
        memory: Memory,
        reserved: Reservation,
        made: Made | None,
    ) -> Estimate:
        compute, hp = _compute(reserved), self.model.hparams
        model = mapped_model(placement, self.model.tensors, self.model.header) if self.mapped else placement.model
        filled = min(params.n_ctx_seq if self.question.filled is None else self.question.filled, params.n_ctx_seq)
        unknown: dict[str, int | None] = {device.name: None for device in placement.devices}
        taken = unknown if made is None else run_time(made.context, made.work(filled))
        buffers = buffer_uses(model, memory.context, compute)
        mapped = maps_file(self.flags, placement.devices, self.release)
        loading = held_while_loading(self.flags, placement, mapped)
        return replace(
            self._blank(),
            n_ctx=params.n_ctx,
            n_ctx_seq=params.n_ctx_seq,
            n_batch=params.n_batch,
            n_ubatch=params.n_ubatch,
            buffers=buffers,
            devices=device_uses(buffers, self.rig, taken, self.question.reserves),
            host=replace(self._host(host_use(buffers, self.rig), buffers, mapped), loading=loading),
            filled=filled,
            unmodelled=tuple([name for name, size in taken.items() if size is None]),
            nodes=reserved.nodes,
            splits=reserved.splits,
            server=server_memory(hp, self.flags, params, self.model.arch.checkpoint(hp, memory, params.n_ctx_seq)),
            disabled=reserved.disabled,
            pipeline_parallel=placement.pipeline_parallel,
        )

    def _host(self, host: HostUse, buffers: Mapping[str, BufferUse], mapped: bool) -> HostUse:
        """The host's share with what of these buffers, too, is pages of the file, or pinned; ``mapped``: of weights."""
        names = buffers.keys() - set(self.rig.buffer_names)
        pages = sum(buffers[name].model for name in names - {REPACKED}) if mapped else 0
        pinned = [buffers[name] for name in names if name.endswith("_Host")]
        asked = sum(use.context + use.compute + (0 if mapped else use.model) for use in pinned)
        return replace(host, mapped=host.mapped + pages, pinned=host.pinned + asked)

    def _refusal(self, refusal: Refusal) -> Answer:
        return Answer(replace(self._blank(), refused=refusal), self.model)

    def _blank(self) -> Estimate:
        params = ContextParams.of(self.flags, self.model.hparams)
        return Estimate(
            model=self.model.summary,
            llama=self.release.name,
            flags=self.flags,
            n_ctx=params.n_ctx,
            n_ctx_seq=params.n_ctx_seq,
            n_batch=params.n_batch,
            n_ubatch=params.n_ubatch,
            buffers={},
            devices=device_uses({}, self.rig),
            host=host_use({}, self.rig),
            unified=self.rig.unified,
            without_ops=self.question.without_ops,
        )


def _compute(reserved: Reservation) -> dict[str, int]:
    sizes: dict[BufferType, int] = dict(zip(reserved.bufts, reserved.sizes, strict=True))
    by_name: dict[str, int] = {}
    for buft, size in sizes.items():
        by_name[buft.name] = by_name.get(buft.name, 0) + size
    return by_name
