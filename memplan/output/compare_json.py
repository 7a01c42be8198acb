"""A comparison as plain data, for programs; sizes in bytes."""

from __future__ import annotations

import json
from typing import Any

from memplan.comparing.result import BufferChange, Comparison, ReleaseStep
from memplan.explaining.result import Peak, Placed
from memplan.output.compare import sentences
from memplan.output.compare_verdict import changed, undone, verdict
from memplan.output.json import estimate_object, plain


def comparison_json(c: Comparison, names: tuple[str, str]) -> str:
    """The comparison as one JSON object."""
    return json.dumps(comparison_object(c, names), indent=2) + "\n"


def comparison_object(c: Comparison, names: tuple[str, str]) -> dict[str, Any]:
    """The comparison as dictionaries and lists."""
    steps = {step.release: step for step in c.steps}
    return {
        "before": {"name": names[0], "estimate": estimate_object(c.before.estimate)},
        "after": {"name": names[1], "estimate": estimate_object(c.after.estimate)},
        "parts": [{**plain(p), "change": p.change} for p in c.parts],
        "residents": [plain(r) for r in c.residents],
        "compute": [_buffer(buffer, names) for buffer in c.buffers],
        "renamed": [{"before": old, "after": new} for old, new in c.renamed],
        "releases": [
            {"name": r.name, "build": r.build, "changed": r.changed, "here": _here(steps.get(r.name))}
            for r in changed(c)
        ],
        "undone": undone(c),
        "verdict": verdict(c, names[1]),
    }


def _buffer(buffer: BufferChange, names: tuple[str, str]) -> dict[str, Any]:
    return {
        "device": buffer.device,
        "before": buffer.before,
        "after": buffer.after,
        "change": buffer.change,
        "said": list(sentences(buffer, *names)),
        "same_moment": buffer.same_moment,
        "before_chunks": [_peak(peak) for peak in buffer.before_peaks],
        "after_chunks": [_peak(peak) for peak in buffer.after_peaks],
        "before_then": buffer.before_then,
        "after_then": buffer.after_then,
        "alive": buffer.alive,
        "lost": buffer.lost,
        "groups": [
            {
                "base": group.base,
                "change": group.change,
                "fate": group.fate,
                "before": [plain(p) for p in group.before],
                "after": [plain(p) for p in group.after],
            }
            for group in buffer.groups
        ],
        "gaps": [
            {
                "side": gap.side,
                "bytes": gap.bytes,
                "other": gap.other,
                "left_by": gap.owner.title,
                "counterpart": _title(gap.counterpart),
                "filled_by": [p.title for p in gap.filled],
                "filled_otherwise_by": [filling.tensor.title for filling in gap.filled_otherwise],
                "too_small_for": _title(gap.above),
            }
            for gap in buffer.gaps
        ],
        "lifetimes": [plain(life) for life in buffer.lives],
    }


def _title(p: Placed | None) -> str | None:
    return None if p is None else p.title


def _peak(peak: Peak) -> dict[str, Any]:
    return {"chunk": peak.chunk, "node": peak.node, "tensor": peak.tensor.title, "bytes": peak.bytes, "lost": peak.lost}


def _here(step: ReleaseStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        "moves": [plain(move) for move in step.moves],
        "splits": list(step.splits),
        "refused": list(step.refused),
    }
