"""Diagnoses of logs with llama.cpp's own lines; the reports are those of people's machines."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memplan.diagnosing import answers as answers_module
from memplan.diagnosing import diagnosis as diagnosis_module
from memplan.diagnosing.diagnosis import Asked, Diagnosis, diagnose, diagnose_all
from memplan.diagnosing.lines import clean_lines
from memplan.diagnosing.log import Load, Stage
from memplan.diagnosing.matching import layer_bytes, seen_flags, split_of
from memplan.diagnosing.mends import MARGIN, Mend
from memplan.diagnosing.reader import read_log
from memplan.diagnosing.rigs import rig_of
from memplan.errors import FlagError, UnknownRelease
from memplan.estimator import ask, estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus

LOGS = Path(__file__).parent.parent / "data" / "logs"
MIB = 1 << 20


def text(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode().replace("\r\n", "\n")


def loads(log: str | bytes) -> list[Load]:
    return read_log(clean_lines([log.encode() if isinstance(log, str) else log]))


@cache
def diagnosis(name: str) -> Diagnosis:
    (load,) = loads((LOGS / f"{name}.log").read_bytes())
    return diagnose(load)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("r2-five-gpus", "unfused-indexer", "CUDA2"),
        ("r4-unfused-512000", "unfused-indexer", "lid_kq, 62.5 GiB, and its copy"),
        ("r5-large-ubatch", "unfused-indexer", "5,120 MiB"),
        ("r8-one-card-short", "one-gpu-short", "CUDA4 is 414 MiB short for its compute buffer while CUDA7 has"),
        ("r13-cpu-moe-fit", "unfused-indexer", "lid_kq, 16.0 GiB"),
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


@pytest.mark.parametrize("name", sorted(path.stem for path in LOGS.glob("*.log")))
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
    assert found == [(("-ub", "1024"), ""), (("-c", "65536"), ""), ((), "b10068")]
    first = diagnosis("r8-one-card-short").mends[0]
    assert (first.args, first.first) == (("-ot", r"blk\.27\.ffn_down_exps=CUDA7"), True)
    assert all(mend.left >= 128 * MIB for mend in diagnosis("r8-one-card-short").mends)


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("r4-unfused-512000", "b9988"),
        ("r31-four-slots", "lid-cuda"),
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
    given = diagnose(found.load, Asked(flags=("-ncmoe", "30"), llama="v0.5.0"))
    assert (given.release, given.agrees, given.guessed) == ("v0.5.0", False, ())


def test_types_that_the_failure_tells() -> None:
    found = failing(UNTIL_MODEL, CONTEXT + "model does not support different K (q8_0) and V (q4_0) cache types")
    assert found.agrees and " ".join(found.argv).startswith("-ctk q8_0 -ctv q4_0")
    assert found.estimate is not None and found.estimate.refused is not None


REPORTED = ["r2-five-gpus", "r4-unfused-512000", "r5-large-ubatch", "r8-one-card-short", "r13-cpu-moe-fit"]
REPORTED += ["r14-quantised-caches", "r31-four-slots"]


@pytest.mark.parametrize("name", REPORTED)
def test_every_reported_failure_ends_with_what_was_tried_and_works(name: str) -> None:
    found = diagnosis(name)
    assert found.mends and found.load.failed is not None
    for mend in found.mends:
        again = retried(found, mend)
        assert again.fits and min(device.left for device in again.devices) == mend.left >= MARGIN
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
        Asked(llama="lid-cuda"),
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


# --- other failures, in a good load's place ---

GOOD = text("good-v0.5.0")
UNTIL_MODEL = GOOD[: GOOD.index("llama_context: constructing")]
CUDA_MALLOC = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {} MiB on device 0: cudaMalloc failed: out of memory"
)
LOADING = "llama_model_load: error loading model: "
CONTEXT = "llama_init_from_model: "
UNTIL_COMPUTE = GOOD[: GOOD.index("sched_reserve:      CUDA0 compute")]


def failing(start: str, *lines: str) -> Diagnosis:
    return diagnose(loads(start + "\n".join(lines) + "\n")[-1])


def test_weights_that_do_not_fit() -> None:
    found = failing(
        UNTIL_MODEL.partition("load_tensors:        CUDA0 model")[0].replace("97250 MiB free", "60000 MiB free"),
        CUDA_MALLOC.format("81687.67"),
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 85655727104",
        LOADING + "unable to allocate CUDA0 buffer",
    )
    assert found.load.failed and found.load.failed.stage is Stage.MODEL
    assert found.cause.kind == "too-little-memory"
    assert any(mend.args[0] == "-ncmoe" for mend in found.mends)


def test_caches_that_do_not_fit() -> None:
    found = failing(
        UNTIL_COMPUTE[: UNTIL_COMPUTE.index("llama_kv_cache:      CUDA0 KV")],
        CUDA_MALLOC.format("672.00"),
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 704643072",
        CONTEXT + "failed to initialize the context: failed to allocate buffer for kv cache",
    )
    assert found.load.failed and found.load.failed.stage is Stage.CONTEXT
    assert found.cause.kind == "less-free-than-thought"


def two_cards(*lines: str) -> Diagnosis:
    """A log that ends at its weights, of two cards with 23,868 MiB free each."""
    start = re.sub(r"load_tensors: layer.*\n", "", UNTIL_MODEL.partition("load_tensors:        CUDA0 model")[0])
    card = "NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes, VRAM: 24127 MiB"
    start = re.sub(r"  Device 0:.*", f"  Device 0: {card}\n  Device 1: {card}", start)
    start = re.sub(
        r"(llama_prepare_model_devices: using device CUDA)0.*",
        r"\g<1>0 (NVIDIA GeForce RTX 3090) - 23868 MiB free\n\g<1>1 (NVIDIA GeForce RTX 3090) - 23868 MiB free",
        start,
    )
    return failing(start, *lines)


def test_weights_are_compared_with_what_was_free_where_the_log_ends_before_the_context() -> None:
    """Lines of v0.5.0: the context is printed once the weights are loaded."""
    lines = (
        "alloc_tensor_range: failed to allocate CUDA1 buffer of size 27649900544",
        LOADING + "unable to allocate CUDA1 buffer",
    )
    found = two_cards(*lines)
    assert found.assumed == ("-c", "-np")
    assert "2,501 MiB short for its weights alone, 26,369 MiB on 23,868 MiB free" in found.cause.text
    assert sum("does not show -c and -np" in note for note in found.notes) == 1
    assert two_cards("Killed").assumed == ("-c", "-np")


def test_the_weights_buffer_that_failed_tells_the_placement() -> None:
    header, rig = builtin_header("deepseek-v4-flash"), parse_gpus(["RTX 3090:24127:23868", "RTX 3090:24127:23868"])
    size = estimate(header, parse_flags(["-ngl", "44", "-ncmoe", "20"]), rig, "v0.5.0").buffers["CUDA1"].model
    found = two_cards(f"alloc_tensor_range: failed to allocate CUDA1 buffer of size {size}")
    # of all that give it, the first with which CUDA0's weights fit
    assert found.guessed[0] == "-ncmoe" and 10 < int(found.guessed[1]) <= 20 and found.agrees


def test_a_caches_failure_at_default_verbosity() -> None:
    found = failing(
        "",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 704643072",
        CONTEXT + "failed to initialize the context: failed to allocate buffer for kv cache",
    )
    assert found.load.failed and found.load.failed.stage is Stage.CONTEXT


def test_a_load_that_only_measures() -> None:
    dry = GOOD.replace("no_alloc              = 0", "no_alloc              = 1")
    assert diagnose(loads(dry)[0]).cause.kind == "only-measured"
    short = diagnose(loads(dry.replace("97250 MiB free", "60000 MiB free"))[0])
    assert short.cause.kind == "only-measured" and "CUDA0 would be" in short.cause.text


def test_logs_of_default_verbosity() -> None:
    """Lines of v0.5.0 without -v: a load is known by its end alone."""
    said = (
        "common_params_print_info: build 11200 (5f0c2b1de) with GNU 13.3.0 for Linux x86_64\n"
        "srv    load_model: loading model '/models/flash.gguf'\n{}\n"
    )
    good, bad = said.format("main: model loaded"), said.format(CONTEXT + "failed to initialize the context: no room")
    for log, kinds in ((good, ["nothing-wrong"]), (good + bad, ["nothing-wrong", "unknown"]), (bad, ["unknown"])):
        found = diagnose_all(loads(log))
        assert [each.cause.kind for each in found] == kinds
        assert {each.load.path for each in found} == {"/models/flash.gguf"}
    assert diagnose(loads(good)[0]).cause.text == "nothing wrong as far as the log says: the model was loaded"


def test_another_architecture_is_said() -> None:
    log = re.sub(r"(general.architecture str\s+= )deepseek4", r"\1llama", GOOD)
    assert log != GOOD
    found = diagnose(loads(log)[0])
    assert found.estimate is None and found.model == ""
    assert found.notes[0] == "nothing is predicted: its architecture is llama, and only deepseek4 is modelled"


def test_an_argument_that_the_build_does_not_take() -> None:
    found = diagnose(loads("error: invalid argument: --ncmoe\n")[0])
    assert found.cause.kind == "argument-not-of-this-release" and found.cause.mend.startswith("-ncmoe")
    assert found.notes == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (CONTEXT + "DeepSeek4 does not support different K (q8_0) and V (f16) cache types", "k-v-types-differ"),
        (CONTEXT + "quantized V cache requires flash_attn", "quantized-v-needs-flash-attention"),
        (
            CONTEXT + "failed to initialize the context: quantized V cache was requested, but this requires"
            " Flash Attention",
            "quantized-v-needs-flash-attention",
        ),
        (
            LOADING + "done_getting_tensors: wrong number of tensors; expected 1356, got 1352",
            "tensors-not-of-this-release",
        ),
        (LOADING + "unknown model architecture: 'deepseek4'", "architecture-not-of-this-release"),
        (
            LOADING + "tensor 'blk.3.ffn_up_exps.weight' data is not within the file bounds,"
            " model is corrupted or incomplete",
            "incomplete-file",
        ),
        ("/b/c.cpp:1317: GGML_ASSERT(n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS) failed", "too-many-split-inputs"),
        ("/b/ggml.c:9: GGML_ASSERT(something == new) failed", "unknown"),
        ("Killed", "host-memory"),
        ("kernel: Out of memory: Killed process 123 (llama-server) total-vm:1kB", "host-memory"),
        ("ggml_aligned_malloc: insufficient memory (attempted to allocate 75314.00 MB)", "host-memory"),
    ],
)
def test_llama_cpps_own_words(line: str, kind: str) -> None:
    assert failing(UNTIL_MODEL, line).cause.kind == kind


def test_memory_that_runs_out_later() -> None:
    found = failing(
        GOOD,
        "CUDA error: out of memory",
        "  current device: 0, in function alloc at /build/ggml/src/ggml-cuda/ggml-cuda.cu:512",
        "  cuMemCreate(&handle, reserve_size, &prop, 0)",
        "/build/ggml/src/ggml-cuda/ggml-cuda.cu:100: CUDA error",
    )
    assert found.cause.kind == "run-time-pools" and "CUDA0" in found.cause.text


def test_a_retry_that_went_well_is_no_failure() -> None:
    found = failing(
        UNTIL_COMPUTE,
        CUDA_MALLOC.format("3303.67"),
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 3464148992",
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
        GOOD[GOOD.index("sched_reserve:      CUDA0 compute") :],
    )
    assert found.cause.kind == "nothing-wrong"
    assert any("went on without" in note for note in found.notes)


def test_a_log_that_is_cut_off() -> None:
    for end in range(0, len(GOOD), len(GOOD) // 12):
        for load in loads(GOOD[:end]):
            found = diagnose(load)
            assert found.cause.kind in ("cut-off", "nothing-wrong")
            assert found.agrees is not False
    assert diagnose(loads(UNTIL_COMPUTE)[0]).cause.kind == "cut-off"


def test_a_load_that_would_fail_when_the_log_ends_early() -> None:
    found = diagnose(loads(UNTIL_COMPUTE.replace("97250 MiB free", "82000 MiB free"))[0])
    assert found.cause.kind == "too-little-memory" and found.cause.text.startswith("the log ends before that")


def test_several_loads_in_one_log() -> None:
    failed = UNTIL_MODEL + LOADING + "unknown model architecture: 'deepseek4'\n"
    old = failed.replace("build 11200", "build 10852") + "Killed\n"
    found = [diagnose(load) for load in loads(old + GOOD + failed)]
    kinds = ["architecture-not-of-this-release", "nothing-wrong", "architecture-not-of-this-release"]
    assert [each.cause.kind for each in found] == kinds
    assert [each.load.build for each in found] == [10852, 11200, 11200]
    assert found[0].load.line < found[1].load.line < found[2].load.line


def test_dry_loads_of_fit_are_told_apart() -> None:
    process, _, rest = GOOD.partition("llama_model_loader: loaded")
    load = "llama_model_loader: loaded" + rest
    dry = load.replace("no_alloc              = 0", "no_alloc              = 1")
    found = loads(process + dry + dry + load)
    assert [each.dry for each in found] == [True, True, False]
    assert all(each.gpus["CUDA0"].total_mib == 97886 for each in found)


# --- what a user adds ---


def test_a_log_that_shows_next_to_nothing() -> None:
    last = "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 433158272"
    (load,) = loads(last)
    bare = diagnose(load)
    assert bare.cause.kind == "too-little-memory" and bare.estimate is None and bare.notes
    rig = parse_gpus(["RTX PRO 6000:97886:82000"])
    full = diagnose(load, Asked(builtin_header("deepseek-v4-flash"), ("-c", "131072", "-np", "1"), rig, "v0.5.0"))
    assert full.cause.kind == "too-little-memory" and full.agrees and full.mends
    with pytest.raises(UnknownRelease):
        diagnose(load, Asked(llama="b1"))
    with pytest.raises(FlagError):
        diagnose(load, Asked(builtin_header("deepseek-v4-flash"), ("-ot", "exps=CUDA9"), rig))


def test_without_a_prediction_the_logs_own_figures_tell() -> None:
    log = text("r4-unfused-512000").replace("q2_K:   43", "q2_K:   44").replace("build 9988", "build 4000")
    found = diagnose(loads(log)[0])
    assert found.estimate is None and found.cause.kind == "unfused-indexer"
    found = diagnose(loads(text("r31-four-slots").replace("q2_K:   43", "q2_K:   44"))[0])
    assert found.estimate is None and found.cause.kind == "slots"


def test_another_model_than_the_logs_is_said() -> None:
    found = diagnose(loads(GOOD)[0], Asked(builtin_header("deepseek-v4-flash:mxfp4")))
    assert any("other tensors" in note for note in found.notes) and not found.agrees


def test_no_flags_are_recommended_for_another_model_than_the_logs() -> None:
    (load,) = loads(text("r31-four-slots"))
    own, other = diagnose(load), diagnose(load, Asked(builtin_header("deepseek-v4-flash:mxfp4")))
    assert own.mends and own.cause.kind == other.cause.kind == "slots"
    assert not other.mends
    assert any("no flags are recommended" in note for note in other.notes)


def test_every_kind_of_cause_is_explained_in_the_docs() -> None:
    from memplan.diagnosing import causes

    page = (LOGS.parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    source = inspect.getsource(causes) + inspect.getsource(diagnosis_module)
    kinds = {meaning.kind for meaning in causes.SAID.values()} | set(re.findall(r'Cause\(\s*"([a-z-]+)"', source))
    assert len(kinds) >= 19
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


# --- flags that a log shows only by what they do ---


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"CUDA0 KV buffer": "CPU KV buffer", "CUDA0 DSV4": "CPU DSV4"}, ("-nkvo",)),
        ({"SWA KV cache, size = 768 cells": "SWA KV cache, size = 131072 cells"}, ("--swa-full",)),
        (
            {"  Device 0:": "  Device 1: A6000, compute capability 8.6, VMM: yes\n  Device 0:"},
            ("-sm", "none", "-mg", "0"),
        ),
    ],
)
def test_flags_seen_by_what_they_do(changes: dict[str, str], flags: tuple[str, ...]) -> None:
    log = GOOD
    for old, new in changes.items():
        assert old in log
        log = log.replace(old, new)
    argv = seen_flags(loads(log)[0], ()).argv
    assert any(argv[i : i + len(flags)] == flags for i in range(len(argv))), argv
    assert flags[0] not in seen_flags(loads(GOOD)[0], ()).argv


def test_overridden_tensors_become_short_patterns_for_exactly_these() -> None:
    (load,) = loads(GOOD)
    layers = [f"blk.{layer}.ffn_{kind}_exps.weight" for layer in (7, 21, 22) for kind in ("up", "down", "gate")]
    moved = [*layers, "blk.20.ffn_down_exps.weight", "output.weight"]
    load.overridden = dict.fromkeys(moved, "CPU")
    argv = seen_flags(load, ()).argv
    rules = [word for flag, word in pairwise(argv) if flag == "-ot"]
    assert rules == [
        r"^blk\.(7|21|22)\.(ffn_down_exps\.weight|ffn_gate_exps\.weight|ffn_up_exps\.weight)$=CPU",
        r"^blk\.20\.ffn_down_exps\.weight$=CPU",
        r"^output\.weight$=CPU",
    ]
    held = [re.compile(rule.removesuffix("=CPU")) for rule in rules]
    names = builtin_header("deepseek-v4-flash").tensors
    assert {name for name in names if any(pattern.search(name) for pattern in held)} == set(moved)


def test_a_split_is_found_by_the_weights() -> None:
    (load,) = loads(text("good-b10068-crlf").replace("-cmoe", ""))
    header = builtin_header("deepseek-v4-flash:q3")
    # 20 layers without experts, then 10 more, 5, and the rest with the output layer
    sizes = [size - experts for size, experts in layer_bytes(header)]
    ends = (0, 20, 30, 35, 43)
    output = header.tensors["output.weight"].nbytes + header.tensors["output_norm.weight"].nbytes
    for i in range(4):
        load.model[f"CUDA{i}"] = (sum(sizes[ends[i] : ends[i + 1]]) + output * (i == 3)) / MIB
    assert split_of(load, header, ["-cmoe"]) == ["-ts", "20,10,5,9"]
    load.model["CUDA1"] += 7
    assert split_of(load, header, ["-cmoe"]) is None


@pytest.mark.parametrize(
    ("gpus", "differs"),
    [
        (["8*RTX 3090"], ""),
        (["8*RTX 3090:24268:23868"], ""),
        (["8*my card:24268:23868:8.6"], ""),
        (["RTX 3090"], "the log has 8 GPUs (NVIDIA GeForce RTX 3090)"),
        ([], "the log has 8 GPUs"),
        (["8*RTX 5090"], "in the log CUDA0 is NVIDIA GeForce RTX 3090, not NVIDIA GeForce RTX 5090"),
        (["8*my card:48000:47000:8.6"], "not my card"),
        (["7*RTX 3090", "RTX 3060"], "in the log CUDA7 is"),
    ],
)
def test_gpus_that_cannot_be_the_logs_are_said_and_the_logs_are_taken(gpus: list[str], differs: str) -> None:
    (load,) = loads(text("r8-one-card-short"))
    found = diagnose(load, Asked(rig=parse_gpus(gpus)))
    assert found.agrees
    notes = [note for note in found.notes if "are not the log's" in note]
    assert len(notes) == bool(differs)
    if differs:
        assert differs in notes[0] and notes[0].endswith("the log's are taken")
        assert found.cause == diagnosis("r8-one-card-short").cause


def test_loads_that_differ_in_free_memory_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = ask

    def counted(*words: Any) -> Any:
        asked.append(words)
        return real(*words)

    monkeypatch.setattr(answers_module, "ask", counted)
    log = text("r8-one-card-short")
    first = diagnose_all(loads(log))
    once = len(asked)
    free = re.search(r"using device CUDA4 .* - (\d+) MiB free", log)  # the card that is short
    assert free is not None
    logs = [log, *(log.replace(free[0], free[0].replace(free[1], str(int(free[1]) - less))) for less in (1, 2, 300))]
    found = diagnose_all(loads("".join(logs)))
    assert once and len(asked) - once <= 2 * once
    assert found[0] == replace(first[0], load=found[0].load)
    alone = [diagnose(load) for load in loads("".join(logs))]
    assert [(each.cause, each.mends, each.notes, each.estimate) for each in found] == [
        (each.cause, each.mends, each.notes, each.estimate) for each in alone
    ]
    assert "714 MiB short" in found[3].cause.text


def test_a_machine_without_a_gpu() -> None:
    log = "\n".join(line for line in GOOD.splitlines() if "CUDA" not in line and "Device 0" not in line)
    rig = rig_of(loads(log + "\nload_tensors:   CPU_Mapped model buffer size = 82697.65 MiB\n")[0])
    assert rig is not None and rig.gpus == ()
