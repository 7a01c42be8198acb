"""What each modelled llama.cpp release does differently, as named switches: the only place that knows build numbers.

A switch says what a release does, so code asks ``release.cuda_keeps_topk_inputs`` and never for a build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from memplan.errors import UnknownRelease, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One llama.cpp release; every field but the first two is a switch."""

    name: str
    """The tag, ``v0.5.0``, or ``b10068`` for a build that has none."""

    build: int
    """The build whose source the switches were read in."""

    indexer_probe: bool
    """The fused lightning indexer is turned off when a device lacks it (src/llama-context.cpp: resolve_fused_ops).
    Releases without the probe run the op on the host instead."""

    sched_splits_full_inputs: bool
    """A node that needs one more input than the 30 a split has so far starts a new split (ggml-backend.cpp:
    ggml_backend_sched_split_graph). Without it a split takes any number."""

    cuda_keeps_moe_sum_inputs: bool
    """The inputs of a MoE weighted sum live until the sum is done (ggml-cuda.cu: ggml_backend_cuda_graph_optimize)."""

    cuda_keeps_topk_inputs: bool
    """So do all tensors of a fused top-k gating, until the node after it (same function)."""

    cuda_fa_mixed_types: bool
    """Flash attention takes K and V of different types, and q4_1, q5_0, q5_1 (ggml-cuda/fattn.cu:
    ggml_cuda_get_best_fattn_kernel). Before, only builds with GGML_CUDA_FA_ALL_QUANTS did."""

    cuda_fa_mma_decode: bool
    """One-token flash attention takes the MMA kernel for the sparse gather and for heads of 256 (fattn.cu)."""

    cuda_sums_strided_rows: bool
    """SUM_ROWS and MEAN need f32 rows without gaps only, not a whole contiguous tensor
    (ggml_backend_cuda_device_supports_op)."""

    cuda_dups_integers: bool
    """DUP takes i32 and i16 as well (ggml_backend_cuda_device_supports_op)."""


V0_4_0 = Release(
    name="v0.4.0",
    build=10852,
    indexer_probe=False,
    sched_splits_full_inputs=True,
    cuda_keeps_moe_sum_inputs=True,
    cuda_keeps_topk_inputs=False,
    cuda_fa_mixed_types=False,
    cuda_fa_mma_decode=False,
    cuda_sums_strided_rows=False,
    cuda_dups_integers=False,
)

V0_5_0 = Release(
    name="v0.5.0",
    build=11200,
    indexer_probe=False,
    sched_splits_full_inputs=False,
    cuda_keeps_moe_sum_inputs=True,
    cuda_keeps_topk_inputs=True,
    cuda_fa_mixed_types=True,
    cuda_fa_mma_decode=True,
    cuda_sums_strided_rows=True,
    cuda_dups_integers=True,
)

RELEASES: tuple[Release, ...] = (V0_4_0, V0_5_0)
"""Every modelled release, oldest first."""

LATEST = RELEASES[-1]

TAGGED: Mapping[str, int] = {"v0.3.0": 10621}
"""Builds of tags that are not modelled themselves."""


def find_release(text: str) -> tuple[Release, str | None]:
    """The modelled release for ``v0.5.0``, ``0.5.0``, ``b11200``, ``11200`` or ``latest``, and a note if it is another.

    A release between two modelled ones takes the newest not after it; one newer than all takes the newest.

    Raises:
        UnknownRelease: not a release at all, or one older than all that are modelled.
    """
    wanted = text.strip().lower()
    if wanted == "latest":
        return LATEST, None
    if m := re.fullmatch(r"b?([0-9]{1,9})", wanted):
        return _by_build(int(m[1]), f"build {int(m[1])}")
    if m := re.fullmatch(r"v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", wanted):
        version = (int(m[1]), int(m[2]), int(m[3] or 0))
        return _by_version(version, "v{}.{}.{}".format(*version))
    hint = f"write a tag (v0.5.0), a build (b11200) or latest; {_known()}"
    raise UnknownRelease(f"llama.cpp release {shown(text)}: {hint}")


def _by_build(build: int, label: str) -> tuple[Release, str | None]:
    return _newest([r for r in RELEASES if r.build <= build], label, build > LATEST.build, build)


def _by_version(version: tuple[int, int, int], label: str) -> tuple[Release, str | None]:
    for r in RELEASES:
        if r.name == label:
            return r, None
    if label in TAGGED:
        return _by_build(TAGGED[label], f"{label} (build {TAGGED[label]})")
    tagged = [(r, _version(r.name)) for r in RELEASES if r.name.startswith("v")]
    return _newest([r for r, v in tagged if v <= version], label, bool(tagged) and version > tagged[-1][1], None)


def _newest(not_after: list[Release], label: str, newer: bool, build: int | None) -> tuple[Release, str | None]:
    if not not_after:
        raise UnknownRelease(f"llama.cpp {label} is older than any release that is modelled; {_known()}")
    r = not_after[-1]
    if r.build == build:
        return r, None
    if newer:
        note = f"llama.cpp {label} is newer than any modelled release: assumed to do as {r.name} (build {r.build})"
    else:
        note = f"llama.cpp {label} is not modelled: taken as {r.name} (build {r.build}), the newest modelled before it"
    return r, note


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name[1:].split("."))


def _known() -> str:
    return "modelled: " + ", ".join(r.name if r.name.startswith("b") else f"{r.name} (b{r.build})" for r in RELEASES)
