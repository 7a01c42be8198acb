"""Golden answers as parameters of tests, and how often each is replayed.

Of the answers that take the same ways through the package as three others, most stand in
``tests/data/golden/thorough.json``, by test file: ``pytest -m thorough`` replays these as well, beside the suite. A new
answer belongs to the suite as long as nobody puts it there.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memplan.backends.devices import Gpu, Rig
from memplan.backends.vulkan_limits import VulkanLimits
from memplan.gguf.header import Header, parse_header
from memplan.models.builtin import builtin_header

GOLDEN = Path(__file__).parent / "data" / "golden"
THOROUGH: dict[str, list[str]] = json.loads((GOLDEN / "thorough.json").read_text())

Case = Mapping[str, Any]


@cache
def builtin(name: str) -> Header:
    """A built-in model by its golden name: flash-antirez-q2, pro-mxfp4, ..."""
    size, _, recipe = name.partition("-")
    return builtin_header(f"deepseek-v4-{size}:{recipe}")


@cache
def stored(model: str) -> Header:
    """The header that is kept of a model."""
    file = GOLDEN.parent / "headers" / f"{model}.gguf.gz"
    return parse_header(io.BytesIO(gzip.decompress(file.read_bytes())), model)


def rig(case: Case) -> Rig:
    """The GPUs of a golden answer."""
    gpus = []
    for gpu in case["gpus"]:
        name, total, free = gpu["name"], gpu["total_mib"] << 20, gpu["free_mib"] << 20
        if "limits" in gpu:
            limits = VulkanLimits(**gpu["limits"])
            gpus.append(Gpu(name, total, free, backend="Vulkan", integrated=gpu["uma"], limits=limits))
            continue
        major, minor = gpu["cc"].split(".")
        gpus.append(Gpu(name, total, free, (int(major), int(minor))))
    return Rig(tuple(gpus))


def parameters(file: str, cases: Sequence[Case], name: Callable[[Case], str]) -> list[Any]:
    """The cases of a test file, by name: one of four that are not thorough is in the quick part of the suite."""
    seldom = frozenset(THOROUGH[file])
    assert seldom <= set(map(name, cases)), "an answer that is not there any more"
    found, n = [], 0
    for case in cases:
        if name(case) in seldom:
            marks = [pytest.mark.thorough, pytest.mark.slow]
        else:
            marks, n = [pytest.mark.slow] if n % 4 else [], n + 1
        found.append(pytest.param(case, id=name(case), marks=marks))
    return found
