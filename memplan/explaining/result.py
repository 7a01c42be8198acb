"""What an explanation says: data classes, bytes everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.explaining.names import UNNAMED
from memplan.result import Estimate


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the graph, and its stay in a compute buffer."""

    name: str
    """As llama.cpp's callback gives it (``lid_kq-2``), or the number that llama.cpp would print (``node_412``)."""
    base: str
    """What it is, layer left out: ``lid_kq``, ``copy of l_last``, ``MUL_MAT of attn_norm``; of an input without a
    name, what reads it: ``input of FILL for kq_plus_kq_b``. A result without a name that was computed in place is what
    it took the place of."""
    op: str
    """ggml's operation: ``MUL_MAT``; NONE for inputs and copies."""
    type: str
    """ggml's type: ``f32``."""
    shape: tuple[int, int, int, int]
    """Elements, innermost first."""
    layer: int | None
    """The layer it belongs to; None for what belongs to none."""
    bytes: int
    """What it takes in the buffer, padding included."""
    chunk: int
    """The chunk of the buffer that it lies in; nearly always 0."""
    offset: int
    """Where in the chunk it lies, bytes."""
    first: int
    """The node of the graph at which it gets its place; -1: before the first."""
    last: int
    """The last node of the graph at which it still has it."""
    in_place_of: str
    """The tensor whose place it took over, or empty."""

    @property
    def title(self) -> str:
        """Its name; for one without, its number and what it is made of."""
        if not UNNAMED.match(self.name) or self.base == self.name:
            return self.name
        return f"{self.name} ({self.base}, in place)" if self.in_place_of else f"{self.name} ({self.base})"

    @property
    def does(self) -> str:
        """Its operation; ``input`` or ``copy`` for what is not computed."""
        if self.op != "NONE":
            return self.op
        return "copy" if self.base.startswith("copy of") else "input"


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes between live tensors that none of them uses, lost to fragmentation."""

    chunk: int
    offset: int
    bytes: int
    left_by: str
    """The last tensor that filled most of it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Live tensors of one base name: their bytes, how many they are, and their layers."""

    base: str
    bytes: int
    count: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a chunk of a compute buffer is filled as far as ever: what it has to be large enough for."""

    chunk: int
    bytes: int
    """The chunk's size: ``live`` and ``gaps`` together."""
    node: int
    """The node of the graph that is being computed; -1: before the first."""
    tensor: Placed
    """The tensor that gets the highest place."""
    live: tuple[Placed, ...]
    """Every tensor that has a place, largest first."""
    gaps: tuple[Gap, ...]
    """What lies unused between them, largest first."""
    groups: tuple[Group, ...]
    """``live`` by base name, largest first."""

    @property
    def lost(self) -> int:
        """Bytes of all gaps."""
        return sum(gap.bytes for gap in self.gaps)


@dataclass(frozen=True, slots=True)
class ComputeBuffer:
    """One device's compute buffer."""

    device: str
    """The device that computes there: ``CUDA0``, ``CPU``."""
    buffer: str
    """The buffer type, as in the estimate: ``CUDA0``, ``CUDA_Host``."""
    bytes: int
    peaks: tuple[Peak, ...]
    """One for each chunk: one, unless a backend limits the size of a buffer. Empty when nothing is computed here."""
    tensors: tuple[Placed, ...]
    """Every tensor that ever has a place here, in the order in which they get them."""

    @property
    def peak(self) -> Peak | None:
        """The peak of the largest chunk."""
        return max(self.peaks, key=lambda peak: peak.bytes, default=None)

    @property
    def live(self) -> tuple[Placed, ...]:
        """What is alive when its chunk is fullest, chunk by chunk: with ``lost``, all of the buffer."""
        return tuple(p for peak in self.peaks for p in peak.live)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What lies unused in all chunks at their peaks, largest first."""
        return tuple(sorted((gap for peak in self.peaks for gap in peak.gaps), key=lambda gap: -gap.bytes))

    @property
    def lost(self) -> int:
        """Bytes of all gaps."""
        return sum(peak.lost for peak in self.peaks)

    @property
    def groups(self) -> tuple[Group, ...]:
        """``live`` by base name, largest first."""
        found: dict[str, Group] = {}
        for group in (group for peak in self.peaks for group in peak.groups):
            known = found.get(group.base, Group(group.base, 0, 0, ()))
            layers = tuple(sorted({*known.layers, *group.layers}))
            found[group.base] = Group(group.base, known.bytes + group.bytes, known.count + group.count, layers)
        return tuple(sorted(found.values(), key=lambda group: -group.bytes))

    @property
    def decides(self) -> Group | None:
        """The tensors of one name that take most of the buffer when its chunks are fullest."""
        return next(iter(self.groups), None)


@dataclass(frozen=True, slots=True)
class SplitInput:
    """What a split reads from another device, copied there first."""

    name: str
    type: str
    shape: tuple[int, int, int, int]
    source: str
    """Where it comes from: a device, or a weight's buffer type."""
    bytes: int
    """One copy in the compute buffer, padding included."""
    copies: int
    """How many are kept: four under pipeline parallelism."""
    weight: bool
    """Whether it is a weight that is kept elsewhere and copied here for each batch."""

    @property
    def cost(self) -> int:
        """Bytes of all copies."""
        return self.bytes * self.copies


@dataclass(frozen=True, slots=True)
class SplitUse:
    """A run of nodes on one device: nodes ``first`` to ``last`` of the graph, and what is copied in for them."""

    device: str
    first: int
    last: int
    inputs: tuple[SplitInput, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """A tensor that exists before any graph: a weight, cache or compressor state."""

    kind: str
    """``weight``, ``cache`` or ``state``."""
    name: str
    type: str
    shape: tuple[int, int, int, int]
    layer: int | None
    buffer: str
    """The buffer type it lies in."""
    bytes: int
    """What it takes there, padding included."""

    @property
    def role(self) -> str:
        """Its name without its layer."""
        return self.name.replace(f"blk.{self.layer}.", "").replace(f"_l{self.layer}", "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where an estimate's bytes come from; everything but ``estimate`` is empty when llama.cpp would not start."""

    estimate: Estimate
    buffers: tuple[ComputeBuffer, ...] = ()
    """Each device's compute buffer, GPUs first."""
    splits: tuple[SplitUse, ...] = ()
    """The prompt graph's splits, in order."""
    largest: tuple[Placed, ...] = ()
    """The largest tensors of the graph, on any device."""
    residents: tuple[Resident, ...] = ()
    """Every weight, cache and state."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """What tensors without a name are, by what they are called here."""
