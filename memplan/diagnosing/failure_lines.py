"""What lines say went wrong: llama.cpp's own (ggml-alloc.c, ggml-cuda.cu, src/llama-*.cpp), and the system's."""

from __future__ import annotations

import re
from typing import Final

from memplan.diagnosing.loads import MAX_NAMES, Loads
from memplan.diagnosing.log import Stage
from memplan.diagnosing.rules import Match, Rules

FAILING: Final = Rules()


def _bytes(mib: str) -> int:
    return round(float(mib) * (1 << 20))


# --- memory that was asked for ---


@FAILING.say("MiB on device ", r"allocating (\d{1,12}\.\d\d) MiB on device (\d{1,3}): cudaMalloc failed.*")
def _cuda_malloc(loads: Loads, m: Match) -> None:
    loads.fail("allocation", m[0], loads.stage(), f"CUDA{int(m[2])}", _bytes(m[1]))


@FAILING.say("failed to allocate", r"(\w+): failed to allocate (\S{1,40}) buffer of size (\d{1,20})")
def _allocation(loads: Loads, m: Match) -> None:
    """The exact size, after what the backend said about it in MiB."""
    failed = loads.served.failed
    stage = Stage.UNKNOWN
    if "gallocr" in m[1]:
        stage = loads.stage(Stage.COMPUTE)
    elif "alloc_tensor_range" in m[1] or "alloc_buffer_n" in m[1]:
        stage = Stage.CONTEXT if "n_ctx" in loads.current.settings else Stage.MODEL
        if not loads.current.types:  # of a log that shows little, what follows tells
            stage = Stage.UNKNOWN
    if failed is not None and failed.kind == "allocation" and failed.buffer in ("", m[2]):
        failed.buffer, failed.size, failed.said = m[2], int(m[3]), m[0]
        failed.stage = failed.stage if failed.stage is Stage.RUNNING else stage
    else:
        loads.fail("allocation", m[0], stage, m[2], int(m[3]))


@FAILING.say("failed to allocate", r"failed to allocate buffer of size (\d{1,20})")
def _cpu_allocation(loads: Loads, m: Match) -> None:
    failed = loads.served.failed
    if failed is None or failed.kind != "allocation":
        loads.fail("allocation", m[0], Stage.UNKNOWN, "CPU", int(m[1]))


@FAILING.say("insufficient memory", r"\(attempted to allocate\s+(\d{1,9}\.\d\d) MB\)")
def _host_allocation(loads: Loads, m: Match) -> None:
    loads.fail("allocation", m[0], loads.stage(), "CPU", _bytes(m[1]))


@FAILING.all(
    ("failed to allocate", r"failed to allocate compute [pt][pg] buffers"),
    ("failed to allocate", r"graph_reserve: failed to allocate compute buffers"),
    ("unable to allocate", r"unable to allocate \S{1,40} buffer"),
    ("failed to allocate", r"failed to allocate buffer for (?:kv cache|DSV4 comp)"),
)
def _what_for(loads: Loads, m: Match) -> None:
    """What follows an allocation tells what it was for; alone it is a failure itself."""
    failed = loads.served.failed
    stage = Stage.CONTEXT
    if "compute" in m[0]:
        stage = Stage.COMPUTE
    elif "unable" in m[0]:
        stage = Stage.MODEL
    if failed is None:
        buffer = re.search(r"unable to allocate (\S+) buffer", m[0])
        loads.fail("allocation", m[0], stage, buffer[1] if buffer else "")
    elif failed.kind == "allocation" and failed.stage is not Stage.RUNNING:
        failed.stage = stage


@FAILING.say("failed to fit params", r"failed to fit params to free device memory: (.*)")
def _fit_failed(loads: Loads, m: Match) -> None:
    loads.process.fit = loads.current.fit = m[1].strip()


# --- kernels ---


@FAILING.say("CUDA error", r"CUDA error: (?!CUDA)(.*)")
def _cuda_error(loads: Loads, m: Match) -> None:
    loads.fail("cuda", m[0], loads.stage())


@FAILING.say("current device: ", r"current device: (-?\d{1,3}), in function\s{0,3}(\w{0,80})")
def _cuda_place(loads: Loads, m: Match) -> None:
    failed = loads.served.failed
    if failed is not None and failed.kind == "cuda":
        failed.places.append(m[2])
        if int(m[1]) >= 0:
            failed.buffer = f"CUDA{int(m[1])}"


@FAILING.all(
    ("cuMem", r"(cuMem[A-Z][a-z]{1,20})"),
    ("ggml_cuda_pool", r"(ggml_cuda_pool_[a-z]{1,10})"),
    ("_f32_i32_cuda", r"((?:argsort|top_k)_f32_i32_cuda[a-z_]{0,20})"),
    ("ggml_cuda_", r"(ggml_cuda_(?:op|mul|flash)_[a-z0-9_]{1,40})"),
)
def _place(loads: Loads, m: Match) -> None:
    """A function in the statement that failed, or in the trace after it."""
    failed = loads.served.failed
    if failed is not None and len(failed.places) < MAX_NAMES:
        failed.places.append(m[1])


# --- llama.cpp, or the system, ends it ---


@FAILING.say("GGML_ASSERT(", r"GGML_ASSERT\(.{0,250}\) failed")
def _assertion(loads: Loads, m: Match) -> None:
    loads.fail("assertion", m[0], loads.stage())


@FAILING.all(
    ("failed to initialize the context", r"failed to initialize the context: (.*)"),
    ("invalid argument", r"(error: invalid argument: .*)"),
    ("error while handling argument", r"(error while handling argument .*)"),
    ("error loading model", r"error loading model: (.*)"),
    (
        "llama_init_from_model: ",
        r"llama_init_from_model: ((?=.{0,300}(?:not support|requires|must be|cannot)).*)",
    ),
)
def _refused(loads: Loads, m: Match) -> None:
    """Why llama.cpp does not go on. After an allocation that failed it only says so again; a server goes on."""
    if loads.served.ready:
        return
    if loads.served.failed is None or loads.served.failed.kind == "fit":
        loads.fail("refused", m[1].strip())


@FAILING.all(
    ("Out of memory: Killed", r"Out of memory: Killed process \d+ \(llama.*"),
    ("oom-kill", r"oom-kill.*"),
    ("Killed", r"(?:^|\s)Killed\s*(?:\(core dumped\))?$|\bKilled\b.{0,60}llama-\w{1,20}"),
)
def _killed(loads: Loads, m: Match) -> None:
    if loads.served.failed is not None and loads.served.failed.kind == "refused":
        return  # it had ended by itself
    loads.fail("killed", m[0].strip(), Stage.RUNNING if loads.served.ready else Stage.UNKNOWN)
