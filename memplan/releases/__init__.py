"""What each modelled llama.cpp release does differently, as named switches.

A switch says what a release does, so code asks ``release.cuda_keeps_topk_inputs`` and never for a build. The switches
stand in ``switches.py``, the releases in ``known.py``; ``docs/new-release.md`` says how one is added.
"""

from __future__ import annotations

from memplan.releases.finding import changed_between, find_release
from memplan.releases.known import (
    ANTIREZ,
    B9842,
    B9924,
    B9988,
    B10068,
    B10361,
    B10549,
    B10568,
    B11434,
    BUILDS,
    FORKS,
    LATEST,
    LID_CUDA,
    RELEASES,
    V0_4_0,
    V0_5_0,
)
from memplan.releases.switches import Indexer, QuantizedConcat, Release, SplitInputs

__all__ = [
    "ANTIREZ",
    "B9842",
    "B9924",
    "B9988",
    "B10068",
    "B10361",
    "B10549",
    "B10568",
    "B11434",
    "BUILDS",
    "FORKS",
    "LATEST",
    "LID_CUDA",
    "RELEASES",
    "V0_4_0",
    "V0_5_0",
    "Indexer",
    "QuantizedConcat",
    "Release",
    "SplitInputs",
    "changed_between",
    "find_release",
]
