"""A log's figures beside a prediction's, and whether one explains the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from memplan.diagnosing.log import CUDA, Load, Stage
from memplan.diagnosing.meanings import from_words
from memplan.result import BufferUse, Estimate

_MIB: Final = 1 << 20
_PREDICTED: Final = frozenset(
    {
        "k-v-types-differ",
        "quantized-v-needs-flash-attention",
        "permuted-quantized-tensor",
        "too-many-split-inputs",
        "override-to-unused-device",
    }
)
"""Causes in llama.cpp's own words that an estimate with the same flags has as well."""


@dataclass(frozen=True, slots=True)
class Row:
    """One buffer: what the log says and what memplan predicts, bytes. ``exact``: the log gives it to the byte."""

    buffer: str
    part: str
    logged: int
    predicted: int
    exact: bool = False
    draft: bool = False
    """Whether it is of what drafts."""

    @property
    def agrees(self) -> bool:
        """Equal, as far as the log's two digits tell."""
        tolerance = 0 if self.exact else (0.05 if self.part == "context" else 0.011) * _MIB
        return abs(self.logged - self.predicted) <= tolerance


def explains(load: Load, predicted: Estimate) -> bool:
    """Whether nothing that the log says speaks against the prediction: buffers, nodes, or how it failed."""
    nodes = nodes_of(predicted)
    cause = from_words(load.failed, None) if load.failed is not None else None
    if predicted.refused is not None or (cause is not None and cause.kind in _PREDICTED):
        return predicted.refused is not None and cause is not None and cause.kind == predicted.refused.kind
    same_graph = load.nodes is None or not load.nodes[0] or load.nodes == nodes
    return same_graph and all(row.agrees for row in rows_of(load, predicted))


def nodes_of(predicted: Estimate) -> tuple[int, int]:
    """Nodes of both graphs as a load shows them: a drafter that wants other outputs comes after it."""
    draft = predicted.draft
    return draft.nodes_before if draft is not None and draft.before else predicted.nodes


def rows_of(load: Load, predicted: Estimate) -> tuple[Row, ...]:
    """The buffers of a log beside those predicted."""
    if predicted.refused is not None:
        return ()
    draft, buffers = predicted.draft, dict(predicted.buffers)
    if draft is not None:
        for name, size in draft.before.items():
            buffers[name] = replace(buffers.get(name, BufferUse()), compute=size)
    rows = list(_rows(load, buffers))
    if draft is not None and load.draft is not None:
        # how its compute buffers end, once it has samplers, no line says
        shown = replace(load.draft, failures=load.failures, compute={})
        rows += [replace(row, draft=True) for row in _rows(shown, draft.buffers) if row.predicted or row.logged]
    failure = load.failed
    if failure is not None and failure.size is not None and failure.buffer:
        part = {Stage.MODEL: "model", Stage.COMPUTE: "compute"}.get(failure.stage, "")
        use = ((draft.buffers if draft is not None else {}) if failure.drafting else buffers).get(failure.buffer)
        if part and not (failure.drafting and part == "compute"):
            size = getattr(use, part) if use is not None else 0
            rows.append(Row(failure.buffer, part, failure.size, size, exact=True, draft=failure.drafting))
    return tuple(rows)


def _rows(load: Load, buffers: Mapping[str, BufferUse]) -> Iterator[Row]:
    failed_later = load.failed is not None and load.failed.stage in (Stage.COMPUTE, Stage.RUNNING)
    parts = {"compute": load.compute}
    if not load.dry:
        # a cache is several buffers: only the whole can be compared
        caches = load.context if load.reserved or failed_later else {}
        parts = {"model": load.model, "context": caches, "compute": load.compute}
    for part, sizes in parts.items():
        for name, mib in sorted(sizes.items()):
            if not CUDA.fullmatch(name) and part != "compute":
                continue  # weights and caches on the host go by other names when they are mapped
            use = buffers.get(name)
            yield Row(name, part, round(mib * _MIB), getattr(use, part) if use is not None else 0)
