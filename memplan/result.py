"""What an estimate answers: data classes, bytes everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from memplan.backends.devices import RPC, Rig
from memplan.llama.flags import Flags
from memplan.llama.refusals import Refusal
from memplan.llama.server_memory import NO_SERVER, ServerMemory


@dataclass(frozen=True, slots=True)
class BufferUse:
    """Bytes that llama.cpp allocates in one kind of buffer."""

    model: int = 0
    """Weights."""
    context: int = 0
    """Caches and states, and the outputs."""
    compute: int = 0
    """The graph's own tensors: the compute buffer."""

    @property
    def used(self) -> int:
        """All three, bytes."""
        return self.model + self.context + self.compute


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One GPU, and what llama.cpp allocates on it; bytes."""

    name: str
    """llama.cpp's name for it: ``CUDA0``, ``Vulkan0``, ``MTL0``, ``RPC0``."""
    description: str
    """The card."""
    total: int
    """Its memory, as its driver reports it."""
    free: int
    """What of it is free before llama.cpp starts."""
    model: int = 0
    context: int = 0
    compute: int = 0
    draft: int = 0
    """What drafts: its weights, cache and compute buffer."""
    run_time: int = 0
    """What kernels take beside the buffers once slots hold ``Estimate.filled`` tokens: CUDA's pool, cuBLAS's
    workspace."""
    reserve: int = 0
    """What should be left for what no rule has."""
    projector: int = 0
    """A multimodal projector's weights."""

    @property
    def allocated(self) -> int:
        """Weights, caches, compute buffers, what drafts and a projector: what llama.cpp allocates before requests."""
        return self.model + self.context + self.compute + self.draft + self.projector

    @property
    def used(self) -> int:
        """All of that and what kernels take, bytes."""
        return self.allocated + self.run_time

    @property
    def working(self) -> int:
        """The compute buffer, what kernels take, and what drafts: all beside weights and caches."""
        return self.compute + self.run_time + self.draft + self.projector

    @property
    def left_at_start(self) -> int:
        """Free bytes once everything is loaded; below 0 when llama.cpp does not start."""
        return self.free - self.allocated

    @property
    def left(self) -> int:
        """Free bytes once slots hold what they shall; below 0 when it does not fit."""
        return self.free - self.used

    @property
    def spare(self) -> int:
        """Bytes left beyond the reserve, which a GPU in use has to keep; below 0 when there are not."""
        return self.left - (self.reserve if self.used else 0)


@dataclass(frozen=True, slots=True)
class HostUse:
    """What llama.cpp allocates in the host's memory, in buffers of any kind; bytes."""

    model: int = 0
    context: int = 0
    compute: int = 0
    total: int | None = None
    """The host's memory, if it is known."""
    draft: int = 0
    """What drafts, as far as it lies there."""
    projector: int = 0
    """A multimodal projector's weights, if they lie there."""
    mapped: int = 0
    """Of ``model`` and ``draft``, weights that are pages of the file, which may be dropped and read again."""
    pinned: int = 0
    """Of it, what is asked for as memory that GPUs can reach; where the driver has none, plain memory is taken."""
    loading: int = 0
    """What copies of weights to GPUs hold besides, while the model is loaded."""

    @property
    def run_time(self) -> int:
        """What the CPU's kernels take at run time is in no rule."""
        return 0

    @property
    def used(self) -> int:
        """Weights, caches and compute buffers, what drafts, and a projector, bytes."""
        return self.model + self.context + self.compute + self.draft + self.projector

    @property
    def left(self) -> int | None:
        """Bytes of the host's memory beside these buffers; None when its size is not known."""
        return None if self.total is None else self.total - self.used


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """The model that was asked about."""

    name: str
    """As the file names itself, or the built-in name."""
    architecture: str
    """``general.architecture``."""
    path: str
    """The file, or the built-in name."""
    bytes: int
    """Its tensors, without padding."""
    parameters: int
    """Elements of all tensors."""
    n_ctx_train: int = 0
    """Tokens of a sequence that the model was trained for (``llama_model_n_ctx_train``); 0 when that is not known."""
    own_streams: bool = False
    """Whether each slot keeps caches of its own, also where slots are unified."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The second context, in which llama-server drafts."""

    model: ModelSummary
    """What drafts; the model itself where its own MTP block does."""
    buffers: Mapping[str, BufferUse]
    """By buffer type; ``model`` is 0 throughout where an MTP block drafts, whose weights are the model's own."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Compute buffers of the main context until it is reserved anew, to give out its layers' inputs; empty if it is
    not."""
    nodes_before: tuple[int, int] = (0, 0)
    """Nodes of its graphs until then."""

    def used(self, names: Collection[str]) -> int:
        """Bytes in buffers of these names."""
        return sum(use.used for name, use in self.buffers.items() if name in names)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What llama.cpp allocates for a model with these flags on this rig, or why it does not start."""

    model: ModelSummary
    llama: str
    """The release that was followed: ``v0.5.0``."""
    flags: Flags
    n_ctx: int
    """Tokens of all sequences together (``llama_n_ctx``)."""
    n_ctx_seq: int
    """Tokens of one sequence (``llama_n_ctx_seq``)."""
    buffers: Mapping[str, BufferUse]
    """By buffer type: ``CUDA0``, ``CUDA_Host``, ``CPU``, ``RPC0[HOST:PORT]``, ...; empty when refused."""
    devices: tuple[DeviceUse, ...]
    """Every GPU of the rig, in order, used or not."""
    host: HostUse
    filled: int = 0
    """Tokens that each slot holds when run time is counted."""
    short_at: int | None = None
    """Tokens a slot from which a GPU is short, where llama.cpp starts and that was asked for."""
    unmodelled: tuple[str, ...] = ()
    """Devices whose run-time scratch no rule has: Vulkan's, Metal's and ROCm's, and the CPU."""
    n_batch: int = 0
    """Tokens of a batch (``llama_n_batch``), which the context limits."""
    n_ubatch: int = 0
    """Tokens computed at once (``llama_n_ubatch``), which the batch limits."""
    nodes: tuple[int, int] = (0, 0)
    """Nodes of the prompt graph and of the generation graph."""
    splits: tuple[int, int] = (0, 0)
    """Splits of the prompt graph and of the generation graph."""
    disabled: tuple[str, ...] = ()
    """Fused operations that this release turns off by itself, in llama.cpp's words."""
    draft: Draft | None = None
    """What drafting takes beside ``buffers``; None where nothing drafts, or what drafts is not counted."""
    projector: tuple[str, int] | None = None
    """A multimodal projector's device, and bytes of its weights; None where none is loaded."""
    draft_refused: Refusal | None = None
    """Set when llama-server would give up because it cannot make the context that drafts."""
    unified: bool = False
    """Whether the GPUs' memory is the host's."""
    without_ops: tuple[str, ...] = ()
    """Operations that the GPUs were made to refuse."""
    server: ServerMemory = NO_SERVER
    """What llama-server may come to keep in the host's memory beside ``host``."""
    pipeline_parallel: bool = False
    """Whether four copies of every split's inputs are kept."""
    approximate: str = ""
    """Why this is not exact; empty when it is."""
    notes: tuple[str, ...] = ()
    """What to know about these settings, a sentence each."""
    refused: Refusal | None = None
    """Set when llama.cpp would not start."""

    @property
    def exact(self) -> bool:
        """Whether these are llama.cpp's own numbers, to the byte."""
        return not self.approximate

    @property
    def compute_known(self) -> bool:
        """Whether compute buffers are in it: of some architectures and releases the graph is not modelled."""
        return self.refused is not None or self.nodes != (0, 0)

    @property
    def short(self) -> tuple[DeviceUse, ...]:
        """The GPUs whose free memory is too small."""
        return tuple(device for device in self.devices if device.left < 0)

    @property
    def starts(self) -> bool:
        """Whether llama.cpp starts: every buffer fits, the host's too if its memory is known."""
        too_small = any(device.allocated > device.free for device in self.devices)
        refused = self.refused or self.draft_refused
        return refused is None and not too_small and not self._lacks(sum(d.allocated for d in self._of_host))

    @property
    def fits(self) -> bool:
        """Whether llama.cpp starts, and has room for what kernels take once slots hold ``filled`` tokens."""
        return self.starts and not self.short and not self.host_lacks

    @property
    def tight(self) -> tuple[DeviceUse, ...]:
        """The GPUs in use that have less left than their reserve."""
        return tuple(device for device in self.devices if device.spare < 0)

    @property
    def fits_with_reserve(self) -> bool:
        """Whether it fits, and leaves every GPU in use its reserve."""
        return self.fits and not self.tight

    @property
    def host_lacks(self) -> int:
        """Bytes that the host lacks, for GPUs too whose memory is its own; 0 when its memory is not known."""
        return self._lacks(sum(device.used for device in self._of_host))

    def _lacks(self, on_gpus: int) -> int:
        return 0 if self.host.left is None else max(0, on_gpus - self.host.left)

    @property
    def _of_host(self) -> tuple[DeviceUse, ...]:
        """The GPUs whose memory is the host's."""
        return tuple(d for d in self.devices if self.unified and not d.name.startswith(RPC))

    @property
    def host_least(self) -> int:
        """Bytes that the machine must have beside the GPUs' own memory, without pages of the file.

        Where GPUs and host have one memory, what GPUs take is in it.
        """
        weights = self.host.model + sum(d.model for d in self._of_host) - self.host.mapped
        started = self.host.used - self.host.mapped + self.server.outputs + sum(d.allocated for d in self._of_host)
        return max(started, weights + self.host.loading)

    @property
    def host_most(self) -> int | None:
        """The same with pages of the file, context checkpoints and the prompt cache, None where that has no limit.

        What kernels take is in it where GPUs and host have one memory.
        """
        most, taken = self.server.most, sum(d.run_time for d in self._of_host)
        return None if most is None else self.host_least + self.host.mapped + most - self.server.outputs + taken

    @property
    def shortages(self) -> tuple[tuple[str, int], ...]:
        """Each memory that is too small by itself, and the bytes it lacks: GPUs, then ``the host``.

        Empty also where GPUs and host have one memory, which is too small for both together.
        """
        found = [(device.name, -device.left) for device in self.short]
        if self.host.left is not None and self.host.left < 0:
            found.append(("the host", -self.host.left))
        return tuple(found)


def buffer_uses(
    model: Mapping[str, int], context: Mapping[str, int], compute: Mapping[str, int]
) -> dict[str, BufferUse]:
    """Weights, caches and compute buffers by buffer type."""
    names = dict.fromkeys((*model, *context, *compute))
    return {name: BufferUse(model.get(name, 0), context.get(name, 0), compute.get(name, 0)) for name in names}


def device_uses(
    buffers: Mapping[str, BufferUse],
    rig: Rig,
    run_time: Mapping[str, int | None] | None = None,
    reserves: Sequence[int] = (),
) -> tuple[DeviceUse, ...]:
    """The share of each of the rig's GPUs in ``buffers`` and in ``run_time``; ``reserves``: what each is to keep."""
    uses = []
    for i, (name, buffer, gpu) in enumerate(zip(rig.names, rig.buffer_names, rig.gpus, strict=True)):
        use = buffers.get(buffer, BufferUse())
        taken = (run_time or {}).get(name) or 0
        reserve = reserves[i] if reserves else 0
        sizes = (use.model, use.context, use.compute, 0, taken, reserve)
        uses.append(DeviceUse(name, gpu.description, gpu.total, gpu.free, *sizes))
    return tuple(uses)


def host_use(buffers: Mapping[str, BufferUse], rig: Rig) -> HostUse:
    """The share of the host in ``buffers``: all that lies on none of the rig's GPUs."""
    names = frozenset(rig.buffer_names)
    uses = [use for name, use in buffers.items() if name not in names]
    return HostUse(
        sum(use.model for use in uses),
        sum(use.context for use in uses),
        sum(use.compute for use in uses),
        rig.host_total,
    )
