"""Golden cases, and what the rules of memplan.llama make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from memplan.backends.buffers import CPU_REPACK, CUDA_HOST
from memplan.backends.cpu import CpuBackend
from memplan.backends.cuda import CudaBackend
from memplan.backends.devices import Gpu, Rig
from memplan.estimator import model_of
from memplan.llama.batch import ContextParams
from memplan.llama.checks import check_context
from memplan.llama.flags import Flags, parse_flags
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import CacheBuilder
from memplan.llama.placement import Device, Machine, Placement, place, too_many_devices
from memplan.llama.refusals import Refusal
from memplan.llama.weights import ModelTensors
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.models.deepseek4.memory import DeepSeek4Memory, create_memory
from memplan.question import Question
from memplan.releases import V0_4_0, V0_5_0
from tests.golden import builtin

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
RELEASES = {"v0.5.0": V0_5_0, "v0.4.0": V0_4_0}
MIB = 1 << 20

Case = Mapping[str, Any]


def cases(name: str) -> list[Case]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


@cache
def model(name: str) -> tuple[DeepSeek4HParams, ModelTensors]:
    """A golden model by its name there: flash-antirez-q2, pro-mxfp4, ..."""
    loaded = model_of(Question.of(builtin(name), Flags(), Rig(()), V0_5_0))
    assert isinstance(loaded.hparams, DeepSeek4HParams)
    return loaded.hparams, loaded.tensors


def memory(hp: DeepSeek4HParams, flags: Flags, placement: Placement) -> DeepSeek4Memory:
    """The caches and states of a context, as v0.5.0 makes them."""
    build = CacheBuilder(hp, flags, ContextParams.of(flags, hp), placement)
    return create_memory(hp, build, V0_5_0)


def machine(*gpus: Gpu, release: str = "v0.5.0", deny: tuple[str, ...] = ()) -> Machine:
    return Machine(
        tuple(
            Device(CudaBackend(i, gpu, RELEASES[release], frozenset(deny)), gpu.free, CUDA_HOST)
            for i, gpu in enumerate(gpus)
        ),
        Device(CpuBackend(), extra_bufts=(CPU_REPACK,)),
    )


def card(total: int, free: int | None = None, cc: str = "8.6", name: str = "NVIDIA RTX 3090") -> Gpu:
    """A GPU; total and free in MiB."""
    major, minor = cc.split(".")
    return Gpu(name, total * MIB, (total if free is None else free) * MIB, (int(major), int(minor)))


def machine_of(case: Case) -> Machine:
    gpus = [card(g["total_mib"], g["free_mib"], g["cc"], g["name"]) for g in case["gpus"]]
    return machine(*gpus, release=case["release"], deny=tuple(case["deny"]))


def replay(case: Case) -> Refusal | tuple[Placement, ContextParams, Memory]:
    """Load the model and create the context's memory in llama.cpp's order, up to the first refusal."""
    hp, tensors = model(case["model"])
    flags = parse_flags(case["args"], case["app"])
    where = machine_of(case)
    placement = place(tensors.tensors, hp.n_layer_all, flags, where)
    if isinstance(placement, Refusal):
        return placement
    refusal = check_context(hp, flags, V0_5_0, one_cache_type=True) or too_many_devices(placement)
    if refusal:
        return refusal
    params = ContextParams.of(flags, hp)
    return placement, params, memory(hp, flags, placement)
