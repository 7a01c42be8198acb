"""What to know about an estimate's settings: one sentence each, from the estimate alone."""

from __future__ import annotations

from memplan.llama.flag_fields import same_setting
from memplan.llama.override_use import WeightUse
from memplan.result import DeviceUse, Estimate

_MIB = 1 << 20

AS_PLACED = WeightUse()
"""Nothing to say about the placement of the weights."""


def settings_notes(estimate: Estimate, use: WeightUse = AS_PLACED) -> tuple[str, ...]:
    """What these settings cost, and what llama-server would do with them that the numbers do not show.

    ``use``: what the placement of the weights came to.
    """
    if estimate.refused:
        return ()
    notes = [*use.idle, context_note(estimate), _slots(estimate), _pipeline(estimate)]
    notes += [_offload(estimate) if use.copied else "", _disabled(estimate), _main_gpu(estimate)]
    notes += [_split(estimate), _drafts_nothing(estimate), _fit(estimate), host_note(estimate)]
    return tuple(note for note in notes if note)


def context_note(estimate: Estimate) -> str:
    """That a sequence has more context than the model knows; empty when it has not (``llama_context``, v0.5.0)."""
    trained = estimate.model.n_ctx_train
    if estimate.refused or not trained or estimate.n_ctx_seq <= trained:
        return ""
    said = f"more context than the {trained:,} tokens that the model was trained for"
    if estimate.flags.app == "cli":
        return f"{said}: what it answers beyond them is worth little"
    return f"{said}: memory is taken for all of it, and llama-server uses {trained:,} a slot"


def _slots(estimate: Estimate) -> str:
    flags = estimate.flags
    slots = flags.n_parallel
    context = sum(use.context for use in estimate.buffers.values())
    if slots == 1 or not context:
        return ""
    unasked = "" if same_setting("-np") & flags.given or flags.app == "cli" else " (llama-server's choice without -np)"
    if flags.kv_unified and estimate.model.own_streams:
        return (
            f"{slots} slots{unasked}, unified: each keeps caches of the whole context, {mib(context)} in all;"
            f" with -np 1 caches take about {mib(context // slots)}"
        )
    if flags.kv_unified:
        return f"{slots} slots{unasked}, unified: they share {estimate.n_ctx:,} tokens, and one may take all of them"
    most = min(estimate.n_ctx, estimate.model.n_ctx_train or estimate.n_ctx)
    more = f"; -c {most * slots} gives {most:,} to each" if most > estimate.n_ctx_seq else ""
    return f"{slots} slots{unasked} share the context: {estimate.n_ctx_seq:,} tokens each{more}"


def _pipeline(estimate: Estimate) -> str:
    if not estimate.pipeline_parallel:
        return ""
    again = "; where a compute buffer does not fit, llama.cpp tries once more without" if estimate.short else ""
    return f"pipeline parallelism is on: every GPU keeps four copies of its inputs; any -ot turns it off{again}"


def _offload(estimate: Estimate) -> str:
    """Weights on the host are copied to a GPU, batch by batch, through its compute buffer."""
    if not estimate.devices:
        return ""
    most = max(estimate.devices, key=_compute)
    others = sorted(device.compute for device in estimate.devices if device is not most and device.compute)
    takes = "the other takes" if len(others) == 1 else "the others take"
    beside = f" where {takes} {mib(others[len(others) // 2])}" if others else ""
    return (
        f"for prompts, weights on the host are copied to the GPUs: {most.name}'s compute buffer takes"
        f" {mib(most.compute)}{beside}; --no-op-offload computes them on the host instead"
    )


def _compute(device: DeviceUse) -> int:
    return device.compute


def _disabled(estimate: Estimate) -> str:
    if not estimate.disabled:
        return ""
    return f"llama.cpp turns off what a GPU lacks: {', '.join(estimate.disabled)}"


def ops_note(estimate: Estimate, usual: Estimate) -> str:
    """What changes because GPUs lack ``estimate.without_ops``; ``usual``: the same settings with them.

    What a GPU lacks and llama.cpp does not turn off runs on the host, in splits of its own.
    """
    if not estimate.without_ops or not estimate.devices or estimate.refused or usual.refused:
        return ""
    said = []
    splits = estimate.splits[0], usual.splits[0]
    if splits[0] != splits[1]:
        said.append(
            f"a prompt's graph has {splits[0]} splits in place of {splits[1]}, and data is copied from one device to"
            " another at each"
        )
    pairs = zip(estimate.devices, usual.devices, strict=True)
    device, before = max(pairs, key=lambda pair: abs(pair[0].compute - pair[1].compute))
    if device.compute != before.compute:
        said.append(f"{device.name}'s compute buffer takes {mib(device.compute)} in place of {mib(before.compute)}")
    if not said and estimate.buffers == usual.buffers:
        said.append("nothing is allocated otherwise")
    return f"without {', '.join(estimate.without_ops)} on the GPUs {'; '.join(said)}" if said else ""


def _main_gpu(estimate: Estimate) -> str:
    flags = estimate.flags
    if flags.main_gpu == 0 or flags.split_mode == "none":
        return ""
    return f"-mg {flags.main_gpu} has no effect: llama.cpp reads it with -sm none alone"


def _split(estimate: Estimate) -> str:
    gpus = len(estimate.devices)
    if not 0 < gpus < len(estimate.flags.tensor_split):
        return ""
    return f"-ts has {len(estimate.flags.tensor_split)} values; llama.cpp takes the first {gpus}, one a GPU"


def _drafts_nothing(estimate: Estimate) -> str:
    flags = estimate.flags
    return f"--spec-type {flags.drafting} without -md: llama-server drafts nothing" if flags.lacks_drafter else ""


def _fit(estimate: Estimate) -> str:
    flags = estimate.flags
    if estimate.fits or estimate.draft_refused or not flags.asks_fit or not estimate.devices:
        return ""
    if flags.stops_fit:
        return f"llama-server's --fit does not help here: it gives up when {' or '.join(flags.stops_fit)} is given"
    return "these are the settings as given; llama-server's --fit, on by default, would change what was not given"


def host_note(estimate: Estimate) -> str:
    """That the host may lack some of what llama-server comes to keep; empty where it does not."""
    host, server = estimate.host, estimate.server
    if host.total is None or estimate.flags.app == "cli" or (host.left is not None and host.left < 0):
        return ""
    used = f"weights, caches and buffers {mib(estimate.host_least + host.mapped)}"
    most = estimate.host_most
    if most is None:
        return f"the prompt cache has no limit (--cache-ram -1): {used} of {mib(host.total)} are taken without it"
    if most <= host.total:
        return ""
    which = "the one memory of GPUs and host" if estimate.unified else "the host"
    return (
        f"{which} may run short by {mib(most - host.total)} of {mib(host.total)}: {used},"
        f" context checkpoints up to {mib(server.checkpoints)}, prompt cache up to {mib(server.prompt_cache or 0)};"
        " --cache-ram and --ctx-checkpoints take less"
    )


def elsewhere_note(then: Estimate) -> str:
    """What comes of a drafter's layers that go elsewhere once memory is taken."""
    least = min(then.devices, key=lambda device: device.left)
    left = f"has {mib(least.left)} left" if least.left >= 0 else f"is {mib(-least.left, up=True)} short"
    return f"where the draft model's layers go once the model is loaded, {least.name} {left}"


def pinned_note(part: int, most: int) -> str:
    """That a driver does not pin a part of the host's compute buffer, for it pins ``most`` bytes at once."""
    return (
        f"a part of Vulkan_Host's compute buffer takes {mib(part)}, and the driver pins {mib(most)} at once: llama.cpp"
        " takes plain memory for it (failed to allocate pinned memory), from which copies are slower"
    )


def mib(size: int, *, up: bool = False) -> str:
    """``size`` as a note says it; ``up``: a shortage, which is never told as less than it is."""
    return f"{-(-size // _MIB) if up else (size + _MIB // 2) // _MIB:,} MiB"
