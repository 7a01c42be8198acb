"""What llama.cpp's lines say of a load that goes well: model, devices, settings, buffers, graphs.

They are those of src/llama-*.cpp, ggml-cuda.cu, common/ and tools/server/ of builds 9842 to v0.5.0.
"""

from __future__ import annotations

from typing import Final

from memplan.diagnosing.loads import MAX_NAMES, Loads
from memplan.diagnosing.log import LogGpu
from memplan.diagnosing.rules import Match, Rules

_MAX_KEYS: Final = 2000
_MAX_OVERRIDDEN: Final = 5000
_MIB: Final = r"=\s*([0-9]{1,9}\.[0-9]{2}) MiB"
_SETTINGS: Final = (
    "n_seq_max|n_ctx|n_ctx_seq|n_batch|n_ubatch|flash_attn|kv_unified|n_rs_seq|n_outputs_max|n_outputs_max_per_seq"
)

LOADING: Final = Rules()


# --- where layers and tensors go, and what the model's file holds ---


@LOADING.say("assigned to device", r": layer\s+(\d{1,5}) assigned to device ([A-Za-z]{1,20}\d{0,3}),")
def _layer(loads: Loads, m: Match) -> None:
    loads.current.layers[int(m[1])] = m[2]


@LOADING.say("buffer type overridden", r"tensor (\S{1,80}) \([^()]{0,60}\) buffer type overridden to (\S{1,40})")
def _overridden(loads: Loads, m: Match) -> None:
    if len(loads.current.overridden) < _MAX_OVERRIDDEN:
        loads.current.overridden[m[1]] = m[2]


@LOADING.say("model_loader: - kv ", r"llama_model_loader: - kv\s+\d+:\s+(\S{1,200})\s+(\S{1,40})\s+= ?(.*)$")
def _key(loads: Loads, m: Match) -> None:
    if len(loads.current.metadata) < _MAX_KEYS:
        loads.current.metadata[m[1]] = m[3].strip()


@LOADING.say("model_loader: - type ", r"llama_model_loader: - type\s+(\w{1,20}):\s+(\d{1,9}) tensors")
def _type_count(loads: Loads, m: Match) -> None:
    if len(loads.current.types) < MAX_NAMES:
        loads.current.types[m[1]] = int(m[2])


# --- buffers ---


def _add(sizes: dict[str, float], m: Match) -> None:
    """A name has several buffers: they count together."""
    if m[1] in sizes or len(sizes) < MAX_NAMES:
        sizes[m[1]] = round(sizes.get(m[1], 0.0) + float(m[2]), 2)


@LOADING.say("model buffer size", r"(\S{1,40}) model buffer size " + _MIB)
def _model_buffer(loads: Loads, m: Match) -> None:
    _add(loads.current.model, m)


@LOADING.all(
    ("KV buffer size", r"(\S{1,40}) KV buffer size " + _MIB),
    ("state buffer size", r"(\S{1,40}) DSV4 \w+ state buffer size " + _MIB),
)
def _context_buffer(loads: Loads, m: Match) -> None:
    _add(loads.current.context, m)


@LOADING.say("output buffer size", r"(\S{1,40})  output buffer size " + _MIB)
def _output_buffer(loads: Loads, m: Match) -> None:
    _add(loads.current.output, m)


@LOADING.say("compute buffer size ", r"(\S{1,40}) compute buffer size " + _MIB)
def _compute_buffer(loads: Loads, m: Match) -> None:
    load = loads.current
    if load is not loads.served and load.nodes is not None:
        return  # one of both contexts is reserved anew: lines do not say which
    if len(load.compute) < MAX_NAMES:
        load.compute[m[1]] = float(m[2])
    failed = loads.served.failed
    if failed is not None and failed.kind == "allocation":
        loads.served.failures.clear()  # tried again, and done
    load.reserved = True


# --- settings and graphs ---


@LOADING.say("cells,", r"cells,[^()]{0,60}\), K \((\w{1,10})\):[^()]{0,40}V \((\w{1,10})\):")
def _cache_type(loads: Loads, m: Match) -> None:
    loads.current.cache_types = m[1], m[2]


@LOADING.say("llama_context: ", rf"llama_context: ({_SETTINGS})\s+= (\S+)")
def _setting(loads: Loads, m: Match) -> None:
    loads.current.settings[m[1]] = m[2]


@LOADING.say(
    "graph",
    r"graph(?: \(pp bs=\d+, tg bs=\d+\))?: nodes = (\d{1,9})(?: / (\d{1,9}))?, splits = (\d{1,9})(?: / (\d{1,9}))?",
)
def _graph(loads: Loads, m: Match) -> None:
    loads.current.nodes = int(m[1]), int(m[2] or m[1])
    loads.current.splits = int(m[3]), int(m[4] or m[3])


@LOADING.say("graph nodes", r"graph nodes\s+= (\d{1,9})(?: \(with bs=\d+\), (\d{1,9}) \(with bs=1\))?")
def _old_nodes(loads: Loads, m: Match) -> None:
    loads.current.nodes = int(m[1]), int(m[2] or m[1])


@LOADING.say("graph splits", r"graph splits = (\d{1,9})(?: \(with bs=\d+\), (\d{1,9}) \(with bs=1\))?")
def _old_splits(loads: Loads, m: Match) -> None:
    loads.current.splits = int(m[1]), int(m[2] or m[1])


@LOADING.say("n_slots = ", r"n_slots = (\d{1,4}), n_ctx_slot = (\d{1,9}), kv_unified = '(true|false)'")
def _slots(loads: Loads, m: Match) -> None:
    """All that llama-server says of its settings unless it is asked for more, once everything is loaded."""
    slots, tokens, unified = int(m[1]), int(m[2]), m[3]
    told = {"n_seq_max": str(slots), "n_ctx": str(tokens if unified == "true" else tokens * slots)}
    for name, text in {**told, "kv_unified": unified}.items():
        loads.served.settings.setdefault(name, text)


@LOADING.say(
    "compute buffer size of",
    r"(\S{1,40}) compute buffer size of\s{1,20}(\d{1,9}\.\d{4}) MiB, does not match expectation of"
    r"\s{1,20}(\d{1,9}\.\d{4}) MiB",
)
def _outgrown(loads: Loads, m: Match) -> None:
    """At the end a compute buffer is compared with what was reserved."""
    load = loads.served
    if len(load.grown) < MAX_NAMES:
        load.grown[m[1]] = float(m[2]), float(m[3])
        load.compute.setdefault(m[1], round(float(m[3]), 2))


@LOADING.say("SWA KV cache", r"creating\s+SWA KV cache, size = (\d{1,9}) cells")
def _swa(loads: Loads, m: Match) -> None:
    loads.current.swa_cells = int(m[1])


@LOADING.say("sched copies", r"sched copies = (\d{1,4})")
def _copies(loads: Loads, m: Match) -> None:
    loads.current.copies = int(m[1])
    loads.current.reserved = True


@LOADING.say("set to disabled", r": ([\w() -]{3,60}?)(?: was auto,| not supported,) set to disabled")
def _disabled(loads: Loads, m: Match) -> None:
    if m[1] not in loads.current.disabled and len(loads.current.disabled) < 20:
        loads.current.disabled.append(m[1])


@LOADING.say("retrying without pipeline", r"retrying without pipeline parallelism")
def _retried(loads: Loads, m: Match) -> None:
    loads.current.retried = True


# --- which model ---


@LOADING.say(
    "loaded meta data with",
    r"and (\d{1,9}) tensors from (.*?)(?: \(version [^()]{0,60}(?:\([^()]{0,60}\))?\))?$",
)
def _meta_data(loads: Loads, m: Match) -> None:
    load = loads.begin()
    load.n_tensors, load.path = int(m[1]), m[2].strip()


@LOADING.all(
    ("loading draft model", r"loading draft model '([^']{1,1000})'"),
    ("MTP draft context", r"creating MTP draft context()"),
)
def _drafter(loads: Loads, m: Match) -> None:
    loads.begin_draft(m[1])


@LOADING.say("loading model", r"load_model: loading model '([^']{1,1000})'")
def _model_path(loads: Loads, m: Match) -> None:
    if not loads.begun:
        if loads.process.ready or loads.process.failures:  # a router's next model
            loads.new_process()
        loads.process.path = m[1].strip()


@LOADING.say("no_alloc", r"print_info: no_alloc\s+= (\d)")
def _dry(loads: Loads, m: Match) -> None:
    loads.current.dry = m[1] == "1"


@LOADING.say("offloaded ", r"offloaded (\d{1,5})/(\d{1,5}) layers to GPU")
def _offloaded(loads: Loads, m: Match) -> None:
    loads.current.offloaded = int(m[1]), int(m[2])


# --- devices and the build ---


@LOADING.say("using device ", r"using device (\S{1,40}) \((.{0,100}?)\) (?:\(\S{1,40}\) )?- (\d{1,9}) MiB free")
def _using_device(loads: Loads, m: Match) -> None:
    if len(loads.current.gpus) < MAX_NAMES:
        gpu = loads.current.gpus.setdefault(m[1], LogGpu(m[1]))
        gpu.description, gpu.free_mib, gpu.used = m[2], int(m[3]), True


@LOADING.say("ggml_cuda_init: found", r"ggml_cuda_init: found (\d+)")
def _cuda_init(loads: Loads, m: Match) -> None:
    if loads.begun or loads.process.gpus:
        loads.new_process()


@LOADING.say("MiB free)", r"  - (\S{1,40})\s*: (.{1,200}) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)")
def _listed_device(loads: Loads, m: Match) -> None:
    if int(m[3]) > 0 and m[1] != "CPU" and len(loads.process.gpus) < MAX_NAMES:
        gpu = loads.process.gpus.setdefault(m[1], LogGpu(m[1]))
        gpu.description, gpu.total_mib, gpu.free_mib = m[2], int(m[3]), int(m[4])


@LOADING.say(
    "compute capability",
    r"Device (\d{1,3}): (.{1,200}?), compute capability (\d{1,2})\.(\d)(?:.*VRAM: (\d{1,9}) MiB)?",
)
def _cuda_device(loads: Loads, m: Match) -> None:
    name = f"CUDA{int(m[1])}"
    total = int(m[5]) if m[5] else None
    if len(loads.process.gpus) < MAX_NAMES:
        loads.process.gpus[name] = LogGpu(name, m[2].strip(), (int(m[3]), int(m[4])), total)


@LOADING.all(
    ("build", r"\bbuild(?:_info)?:? b?(\d{3,6})(?:-\w+| \()"),
    ("version: ", r"\bversion: (\d{3,6}) \("),
)
def _build(loads: Loads, m: Match) -> None:
    if loads.begun or loads.process.build is not None:
        loads.new_process()
    loads.process.build = int(m[1])


@LOADING.say("llama.cpp v", r"\bllama\.cpp v(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)\b")
def _version(loads: Loads, m: Match) -> None:
    loads.process.version = loads.current.version = m[1]


# --- once it works ---


@LOADING.say("prompt processing", r"prompt processing(?: progress)?, n_tokens =\s{0,9}(\d{1,9})")
def _progress(loads: Loads, m: Match) -> None:
    loads.served.done = int(m[1])


@LOADING.say("new prompt", r"new prompt,.{0,80}task\.n_tokens = (\d{1,9})")
def _prompt(loads: Loads, m: Match) -> None:
    loads.served.prompt, loads.served.done = int(m[1]), 0


@LOADING.all(
    ("model loaded", r"(?:main|srv|llama_server)\b.{0,80}model loaded$"),
    ("listening on", r"server is listening on|listening on http"),
)
def _ready(loads: Loads, m: Match) -> None:
    loads.served.ready = True
