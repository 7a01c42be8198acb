"""Which layer goes to which device, which tensor to which buffer type, and how large the model's buffers are.

Follows src/llama.cpp (``llama_prepare_model_devices``), src/llama-model.cpp (``load_tensors``, ``make_cpu_buft_list``,
``make_gpu_buft_list``, ``memory_breakdown``) and src/llama-model-loader.cpp (``create_tensor``,
``select_weight_buft``), v0.5.0; v0.4.0 does the same. As llama.cpp's own breakdown does, it takes the model to be read,
not mapped: with a mapped file llama.cpp keeps what would go to pinned memory in plain memory (``mmap``), and the
graph and the GPUs' buffers are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from struct import pack, unpack
from typing import TYPE_CHECKING

from memplan.backends.weights import weight_supported
from memplan.errors import FlagError, shown
from memplan.ggml.backend import Backend, BufferType
from memplan.ggml.tensor import new_tensor
from memplan.llama.allocation import buffer_bytes
from memplan.llama.patterns import matches
from memplan.llama.refusals import ABORT, OTHER, REFUSED, Refusal
from memplan.llama.weights import INPUT, OUTPUT, ModelTensor

if TYPE_CHECKING:
    from memplan.llama.flags import Flags

BufferList = tuple[tuple[Backend, BufferType], ...]
"""Buffer types in order of preference, each with the device that would have to read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device that layers can go to.

    ``free``: bytes that it reports free before anything is loaded.  ``host_buft``: its pinned host memory, if any.
    ``extra_bufts``: other types that its weights can take, preferred to its own (the CPU's repacked weights).
    ``integrated``: whether llama.cpp leaves it out beside GPUs with memory of their own.  ``pipelines``: whether it has
    what pipeline parallelism needs.  ``remote``: whether it is a server's.
    """

    backend: Backend
    free: int = 0
    host_buft: BufferType | None = None
    extra_bufts: tuple[BufferType, ...] = ()
    integrated: bool = False
    pipelines: bool = True
    remote: bool = False

    @property
    def name(self) -> str:
        """As llama.cpp prints it."""
        return self.backend.name

    @property
    def buft(self) -> BufferType:
        """The device's own memory."""
        return self.backend.buft


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Every device there is: the GPUs in the order their backend lists them, and the CPU."""

    gpus: tuple[Device, ...]
    cpu: Device


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where a model lies.

    ``devices``: the GPUs in use, in order.  ``layers``: the device of each block (``dev_layer``), MTP blocks too.
    ``output``: the device of the output layer (``dev_output``).  ``tensors``: the buffer type of each weight, by role.
    ``model``: bytes of weights by buffer type name.  ``largest``: bytes of the largest weight in each buffer type.
    ``n_tensors``: how many are made.
    ``n_gpu_layers``: layers wanted on GPUs, the output layer counted.
    ``pipeline_parallel``: whether the scheduler keeps copies of split inputs.
    """

    devices: tuple[Device, ...]
    cpu: Device
    layers: tuple[Device, ...]
    output: Device
    tensors: Mapping[str, BufferType]
    model: Mapping[str, int]
    largest: Mapping[BufferType, int]
    n_tensors: int
    n_gpu_layers: int
    pipeline_parallel: bool


PLACING = (
    "devices",
    "lazy_mode",
    "main_gpu",
    "n_gpu_layers",
    "no_host",
    "offload_kqv",
    "overrides",
    "repack",
    "split_mode",
    "tensor_split",
)
"""The flags that a placement follows, and with it the buffers of weights and caches; all others may differ."""

placing = attrgetter(*PLACING)
"""Their values."""


def f32(x: float) -> float:
    """``x`` rounded to a 32-bit float, as C++ does when it stores one; inf above its range."""
    try:
        return float(unpack("<f", pack("<f", x))[0])
    except OverflowError:
        return float("inf")


def select_devices(flags: Flags, machine: Machine) -> tuple[Device, ...]:
    """The GPUs to use: those of ``-dev`` or all, and of these the main one alone with ``-sm none``.

    Without ``-dev`` integrated GPUs are left out beside others, servers' not counted. Raises FlagError for a device
    that is not there (``llama_prepare_model_devices``).
    """
    devices = machine.gpus
    if flags.devices is None and any(not d.integrated and not d.remote for d in devices):
        devices = tuple(d for d in devices if not d.integrated)
    if flags.devices is not None:
        by_name = {d.name: d for d in machine.gpus}
        for name in flags.devices:
            if name not in by_name:
                raise FlagError(f"-dev {shown(name)}: no such device; there are {', '.join(by_name) or 'none'}")
        devices = tuple(by_name[name] for name in flags.devices)
    if flags.split_mode != "none" or not devices:
        return devices
    if flags.main_gpu < 0:
        return ()
    if flags.main_gpu >= len(devices):
        raise FlagError(f"-mg {flags.main_gpu}: must be below {len(devices)}, the number of GPUs (the first is 0)")
    return (devices[flags.main_gpu],)


def split_points(devices: Sequence[Device], tensor_split: Sequence[float]) -> list[float]:
    """The share of layers that ends with each device, rising to 1, in 32-bit floats.

    By ``-ts``, where missing values are 0, or by free memory when it is absent or all zero (``load_tensors``).
    """
    n = len(devices)
    splits = [f32(x) for x in (*tensor_split, *(0.0,) * n)[:n]]
    if not any(splits):
        splits = [f32(d.free) for d in devices]
    total = 0.0
    for i, x in enumerate(splits):
        total = f32(total + x)
        splits[i] = total
    return [f32(x / total) if total else float("nan") for x in splits]


def place_layers(n_layer_all: int, n_gpu_layers: int, devices: Sequence[Device], splits: Sequence[float]) -> list[int]:
    """The index of each layer's device, -1 for the CPU: ``n_layer_all`` blocks and then the output layer."""
    start = max(n_layer_all + 1 - n_gpu_layers, 0)
    active = min(n_gpu_layers, n_layer_all + 1) if devices else 0
    # std::upper_bound over rising 32-bit floats
    return [
        bisect_right(splits, f32((il - start) / active)) if 0 <= il - start < active else -1
        for il in range(n_layer_all + 1)
    ]


def place(
    tensors: tuple[ModelTensor, ...], n_layer_all: int, flags: Flags, machine: Machine, mmap: bool = False
) -> Placement | Refusal:
    """Where every layer and weight goes.

    ``mmap``: whether the file is mapped; then weights that would go to pinned memory stay in plain memory.
    Raises FlagError for devices or buffer types that are not there, and for patterns that std::regex refuses.
    """
    devices = select_devices(flags, machine)
    if flags.split_mode == "row" and devices:
        said = f"device {devices[0].name} does not support split buffers"
        return Refusal(OTHER, REFUSED, said, "take -sm layer")
    n_gpu_layers = flags.n_gpu_layers if flags.n_gpu_layers >= 0 else n_layer_all + 1
    splits = split_points(devices, flags.tensor_split)
    index = place_layers(n_layer_all, n_gpu_layers, devices, splits)
    if max(index) >= len(devices) > 0:
        mend = "give -ts a value above 0 for a GPU in use, or free some of its memory"
        return Refusal(OTHER, REFUSED, "vector::_M_range_check", mend)
    layers = [machine.cpu if i < 0 else devices[i] for i in index]
    placed = _Lists(devices, machine, flags).place(tensors, layers, flags)
    if isinstance(placed, Refusal):
        return placed
    if mmap:
        pinned = {d.host_buft for d in devices}
        placed = [machine.cpu.buft if b in pinned else b for b in placed]
    created = _created(tensors, placed)
    return Placement(
        devices=devices,
        cpu=machine.cpu,
        layers=tuple(layers[:-1]),
        output=layers[-1],
        tensors={t.role: b for t, b in zip(tensors, placed, strict=True)},
        model=_model_bytes(created),
        largest=_largest(created),
        n_tensors=len(created),
        n_gpu_layers=n_gpu_layers,
        pipeline_parallel=len(devices) > 1
        and n_gpu_layers > n_layer_all
        and flags.split_mode == "layer"
        and flags.offload_kqv
        and not flags.overrides
        and all(d.pipelines for d in devices),
    )


class _Lists:
    """The buffer types that a weight may take on each device, in order of preference."""

    def __init__(self, devices: Sequence[Device], machine: Machine, flags: Flags) -> None:
        self.cpu = _cpu_list(devices, machine.cpu, flags)
        self._of = {machine.cpu: self.cpu}
        for d in devices:
            own: BufferList = ((d.backend, d.buft), *((d.backend, b) for b in d.extra_bufts))
            self._of[d] = own + self.cpu
        self._bufts = {d.buft.name: d.buft for d in (*machine.gpus, machine.cpu)}
        self._cpu_buft = machine.cpu.buft

    def place(
        self, tensors: tuple[ModelTensor, ...], layers: Sequence[Device], flags: Flags
    ) -> list[BufferType] | Refusal:
        """The buffer type of each tensor: an override's, or the first that its layer's device can use."""
        wanted: list[BufferType | None] = [None] * len(tensors)
        for pattern, name in flags.overrides:
            if name not in self._bufts:
                raise FlagError(
                    f"-ot {shown(pattern)}: no buffer type {shown(name)}; there are {', '.join(self._bufts)}"
                )
        if flags.overrides:
            names = tuple(t.name for t in tensors)
            for i, rule in matches(tuple(p for p, _ in flags.overrides), names):
                wanted[i] = self._bufts[flags.overrides[rule][1]]
        found = []
        for t, buft in zip(tensors, wanted, strict=True):
            if t.lazy and (flags.lazy_mode == "on" or (flags.lazy_mode == "auto" and t.nbytes > LAZY_SIZE)):
                found.append(self._cpu_buft)
                continue
            if buft is self._cpu_buft:  # the CPU by name means any memory that the host's list offers
                buft = _select(self.cpu, t)
            if buft is None:
                buft = _select(
                    self.cpu if t.layer == INPUT else self._of[layers[-1 if t.layer == OUTPUT else t.layer]], t
                )
            if buft is None:
                said = f"failed to find a compatible buffer type for tensor {t.name}"
                return Refusal(OTHER, REFUSED, said, "use a file whose tensor has another type")
            found.append(buft)
        return found


def _cpu_list(devices: Sequence[Device], cpu: Device, flags: Flags) -> BufferList:
    """Pinned memory of the first GPU that has any, repacked weights, plain memory (``make_cpu_buft_list``)."""
    host = next(((d.backend, d.host_buft) for d in devices if d.host_buft is not None), None)
    pinned: BufferList = ((host[0], host[1]),) if host and host[1] and not flags.no_host else ()
    extra = tuple((cpu.backend, b) for b in cpu.extra_bufts) if flags.repack else ()
    return (*pinned, *extra, (cpu.backend, cpu.buft))


def _select(bufts: BufferList, t: ModelTensor) -> BufferType | None:
    """The first buffer type with which its device can compute the tensor's op (``select_weight_buft``)."""
    for backend, buft in bufts:
        if weight_supported(backend, buft, t.type, t.ne, t.op, t.ssm):
            return buft
    return None


def overridden(tensors: Sequence[ModelTensor], flags: Flags) -> set[str]:
    """The names of the weights that ``-ot`` and its kin place."""
    names = tuple(t.name for t in tensors)
    return {names[i] for i, _ in matches(tuple(pattern for pattern, _ in flags.overrides), names)}


def _created(tensors: Sequence[ModelTensor], placed: Sequence[BufferType]) -> list[tuple[ModelTensor, BufferType]]:
    """Those that are made: a duplicate is the one of its name that lies in its buffer type already."""
    created = []
    there: set[tuple[str, BufferType]] = set()
    for t, buft in zip(tensors, placed, strict=True):
        if not (t.duplicated and (t.name, buft) in there):
            there.add((t.name, buft))
            created.append((t, buft))
    return created


def _model_bytes(created: Sequence[tuple[ModelTensor, BufferType]]) -> dict[str, int]:
    """Bytes of the model's buffers by type name: tensors in the order they were created, each in its type's buffer."""
    sizes: dict[BufferType, list[int]] = {}
    known: dict[tuple[object, ...], int] = {}
    for t, buft in created:
        key = (buft, t.type, t.ne)
        if key not in known:
            known[key] = buft.alloc_size(new_tensor(t.type, *t.ne))
        sizes.setdefault(buft, []).append(known[key])
    total: dict[str, int] = {}
    for buft, of_type in sizes.items():
        total[buft.name] = total.get(buft.name, 0) + buffer_bytes(buft, of_type)
    return total


def _largest(created: Sequence[tuple[ModelTensor, BufferType]]) -> dict[BufferType, int]:
    largest: dict[BufferType, int] = {}
    for buft, t in {(buft, t.type, t.ne): (buft, t) for t, buft in created}.values():
        largest[buft] = max(largest.get(buft, 0), t.nbytes)
    return largest


LAZY_SIZE = 4 << 30
"""Bytes above which a tensor is read as its rows are needed, where that is left to llama.cpp (``lazy_read::add``)."""

MAX_BACKENDS = 16
"""GGML_SCHED_MAX_BACKENDS: devices that one scheduler takes, the CPU counted."""


def too_many_devices(placement: Placement) -> Refusal | None:
    """The abort of a scheduler that gets more devices than it has room for (``ggml_backend_sched_new``)."""
    if len(placement.devices) + 1 <= MAX_BACKENDS:
        return None
    said = "GGML_ASSERT(n_backends <= GGML_SCHED_MAX_BACKENDS) failed"
    return Refusal(OTHER, ABORT, said, f"use at most {MAX_BACKENDS - 1} GPUs: -dev, or -sm none")
