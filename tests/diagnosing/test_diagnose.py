"""Diagnoses of the logs that people reported, in llama.cpp's own lines."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from memplan.diagnosing.diagnosis import diagnose
from memplan.diagnosing.log import Stage
from memplan.diagnosing.mends import Mend
from memplan.diagnosing.result import Diagnosis, Given
from memplan.diagnosing.rigs import rig_of
from memplan.errors import FlagError
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus
from tests.diagnosing.logs import (
    CONTEXT,
    LOADING,
    LOGS,
    MIB,
    UNTIL_MODEL,
    diagnosis,
    failing,
    loads,
    text,
)
from tests.golden import stored as header

pytestmark = pytest.mark.slow


def logs(*names: str, others: Collection[str] = ()) -> list[Any]:
    """Logs as parameters: of ``others`` the causes and mends are those of some that stay, so they are thorough."""
    return [pytest.param(name, marks=[pytest.mark.thorough] * (name in others)) for name in names]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("r2-five-gpus", "unfused-indexer", "CUDA2"),
        ("r4-unfused-512000", "unfused-indexer", "lid_kq, 64,000 MiB, and its copy"),
        pytest.param("r5-large-ubatch", "unfused-indexer", "5,120 MiB", marks=pytest.mark.thorough),  # as r13
        ("r8-one-card-short", "one-gpu-short", "CUDA4 is 414 MiB short for its compute buffer while CUDA7 has"),
        ("r13-cpu-moe-fit", "unfused-indexer", "lid_kq, 16,384 MiB"),
        ("r14-quantised-caches", "permuted-quantized-tensor", "quantised cache"),
        ("r31-four-slots", "slots", "4 unified slots (llama-server's choice without -np) hold 4 full-length caches"),
    ],
)
def test_the_cause_of_every_reported_failure(name: str, kind: str, words: str) -> None:
    found = diagnosis(name)
    assert (found.cause.kind, words in found.cause.text) == (kind, True), found.cause
    assert found.cause.mend
    assert found.load.failed is not None


@pytest.mark.parametrize(
    ("name", "release", "args"),
    [
        ("good-v0.5.0", "v0.5.0", ()),
        ("good-v0.4.0-docker", "v0.4.0", ()),
        ("good-b10068-crlf", "b10068", ("-cmoe",)),
        ("good-b9842-stamped", "b9842", ()),
    ],
)
def test_nothing_is_wrong_with_good_loads(name: str, release: str, args: tuple[str, ...]) -> None:
    found = diagnosis(name)
    assert found.cause.kind == "nothing-wrong"
    assert found.release == release
    assert found.guessed == args
    assert found.load.ready and found.load.failed is None and not found.mends


@pytest.mark.parametrize("name", logs(*sorted(path.stem for path in LOGS.glob("*.log")), others=["r5-large-ubatch"]))
def test_predictions_agree(name: str) -> None:
    found = diagnosis(name)
    assert found.agrees, [row for row in found.rows if not row.agrees]
    assert len(found.rows) >= 3 or (found.estimate is not None and found.estimate.refused is not None)
    assert found.nodes is None or found.nodes[0] == found.nodes[1]


def test_what_was_asked_for_to_the_byte() -> None:
    failed = diagnosis("r4-unfused-512000").rows[-1]
    assert (failed.buffer, failed.part, failed.logged, failed.exact) == ("CUDA0", "compute", 136867676672, True)
    assert failed.predicted == 136867676672


def test_a_fork_is_known_by_its_figures() -> None:
    found = diagnosis("r31-four-slots")
    assert found.release == "lid-cuda" and found.agrees
    assert found.mends[0].args == ("-np", "1")


def test_mends_are_tried() -> None:
    found = [(mend.args, mend.llama) for mend in diagnosis("r13-cpu-moe-fit").mends]
    types = ("-ctk", "q8_0", "-ctv", "q8_0")
    assert found == [(("-ub", "1024"), ""), (types, ""), (("-c", "65536"), ""), ((), "b10068")]
    first = diagnosis("r8-one-card-short").mends[0]
    assert (first.args, first.first) == (("-ot", r"blk\.27\.ffn_down_exps=CUDA7"), True)
    assert all(mend.left >= 300 * MIB for mend in diagnosis("r8-one-card-short").mends)


def test_mends_leave_the_reserve_that_is_asked_for() -> None:
    load = diagnosis("r8-one-card-short").load
    smaller = ("-ub", "128")
    assert smaller not in [mend.args for mend in diagnosis("r8-one-card-short").mends]
    left = {mend.args: mend.left for mend in diagnose(load, Given(reserve=(150,))).mends}
    assert 150 * MIB <= left[smaller] < 300 * MIB
    with pytest.raises(FlagError, match="--reserve has 2 values for 8 GPUs"):
        diagnose(load, Given(reserve=(150, 150)))


@pytest.mark.parametrize(
    ("name", "release"),
    [
        pytest.param("r4-unfused-512000", "b9988", marks=pytest.mark.thorough),
        pytest.param("r31-four-slots", "lid-cuda", marks=pytest.mark.thorough),
        ("good-b10068-crlf", "b10068"),
        ("good-v0.5.0", "v0.5.0"),
    ],
)
def test_a_build_that_the_log_does_not_say_is_found_by_its_figures(name: str, release: str) -> None:
    lines = [line for line in text(name).splitlines() if "print_info: build" not in line]
    (load,) = loads("\n".join(lines))
    found = diagnose(load)
    assert load.build is None and not load.version
    assert (found.release, found.agrees) == (release, True)
    assert [note for note in found.notes if "which build it was" in note]
    assert found.cause.kind == diagnosis(name).cause.kind


def test_a_build_and_a_flag_that_the_log_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosis("measured-no-build")
    assert found.load.dry and found.load.build is None and not found.load.version
    assert (found.release, found.guessed, found.agrees) == ("b10068", ("--no-op-offload",), True)
    assert len([note for note in found.notes if note.startswith("the log does not say which build it was")]) == 1
    # with the flags given nothing else is tried
    given = diagnose(found.load, Given(flags=("-ncmoe", "30"), llama="v0.5.0"))
    assert (given.release, given.agrees, given.guessed) == ("v0.5.0", False, ())


def test_types_that_the_failure_tells() -> None:
    found = failing(UNTIL_MODEL, CONTEXT + "model does not support different K (q8_0) and V (q4_0) cache types")
    assert found.agrees and " ".join(found.argv).startswith("-ctk q8_0 -ctv q4_0")
    assert found.estimate is not None and found.estimate.refused is not None


REPORTED = ["r2-five-gpus", "r4-unfused-512000", "r5-large-ubatch", "r8-one-card-short", "r13-cpu-moe-fit"]
REPORTED += ["r14-quantised-caches", "r31-four-slots"]


@pytest.mark.parametrize("name", logs(*REPORTED, others=["r2-five-gpus", "r4-unfused-512000", "r5-large-ubatch"]))
def test_every_reported_failure_ends_with_what_was_tried_and_works(name: str) -> None:
    found = diagnosis(name)
    assert found.mends and found.load.failed is not None
    for mend in found.mends:
        again = retried(found, mend)
        assert again.fits and not again.tight
        assert min(device.left for device in again.devices) == mend.left
        assert bool(mend.args) != bool(mend.llama)
    by_flags = [mend for mend in found.mends if mend.args]
    assert by_flags
    if found.cause.kind == "unfused-indexer":
        assert found.mends[-1].llama == "b10068" and "llama.cpp b10068 or newer" in found.cause.mend


def retried(found: Diagnosis, mend: Mend) -> Estimate:
    """The load with a mend, asked anew."""
    rig = rig_of(found.load)
    assert found.estimate is not None and rig is not None
    argv = (*mend.args, *found.argv) if mend.first else (*found.argv, *mend.args)
    header = builtin_header(found.model)
    return estimate(header, parse_flags(argv, found.estimate.flags.app), rig, mend.llama or found.release)


@pytest.mark.thorough
def test_experts_of_the_lowest_blocks_pile_up_on_the_first_device() -> None:
    """Report R31: they must straddle both cards' layer ranges."""
    log = text("r31-four-slots")
    command = next(line for line in log.splitlines() if "llama-server -m" in line)
    piled = r"llama-server -m /models/flash.gguf -c 262144 -ub 2048 -np 1 -ot blk\.([0-9])\.ffn_.*_exps=CUDA0,exps=CPU"
    start = log.partition("load_tensors:        CUDA0 model")[0].replace(command, piled)
    found = failing(
        start, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 22101.42 MiB on device 0: cudaMalloc failed:"
        " out of memory", "alloc_tensor_range: failed to allocate CUDA0 buffer of size 23175020544",
        LOADING + "unable to allocate CUDA0 buffer",
    )  # fmt: skip
    assert found.load.failed is not None and found.load.failed.stage is Stage.MODEL
    assert found.cause.kind == "one-gpu-short" and "while CUDA1 has" in found.cause.text
    assert any("CUDA1" in mend.args[-1] and mend.first for mend in found.mends)


@pytest.mark.thorough
def test_one_card_with_four_slots() -> None:
    """Report R31: about 231 GiB on one card at 65536."""
    log = text("r31-four-slots").replace("262144", "65536")
    lines = [line for line in log.splitlines() if "device CUDA1" not in line and "Device 1" not in line]
    lines = [line.replace(",blk\\.(22|23|24|25|26)\\.ffn_(up|gate|down)_exps=CUDA1", "") for line in lines]
    start = "\n".join(lines).partition("load_tensors:        CUDA0 model")[0]
    settings = log.partition("llama_context: constructing")[2].partition("llama_context:  CUDA_Host")[0]
    found = diagnose(
        loads(
            start + "llama_context: constructing" + settings
            + "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 248034361344\n"
            "graph_reserve: failed to allocate compute buffers\n"
        )[-1],
        Given(llama="lid-cuda"),
    )  # fmt: skip
    assert found.cause.kind == "slots" and found.mends[0].args == ("-np", "1"), found


def test_where_all_should_have_fitted_a_mend_takes_less() -> None:
    found = diagnosis("r2-five-gpus")
    assert found.estimate is not None and found.estimate.fits and found.load.failed is not None
    for mend in found.mends:
        assert (mend.where, mend.less > (found.load.failed.size or 0) // 4) == ("CUDA2", True)
        cuda2 = [e.devices[2].used for e in (found.estimate, retried(found, mend))]
        assert cuda2[0] - cuda2[1] == mend.less


def test_a_refusal_is_mended_too() -> None:
    found = diagnosis("r14-quantised-caches")
    assert [mend.args[:4] for mend in found.mends][:2] == [("-ctk", "f16", "-ctv", "f16"), ("-fa", "on")]
    assert found.mends[-1].llama == "b10361"
    k_v = failing(UNTIL_MODEL, CONTEXT + "DeepSeek4 does not support different K (q8_0) and V (f16) cache types")
    assert [mend.args[:4] for mend in k_v.mends] == [("-ctk", "q8_0", "-ctv", "q8_0"), ("-ctk", "f16", "-ctv", "f16")]


def test_why_fit_did_nothing() -> None:
    assert any("--fit changed nothing" in note for note in diagnosis("r13-cpu-moe-fit").notes)


def test_a_load_is_held_against_what_a_load_takes() -> None:
    """Four RTX 3090 hold all of Qwen3-8B: 64 MiB less on each but the first than llama.cpp plans (v0.4.0's answers)."""
    log = """\
llama_model_loader: loaded meta data with 28 key-value pairs and 399 tensors from qwen3-8b.gguf (version GGUF V3)
sched_reserve:      CUDA0 compute buffer size =   384.08 MiB
sched_reserve:      CUDA1 compute buffer size =   384.08 MiB
sched_reserve:      CUDA2 compute buffer size =   384.08 MiB
sched_reserve:      CUDA3 compute buffer size =   384.08 MiB
sched_reserve:  CUDA_Host compute buffer size =   160.09 MiB
sched_reserve: graph nodes  = 1266
sched_reserve: graph splits = 5
"""
    flags = ("-c", "16384", "-ub", "1024", "-np", "1", "-fa", "on")
    rig = parse_gpus(["4*NVIDIA GeForce RTX 3090:24268:23868:8.6"])
    loaded = diagnose(loads(log)[-1], Given(header("qwen3-8b"), flags, rig, "v0.4.0", whole=True))
    assert len(loaded.rows) == 5 and loaded.agrees
    planned = estimate(header("qwen3-8b"), parse_flags(flags), rig, "v0.4.0")
    assert [round(d.compute / MIB, 2) for d in planned.devices] == [384.08, 448.08, 448.08, 448.08]
