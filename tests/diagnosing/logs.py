"""The logs of the tests, and what is read out of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from memplan.diagnosing.diagnosis import diagnose
from memplan.diagnosing.log import Load
from memplan.diagnosing.reader import read_log
from memplan.diagnosing.result import Diagnosis

LOGS = Path(__file__).parent.parent / "data" / "logs"
MIB = 1 << 20


def text(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode().replace("\r\n", "\n")


def loads(log: str | bytes) -> list[Load]:
    return read_log([log.encode() if isinstance(log, str) else log])


@cache
def diagnosis(name: str) -> Diagnosis:
    (load,) = loads((LOGS / f"{name}.log").read_bytes())
    return diagnose(load)


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
