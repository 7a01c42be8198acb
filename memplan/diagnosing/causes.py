"""Why a load failed: found by asking again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from memplan.diagnosing.log import Failure, Load, Stage
from memplan.diagnosing.meanings import Cause, newer_release
from memplan.llama.flag_fields import same_setting
from memplan.llama.flags import Flags
from memplan.notes import mib
from memplan.releases import LATEST, Indexer, Release
from memplan.result import BufferUse, DeviceUse, Estimate

_MIB: Final = 1 << 20

Ask = Callable[[Flags, Release], Estimate]
"""The same question with other flags, or another release."""


def from_memory(
    load: Load,
    failure: Failure,
    estimate: Estimate | None,
    release: Release,
    ask: Ask,
    heads: int = 64,
    assumed: Sequence[str] = (),
    placed: bool = True,
    experts: bool = True,
) -> Cause:
    """The cause of an allocation that failed, by what would have made it small enough. ``heads``: the indexer's.

    ``assumed``: flags that nobody told, for which defaults stand in ``estimate``.  ``placed``: where weights lie is
    known.  ``experts``: whether the model has any.
    """
    if failure.buffer.endswith("_Host"):
        return Cause(
            "host-memory",
            f"the host has no {_size(failure.size)} left for {failure.stage.value} in memory that the driver pins, of"
            " which a system may give less than is free",
            "map the file, which pins nothing (-lm mmap, or no --no-mmap), set GGML_CUDA_NO_PINNED=1, put more on the"
            " GPUs, or free memory",
        )
    if failure.buffer.startswith("CPU"):
        return Cause(
            "host-memory",
            f"the host has no {_size(failure.size)} left for {failure.stage.value}",
            "put more on the GPUs, or free memory",
        )
    if estimate is None or estimate.refused is not None or not estimate.devices:
        return _without_estimate(load, failure, heads, release)
    device = failure.buffer or (min(estimate.devices, key=lambda d: d.left_at_start).name)
    if failure.drafting and estimate.draft is not None and device in estimate.draft.buffers:
        return _drafter(estimate, device, failure)
    if failure.stage is Stage.MODEL:
        return _weights(estimate, device, failure, not assumed, placed, experts)
    if assumed and not (failure.stage is Stage.COMPUTE and failure.size == _compute(estimate, device)):
        return _without_estimate(load, failure, heads, release)  # its caches and buffers may be anybody's
    if failure.stage is Stage.UNKNOWN or (failure.stage is Stage.COMPUTE and not _other_buffer(estimate, failure)):
        cause = _slots(estimate, device, failure, release, ask)
        cause = cause or _unfused(estimate, device, failure, release, ask, heads)
        if cause is not None:
            return cause
    return _balance(load, estimate, device, failure, experts)


def _drafter(estimate: Estimate, device: str, failure: Failure) -> Cause:
    """What drafts has no room beside the model."""
    use = next(d for d in estimate.devices if d.name == device)
    parts = estimate.draft.buffers[device] if estimate.draft is not None else BufferUse()
    takes = f"{_size(parts.model)} of weights, {_size(parts.context)} of caches, {_size(parts.compute)} of compute"
    short = f", which is {_size(-use.left_at_start, up=True)} short with it" if use.left_at_start < 0 else ""
    roomy = max(estimate.devices, key=lambda d: d.left_at_start)
    elsewhere = "" if roomy is use or roomy.left_at_start < use.draft else f"put it on {roomy.name} (-devd), "
    return Cause(
        "drafter",
        f"what drafts, loaded after the model, has no {_size(failure.size)} left for its {failure.stage.value}:"
        f" it takes {takes} of {device}{short}",
        f"{elsewhere}keep its experts on the host (-cmoed), or leave it out",
    )


def _slots(estimate: Estimate, device: str, failure: Failure, release: Release, ask: Ask) -> Cause | None:
    """Whether slots, each with caches of the whole context, are most of it."""
    flags = estimate.flags
    if flags.n_parallel < 2 or not flags.kv_unified:
        return None
    one = ask(flags.with_(n_parallel=1), release)
    now, then = _compute(estimate, device), _compute(one, device)
    if one.refused is not None or then > now // 2 or now - then < 256 * _MIB:
        return None
    caches = sum(use.context for use in estimate.buffers.values())
    unasked = "" if same_setting("-np") & flags.given else " (llama-server's choice without -np)"
    return Cause(
        "slots",
        f"{flags.n_parallel} unified slots{unasked} hold {flags.n_parallel} full-length caches, {_size(caches)} in all,"
        f" and a batch is compared with all of them: {device}'s compute buffer is {_size(failure.size or now)}"
        f" where one slot takes {_size(then)}",
        "-np 1",
    )


def _unfused(estimate: Estimate, device: str, failure: Failure, release: Release, ask: Ask, heads: int) -> Cause | None:
    """Whether the indexer's scores, which only builds without its fused form keep, are most of it."""
    if _on_cuda(release) and not _turned_off(estimate):
        return None
    newest = ask(estimate.flags, LATEST)
    now, then = _compute(estimate, device), _compute(newest, device)
    scores = estimate.n_ctx_seq // 4 * min(estimate.flags.n_ubatch, estimate.n_ctx) * heads * 4
    if not now or newest.refused is not None or now - then < now // 2 or 2 * scores < now // 2:
        return None
    newer = newer_release(_on_cuda, release)
    why = "a GPU lacks its fused form" if _turned_off(estimate) else "this build has no fused form of it on CUDA"
    return Cause(
        "unfused-indexer",
        f"the indexer runs unfused on {device} ({why}): lid_kq, {_size(scores)}, and its copy are most of a compute"
        f" buffer of {_size(failure.size or now)}; a build with the fused indexer takes {_size(then)}",
        f"{f'take {newer}, or ' if newer else ''}a smaller -ub or -c",
    )


def _weights(estimate: Estimate, device: str, failure: Failure, sure: bool, placed: bool, experts: bool) -> Cause:
    """Weights that do not fit: they alone beside what was free, then all else if it is ``sure`` what that takes.

    ``placed``: whether what is predicted of other GPUs holds.
    """
    uses = {use.name: use for use in estimate.devices}
    use = uses.get(device)
    if use is None:
        return Cause("too-little-memory", f"{device} has no {_size(failure.size)} left for its weights")
    asked = use.model if failure.size is None else failure.size
    short = asked - use.free
    if short <= 0 and (not sure or use.left_at_start >= 0):
        return Cause(
            "less-free-than-thought",
            f"by what was free, {device} should have had room for its weights, with {_size(-short)} to spare: something"
            " else took memory meanwhile",
            _close(estimate, device),
        )
    about = f"{device} is {_size(short, up=True)} short for its weights alone, {mib(asked)} on {mib(use.free)} free"
    if short <= 0:
        about = f"{device} has {mib(use.free)} free for weights of {mib(asked)}"
    if asked != use.model and not placed:  # the prediction is of another placement
        return Cause("too-little-memory", about, _to_host(experts))
    spare = {name: other.left_at_start if sure else other.free - other.model for name, other in uses.items()}
    spare[device] -= asked - use.model
    if sure and spare[device] < -short:
        about = f"{about}, and is {_size(-spare[device], up=True)} short with its caches and compute buffer"
    roomy, total = max(spare, key=lambda name: spare[name]), sum(spare.values())
    if roomy != device and spare[roomy] > -spare[device] and total > 0:
        return Cause(
            "one-gpu-short",
            f"{about}, while {roomy} has {_size(spare[roomy])} to spare{'' if sure else ' beside its own weights'}",
            _to_other(device, roomy, experts),
        )
    if total < 0 and len(uses) > 1:
        about = f"{about}; the GPUs together are {_size(-total, up=True)} short{'' if sure else ' for weights'}"
    return Cause("too-little-memory", about, _to_host(experts))


def _other_buffer(estimate: Estimate, failure: Failure) -> bool:
    """Whether the compute buffer that was asked for is another than the predicted one, so that nothing of it holds."""
    if failure.stage is not Stage.COMPUTE or failure.size is None:
        return False
    return abs(failure.size - _compute(estimate, failure.buffer)) > failure.size // 16


def left_by_log(load: Load, failure: Failure | None, use: DeviceUse) -> int:
    """Bytes that a GPU has left at the start: by what the log says it was asked for, else by what is predicted."""
    asked = failure.size if failure is not None and failure.buffer == use.name and failure.size else 0
    if failure is None or failure.stage is not Stage.COMPUTE or not asked:
        return use.left_at_start
    model, context = (round(sizes.get(use.name, 0) * _MIB) for sizes in (load.model, load.context))
    left = use.left_at_start - (asked - use.compute)
    return left - (model - use.model if model else 0) - (context - use.context if context else 0)


def _balance(load: Load, estimate: Estimate, device: str, failure: Failure, experts: bool) -> Cause:
    """Whether one GPU is short while others have room, or all are."""
    uses = {use.name: use for use in estimate.devices}
    use = uses.get(device)
    if use is None:
        return Cause("too-little-memory", f"{device} has no {_size(failure.size)} left for its {failure.stage.value}")
    spare = {name: left_by_log(load, failure, other) for name, other in uses.items()}
    short, total = max(0, -spare[device]), sum(spare.values())
    roomy = max(spare, key=lambda name: spare[name])
    about = f"{device} is {_size(short, up=True)} short"
    what = f" for its {failure.stage.value}" if failure.stage is not Stage.UNKNOWN else ""
    if _other_buffer(estimate, failure):
        what += f" of {_size(failure.size)}, where {_size(use.compute)} are predicted"
    if not short:
        return Cause(
            "less-free-than-thought",
            f"by what was free, {device} should have had room for it, with {_size(spare[device])} to spare:"
            " something else took memory meanwhile",
            _close(estimate, device),
        )
    if roomy != device and spare[roomy] > short and total > 0:
        return Cause(
            "one-gpu-short",
            f"{about}{what} while {roomy} has {_size(spare[roomy])} to spare",
            _to_other(device, roomy, experts),
        )
    return Cause(
        "too-little-memory",
        f"{about}{what}: the GPUs together are {_size(max(0, -total), up=True)} short with these settings"
        if total < 0 and len(uses) > 1
        else f"{about}{what}",
        _to_host(experts),
    )


def _close(estimate: Estimate, device: str) -> str:
    """What to do about memory that others have taken."""
    if estimate.unified:
        return "close what else uses memory: the GPU's is the host's"
    tool = {"CUDA": "nvidia-smi", "ROCm": "rocm-smi"}.get(device.rstrip("0123456789"), "")
    return f"close what else uses the GPU{f'; see {tool}' if tool else ''}"


def _to_host(experts: bool) -> str:
    return "keep experts on the host: -ncmoe N or -cmoe" if experts else "keep layers on the host: -ngl N"


def _to_other(device: str, roomy: str, experts: bool) -> str:
    weights = "expert" if experts else "feed-forward"
    return f"move {weights} weights of {device}'s layers to {roomy} with -ot, or shift -ts"


def _without_estimate(load: Load, failure: Failure, heads: int, release: Release) -> Cause:
    """What the log's own figures tell, when nothing can be predicted from it."""
    settings = {name: int(text) for name, text in load.settings.items() if text.isdigit() and len(text) < 11}
    n_ctx, ubatch = settings.get("n_ctx_seq") or settings.get("n_ctx"), settings.get("n_ubatch")
    if n_ctx and ubatch and failure.size and "deepseek4" in str(load.metadata.get("general.architecture", "deepseek4")):
        slots = settings.get("n_seq_max", 1) if load.settings.get("kv_unified") == "true" else 1
        scores = n_ctx // 4 * ubatch * heads * 4
        if slots > 1 and failure.size >= 2 * scores * slots * 0.9:
            return Cause(
                "slots",
                f"{slots} unified slots hold {slots} full-length caches, and the unfused indexer compares a batch"
                f" with all of them: {slots} x {_size(scores)} and copies of it, of {_size(failure.size)} asked for",
                "-np 1",
            )
        if failure.size >= 2 * scores and 2 * scores > failure.size // 2:
            return Cause(
                "unfused-indexer",
                f"the indexer runs unfused: lid_kq, {_size(scores)}, and its copy are most of the {_size(failure.size)}"
                " asked for",
                f"take {newer_release(_on_cuda, release) or 'a newer llama.cpp'}, or a smaller -ub or -c",
            )
    where = f"{failure.buffer} has" if failure.buffer else "there is"
    asked = f" of {_size(failure.size)}" if failure.size else ""
    return Cause("too-little-memory", f"{where} no room for the {failure.stage.value}{asked}")


def _on_cuda(release: Release) -> bool:
    """Whether CUDA has the fused indexer."""
    return release.indexer is Indexer.FUSED and release.cuda_indexer


def on_host(estimate: Estimate) -> str:
    """What llama.cpp puts into the host's memory, for a sentence."""
    host, server = estimate.host, estimate.server
    sizes = {"weights": host.model, "caches": host.context, "compute buffers": host.compute, "outputs": server.outputs}
    parts = [f"{name} {_size(size)}" for name, size in sizes.items() if size >= _MIB]
    if server.prompt_cache:
        parts.append(f"a prompt cache of up to {_size(server.prompt_cache)} (--cache-ram)")
    if server.checkpoints >= _MIB:
        parts.append(f"context checkpoints of up to {_size(server.checkpoints)} (--ctx-checkpoints)")
    return f"on the host lie {', '.join(parts)}" if parts else ""


def _turned_off(estimate: Estimate) -> bool:
    return any("indexer" in name.lower() for name in estimate.disabled)


def _compute(estimate: Estimate, device: str) -> int:
    use = estimate.buffers.get(device)
    return 0 if use is None else use.compute


def _size(size: int | None, *, up: bool = False) -> str:
    return "memory" if size is None else mib(size, up=up)
