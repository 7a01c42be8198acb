"""What releases do differently for block drafters alone, by the build in which each was first seen."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memplan.releases import Release


STAGES_SINCE = 10235
"""The first build seen that reads stages of DeepSeek-V4's kind; b10227 asks them for a plain drafter's keys."""


class Switches(NamedTuple):
    """One release's."""

    markov_head: bool
    """A drafter may have a Markov head, as DSpark's have (load_arch_tensors)."""

    own_vocabulary: bool
    """A drafter may have embeddings and an output of its own, and a smaller vocabulary (load_arch_tensors)."""

    more_layers: bool
    """Plain layers may share keys with values, and may have norms behind their parts, scales and gates of another kind;
    the output may be the drafter's embeddings (load_arch_tensors, load_arch_hparams)."""

    values_scaled: bool
    """Attention's results may be scaled (graph)."""


@lru_cache(maxsize=64)
def switches(release: Release) -> Switches:
    """What a release does."""
    return Switches(release.build >= 10178, release.build >= 10605, release.build >= 11149, release.build >= 11434)
