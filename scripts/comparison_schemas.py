"""The schemas of what ``memplan slots``, ``memplan paths`` and ``memplan compare`` print."""

from __future__ import annotations

from typing import get_args

from memplan.comparing.result import Fate
from scripts.schema_parts import Schema, entry, estimate, many, maybe, number, placed, switch, text

PATH = text("in ops of its own, or from small ones: the indexer, or another path", "fused", "unfused")
WORDS = many(text("a flag or a value"), "llama-server's flags")
LAYERS = many(number(""), "the layers")


def slots() -> Schema:
    """``memplan slots --json``; a model without an indexer has no ``indexer``."""
    row = entry(
        "one number of slots on one path of the indexer",
        slots=number("how many", 1),
        unified=switch("whether they share one context; false for one slot"),
        indexer=PATH,
        default=switch("what the program does without -np and -kvu"),
        given=switch("what the flags ask for, if that is another"),
        args=WORDS,
        n_ctx_slot=number("tokens that a slot gets"),
        context=number("caches and states on all devices, bytes"),
        fits=switch("whether all of it fits"),
        estimate=estimate(),
    )
    row["required"].remove("indexer")
    advice = entry("what fits where the default does not", said=text("in one line"), args=many(WORDS, "best first"))
    found = entry(
        "how many slots fit",
        llama=text("the release that was followed"),
        indexer=PATH,
        rows=many(row, "by path, then by slots"),
        advice=maybe(advice),
    )
    found["required"].remove("indexer")
    return found


def comparison() -> Schema:
    """``memplan compare --json``."""
    side = entry("one side", name=text("what it is called"), estimate=estimate())
    part = entry(
        "one part of what a device holds",
        device=text("CUDA0, or host"),
        part=text("which", "weights", "context", "compute", "run time", "drafter", "projector"),
        before=number("bytes"),
        after=number("bytes"),
        change=number("bytes more on the second side", None),
    )
    resident = entry(
        "weights, caches or states of one name that lie elsewhere or have another size",
        kind=text("what it is", "weight", "cache", "state"),
        name=text("without its layer"),
        source=text("its buffer type before, or empty"),
        target=text("its buffer type after, or empty"),
        layers=LAYERS,
        count=number("how many"),
        before=number("bytes"),
        after=number("bytes"),
    )
    move = entry(
        "one part of one buffer type",
        buffer=text("CUDA0, CUDA_Host, CPU, ..."),
        part=text("which", "weights", "context", "compute"),
        change=number("bytes more", None),
    )
    here = entry(
        "what it moves of this question; null where more than the release differs, or one is a fork",
        moves=many(move, "by buffer type"),
        splits=many(number("splits of the prompt graph"), "before and with it"),
        refused=many(switch("whether llama.cpp refuses the question"), "before and with it"),
    )
    release = entry(
        "a release that changed something for memory",
        name=text("its tag, its build, or a fork's name"),
        build=number("its build"),
        changed=text("what it changed, in a few sentences"),
        here=maybe(here),
    )
    return entry(
        "what moves from one side to the other; lists are empty when llama.cpp would not start with one of them",
        before=side,
        after=side,
        parts=many(part, "GPUs first, the host last"),
        residents=many(resident, "largest first"),
        compute=many(_buffer(), "every device's compute buffer"),
        renamed=many(
            entry("one tensor by two names", before=text("on the first side"), after=text("on the second")),
            "tensors that are called otherwise; elsewhere they go by the second side's names",
        ),
        releases=many(
            release, "what turned between the two sides' releases, from the first's on; empty if they are one"
        ),
        undone=switch("whether the second side is the older: what the releases changed is taken back"),
        verdict=text("what the second side takes more or less of, and whether it still fits"),
    )


def _buffer() -> Schema:
    peak = entry(
        "a chunk's fullest moment",
        chunk=number("which"),
        node=number("of the graph; -1: before the first", -1),
        tensor=text("what gets the highest place then"),
        bytes=number("how far it is filled"),
        lost=number("of these in gaps"),
    )
    group = entry(
        "tensors of one name that are alive at one fullest moment, or at both with other sizes",
        base=text("the name"),
        change=number("bytes more", None),
        fate=text("why", *get_args(Fate)),
        before=many(placed(), "alive before"),
        after=many(placed(), "alive after"),
    )
    gap = entry(
        "a place that one side loses and the other does not, or not as much of it",
        side=text("which side loses more", "before", "after"),
        bytes=number("what it loses"),
        other=number("what the other side loses there"),
        left_by=text("the tensor that left the place"),
        counterpart=maybe(text("the same on the other side")),
        filled_by=many(text(""), "what lies in the place"),
        filled_otherwise_by=many(text(""), "what lies there on the other side, and not here"),
        too_small_for=maybe(text("a later tensor that did not fit and lies above")),
    )
    life = entry(
        "tensors of one name that are kept longer or shorter, or in another's place",
        how=text("on the second side", "longer", "shorter", "in place", "own place"),
        base=text("the name"),
        bytes=number("of all of them"),
        count=number("how many"),
        layers=LAYERS,
        of=text("what is computed last while they are there; or whose place is taken over"),
    )
    then = maybe(number("bytes it is filled to at the other side's fullest moment"))
    return entry(
        "one device's compute buffer",
        device=text("CUDA0"),
        before=number("bytes"),
        after=number("bytes"),
        change=number("bytes more", None),
        said=many(text("a sentence"), "why"),
        same_moment=switch("whether both are fullest at the same tensor, chunk by chunk"),
        before_chunks=many(peak, "when each chunk is fullest; empty where nothing is computed"),
        after_chunks=many(peak, "the same of the second"),
        before_then=then,
        after_then=then,
        alive=number("bytes more of live tensors; with lost, all of the change", None),
        lost=number("bytes more in gaps", None),
        groups=many(group, "largest change first"),
        gaps=many(gap, "largest change first"),
        lifetimes=many(life, "largest first"),
    )


def paths() -> Schema:
    """``memplan paths --json``."""
    side = entry(
        "one path",
        path=PATH,
        estimate=estimate(),
        largest_context=maybe(number("the largest context that fits; null when none does")),
        does_not_fit_from=maybe(number("the next one; null when the model has no more")),
        beyond=maybe(estimate()),
        said=text("the same in words"),
    )
    tensor = entry(
        "tensors of one kind that only one path has",
        path=PATH,
        device=text("CUDA0"),
        count=number("how many"),
        layers=LAYERS,
        permuted_copy=switch("whether it is a permuted copy of another of the same name"),
        alive_at_peak=number("how many are alive when the buffer is fullest"),
        tensor=placed(),
    )
    return entry(
        "a path's two ways",
        llama=text("the release that was followed"),
        name=text("the path, as --path names it"),
        indexer=PATH,
        paths=many(side, "fused first, if the release has it"),
        tensors=many(tensor, "largest first"),
        comparison=maybe(comparison()),
    )
