"""The answer: flags that fit, what they place where, or what to change when nothing fits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memplan.backends.devices import RPC
from memplan.errors import FlagError, shown
from memplan.estimator import check_compute
from memplan.llama.refusals import Refusal
from memplan.llama.servers import rpc_words
from memplan.notes import mib
from memplan.planning.drafter import Words, drafter_places, drafting_ms
from memplan.planning.feed_forward import in_parts
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import Layout
from memplan.planning.nearest import changes_in_full, few_enough, nearest_changes
from memplan.planning.partition import LayerPartitioner
from memplan.planning.probing import Change
from memplan.planning.problem import Candidate, Problem, check_layers, leaves_margins
from memplan.planning.search import Search
from memplan.planning.speed import SPLIT_MS
from memplan.planning.widening import SEARCHED, widen
from memplan.result import Estimate
from memplan.rig import MIB

DEFAULT_MARGIN = 1024
"""MiB to leave on every GPU, as llama.cpp's ``--fit-target``."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one device holds.

    ``layers``: its first layer and the one after its last; None when it has none.  ``output``: whether it has the
    output layer.  ``experts``, ``expert_bytes``: expert tensors on it, those that the user placed not counted.
    """

    device: str
    layers: tuple[int, int] | None
    output: bool
    experts: int
    expert_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Flags that fit.

    Attributes:
        fixed: the user's flags.  args: those to add.  estimate: of both together.
        shares: what each GPU in use holds, and last the host.
        token_ms: about how long a generated token takes, from bandwidths; ``assumed`` says which.
        notes: what was chosen and what it costs, a sentence each.
        estimates: how many were asked for.
        nearest: where layers are on the host: about the largest context with which none would be, and the largest
            ubatch if prompts are slow besides.
    """

    fixed: tuple[str, ...]
    args: tuple[str, ...]
    estimate: Estimate
    shares: tuple[Share, ...] = ()
    token_ms: float = 0.0
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    estimates: int = 0
    nearest: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Nothing fits: ``nearest`` changes that would, each with its flags; ``why`` in a sentence.

    ``approximate``: why the figures that say so are not exact; empty when they are.
    """

    fixed: tuple[str, ...]
    why: str
    nearest: tuple[Change, ...] = ()
    refused: Refusal | None = None
    estimates: int = 0
    approximate: str = ""


def make_plan(problem: Problem, search_for: Sequence[str] = (), changes: bool = True) -> Plan | NoPlan:
    """The best flags for a problem, or what to change.

    ``search_for``: settings that may be chosen too (``c``, ``ub``, ``np``, ``cache``): each is raised as far as it
    costs no expert and no layer its place on a GPU, or lowered as far as it must be to have a plan.
    ``changes``: whether other settings are looked for, where nothing fits or not every layer on GPUs.
    A model that drafts is put where it costs a token least, unless flags say where. Raises MemplanError.
    """
    places, others = drafter_places(problem.question)
    if not others:
        return _make_plan(problem, search_for, changes)
    tried: list[tuple[float, Words, Plan]] = []
    estimates = 0
    for words in (*places, *others):
        if tried and (words in others or _all_on_gpus(tried[-1][-1])):
            break
        asked = problem.with_words(*words)
        found = _make_plan(asked, search_for, False, in_full=True)
        estimates += found.estimates
        if isinstance(found, NoPlan) and found.refused is not None and not words:
            return found  # wherever it lies
        if isinstance(found, Plan):
            ms = drafting_ms(asked.question.with_words(*found.args), problem.bandwidths)
            tried.append((found.token_ms + ms, words, found))
    if tried:
        _, words, best = min(tried, key=lambda one: one[0])
        return _with_drafter(best, problem, words, estimates)
    for words in reversed(places):  # what leaves the model most room first
        found = _make_plan(problem.with_words(*words), search_for, changes and words == places[0])
        estimates += found.estimates
        if isinstance(found, Plan):
            break
    return _with_drafter(found, problem, words, estimates)


def _all_on_gpus(plan: Plan) -> bool:
    """Whether the host holds no expert and no layer."""
    return not plan.shares or not (plan.shares[-1].experts or plan.shares[-1].layers)


def _with_drafter(found: Plan | NoPlan, problem: Problem, words: Words, estimates: int) -> Plan | NoPlan:
    """The answer to the user's own flags, of one to those and ``words``, which place what drafts."""
    nearest = tuple(c if c.drop else replace(c, args=(*words, *c.args)) for c in found.nearest)
    fixed = problem.flags.words()
    if isinstance(found, NoPlan):
        return replace(found, fixed=fixed, nearest=nearest, estimates=estimates)
    said = [f"is on {words[1]} alone"] if "-devd" in words else []
    said += ["has its experts on the host"] if "-cmoed" in words else []
    said += ["is on the host"] if "-ngld" in words else []
    notes = (f"what drafts {' and '.join(said)} ({' '.join(words)})",) if words else ()
    args = (*words, *found.args)
    return replace(found, fixed=fixed, args=args, nearest=nearest, estimates=estimates, notes=(*notes, *found.notes))


def _make_plan(problem: Problem, search_for: Sequence[str], changes: bool, in_full: bool = False) -> Plan | NoPlan:
    """The same with what drafts where the flags put it.  ``in_full``: with every layer on GPUs, or not at all."""
    gpus, margins = len(problem.rig.gpus), len(problem.margins)
    if margins != gpus:
        raise FlagError(f"{margins} margins for {gpus} GPUs: give one for all, or one each")
    check_names(search_for)
    check_compute(problem.question)
    check_layers(problem.question)
    flags, estimates = problem.flags, 0
    fixed = flags.words()
    few, left_out = few_enough(problem)
    servers = rpc_words(flags, problem.rig)
    if servers and (flags.devices is not None or any("[" in buffer for _, buffer in flags.overrides)):
        left_out += ("--rpc must stand before -dev and -ot, which name its devices",)
    chosen = (*servers, *few)
    problem = problem.with_words(*chosen)
    hints: tuple[Layout, ...] = ()
    for name in search_for:
        words, count, hints = widen(problem, name)
        problem = problem.with_words(*words)
        chosen += words
        estimates += count
    search = Search(problem, hints)
    lost = search.estimate(()).draft_refused if flags.drafting or flags.draft_model else None
    by_place = ["too-many-split-inputs"] + (["override-to-unused-device"] if flags.draft_devices is None else [])
    if lost is not None and lost.kind not in by_place:
        why = f"the context that drafts cannot be made ({lost.message})"
        return NoPlan(fixed, why, refused=lost, estimates=1, approximate=search.approximate)
    costs = search.costs()
    too_large = _too_large(search)
    if too_large:
        return NoPlan(fixed, f"nothing fits: {too_large}", estimates=estimates, approximate=search.approximate)
    found = search.find()
    if found is None and costs is None and search.refused is None:
        found_on_host = search.estimate(())
        if leaves_margins(found_on_host, problem.margins):
            return Plan(fixed, chosen, found_on_host, notes=("no GPU is in use: there is nothing to place",))
    if in_full and found is None and search.refused is None:
        return NoPlan(fixed, "", estimates=estimates + search.estimates)
    whole = found
    if costs is not None and costs.first is None and costs.fixed_homes is None and search.refused is None:
        if found is None and not search.crowded:
            found = search.find(partial=True)
        if found is not None:
            costs, found = in_parts(search, costs, found, partial(token_ms, search))
    more_than_free = _more_than_free(problem) if found is None and search.refused is None else ""
    if more_than_free:
        return NoPlan(fixed, more_than_free, (), None, estimates + search.estimates, search.approximate)
    nearest: tuple[Change, ...] = ()
    if changes and whole is None and found is None:
        nearest, count = nearest_changes(search, chosen, partial=costs is not None and costs.first is None)
        estimates += count
    elif changes and whole is None and found is not None and found.layout.first:
        nearest, count = changes_in_full(search, found.layout.no_op_offload)
        estimates += count
    nearest = tuple(c if c.drop else replace(c, args=(*chosen, *c.args)) for c in nearest)
    if found is None or costs is None:
        why, refused = _why(search, chosen), search.refused
        return NoPlan(fixed, why, nearest, refused, estimates + search.estimates, search.approximate)
    shares = tuple(_shares(costs, found.layout, not search.model.hparams.n_expert))
    return Plan(
        fixed=fixed,
        args=(*chosen, *found.args),
        estimate=found.estimate,
        shares=shares,
        token_ms=token_ms(search, costs, found),
        assumed=problem.bandwidths.assumed,
        notes=(*left_out, *_notes(search, costs, found, shares, whole is not None, bool(nearest))),
        estimates=estimates + search.estimates,
        nearest=nearest,
    )


def check_names(search_for: Sequence[str]) -> None:
    """Raises FlagError for what cannot be searched for, before anything is."""
    for name in search_for:
        if name.strip().lstrip("-") not in SEARCHED:
            raise FlagError(f"--search {shown(name)}: must be c, ub, np or cache")


def token_ms(search: Search, costs: LayerCosts, found: Candidate) -> float:
    """About how many milliseconds a generated token takes: bytes read over bandwidth, and the splits."""
    speeds = search.problem.bandwidths
    partitioner = LayerPartitioner(costs, speeds)
    read = partitioner.reading(found.layout)
    for device, nbytes in costs.pinned_read.items():
        read += speeds.host_ms(nbytes) if device < 0 else speeds.gpu_ms(costs.devices[device], nbytes)
    slower = sum(ms - SPLIT_MS for ms in partitioner.changes(found.layout)) if speeds.remote else 0.0
    return read + SPLIT_MS * found.estimate.splits[1] + slower


def _shares(costs: LayerCosts, layout: Layout, dense: bool) -> Iterator[Share]:
    last = costs.n_items - 1
    homes = layout.homes()
    count, size = [0] * (len(costs.devices) + 1), [0] * (len(costs.devices) + 1)
    for layer in () if dense else costs.experts:
        for e in layer:
            where = layout.place(e, homes[e.layer])
            count[where] += 1
            size[where] += e.nbytes
    for device, (begin, end) in enumerate(layout.ranges()):
        layers = (begin, min(end, last)) if begin < min(end, last) else None
        yield Share(costs.names[device], layers, begin <= last < end, count[device], size[device])
    yield Share("host", (0, layout.first) if layout.first else None, layout.first > last, count[-1], size[-1])


def _why(search: Search, chosen: Sequence[str]) -> str:
    if search.refused is not None:
        return f"llama.cpp does not start: {search.refused.message}"
    known = search.closest()
    if known is None:
        lacks = search.estimate(()).host_lacks
        return f"nothing fits; the host is {mib(lacks, up=True)} short" if lacks else "nothing fits"
    args, closest = known
    short = []
    for device, margin in zip(closest.devices, search.problem.margins, strict=True):
        if device.used and device.left < margin:
            short.append(f"{device.name} is {mib(margin - device.left, up=True)} short of its margin")
    if closest.host_lacks:
        short.append(f"the host is {mib(closest.host_lacks, up=True)} short")
    said = f"nothing fits; at best {', '.join(short)}" if short else "nothing fits"
    least = min((device.left for device in closest.devices if device.used), default=-1)
    if least >= 0 and closest.fits:
        said += f"; it would fit with --margin {least // MIB}: {shlex.join((*chosen, *args))}"
    return said


def _more_than_free(problem: Problem) -> str:
    """Whether the margins alone are more than every GPU has free; empty where one has more."""
    gpus = problem.rig.gpus
    pairs = list(zip(problem.rig.names, gpus, problem.margins, strict=True))
    if not pairs or any(margin <= gpu.free for _, gpu, margin in pairs):
        return ""
    name, gpu, margin = max(pairs, key=lambda pair: pair[1].free)
    most = ", which has most," if len(pairs) > 1 else ""
    return f"nothing fits: a margin of {mib(margin)} is more than {name}{most} has free, {mib(gpu.free)}"


def _too_large(search: Search) -> str:
    """Whether the weights alone are more than all memory: then no setting helps."""
    rig, costs = search.problem.rig, search.costs()
    if rig.host_total is None or costs is None or search.refused is not None:
        return ""
    weights = sum(tensor.nbytes for tensor in search.model.tensors.tensors)
    gpus = [rig.gpus[d] for d in costs.devices]
    beside = sum(gpu.free for gpu in gpus if not rig.unified or gpu.backend == RPC)  # the others' is the host's
    if weights <= rig.host_total + beside:
        return ""
    on_gpus = f" and the {mib(beside)} that are free on all GPUs together" if beside else ""
    return (
        f"the weights alone are {mib(weights)}, more than the host's {mib(rig.host_total)}{on_gpus}: take a smaller"
        " quantisation, or more memory"
    )


def _notes(
    search: Search, costs: LayerCosts, found: Candidate, shares: Sequence[Share], in_full: bool, may_change: bool
) -> Iterator[str]:
    layout, estimate = found.layout, found.estimate
    total = sum(share.expert_bytes for share in shares)
    on_host = shares[-1]
    n_layer = search.model.hparams.n_layer
    # those that the user's flags place are not the plan's to count
    free = " that your flags do not place" if search.flags.overrides else ""
    dense = not search.model.hparams.n_expert
    held = "every layer" if dense else "the attention of every layer"
    if layout.first:
        reason = ""
        if costs.first is None and may_change:
            reason = f": with these settings the GPUs cannot hold {held}"
        elif costs.first is None and not in_full:
            reason = f": the GPUs cannot hold {held}, whatever the context"
        layers = min(layout.first, n_layer)
        output = " and the output layer" if layout.first > layers else ""
        all_but = f"the first {_count(layers, 'layer') if layers > 1 else 'layer'}{output}"
        yield f"{all_but} {'is' if layers == 1 and not output else 'are'} on the host, caches and all{reason}"
    touched = sorted({e.layer for layer in costs.experts for e in layer if e.names[0] in layout.host})
    if dense and touched:
        yield (
            f"{_count(len(layout.host), 'feed-forward tensor')} of {_count(len(touched), 'layer')}"
            f" {'is' if len(layout.host) == 1 else 'are'} on the host besides: each such layer costs two changes of"
            " device a token"
        )
    elif on_host.experts:
        yield (
            f"{mib(total - on_host.expert_bytes)} of {mib(total)} of experts{free} are on GPUs; {on_host.experts} of"
            f" {_count(sum(share.experts for share in shares), 'expert tensor')}{free}"
            f" {'is' if on_host.experts == 1 else 'are'} on the host, in"
            f" {_count(len(touched) + min(layout.first, n_layer), 'layer')}, each of which costs two changes of device"
            " a token"
        )
    elif total:
        yield f"every expert{free} is on a GPU"
    if layout.moved:
        one = len(layout.moved) == 1
        yield (
            f"{len(layout.moved)} {'feed-forward' if dense else 'expert'} tensor{' is' if one else 's are'} on another"
            " GPU than"
            f" {'its' if one else 'their'} layer, since there is room"
        )
    weights = "weights" if dense else "experts"
    if layout.no_op_offload:
        first = costs.names[0]
        yield (
            f"--no-op-offload: {first} has no room for copies of {weights}, so those on the host are computed there for"
            " prompts too, which is slow; another GPU in its place (CUDA_VISIBLE_DEVICES, -dev) may have"
        )
    elif on_host.experts and search.flags.op_offload and all(search.machine.gpus[d].remote for d in costs.devices):
        yield "experts on the host are computed there for prompts too: an RPC server is never sent their weights"
    if layout.one_copy and not (layout.host or layout.moved):
        yield "the override changes no place: it turns pipeline parallelism off, whose copies would not fit"
    for share, device in zip(shares, costs.devices, strict=False):  # the last share is the host's
        if estimate.devices[device].model < share.expert_bytes:
            yield f"experts that are too large for {share.device} stay on the host, though counted as its own here"
    idle = [name for name, d in zip(costs.names, costs.devices, strict=True) if not estimate.devices[d].used]
    if idle:
        yield f"{', '.join(idle)} {'hold' if len(idle) > 1 else 'holds'} nothing"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
