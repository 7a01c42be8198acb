"""Failures of every kind, in a good load's place; and logs that are cut off or hold several loads."""

from __future__ import annotations

import re

import pytest

from memplan.diagnosing.diagnosis import diagnose, diagnose_all
from memplan.diagnosing.flags_seen import seen_flags
from memplan.diagnosing.log import Stage
from memplan.diagnosing.placing import with_placement
from memplan.diagnosing.result import Diagnosis, Given
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.diagnosis import render_diagnoses
from memplan.rig import parse_gpus
from tests.diagnosing.logs import (
    CONTEXT,
    CUDA_MALLOC,
    GOOD,
    LOADING,
    UNTIL_COMPUTE,
    UNTIL_MODEL,
    diagnosis,
    failing,
    loads,
    text,
)

pytestmark = pytest.mark.slow

RTX_3090 = parse_gpus(["RTX 3090"])


@pytest.mark.parametrize("who", ["alloc_tensor_range", "ggml_backend_buft_alloc_buffer_n_default"])
def test_weights_that_do_not_fit(who: str) -> None:
    """The second is b11434's."""
    found = failing(
        UNTIL_MODEL.partition("load_tensors:        CUDA0 model")[0].replace("97250 MiB free", "60000 MiB free"),
        CUDA_MALLOC.format("81687.67"),
        f"{who}: failed to allocate CUDA0 buffer of size 85655727104",
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
    log = re.sub(r"(general.architecture str\s+= )deepseek4", r"\1bloom", GOOD)
    assert log != GOOD
    found = diagnose(loads(log)[0])
    assert found.estimate is None and found.model == ""
    assert found.notes[0] == "nothing is predicted: its architecture, bloom, is not modelled"


def test_a_model_without_experts() -> None:
    """Whole layers go to the host, and nothing is said of experts."""
    log = (
        "llama_model_loader: loaded meta data with 30 key-value pairs and 724 tensors from llama.gguf (version GGUF)\n"
        + CUDA_MALLOC.format("39979.48")
        + "\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 41921552384\n"
        + LOADING
        + "unable to allocate CUDA0 buffer\n"
    )
    asked = Given(builtin_header("llama-3.3-70b"), ("-ngl", "99", "-c", "8192"), RTX_3090)
    found = diagnose(loads(log)[0], asked)
    assert (found.cause.kind, found.cause.mend) == ("too-little-memory", "keep layers on the host: -ngl N")
    assert [mend.args for mend in found.mends] == [("-ngl", "44"), ("-ctk", "q8_0", "-ctv", "q8_0", "-ngl", "45")]
    assert not estimate(builtin_header("llama-3.3-70b"), parse_flags(("-c", "8192", "-ngl", "45")), RTX_3090).fits


def test_layers_on_the_host_of_a_model_without_experts_are_found_by_its_weights() -> None:
    placed = estimate(builtin_header("llama-3.3-70b"), parse_flags(("-c", "8192", "-ngl", "60")), RTX_3090)
    size = placed.buffers["CUDA0"].model
    log = (
        "llama_model_loader: loaded meta data with 30 key-value pairs and 724 tensors from llama.gguf (version GGUF)\n"
        f"alloc_tensor_range: failed to allocate CUDA0 buffer of size {size}\n"
        + LOADING
        + "unable to allocate CUDA0 buffer\n"
    )
    asked = Given(builtin_header("llama-3.3-70b"), ("-c", "8192"), RTX_3090)
    found = diagnose(loads(log)[0], asked)
    assert (found.guessed, found.agrees) == (("-ngl", "60"), True)
    assert not any("-ncmoe" in note for note in found.notes)


def test_the_fewest_experts_on_the_host_that_keep_the_whole_context() -> None:
    given = ("-c", "131072", "-np", "1", "-ncmoe")
    log = (
        "llama_model_loader: loaded meta data with 30 key-value pairs and 687 tensors from oss.gguf (version GGUF)\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 4831838208\n"
        + CONTEXT
        + "failed to initialize the context: failed to allocate buffer for kv cache\n"
    )
    header, rig = builtin_header("gpt-oss-120b"), parse_gpus(["RTX 4090:24564:23868"])
    found = diagnose(loads(log)[0], Given(header, (*given, "24"), rig))
    (args,) = (mend.args for mend in found.mends if "-ncmoe" in mend.args)
    assert estimate(header, parse_flags((*given, args[1])), rig).fits
    assert not estimate(header, parse_flags((*given, str(int(args[1]) - 1))), rig).fits


def test_a_compute_buffer_of_another_size_than_predicted() -> None:
    """What was asked for tells, not the prediction, of which it is said that it differs."""
    found = failing(
        UNTIL_COMPUTE.replace("97250 MiB free", "84000 MiB free"),
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 3145728000",
        CONTEXT + "failed to initialize the context: failed to allocate compute pp buffers",
    )
    assert found.cause.kind == "too-little-memory"
    assert re.search(
        r"CUDA0 is [\d,]+ MiB short for its compute buffer of 3,000 MiB, where 413 MiB are", found.cause.text
    )
    assert found.mends and all(mend.less for mend in found.mends)


@pytest.mark.parametrize(
    ("build", "architecture", "mend"),
    [
        (9842, "minimax-m3", "take llama.cpp b10142 or newer, which has minimax-m3"),
        (5000, "qwen3next", "take llama.cpp b9842 or newer, which has qwen3next"),
        (0, "qwen3next", "take llama.cpp b9842 or newer, which has qwen3next"),
        (11200, "qwen3next", "see which llama.cpp was started: b9842 and newer have qwen3next"),
        (11200, "of-tomorrow", "take a newer llama.cpp"),
    ],
)
def test_the_first_build_that_is_known_to_have_an_architecture(build: int, architecture: str, mend: str) -> None:
    log = f"build: {build} (abc) with cc\n" if build else ""
    log += "llama_model_loader: loaded meta data with 30 key-value pairs and 724 tensors from m.gguf (version GGUF)\n"
    (load,) = loads(f"{log}{LOADING}error loading model architecture: unknown model architecture: '{architecture}'\n")
    assert diagnose(load).cause.mend == mend


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


TRACE = """\
CUDA error: out of memory
  current device: 0, in function alloc at /build/ggml/src/ggml-cuda/ggml-cuda.cu:512
  cuMemCreate(&handle, reserve_size, &prop, 0)
/build/ggml/src/ggml-cuda/ggml-cuda.cu:100: CUDA error
libggml-cuda.so.0(_ZN18ggml_cuda_pool_vmm5allocEmPm+0x1f) [0x7f]
libggml-cuda.so.0(_Z24argsort_f32_i32_cuda_cubR14ggml_cuda_poolPKfPii14ggml_sort_orderP11CUstream_st+0x1) [0x7f]
libggml-cuda.so.0(_Z18ggml_cuda_op_top_kR25ggml_backend_cuda_contextP11ggml_tensor+0x1) [0x7f]
"""


@pytest.mark.parametrize("ready", [True, False])
def test_the_op_and_the_tokens_at_which_memory_ran_out(ready: bool) -> None:
    """Of a log that shows little, the trace alone tells that it was at run time."""
    start = GOOD + "main: server is listening on http://127.0.0.1:8080\n" if ready else GOOD
    progress = (
        "slot print_timings_pp: id  0 | task 0 | prompt processing, n_tokens = {}, progress = 0.25, t = 99.0 s / 1 t"
    )
    lines = (
        "slot   launch_slot_: id  0 | task 0 | new prompt, n_ctx_slot = 65536, n_keep = 0, task.n_tokens = 40000",
        progress.format("  2048"),
        progress.format("  8192"),
    )
    found = failing(start, *lines, *TRACE.splitlines())
    assert found.load.failed and "ggml_cuda_op_top_k" in found.load.failed.places
    assert found.cause.kind == "run-time-pools"
    said = found.cause.text
    assert "after 8,192 tokens of 40,000 of a prompt, under argsort_f32_i32_cuda_cub and ggml_cuda_op_top_k" in said
    assert "with 10,240 in the slot" in said and "left by what was loaded" in said


def test_another_cuda_error_is_not_one_of_memory() -> None:
    said = "CUDA error: an illegal memory access was encountered"
    found = failing(GOOD, said, "  current device: 0, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:3000")
    assert found.cause.kind == "unknown"


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


# --- what drafts ---

DSPARK = text("good-dspark")


def test_a_drafter_is_part_of_the_load_that_it_drafts_for() -> None:
    (load,) = loads(DSPARK)
    assert load.ready and load.draft is not None
    assert load.draft.metadata["general.architecture"] == "dflash"
    assert load.compute["CUDA1"] == 659.0  # before it is reserved anew, which lines do not say of whom
    found = diagnose(load)
    assert found.agrees and found.cause.kind == "nothing-wrong"
    assert {(row.buffer, row.part) for row in found.rows if row.draft} == {
        (f"CUDA{i}", part) for i in (0, 1) for part in ("model", "context")
    }
    assert found.estimate is not None and found.estimate.draft is not None


def test_a_drafter_that_has_no_room() -> None:
    before = DSPARK[: DSPARK.index("load_tensors: offloaded", DSPARK.index("loading draft model"))]
    lines = [CUDA_MALLOC.format("6805.83"), "alloc_tensor_range: failed to allocate CUDA0 buffer of size 7136427520"]
    found = failing(before.replace("- 97486 MiB free", "- 80000 MiB free"), *lines)
    assert found.cause.kind == "drafter" and "of CUDA0" in found.cause.text
    assert found.agrees and [row.predicted for row in found.rows if row.exact and row.draft] == [7136427520]
    tried = [mend.args or mend.drop for mend in found.mends]
    assert ("-cmoed",) in tried and ("--spec-type", "-md") in tried
    assert "without --spec-type and -md" in render_diagnoses([found])


def test_an_mtp_context_is_no_load_of_its_own() -> None:
    mtp = "common_speculative_init_result: creating MTP draft context against the target model 'm.gguf'"
    (load,) = loads(GOOD[: GOOD.index("srv  llama_server")] + mtp + "\nllama_context: n_ctx = 131072\n")
    assert load.draft is not None and load.draft.n_tensors is None
    assert seen_flags(load, ()).argv[-2:] != ("-md", "")
    assert "draft-mtp" in seen_flags(load, ()).argv


QUIET = """\
0.00.117.998 I srv    load_model: loading model '/models/{name}'
2.08.398.334 I srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = 65536, kv_unified = '{unified}'
2.08.506.273 I srv  llama_server: model loaded
2.08.506.325 I srv  llama_server: listening on http://127.0.0.1:18990
"""
"""What llama-server of v0.5.0 says unless it is asked for more."""


@pytest.mark.parametrize(
    ("slots", "unified", "flags"),
    [
        (1, "false", "-c 65536 -np 1 --no-kv-unified"),
        (4, "true", "-c 65536 -np 4 --kv-unified"),
        (2, "false", "-c 131072 -np 2 --no-kv-unified"),
    ],
)
def test_the_one_line_of_settings_at_default_verbosity(slots: int, unified: str, flags: str) -> None:
    (load,) = loads(QUIET.format(name="m.gguf", slots=slots, unified=unified))
    found = diagnose(load)
    assert " ".join(found.argv) == flags
    assert found.cause.kind == "nothing-wrong"
    assert not any("middle" in note for note in found.notes)


def test_a_files_name_suggests_the_built_in_model() -> None:
    (load,) = loads(QUIET.format(name="DeepSeek-V4-Flash-UD-Q2-00001-of-00003.gguf", slots=1, unified="false"))
    assert any("-m deepseek-v4-flash:ud-q2, which its name suggests" in note for note in diagnose(load).notes)
    (load,) = loads("$ llama-server -hf org/DeepSeek-V4-Flash-GGUF -c 1\n" + QUIET.partition("\n")[2])
    assert any("-m deepseek-v4-flash:antirez-q2, which" in note for note in diagnose(load).notes)


def test_a_server_that_listens_has_loaded() -> None:
    ready = QUIET.format(name="m.gguf", slots=1, unified="false")
    (load,) = loads(f"{ready}srv  send_error: error: invalid argument: no such thing\n")
    assert load.failed is None
    for line in (
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1000000",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 75314.00 MB)",
    ):
        (load,) = loads(f"{ready}{line}\n")
        assert load.failed is not None and load.failed.stage is Stage.RUNNING
        assert render_diagnoses([diagnose(load)]).splitlines()[1].startswith("failed while running")


def test_a_routers_next_model_is_another_load() -> None:
    first, second = (QUIET.format(name=name, slots=1, unified="false") for name in ("a.gguf", "b.gguf"))
    assert [load.path for load in loads(first + second)] == ["/models/a.gguf", "/models/b.gguf"]


def test_a_compute_buffer_that_grew() -> None:
    line = "llama_context:      CUDA0 compute buffer size of 512.5000 MiB, does not match expectation of 413.0938 MiB\n"
    (load,) = loads(f"{GOOD}~{line}")
    assert load.grown == {"CUDA0": (512.5, 413.0938)}
    assert load.compute["CUDA0"] == 413.09
    said = "CUDA0's compute buffer was 512.50 MiB in the end, where 413.09 were reserved: a batch needed more"
    assert any(note.startswith(said) for note in diagnose(load).notes)


def test_pinned_memory_that_is_refused() -> None:
    """As build 10441 says it on Windows, with weights of 59,762 MiB on the host and more than that free."""
    found = failing(
        UNTIL_MODEL,
        "alloc_tensor_range: failed to allocate CUDA_Host buffer of size 62664998912",
        LOADING + "unable to allocate CUDA_Host buffer",
    )
    assert found.cause.kind == "host-memory"
    assert "-lm mmap" in found.cause.mend and "GGML_CUDA_NO_PINNED=1" in found.cause.mend


def test_rows_on_a_device_that_cannot_hold_them_need_no_model() -> None:
    (load,) = loads(LOADING + "error loading model: device Vulkan0 does not support split buffers\n")
    found = diagnose(load)
    assert (found.cause.kind, found.cause.mend) == ("rows-not-supported", "take -sm layer")


def test_what_else_uses_a_gpu_is_seen_by_its_own_tool() -> None:
    from memplan.diagnosing.causes import _close

    shared = estimate(builtin_header("llama-3.2-3b"), parse_flags([]), parse_gpus(["Strix Halo"]))
    assert _close(shared, "Vulkan0") == "close what else uses memory: the GPU's is the host's"
    own = estimate(builtin_header("llama-3.2-3b"), parse_flags([]), parse_gpus(["RTX 3090"]))
    assert _close(own, "CUDA0") == "close what else uses the GPU; see nvidia-smi"
    assert _close(own, "Vulkan0") == "close what else uses the GPU"


def test_the_last_load_is_placed_as_plan_places_it() -> None:
    found = with_placement(diagnosis("r8-one-card-short"))
    flags = parse_flags(found.placement)
    assert found.estimate is not None and found.release == "b9842"
    rig = parse_gpus(["8*RTX 3090"])
    again = estimate(builtin_header("deepseek-v4-flash:antirez-q4"), flags, rig, "b9842")
    assert again.fits and (flags.n_ctx, flags.n_parallel, flags.flash_attn) == (4096, 1, "off")
    printed = render_diagnoses([found])
    assert "as memplan plan would place it, all else kept, it fits:\n  llama-server -m /models/" in printed
    assert with_placement(diagnose(loads(GOOD)[0])).placement == ()
