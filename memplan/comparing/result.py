"""What a comparison says: data classes, bytes everywhere. ``before`` and ``after`` are its two sides, in that order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memplan.explaining.result import Explanation, Peak, Placed

Fate = Literal[
    "only after", "only before", "from elsewhere", "to elsewhere", "held longer", "begins earlier",
    "held shorter", "begins later", "another moment", "larger", "smaller", "more", "fewer",
]  # fmt: skip
"""Why tensors of one name take more or less room at a peak.

``only after``, ``only before``: no graph of the other side has them.  ``from elsewhere``, ``to elsewhere``: there they
lie on another device.  ``held longer``, ``held shorter``, ``begins earlier``, ``begins later``: alive at one peak, and
at the same moment of the other side not.  ``another moment``: alive there as well at that moment, but the other side is
fullest at another.  ``larger``, ``smaller``, ``more``, ``fewer``: alive at both peaks.
"""


@dataclass(frozen=True, slots=True)
class PartChange:
    """One part of what a device holds."""

    device: str
    """``CUDA0``, or ``host``."""
    part: Literal["weights", "context", "compute", "run time", "drafter", "projector"]
    before: int
    after: int

    @property
    def change(self) -> int:
        """Bytes more on the second side."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class ResidentChange:
    """Weights, caches or states of one name and all its layers that lie elsewhere, or take more or less."""

    kind: str
    """``weight``, ``cache`` or ``state``."""
    name: str
    """Without its layer."""
    source: str
    """The buffer type that it lies in before; empty when it is not there."""
    target: str
    """The same after."""
    layers: tuple[int, ...]
    count: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Tensors of one name that are alive at both peaks with another size, or at one of them only."""

    base: str
    before: tuple[Placed, ...]
    after: tuple[Placed, ...]
    fate: Fate

    @property
    def change(self) -> int:
        """Bytes more at the second side's peak."""
        return sum(p.bytes for p in self.after) - sum(p.bytes for p in self.before)


@dataclass(frozen=True, slots=True)
class Filling:
    """A tensor that fills a place on one side, and its counterpart on the other, which does not."""

    tensor: Placed
    counterpart: Placed | None
    """None when the other side has no such tensor."""
    alive: bool
    """Whether the counterpart is alive at that side's peak."""


@dataclass(frozen=True, slots=True)
class GapChange:
    """Bytes between live tensors that one side loses at its peak and the other does not, or not as many."""

    side: Literal["before", "after"]
    """Which side loses more."""
    bytes: int
    """What it loses where ``owner`` was."""
    other: int
    """What the other side loses where its counterpart was."""
    owner: Placed
    """The tensor that left the place."""
    counterpart: Placed | None
    """The same on the other side."""
    filled: tuple[Placed, ...]
    """What lies in the place at the peak, on this side."""
    filled_otherwise: tuple[Filling, ...]
    """What lies in the counterpart's place on the other side, and not here."""
    above: Placed | None
    """A tensor that came later, was too large for what is left of the place, and lies above it."""


@dataclass(frozen=True, slots=True)
class LifeChange:
    """Tensors of one name and all its layers that hold their place longer or shorter, or take it otherwise.

    ``longer``, ``shorter``: by what is computed at the end of their stay.  ``in place``: they take over the place of
    ``of``, where before they had one of their own; ``own place``: the other way about.
    """

    how: Literal["longer", "shorter", "in place", "own place"]
    base: str
    bytes: int
    """Of all of them; each takes ``bytes // count`` or nearly."""
    count: int
    layers: tuple[int, ...]
    of: str
    """What is computed last while they are alive on the second side; or the tensor whose place is taken over."""


@dataclass(frozen=True, slots=True)
class BufferChange:
    """One device's compute buffer on both sides; a side that computes nothing there has no peak."""

    device: str
    before: int
    after: int
    before_peaks: tuple[Peak, ...]
    """One for each chunk."""
    after_peaks: tuple[Peak, ...]
    same_moment: bool
    """Whether both are fullest when the same tensor of the same layer gets its place, chunk by chunk."""
    before_then: int | None
    """How far the first side's buffer is filled at what is the second side's fullest moment; None if it has none, or
    where a side has several chunks."""
    after_then: int | None
    """The other way about."""
    alive: int
    """Bytes more of live tensors, each chunk at its peak; with ``lost``, all of the change."""
    lost: int
    """Bytes more in gaps."""
    groups: tuple[GroupChange, ...]
    """What is alive at one peak and not, or not so large, at the other; largest change first."""
    gaps: tuple[GapChange, ...]
    """Largest change first."""
    lives: tuple[LifeChange, ...]
    """Largest first."""

    @property
    def change(self) -> int:
        """Bytes more on the second side."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class BufferMove:
    """Bytes more in one part of one buffer type."""

    buffer: str
    """``CUDA0``, ``CUDA_Host``, ``CPU``, ..."""
    part: str
    """``weights``, ``context``, ``compute`` or ``run time``."""
    change: int


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """What one release moves of the question at hand, from the release before it."""

    release: str
    """Its name."""
    moves: tuple[BufferMove, ...]
    """By buffer type; against nothing where llama.cpp refuses a side."""
    splits: tuple[int, int]
    """Of the prompt graph, before and with it; zeros where llama.cpp refuses a side."""
    refused: tuple[bool, bool]
    """Whether llama.cpp refuses the question, before and with it."""

    @property
    def anything(self) -> bool:
        """Whether it moves anything here."""
        return bool(self.moves) or self.splits[0] != self.splits[1] or self.refused[0] != self.refused[1]

    def undone(self) -> ReleaseStep:
        """The way back."""
        moves = tuple([BufferMove(m.buffer, m.part, -m.change) for m in self.moves])
        return ReleaseStep(self.release, moves, self.splits[::-1], self.refused[::-1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two explanations, and what lies between them; nothing but ``parts`` when llama.cpp refuses one of them."""

    before: Explanation
    after: Explanation
    parts: tuple[PartChange, ...]
    """Every part of every device, GPUs first, the host last."""
    residents: tuple[ResidentChange, ...] = ()
    buffers: tuple[BufferChange, ...] = ()
    """Every device's compute buffer, moved or not."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Names of tensors on the first side, and what the same tensors are called on the second."""
    steps: tuple[ReleaseStep, ...] = ()
    """Of questions that differ in their release alone: what each release between moves, from the first side's on."""
