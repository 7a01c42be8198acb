"""Reading a log of llama.cpp, of any release since DeepSeek-V4 came: line by line, whatever stands around.

The lines are those of src/llama-*.cpp, ggml-alloc.c, ggml-cuda.cu, common/ and tools/server/ of builds 9842 to v0.5.0.
Patterns are looked for anywhere in a line, so timestamps, levels and container names before them do not matter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from typing import Final

from memplan.diagnosing.lines import blocks, clean, marked
from memplan.diagnosing.log import Failure, Load, LogGpu, Stage
from memplan.errors import LogError
from memplan.llama.flag_words import without_secrets

MAX_LOADS: Final = 200
"""Loads that are kept of one log, the last ones."""

_MAX_LINES: Final = 1_000_000
_MAX_SIZE: Final = 48 << 20
"""Lines that may say something, and bytes of them: a load has some thousand."""

_MAX_COMMANDS: Final = 500
_MAX_FAILURES: Final = 50
_MAX_KEYS: Final = 2000
_MAX_NAMES: Final = 100
"""Devices, buffer types and tensor types of a load that are remembered: a log that lies costs no memory."""


_COMMAND: Final = re.compile(
    r"(?:^|[\s/\\$>#\"'])(llama-(?:server|cli|completion|bench|fit-params)(?:\.exe)?)[\"']?\s+(-.*)$"
)
_COMMAND_OF_LLAMA: Final = re.compile(r"(?:^|[\s/\\$>#\"'])llama(?:\.exe)?[\"']?\s+(serve|server|cli)\s+(-.*)$")
_MIB: Final = r"=\s*([0-9]{1,9}\.[0-9]{2}) MiB"


class LogReader:
    """Feed it lines; ``loads`` are those found so far.

    What a line costs grows with its length, whatever is in it: no pattern goes on further than some hundred characters
    from where it begins.
    """

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self._process = Load()
        self._load: Load | None = None
        self._served: Load | None = None
        """The load for which a second one drafts, while lines are about that."""
        self._line = 0
        self._commands = 0

    def feed(self, lines: Iterable[str]) -> None:
        """Take in some lines."""
        for line in lines:
            self._line += 1
            self._read(line, _RULES)

    def feed_bytes(self, chunks: Iterable[bytes]) -> None:
        """Take in a log, of which only lines that may say something are looked at. Raises LogError."""
        lines = size = 0
        for block in blocks(chunks):
            rules = [rule for rule, mark in zip(_RULES, _MARKS, strict=True) if mark in block]
            before = self._line
            for number, line in marked(block, {rule[0].encode() for rule in rules}):
                lines, size = lines + 1, size + len(line)
                self._line = before + number + 1
                self._read(clean(line), rules)
            if lines > _MAX_LINES or size > _MAX_SIZE:
                raise LogError(
                    f"the log has more than {_MAX_LINES:,} lines, or {_MAX_SIZE >> 20} MiB, of what llama.cpp says when"
                    " it loads a model; cut out where it loads the one in question"
                )
            self._line = before + block.count(b"\n")

    def _read(self, line: str, rules: Iterable[_Rule]) -> None:
        for mark, pattern, take in rules:
            if mark in line and (match := pattern.search(line)):
                take(self, match)
                break

    @property
    def current(self) -> Load:
        """The load that lines are about; the process before its first."""
        return self._load if self._load is not None else self._process

    @property
    def served(self) -> Load:
        """The load of the model that is served, also while lines are about what drafts for it."""
        return self._served or self.current

    def begin(self) -> Load:
        """A model's file is opened: a load begins."""
        if self._served is not None and self.current.path and self.current.n_tensors is None:
            return self.current  # of what drafts
        self._served = None
        load = self._load = Load(line=self._line)
        process = self._process
        load.build, load.version, load.command, load.fit = process.build, process.version, process.command, process.fit
        load.gpus = {name: LogGpu(name, g.description, g.capability, g.total_mib) for name, g in process.gpus.items()}
        load.failures = []
        self.loads.append(load)
        del self.loads[:-MAX_LOADS]
        return load

    def new_process(self) -> None:
        """llama.cpp was started, again perhaps."""
        self._keep_process()
        command = self._process.command if self._load is None else ()
        self._process = Load(line=self._line, command=command)
        self._load = self._served = None

    def finish(self) -> list[Load]:
        """All loads; what has none of a model's lines but a failure, or that it is loaded, is one too."""
        self._keep_process()
        if not self.loads and (self._process.command or self._process.path):
            self.loads.append(self._process)
        return self.loads

    def _keep_process(self) -> None:
        """At default verbosity a load is known by its end alone."""
        if self._load is None and (self._process.failures or self._process.ready):
            self.loads.append(self._process)
            del self.loads[:-MAX_LOADS]

    # --- what lines say ---

    def _build(self, m: re.Match[str]) -> None:
        if self._load is not None or self._process.build is not None:
            self.new_process()
        self._process.build = int(m[1])

    def _version(self, m: re.Match[str]) -> None:
        self._process.version = self.current.version = m[1]

    def _command(self, m: re.Match[str]) -> None:
        self._commands += 1
        words = split_command(m[2]) if self._commands <= _MAX_COMMANDS else []
        if self._load is not None:
            self.new_process()
        program = {"serve": "llama-server", "server": "llama-server", "cli": "llama-cli"}.get(m[1], m[1])
        self._process.command = (program.removesuffix(".exe"), *without_secrets(words)[0])

    def _cuda_init(self, m: re.Match[str]) -> None:
        if self._load is not None or self._process.gpus:
            self.new_process()

    def _cuda_device(self, m: re.Match[str]) -> None:
        name = f"CUDA{int(m[1])}"
        total = int(m[5]) if m[5] else None
        if len(self._process.gpus) < _MAX_NAMES:
            self._process.gpus[name] = LogGpu(name, m[2].strip(), (int(m[3]), int(m[4])), total)

    def _listed_device(self, m: re.Match[str]) -> None:
        if int(m[3]) > 0 and m[1] != "CPU" and len(self._process.gpus) < _MAX_NAMES:
            gpu = self._process.gpus.setdefault(m[1], LogGpu(m[1]))
            gpu.description, gpu.total_mib, gpu.free_mib = m[2], int(m[3]), int(m[4])

    def _using_device(self, m: re.Match[str]) -> None:
        if len(self.current.gpus) < _MAX_NAMES:
            gpu = self.current.gpus.setdefault(m[1], LogGpu(m[1]))
            gpu.description, gpu.free_mib, gpu.used = m[2], int(m[3]), True

    def _meta_data(self, m: re.Match[str]) -> None:
        load = self.begin()
        load.n_tensors, load.path = int(m[1]), m[2].strip()

    def _model_path(self, m: re.Match[str]) -> None:
        if self._load is None:
            if self._process.ready or self._process.failures:  # a router's next model
                self.new_process()
            self._process.path = m[1].strip()

    def _drafter(self, m: re.Match[str]) -> None:
        """What drafts is loaded, or its context is made, beside the model that is served."""
        if self._load is not None:
            self._served = self.served
            self._load = self._served.draft = Load(line=self._line, path=m[1] or "", dry=self._served.dry)

    def _key(self, m: re.Match[str]) -> None:
        if len(self.current.metadata) < _MAX_KEYS:
            self.current.metadata[m[1]] = m[3].strip()

    def _type_count(self, m: re.Match[str]) -> None:
        if len(self.current.types) < _MAX_NAMES:
            self.current.types[m[1]] = int(m[2])

    def _dry(self, m: re.Match[str]) -> None:
        self.current.dry = m[1] == "1"

    def _layer(self, m: re.Match[str]) -> None:
        self.current.layers[int(m[1])] = m[2]

    def _overridden(self, m: re.Match[str]) -> None:
        if len(self.current.overridden) < 5000:
            self.current.overridden[m[1]] = m[2]

    def _offloaded(self, m: re.Match[str]) -> None:
        self.current.offloaded = int(m[1]), int(m[2])

    def _model_buffer(self, m: re.Match[str]) -> None:
        _add(self.current.model, m[1], float(m[2]))

    def _context_buffer(self, m: re.Match[str]) -> None:
        _add(self.current.context, m[1], float(m[2]))

    def _output_buffer(self, m: re.Match[str]) -> None:
        _add(self.current.output, m[1], float(m[2]))

    def _compute_buffer(self, m: re.Match[str]) -> None:
        load = self.current
        if load is not self.served and load.nodes is not None:
            return  # one of both contexts is reserved anew: lines do not say which
        if len(load.compute) < _MAX_NAMES:
            load.compute[m[1]] = float(m[2])
        failed = self.served.failed
        if failed is not None and failed.kind == "allocation":
            self.served.failures.clear()  # tried again, and done
        load.reserved = True

    def _setting(self, m: re.Match[str]) -> None:
        self.current.settings[m[1]] = m[2]

    def _slots(self, m: re.Match[str]) -> None:
        """All that llama-server says of its settings unless it is asked for more, once everything is loaded."""
        slots, tokens, unified = int(m[1]), int(m[2]), m[3]
        told = {"n_seq_max": str(slots), "n_ctx": str(tokens if unified == "true" else tokens * slots)}
        for name, text in {**told, "kv_unified": unified}.items():
            self.served.settings.setdefault(name, text)

    def _outgrown(self, m: re.Match[str]) -> None:
        """At the end a compute buffer is compared with what was reserved."""
        load = self.served
        if len(load.grown) < _MAX_NAMES:
            load.grown[m[1]] = float(m[2]), float(m[3])
            load.compute.setdefault(m[1], round(float(m[3]), 2))

    def _cache_type(self, m: re.Match[str]) -> None:
        self.current.cache_types = m[1], m[2]

    def _graph(self, m: re.Match[str]) -> None:
        self.current.nodes = int(m[1]), int(m[2] or m[1])
        self.current.splits = int(m[3]), int(m[4] or m[3])

    def _old_nodes(self, m: re.Match[str]) -> None:
        self.current.nodes = int(m[1]), int(m[2] or m[1])

    def _old_splits(self, m: re.Match[str]) -> None:
        self.current.splits = int(m[1]), int(m[2] or m[1])

    def _swa(self, m: re.Match[str]) -> None:
        self.current.swa_cells = int(m[1])

    def _copies(self, m: re.Match[str]) -> None:
        self.current.copies = int(m[1])
        self.current.reserved = True

    def _disabled(self, m: re.Match[str]) -> None:
        if m[1] not in self.current.disabled and len(self.current.disabled) < 20:
            self.current.disabled.append(m[1])

    def _retried(self, m: re.Match[str]) -> None:
        self.current.retried = True

    def _fit_failed(self, m: re.Match[str]) -> None:
        self._process.fit = self.current.fit = m[1].strip()

    def _ready(self, m: re.Match[str]) -> None:
        self.served.ready = True

    def _cuda_malloc(self, m: re.Match[str]) -> None:
        self._fail("allocation", m[0], self._stage(), f"CUDA{int(m[2])}", round(float(m[1]) * (1 << 20)))

    def _allocation(self, m: re.Match[str]) -> None:
        """The exact size, after what the backend said about it in MiB."""
        failed = self.served.failed
        stage = Stage.UNKNOWN
        if "gallocr" in m[1]:
            stage = self._stage(Stage.COMPUTE)
        elif "alloc_tensor_range" in m[1] or "alloc_buffer_n" in m[1]:
            stage = Stage.CONTEXT if "n_ctx" in self.current.settings else Stage.MODEL
            if not self.current.types:  # of a log that shows little, what follows tells
                stage = Stage.UNKNOWN
        if failed is not None and failed.kind == "allocation" and failed.buffer in ("", m[2]):
            failed.buffer, failed.size, failed.said = m[2], int(m[3]), m[0]
            failed.stage = failed.stage if failed.stage is Stage.RUNNING else stage
        else:
            self._fail("allocation", m[0], stage, m[2], int(m[3]))

    def _host_allocation(self, m: re.Match[str]) -> None:
        size = round(float(m[1]) * (1 << 20))
        self._fail("allocation", m[0], self._stage(), "CPU", size)

    def _cpu_allocation(self, m: re.Match[str]) -> None:
        failed = self.served.failed
        if failed is None or failed.kind != "allocation":
            self._fail("allocation", m[0], Stage.UNKNOWN, "CPU", int(m[1]))

    def _what_for(self, m: re.Match[str]) -> None:
        """What follows an allocation tells what it was for; alone it is a failure itself."""
        failed = self.served.failed
        stage = Stage.CONTEXT
        if "compute" in m[0]:
            stage = Stage.COMPUTE
        elif "unable" in m[0]:
            stage = Stage.MODEL
        if failed is None:
            buffer = re.search(r"unable to allocate (\S+) buffer", m[0])
            self._fail("allocation", m[0], stage, buffer[1] if buffer else "")
        elif failed.kind == "allocation" and failed.stage is not Stage.RUNNING:
            failed.stage = stage

    def _cuda_error(self, m: re.Match[str]) -> None:
        self._fail("cuda", m[0], self._stage())

    def _cuda_place(self, m: re.Match[str]) -> None:
        failed = self.served.failed
        if failed is not None and failed.kind == "cuda":
            failed.places.append(m[2])
            if int(m[1]) >= 0:
                failed.buffer = f"CUDA{int(m[1])}"

    def _place(self, m: re.Match[str]) -> None:
        """A function in the statement that failed, or in the trace after it."""
        failed = self.served.failed
        if failed is not None and len(failed.places) < _MAX_NAMES:
            failed.places.append(m[1])

    def _prompt(self, m: re.Match[str]) -> None:
        self.served.prompt, self.served.done = int(m[1]), 0

    def _progress(self, m: re.Match[str]) -> None:
        self.served.done = int(m[1])

    def _assertion(self, m: re.Match[str]) -> None:
        self._fail("assertion", m[0], self._stage())

    def _refused(self, m: re.Match[str]) -> None:
        """Why llama.cpp does not go on. After an allocation that failed it only says so again; a server goes on."""
        if self.served.ready:
            return
        if self.served.failed is None or self.served.failed.kind == "fit":
            self._fail("refused", m[1].strip())

    def _killed(self, m: re.Match[str]) -> None:
        if self.served.failed is not None and self.served.failed.kind == "refused":
            return  # it had ended by itself
        self._fail("killed", m[0].strip(), Stage.RUNNING if self.served.ready else Stage.UNKNOWN)

    def _stage(self, loading: Stage = Stage.UNKNOWN) -> Stage:
        """What it is doing now: ``loading``, unless all buffers are there."""
        load = self.current
        return Stage.RUNNING if (load.reserved or self.served.ready) and not load.dry else loading

    def _fail(
        self, kind: str, said: str, stage: Stage = Stage.UNKNOWN, buffer: str = "", size: int | None = None
    ) -> None:
        if self.served.ready and not self.served.dry:
            stage = Stage.RUNNING
        failures, drafting = self.served.failures, self._served is not None and stage is not Stage.RUNNING
        if len(failures) < _MAX_FAILURES:
            failures.append(Failure(kind, said.strip()[:300], stage, buffer, size, drafting))


def split_command(text: str) -> list[str]:
    """The words of a command line in a log, where quotes may have gone already: a backslash stays what it is."""
    lexer = shlex.shlex(text.rstrip("\\ "), posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:  # a quote without its other half
        return text.split()


def read_log(chunks: Iterable[bytes]) -> list[Load]:
    """Every load of a model in a log that comes in chunks. Raises LogError for one that has no end."""
    reader = LogReader()
    reader.feed_bytes(chunks)
    return reader.finish()


def _add(sizes: dict[str, float], name: str, mib: float) -> None:
    if name in sizes or len(sizes) < _MAX_NAMES:
        sizes[name] = round(sizes.get(name, 0.0) + mib, 2)


_Take = Callable[[LogReader, re.Match[str]], None]
_Rule = tuple[str, re.Pattern[str], _Take]
_R = LogReader
_SETTINGS: Final = (
    "n_seq_max|n_ctx|n_ctx_seq|n_batch|n_ubatch|flash_attn|kv_unified|n_rs_seq|n_outputs_max|n_outputs_max_per_seq"
)

# (words that the line must have, the pattern, what to do): the first that is found holds
_RULES: Final[tuple[_Rule, ...]] = tuple(
    (mark, re.compile(pattern, re.ASCII) if isinstance(pattern, str) else pattern, take)
    for mark, pattern, take in (
        ("assigned to device", r": layer\s+(\d{1,5}) assigned to device ([A-Za-z]{1,20}\d{0,3}),", _R._layer),
        (
            "buffer type overridden",
            r"tensor (\S{1,80}) \([^()]{0,60}\) buffer type overridden to (\S{1,40})",
            _R._overridden,
        ),
        (" - kv ", r"llama_model_loader: - kv\s+\d+:\s+(\S{1,200})\s+(\S{1,40})\s+= ?(.*)$", _R._key),
        (" - type ", r"llama_model_loader: - type\s+(\w{1,20}):\s+(\d{1,9}) tensors", _R._type_count),
        ("model buffer size", r"(\S{1,40}) model buffer size " + _MIB, _R._model_buffer),
        ("KV buffer size", r"(\S{1,40}) KV buffer size " + _MIB, _R._context_buffer),
        ("state buffer size", r"(\S{1,40}) DSV4 \w+ state buffer size " + _MIB, _R._context_buffer),
        ("output buffer size", r"(\S{1,40})  output buffer size " + _MIB, _R._output_buffer),
        ("compute buffer size", r"(\S{1,40}) compute buffer size " + _MIB, _R._compute_buffer),
        (", K (", r"cells,[^()]{0,60}\), K \((\w{1,10})\):[^()]{0,40}V \((\w{1,10})\):", _R._cache_type),
        ("llama_context: ", rf"llama_context: ({_SETTINGS})\s+= (\S+)", _R._setting),
        (
            "nodes = ",
            r"graph(?: \(pp bs=\d+, tg bs=\d+\))?: nodes = (\d{1,9})(?: / (\d{1,9}))?,"
            r" splits = (\d{1,9})(?: / (\d{1,9}))?",
            _R._graph,
        ),
        ("graph nodes", r"graph nodes\s+= (\d{1,9})(?: \(with bs=\d+\), (\d{1,9}) \(with bs=1\))?", _R._old_nodes),
        ("graph splits", r"graph splits = (\d{1,9})(?: \(with bs=\d+\), (\d{1,9}) \(with bs=1\))?", _R._old_splits),
        (
            "n_slots = ",
            r"n_slots = (\d{1,4}), n_ctx_slot = (\d{1,9}), kv_unified = '(true|false)'",
            _R._slots,
        ),
        (
            "not match expectation",
            r"(\S{1,40}) compute buffer size of\s{1,20}(\d{1,9}\.\d{4}) MiB, does not match expectation of"
            r"\s{1,20}(\d{1,9}\.\d{4}) MiB",
            _R._outgrown,
        ),
        ("SWA KV cache", r"creating\s+SWA KV cache, size = (\d{1,9}) cells", _R._swa),
        ("sched copies", r"sched copies = (\d{1,4})", _R._copies),
        ("set to disabled", r": ([\w() -]{3,60}?)(?: was auto,| not supported,) set to disabled", _R._disabled),
        ("retrying without pipeline", r"retrying without pipeline parallelism", _R._retried),
        (
            "loaded meta data with",
            r"and (\d{1,9}) tensors from (.*?)(?: \(version [^()]{0,60}(?:\([^()]{0,60}\))?\))?$",
            _R._meta_data,
        ),
        ("loading draft model", r"loading draft model '([^']{1,1000})'", _R._drafter),
        ("MTP draft context", r"creating MTP draft context()", _R._drafter),
        ("loading model", r"load_model: loading model '([^']{1,1000})'", _R._model_path),
        ("no_alloc", r"print_info: no_alloc\s+= (\d)", _R._dry),
        ("offloaded ", r"offloaded (\d{1,5})/(\d{1,5}) layers to GPU", _R._offloaded),
        (
            "using device ",
            r"using device (\S{1,40}) \((.{0,100}?)\) (?:\(\S{1,40}\) )?- (\d{1,9}) MiB free",
            _R._using_device,
        ),
        ("ggml_cuda_init: found", r"ggml_cuda_init: found (\d+)", _R._cuda_init),
        (
            "MiB free)",
            r"  - (\S{1,40})\s*: (.{1,200}) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)",
            _R._listed_device,
        ),
        (
            "compute capability",
            r"Device (\d{1,3}): (.{1,200}?), compute capability (\d{1,2})\.(\d)(?:.*VRAM: (\d{1,9}) MiB)?",
            _R._cuda_device,
        ),
        ("build", r"\bbuild(?:_info)?:? b?(\d{3,6})(?:-\w+| \()", _R._build),
        ("version: ", r"\bversion: (\d{3,6}) \(", _R._build),
        ("llama.cpp v", r"\bllama\.cpp v(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)\b", _R._version),
        ("cudaMalloc failed", r"allocating (\d{1,12}\.\d\d) MiB on device (\d{1,3}): cuda.*", _R._cuda_malloc),
        ("failed to allocate", r"(\w+): failed to allocate (\S{1,40}) buffer of size (\d{1,20})", _R._allocation),
        ("failed to allocate", r"failed to allocate buffer of size (\d{1,20})", _R._cpu_allocation),
        ("insufficient memory", r"\(attempted to allocate\s+(\d{1,9}\.\d\d) MB\)", _R._host_allocation),
        ("failed to allocate compute", r"failed to allocate compute [pt][pg] buffers", _R._what_for),
        ("failed to allocate compute", r"graph_reserve: failed to allocate compute buffers", _R._what_for),
        ("unable to allocate", r"unable to allocate \S{1,40} buffer", _R._what_for),
        ("failed to allocate buffer for", r"failed to allocate buffer for (?:kv cache|DSV4 comp)", _R._what_for),
        ("failed to fit params", r"failed to fit params to free device memory: (.*)", _R._fit_failed),
        ("CUDA error", r"CUDA error: (?!CUDA)(.*)", _R._cuda_error),
        ("current device: ", r"current device: (-?\d{1,3}), in function\s{0,3}(\w{0,80})", _R._cuda_place),
        ("cuMem", r"(cuMem[A-Z][a-z]{1,20})", _R._place),
        ("ggml_cuda_pool", r"(ggml_cuda_pool_[a-z]{1,10})", _R._place),
        ("_f32_i32_cuda", r"((?:argsort|top_k)_f32_i32_cuda[a-z_]{0,20})", _R._place),
        ("ggml_cuda_", r"(ggml_cuda_(?:op|mul|flash)_[a-z0-9_]{1,40})", _R._place),
        ("prompt processing", r"prompt processing(?: progress)?, n_tokens =\s{0,9}(\d{1,9})", _R._progress),
        ("new prompt", r"new prompt,.{0,80}task\.n_tokens = (\d{1,9})", _R._prompt),
        ("GGML_ASSERT(", r"GGML_ASSERT\(.{0,250}\) failed", _R._assertion),
        ("failed to initialize the context", r"failed to initialize the context: (.*)", _R._refused),
        ("invalid argument", r"(error: invalid argument: .*)", _R._refused),
        ("error while handling", r"(error while handling argument .*)", _R._refused),
        ("error loading model", r"error loading model: (.*)", _R._refused),
        (
            "llama_init_from_model: ",
            r"llama_init_from_model: ((?=.{0,300}(?:not support|requires|must be|cannot)).*)",
            _R._refused,
        ),
        ("Out of memory: Killed", r"Out of memory: Killed process \d+ \(llama.*", _R._killed),
        ("oom-kill", r"oom-kill.*", _R._killed),
        ("Killed", r"(?:^|\s)Killed\s*(?:\(core dumped\))?$|\bKilled\b.{0,60}llama-\w{1,20}", _R._killed),
        ("model loaded", r"(?:main|srv|llama_server)\b.{0,80}model loaded$", _R._ready),
        ("is listening on", r"server is listening on", _R._ready),
        ("listening on http", r"listening on http", _R._ready),
        ("llama-", _COMMAND, _R._command),
        ("llama", _COMMAND_OF_LLAMA, _R._command),
    )
)

_MARKS: Final = tuple(mark.encode() for mark, _, _ in _RULES)
