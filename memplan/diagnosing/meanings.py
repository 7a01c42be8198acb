"""What llama.cpp's own words about a failure mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from memplan.diagnosing.log import Failure, Stage
from memplan.llama.flag_table import ARITY
from memplan.models.deepseek4.switches import switches
from memplan.models.registry import ARCHITECTURES, find_architecture
from memplan.releases import BUILDS, Release, SplitInputs


@dataclass(frozen=True, slots=True)
class Cause:
    """``kind``: a stable name.  ``text``: a sentence or two.  ``mend``: what to do where no flags can be tried."""

    kind: str
    text: str
    mend: str = ""


Since = Callable[[Release], bool]
"""Whether a release no longer has a fault."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What words of llama.cpp's mean.  ``mends``: what to do, one of these.  ``since``: newer releases that mend it."""

    kind: str
    text: str
    mends: tuple[str, ...] = ()
    since: Since | None = None

    def cause(self, release: Release | None) -> Cause:
        """The cause for a load by ``release``, None for one that is not known."""
        newer = "" if self.since is None else newer_release(self.since, release)
        return Cause(self.kind, self.text, ", or ".join((*self.mends, *((f"take {newer}",) if newer else ()))))


RUN_TIME: Final = "run-time-pools"
"""The kind of what runs short of memory while it works."""

_POOLS: Final = ("cuMemCreate", "ggml_cuda_pool_", "argsort_f32_i32_cuda", "top_k_f32_i32_cuda")
"""Where CUDA's host code takes scratch."""

_SHORT: Final = ("out of memory", "ALLOC_FAILED", "NOT_INITIALIZED", "allocation failed")
"""What CUDA and cuBLAS say when memory is short."""

SAID: Final[Mapping[str, Meaning]] = {
    "tensor->nb[0] == ggml_element_size(tensor)": Meaning(
        "permuted-quantized-tensor",
        "this build cannot keep a permuted part of a quantised cache on a GPU, which a layer on the host makes it do"
        " (also in --fit's own tries)",
        ("take -ctk f16 -ctv f16", "put all layers on GPUs (-fit off -ngl 99, experts by -ncmoe)"),
        lambda release: release.equal_cache_types,
    ),
    "n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS": Meaning(
        "too-many-split-inputs",
        "one split of the graph has more inputs from other devices than this build can hold",
        ("keep what is read together on one device (fewer -ot patterns)",),
        lambda release: release.split_inputs is not SplitInputs.AT_MOST_30,
    ),
    "pre-allocated tensor": Meaning(
        "override-to-unused-device",
        "a tensor was put on a device that computes nothing",
        ("put it on a device that holds layers",),
    ),
    "n_backends <= GGML_SCHED_MAX_BACKENDS": Meaning(
        "too-many-devices", "more devices than a graph can have", ("use 15 GPUs at most",)
    ),
    "does not support different K": Meaning(
        "k-v-types-differ",
        "this model takes the same type for both caches",
        ("give -ctk and -ctv the same type",),
    ),
    "quantized V cache": Meaning(
        "quantized-v-needs-flash-attention",
        "a quantised V cache needs flash attention, which is off here",
        ("give -fa on", "take -ctv f16"),
    ),
    "wrong number of tensors": Meaning(
        "tensors-not-of-this-release",
        "the file has tensors that this build does not know, such as MTP blocks",
        ("take a file without them",),
        lambda release: switches(release).mtp_tensors,
    ),
    "does not support split buffers": Meaning(
        "rows-not-supported",
        "a device cannot hold tensors split by rows, which -sm row asks for",
        ("take -sm layer",),
    ),
    "unknown model architecture": Meaning(
        "architecture-not-of-this-release",
        "this build does not know the model's architecture",
    ),
    "invalid argument": Meaning(
        "argument-not-of-this-release",
        "this build does not take one of the arguments, and ends before it loads anything",
        ("see llama-server --help for how it is spelled", "take a build that knows it"),
    ),
    "error while handling argument": Meaning(
        "argument-not-of-this-release",
        "this build does not take an argument's value, and ends before it loads anything",
        ("see llama-server --help for what it takes",),
    ),
    "is corrupted or incomplete": Meaning(
        "incomplete-file",
        "the model's file ends before its data does",
        ("download it again",),
    ),
    "failed to load model from": Meaning("no-such-file", "the model's file cannot be opened", ("check the path",)),
}
"""Words of llama.cpp's own, and what they mean."""


def _knowing(said: str, release: Release | None) -> str:
    """Which llama.cpp to take for an architecture that one did not know: the oldest that is known to have it."""
    named = re.search(r"unknown model architecture: '([^']{1,100})'", said)
    if named is None or named[1] not in ARCHITECTURES:
        return "take a newer llama.cpp"
    since = max(find_architecture(named[1]).since, BUILDS[0].build)
    if release is not None and release.build >= since:
        return f"see which llama.cpp was started: b{since} and newer have {named[1]}"
    return f"take llama.cpp b{since} or newer, which has {named[1]}"


def newer_release(since: Since, release: Release | None) -> str:
    """The oldest release after ``release`` with which a fault is gone, in words; empty when there is none."""
    for other in BUILDS:
        if (release is None or other.build > release.build) and since(other):
            return f"llama.cpp {label(other)} or newer"
    return ""


def label(release: Release) -> str:
    """A release's name, with its build where that is not the name."""
    return release.name if release.name == f"b{release.build}" else f"{release.name} (build {release.build})"


def from_words(failure: Failure, release: Release | None) -> Cause | None:
    """The cause that llama.cpp's own words tell; None when they tell no more than that memory was short."""
    for words, meaning in SAID.items():
        if words in failure.said:
            if meaning.kind == "architecture-not-of-this-release":
                meaning = replace(meaning, mends=(_knowing(failure.said, release),))
            cause = meaning.cause(release)
            flag = failure.said.partition("invalid argument: ")[2].strip()
            near = get_close_matches(flag, ARITY, n=2, cutoff=0.7) if flag and flag not in ARITY else ()
            return replace(cause, mend=f"{' or '.join(near)} may be meant; {cause.mend}") if near else cause
    if failure.kind == "killed":
        return Cause(
            "host-memory",
            "the system ran out of memory and killed the process: what lies on the host did not fit",
            "put more on the GPUs, take --cache-ram 0, or map the weights (no --no-mmap, no --mlock)",
        )
    if at_run_time(failure):
        device = f" on {failure.buffer}" if failure.buffer else ""
        return Cause(
            RUN_TIME,
            f"everything was loaded; memory ran out{device} while it worked: what kernels take at run time, which grows"
            " with what a slot holds, had no room left",
            "leave more room on that device: a smaller -ub or -c, or one expert tensor less on it",
        )
    return None


def at_run_time(failure: Failure) -> bool:
    """Whether memory ran out where kernels take scratch, or after everything was loaded."""
    if failure.kind == "cuda" and any(place.startswith(_POOLS) for place in failure.places):
        return True
    short = failure.size is not None or (failure.kind == "cuda" and any(words in failure.said for words in _SHORT))
    return failure.stage is Stage.RUNNING and short
