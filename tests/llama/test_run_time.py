"""What kernels take at run time, and what a load allocates, as llama.cpp's own host code does.

``tests/data/golden/pools.jsonl`` and ``pools_archs.jsonl`` are answers of loads that were given prompts.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memplan.backends.cuda import CudaBackend
from memplan.backends.cuda_pool import pool_bytes, workspace_bytes
from memplan.backends.devices import Rig
from memplan.drafting import MadeDraft
from memplan.estimator import Answer, answer
from memplan.llama.batch import Batch, ContextParams
from memplan.llama.context import Context
from memplan.llama.flags import parse_flags
from memplan.llama.run_time import Work, measure, prompt_batches, run_time
from memplan.loaded import Made
from memplan.question import Question
from memplan.rig import make_gpu
from tests import test_drafts as drafts
from tests.golden import GOLDEN, Case, parameters, stored
from tests.test_golden import COLUMNS, allocated, header, name

CASES: list[Case] = sorted(
    map(json.loads, (GOLDEN / "pools.jsonl").read_text().splitlines()), key=lambda c: (c["model"], c["release"])
)


ARCHS: list[Case] = list(map(json.loads, (GOLDEN / "pools_archs.jsonl").read_text().splitlines()))


def rig_of(case: Case) -> Rig:
    gpus = []
    for g in case["gpus"]:
        major, minor = g["cc"].split(".")
        gpus.append(make_gpu(g["name"], g["total_mib"] << 20, g["free_mib"] << 20, (int(major), int(minor))))
    return Rig(tuple(gpus))


def answered(case: Case) -> Answer:
    flags = parse_flags(case["args"], case["app"])
    model = stored(case["model"]) if case in ARCHS else header(json.dumps(case["model"]))
    return answer(Question.of(model, flags, rig_of(case), case["release"], case["deny"], filled=case["tokens"]))


def taken(found: Context, tokens: int) -> dict[str, tuple[int, int]]:
    """Bytes of each device's pool and of cuBLAS's workspace."""
    devices = {}
    batches = prompt_batches(found.params, tokens)
    for backend, scratch in zip(found.devices.backends, measure(found, Work(batches)), strict=True):
        if isinstance(backend, CudaBackend):
            workspace = workspace_bytes(backend.pool) if scratch.cublas else 0
            devices[backend.name] = pool_bytes(scratch.most), workspace
    return devices


@pytest.mark.parametrize("case", parameters("llama/test_run_time.py", [*CASES, *ARCHS], name))
def test_buffers_pools_and_workspaces_are_llama_cpp_s_own(case: Case) -> None:
    answer_ = answered(case)
    uses = {name: {c: getattr(use, c) for c in COLUMNS} for name, use in answer_.estimate.buffers.items()}
    assert allocated(uses) == allocated(case["truth"]["buffers"])
    assert answer_.made is not None
    found = answer_.made.context
    last = case["truth"]["run"][-1]
    truth = {f"CUDA{i}": sizes for i, sizes in enumerate(zip(last["pool"], last["malloc"], strict=True))}
    assert taken(found, case["tokens"]) == truth
    if case in [*CASES, *ARCHS][::8]:
        reserved = found.reserve().sizes
        found.plain = True
        assert taken(found, case["tokens"]) == truth
        assert found.reserve().sizes == reserved


DRAFTS: list[Case] = list(map(json.loads, (GOLDEN / "pools_drafts.jsonl").read_text().splitlines()))


@pytest.mark.parametrize("case", DRAFTS, ids=lambda case: case["id"])
def test_what_drafts_has_pools_of_its_own(case: Case) -> None:
    """Blocks were asked for as DFlash has them, of a token more than is drafted; DSpark begins with the first."""
    flags = parse_flags(case["args"], case["app"])
    draft = drafts.header(flags.draft_model) if flags.draft_model else None
    asked = Question.of(drafts.header(case["model"]), flags, rig_of(case), case["release"], draft=draft)
    found = answer(asked.with_(filled=case["tokens"]))
    assert isinstance(found.made, Made) and isinstance(found.draft, MadeDraft)
    block = replace(found.draft.drafter, flags=replace(found.draft.drafter.flags, drafting="draft-dflash"))
    made = found.made, replace(found.draft, drafter=block) if draft is not None else found.draft
    taken = [run_time(one.context, one.work(case["tokens"])) for one in made]
    (last,) = case["truth"]["run"]
    truth = {f"CUDA{i}": sum(sizes) for i, sizes in enumerate(zip(last["pool"], last["malloc"], strict=True))}
    assert {name: sum(one.get(name) or 0 for one in taken) for name in truth} == truth
    if draft is None:
        assert {device.name: device.run_time for device in found.estimate.devices} == truth


def params(n_ctx: int = 16384, n_seq_max: int = 1, unified: bool = False, n_ubatch: int = 512) -> ContextParams:
    n_ctx_seq = n_ctx if unified else n_ctx // n_seq_max
    return ContextParams(n_ctx, n_ctx_seq, 2048, n_ubatch, n_seq_max, n_seq_max, unified)


def test_a_prompt_is_cut_into_ubatches_and_each_size_counts_where_the_caches_are_fullest() -> None:
    assert prompt_batches(params(), 16384) == (params().prompt_batch,) == (Batch(512, 1, 1),)
    assert prompt_batches(params(), 15872) == (Batch(512, 1, 1, 15872),)
    assert prompt_batches(params(), 5000) == (Batch(512, 1, 1, 4608), Batch(392, 1, 1, 5000))
    assert prompt_batches(params(n_ubatch=1500), 4500) == (
        Batch(1500, 1, 1, 3548),
        Batch(548, 1, 1, 4096),
        Batch(404, 1, 1, 4500),
    )
    assert prompt_batches(params(), 100) == (Batch(100, 1, 1, 100),)


def test_a_batch_of_as_many_tokens_as_there_are_numbers_is_not_counted_token_by_token() -> None:
    huge = ContextParams(1 << 31, 1 << 31, (1 << 31) - 1, 3, 4, 4, True)
    assert prompt_batches(huge, 1 << 31) == (Batch(3, 1, 1, (1 << 31) - 2), Batch(1, 1, 1, 1 << 31))


def test_the_last_slot_s_prompt_comes_when_the_others_are_full() -> None:
    assert prompt_batches(params(n_seq_max=4), 4096) == (Batch(512, 1, 1, 4096, 12288),)
    assert prompt_batches(params(n_seq_max=4, unified=True), 16384) == (Batch(512, 1, 1, 16384),)
    assert prompt_batches(params(n_seq_max=4), 1 << 20) == prompt_batches(params(n_seq_max=4), 4096)
