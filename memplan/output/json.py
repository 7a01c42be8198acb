"""An estimate as one JSON object, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from memplan.llama.refusals import Refusal
from memplan.result import BufferUse, DeviceUse, Draft, Estimate, HostUse, ModelSummary


def plain(data: Any) -> dict[str, Any]:
    """A data class whose fields are what JSON has of it, as dictionaries and lists."""
    return asdict(data, dict_factory=lambda pairs: {k: list(v) if isinstance(v, tuple) else v for k, v in pairs})


def estimate_object(estimate: Estimate) -> dict[str, Any]:
    """The estimate as plain dictionaries and lists; sizes in bytes."""
    draft = estimate.draft
    return {
        "model": _summary(estimate.model),
        "llama": estimate.llama,
        "app": estimate.flags.app,
        "n_ctx": estimate.n_ctx,
        "n_ctx_seq": estimate.n_ctx_seq,
        "buffers": _buffers(estimate),
        "draft": None if draft is None else {"model": _summary(draft.model), "buffers": _buffers(draft)},
        "run_time": {device.name: device.run_time for device in estimate.devices if device.run_time},
        "filled": estimate.filled,
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "total": device.total,
                "free": device.free,
                **_uses(device),
                "draft": device.draft,
                "projector": device.projector,
                "run_time": device.run_time,
                "reserve": device.reserve,
                "left": device.left,
            }
            for device in estimate.devices
        ],
        "host": {
            **_uses(estimate.host),
            "draft": estimate.host.draft,
            "projector": estimate.host.projector,
            "mapped": estimate.host.mapped,
            "pinned": estimate.host.pinned,
            "loading": estimate.host.loading,
            "least": estimate.host_least,
            "most": estimate.host_most,
            "total": estimate.host.total,
            "short": estimate.host_lacks,
        },
        "fits": estimate.fits,
        "starts": estimate.starts,
        "tight": [device.name for device in estimate.tight],
        "short_at": estimate.short_at,
        "run_time_not_modelled": list(estimate.unmodelled),
        "server": plain(estimate.server),
        "graph": {"nodes": list(estimate.nodes), "splits": list(estimate.splits)},
        "disabled": list(estimate.disabled),
        "pipeline_parallel": estimate.pipeline_parallel,
        "exact": estimate.exact,
        "notes": [*([f"not exact: {estimate.approximate}"] if estimate.approximate else []), *estimate.notes],
        "refused": _refusal(estimate.refused),
        "draft_refused": _refusal(estimate.draft_refused),
    }


def render_json(estimate: Estimate) -> str:
    """``estimate_object`` as text, ending in a newline."""
    return json.dumps(estimate_object(estimate), indent=2) + "\n"


def _refusal(refused: Refusal | None) -> dict[str, str] | None:
    """Why llama.cpp would not start."""
    return None if refused is None else {"kind": refused.kind, "how": refused.outcome, "said": refused.message}


def _summary(model: ModelSummary) -> dict[str, str | int]:
    return {
        "name": model.name,
        "architecture": model.architecture,
        "path": model.path,
        "bytes": model.bytes,
        "parameters": model.parameters,
    }


def _buffers(x: Estimate | Draft) -> dict[str, Any]:
    return {name: _uses(use) for name, use in x.buffers.items()}


def _uses(use: BufferUse | DeviceUse | HostUse) -> dict[str, int]:
    return {"model": use.model, "context": use.context, "compute": use.compute}
