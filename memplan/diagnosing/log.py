"""What a log says about one load of a model, as data; nothing in it is memplan's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

CUDA: Final = re.compile(r"CUDA(\d{1,3})")
"""The name of a GPU of CUDA's, and its number."""


class Stage(Enum):
    """What a load was doing when it failed."""

    MODEL = "weights"
    CONTEXT = "caches"
    COMPUTE = "compute buffer"
    RUNNING = "while running"
    UNKNOWN = "loading"


@dataclass(slots=True)
class Failure:
    """Something that llama.cpp, or the system, says went wrong. ``size``: bytes asked for, when it says.

    ``kind``: ``allocation``, ``assertion``, ``refused``, ``killed`` or ``cuda``.
    """

    kind: str
    said: str
    stage: Stage = Stage.UNKNOWN
    buffer: str = ""
    size: int | None = None
    drafting: bool = False
    """Whether it was about what drafts: its weights, or the second context."""
    places: list[str] = field(default_factory=list)
    """llama.cpp's functions that it, or the trace after it, names."""


@dataclass(slots=True)
class LogGpu:
    """A GPU as a log names it; MiB, None where it does not say."""

    name: str
    description: str = ""
    capability: tuple[int, int] | None = None
    total_mib: int | None = None
    free_mib: int | None = None
    used: bool = False
    """Whether the model was loaded with it."""


@dataclass(slots=True)
class Load:
    """One load. Sizes are MiB as printed, with two digits; dictionaries are by buffer type (``CUDA0``, ``CPU``)."""

    line: int = 0
    """The line of the log where it begins, from 1."""
    build: int | None = None
    version: str = ""
    command: tuple[str, ...] = ()
    """llama.cpp's command line, when somebody put it into the log."""
    gpus: dict[str, LogGpu] = field(default_factory=dict)
    path: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    n_tensors: int | None = None
    dry: bool = False
    """A load without memory, which ``--fit`` makes to measure."""
    layers: dict[int, str] = field(default_factory=dict)
    overridden: dict[str, str] = field(default_factory=dict)
    """Tensors that an override moved, and where to."""
    offloaded: tuple[int, int] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """llama_context's settings, as printed: ``n_ctx``, ``n_ubatch``, ``kv_unified``, ..."""
    cache_types: tuple[str, str] | None = None
    model: dict[str, float] = field(default_factory=dict)
    context: dict[str, float] = field(default_factory=dict)
    output: dict[str, float] = field(default_factory=dict)
    compute: dict[str, float] = field(default_factory=dict)
    grown: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Compute buffers that were not as reserved in the end: what they were then, and what was reserved."""
    nodes: tuple[int, int] | None = None
    splits: tuple[int, int] | None = None
    copies: int | None = None
    swa_cells: int | None = None
    """Cells of the sliding-window cache."""
    disabled: list[str] = field(default_factory=list)
    retried: bool = False
    """The compute buffers did not fit with pipeline parallelism, and llama.cpp tried again without."""
    fit: str = ""
    """Why ``--fit`` gave up."""
    reserved: bool = False
    """All buffers were there."""
    ready: bool = False
    """The program said that the model is loaded."""
    prompt: int = 0
    """Tokens of the last prompt."""
    done: int = 0
    """Tokens of it that were said to be computed."""
    failures: list[Failure] = field(default_factory=list)
    draft: Load | None = None
    """The second context, in which llama-server drafts; with the lines of its model, where it is another."""

    @property
    def failed(self) -> Failure | None:
        """The failure that ended it; None for a load that went well as far as the log goes."""
        return self.failures[-1] if self.failures else None

    @property
    def is_tail(self) -> bool:
        """Whether it shows how buffers were made, but not how the load began, which llama.cpp says no less loudly."""
        buffers = self.model or self.context or self.compute.keys() - self.grown.keys()
        return self.n_tensors is None and bool(buffers or "n_batch" in self.settings or self.types or self.layers)

    @property
    def content(self) -> str:
        """All that is known of it but where it stands: equal for loads that are the same but for their place."""
        draft = self.draft and replace(self.draft, line=0)
        return repr(replace(self, line=0, draft=draft))
