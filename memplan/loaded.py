"""A model as llama.cpp knows it once its file is read, and a context of it on the devices where it lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from memplan.errors import MissingTensor, ModelError, shown
from memplan.gguf.header import Header
from memplan.llama import checks
from memplan.llama.batch import NOTHING_GIVEN, ContextParams, GivenOut
from memplan.llama.context import Context, Devices, Fused
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams
from memplan.llama.keys import CONVERT
from memplan.llama.memory.base import Memory
from memplan.llama.placement import Placement
from memplan.llama.refusals import REFUSED, Refusal
from memplan.llama.run_time import Work, prompt_batches
from memplan.llama.weights import ModelTensors, load_tensors
from memplan.models.base import Architecture
from memplan.models.graphs import BufferMap, ModelGraphs
from memplan.models.registry import architecture, load_hparams
from memplan.question import Question
from memplan.releases import Release
from memplan.result import ModelSummary
from memplan.workshop import Workshop


@dataclass(frozen=True)
class Model:
    """A model before anything of it is placed."""

    header: Header
    hparams: HParams
    tensors: ModelTensors
    arch: Architecture[Any]
    graphs: ModelGraphs[Any]
    summary: ModelSummary
    mtp_only: bool = False
    """Whether the file has MTP blocks and none of the layers before them."""

    @cached_property
    def mtp(self) -> Model | None:
        """The model's own MTP block, which drafts for it; None where there is none, or none is modelled."""
        arch = self.arch.mtp
        if arch is None or not self.hparams.n_layer_nextn:
            return None
        return replace(self, arch=arch, graphs=ModelGraphs(arch, self.hparams, self.tensors))

    def beside(self, served: Model) -> Model:
        """A drafter that takes what weights it lacks from the model that it drafts for."""
        for known, drafter in self._beside:
            if known is served:
                return drafter
        drafter = replace(self, graphs=ModelGraphs(self.arch, self.hparams, self.tensors, served.tensors))
        self._beside[:] = [(served, drafter)]
        return drafter

    @cached_property
    def _beside(self) -> list[tuple[Model, Model]]:
        """The last model that was drafted for, and the drafter beside it; threads may take turns."""
        return []


KEPT_MODELS = 6
"""Models that are remembered, with the parts of their graphs."""

_models: list[tuple[Header, tuple[object, ...], Model]] = []


def load(header: Header, flags: Flags, release: Release) -> Model:
    """A model as the release loads it; remembered as long as the header is used again.

    Raises UnsupportedArchitecture, MissingKey, BadHyperParameter, MissingTensor, BadTensorShape.
    """
    key = (flags.kv_overrides, flags.load_mtp, release)
    for known, with_flags, model in _models:
        if known is header and with_flags == key:
            return model
    try:
        model = _read(header, flags, release)
    except ModelError as error:
        if not flags.kv_overrides or not _loads_as_it_is(header, flags, release):
            raise
        raise type(error)(str(error).replace(CONVERT, _leave_out(flags))) from None
    refusal = model.tensors.refusal
    if refusal and flags.kv_overrides and _loads_as_it_is(header, flags, release):
        model = replace(model, tensors=replace(model.tensors, refusal=replace(refusal, fix=_leave_out(flags))))
    _models.insert(0, (header, key, model))
    del _models[KEPT_MODELS:]
    return model


def _loads_as_it_is(header: Header, flags: Flags, release: Release) -> bool:
    """Whether the file is sound without ``--override-kv``."""
    try:
        return load(header, replace(flags, kv_overrides=()), release).tensors.refusal is None
    except ModelError:
        return False


def _leave_out(flags: Flags) -> str:
    """What mends a model that overrides broke."""
    return f"leave out --override-kv {' and '.join(shown(key)[1:-1] for key, _ in flags.kv_overrides)}"


def _read(header: Header, flags: Flags, release: Release) -> Model:
    arch = architecture(header)
    hp = load_hparams(header, flags.kv_overrides, release)
    knows_mtp = arch.mtp is not None and release.build >= arch.mtp.since
    mtp_only = knows_mtp and hp.n_layer_nextn > 0 and "blk.0.attn_norm.weight" not in header.tensors
    load_mtp = knows_mtp and flags.load_mtp
    try:
        tensors = load_tensors(header, hp, arch.tensors(hp, header.tensors, load_mtp, release), mtp_only)
    except MissingTensor:
        if arch.mtp is None or hp.n_layer_nextn or not header.metadata.get(f"{arch.name}.nextn_predict_layers"):
            raise
        # an MTP block is a layer for this build, and has not all that it looks for
        fix = f"take llama.cpp b{arch.mtp.since} or newer, which knows MTP blocks of {arch.name}"
        tensors = ModelTensors((), (), Refusal("tensors-not-of-this-release", REFUSED, "missing tensor", fix))
    tensors = replace(tensors, refusal=checks.check_shapes(header, release) or tensors.refusal)
    summary = ModelSummary(
        name=str(header.metadata.get("general.name", header.name)),
        architecture=arch.name,
        path=header.name,
        bytes=header.nbytes,
        parameters=sum(t.elements for t in header.tensors.values()),
        n_ctx_train=hp.n_ctx_train,
        own_streams=arch.own_streams,
    )
    return Model(header, hp, tensors, arch, ModelGraphs(arch, hp, tensors), summary, mtp_only)


@dataclass(frozen=True, slots=True)
class Made:
    """What an estimate was made from: where weights lie, caches and states, and the context that reserves the rest."""

    placement: Placement
    memory: Memory
    context: Context

    def work(self, filled: int) -> Work:
        """What fills every slot with so many tokens."""
        return Work(prompt_batches(self.context.params, filled))


def make_context(
    question: Question,
    workshop: Workshop,
    model: Model,
    flags: Flags,
    placement: Placement,
    memory: Memory,
    buffers: BufferMap,
    *,
    given: GivenOut = NOTHING_GIVEN,
    settled: Fused | None = None,
    plain: bool = False,
) -> Context:
    """A context of a model in one placement.

    ``given``: what it gives out beside logits.  ``settled``: the ops that are fused, where probes have found out.
    """
    params = ContextParams.of(flags, model.hparams)
    used = (*placement.devices, placement.cpu)
    index = {device: i for i, device in enumerate(used)}
    bufts = [d.buft for d in placement.devices]
    bufts.append(placement.devices[0].host_buft or placement.cpu.buft if placement.devices else placement.cpu.buft)
    devices = Devices(
        backends=[d.backend for d in used],
        bufts=bufts,
        layer_home=[index[d] for d in placement.layers],
        full_offload=placement.n_gpu_layers > model.hparams.n_layer_all,
    )
    return Context(
        params,
        devices,
        model.graphs.at(memory, buffers, question.release, question.paths, params.n_tokens, placement.n_tensors, given),
        flash_attn=checks.flash_attn(flags, question.release),
        parallel=placement.pipeline_parallel,
        op_offload=flags.op_offload,
        offload_kqv=flags.offload_kqv,
        release=question.release,
        settled=settled,
        loaded=question.as_loaded,
        one_sequence=model.arch.reserves_one_sequence(model.hparams, question.release),
        plain=plain,
        planners=workshop.planners,
    )
