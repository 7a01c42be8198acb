"""llama-server's command line, read as llama-server reads it.

Follows ``common/arg.cpp`` (``common_params_parse_ex``), ``common/common.h`` (defaults) and, for slots and outputs,
``tools/server/server.cpp`` and ``server-context.cpp`` of llama.cpp v0.5.0. What depends on the model stays as given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.llama import flag_table as table
from memplan.llama import flag_values as values
from memplan.llama.flag_values import ALL_LAYERS, FlashAttention, KvOverride, Override, SplitMode
from memplan.llama.speculation import Speculation


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings of a llama-server (or llama-cli), resolved as far as they can be without a model.

    ``Flags()`` is llama-server with no flags. ``not_included`` and ``inexact`` say what an estimate leaves out, and why
    it cannot be exact.
    """

    app: Literal["server", "cli"] = "server"
    """Whose defaults hold, and how many outputs a context reserves."""
    model: str = ""
    """The model that ``-m``, ``-mu``, or ``-hf`` with or without ``-hff`` names; empty when none does."""
    n_ctx: int = 0
    """``-c``, tokens; 0: the model's training context."""
    n_batch: int = 2048
    """``-b``, tokens, before the context limits it."""
    n_ubatch: int = 512
    """``-ub``, tokens, before the batch limits it; ``-ub 0`` is the batch."""
    n_parallel: int = 4
    """``-np``, sequences a context holds. llama-server without ``-np``: 4, unified."""
    kv_unified: bool = True
    """``-kvu``."""
    flash_attn: FlashAttention = "auto"
    """``-fa``."""
    type_k: str = "f16"
    """``-ctk``, as ``ggml_type_name`` spells it."""
    type_v: str = "f16"
    """``-ctv``, as ``ggml_type_name`` spells it."""
    n_gpu_layers: int = ALL_LAYERS
    """``-ngl``."""
    split_mode: SplitMode = "layer"
    """``-sm``."""
    main_gpu: int = 0
    """``-mg``; below 0 with ``-sm none``: no GPU."""
    tensor_split: tuple[float, ...] = ()
    """``-ts``, 32-bit floats; empty when not given. llama.cpp reads as many as there are devices, missing ones as 0."""
    overrides: tuple[Override, ...] = ()
    """(regular expression, buffer type) of ``-ot``, ``-cmoe``, ``-ncmoe`` and ``-ncffn`` in the order given: the first
    one found in a tensor's name holds."""
    devices: tuple[str, ...] | None = None
    """``-dev``, names in order; empty for ``none``; None when not given."""
    offload_kqv: bool = True
    """False with ``-nkvo``."""
    op_offload: bool = True
    """False with ``--no-op-offload``."""
    swa_full: bool = False
    """``--swa-full``."""
    no_host: bool = False
    """``--no-host``."""
    repack: bool = True
    """False with ``--no-repack``: no repacked weights on the CPU."""
    cache_ram: int = 8192
    """``--cache-ram``, MiB that llama-server's prompt cache may take; 0: none, -1: no limit."""
    ctx_checkpoints: int = 32
    """``--ctx-checkpoints``, context checkpoints that llama-server keeps for a slot."""
    load_mode: str = "auto"
    """``-lm``, or its older spellings ``--mlock``, ``--no-mmap``, ``-dio``."""
    lazy_mode: str = "auto"
    """``-lzm``: whether embeddings by layer are read as they are needed."""
    embeddings: bool = False
    """``--embeddings``, ``--rerank`` or a pooling: every token of a batch is an output."""
    n_draft: int = 0
    """The most tokens that speculative decoding drafts for a sequence."""
    n_rs_seq: int = 0
    """Rollback snapshots that a sequence keeps of recurrent state."""
    load_mtp: bool = False
    """Whether MTP tensors are loaded (``--spec-type draft-mtp``)."""
    drafting: str = ""
    """The kind of draft that a second context makes (``--spec-type``): draft-mtp, draft-dspark, ...; empty for none."""
    draft_model: str = ""
    """The model that ``-md`` or ``-hfd`` names; empty where the model drafts for itself."""
    draft_type_k: str = "f16"
    """``-ctkd``."""
    draft_type_v: str = "f16"
    """``-ctvd``."""
    draft_gpu_layers: int = ALL_LAYERS
    """``-ngld``."""
    draft_devices: tuple[str, ...] | None = None
    """``-devd``, names in order; None when not given."""
    draft_overrides: tuple[Override, ...] = ()
    """``-otd``, ``-cmoed`` and ``-ncmoed``, in the order given."""
    draft_sampling: bool = True
    """False with ``--no-spec-draft-backend-sampling``: drafts are sampled on the CPU."""
    projector: str = ""
    """``-mm``: the multimodal projector; empty for none."""
    projector_offload: bool = True
    """False with ``--no-mmproj-offload``."""
    projector_device: str | None = None
    """``-mmdev``, a name or none."""
    kv_overrides: tuple[KvOverride, ...] = ()
    """``--override-kv``: metadata keys, and the values that replace the file's."""
    rpc: tuple[str, ...] = ()
    """``--rpc``: servers whose devices are used too, ``HOST:PORT`` each, in llama.cpp's order (see ``servers``)."""
    fit: bool = True
    """``--fit``: llama-server may change what was not given, to fit free memory."""
    fit_target: tuple[int, ...] = (1024,)
    """``--fit-target``, MiB to leave free: one for all devices, or one each."""
    given: frozenset[str] = frozenset()
    """The flags that were given, as they were spelled."""
    inexact: tuple[str, ...] = ()
    """Why an estimate with these flags is not exact."""
    argv: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The words that were read; ``words`` tells those of flags that were changed since."""

    def words(self) -> tuple[str, ...]:
        """The command line that says the same: as it was given, with what was changed since at its end.

        Raises FlagError for a change that no flag makes.
        """
        argv = self.argv
        for _ in range(3):  # a flag may settle more than its own field: slots of -np are not unified
            read = _parse(argv, self.app)
            changed = [name for name in _WRITTEN if getattr(read, name) != getattr(self, name)]
            if not changed:
                return argv
            if "kv_unified" in changed and not self.kv_unified and "n_parallel" not in changed:
                changed.append("n_parallel")  # llama-server's own slots are unified
            for name in changed:
                value = getattr(self, name)
                if name in _ADDED and value[: (count := len(getattr(read, name)))] == getattr(read, name):
                    value = value[count:]
                else:
                    argv = without(argv, [flag for flag, known in _FIELDS.items() if known[0] == name])
                argv += _WRITTEN[name](value)
        raise FlagError(f"{' '.join(argv)}: no flags say {', '.join(f'{n}={getattr(self, n)!r}' for n in changed)}")

    def with_(self, **changes: Any) -> Flags:
        """The same flags but for these fields, with the words that say so: ``with_(n_ctx=4096)``."""
        changed = replace(self, **changes)
        return _parse(changed.words(), changed.app)

    def with_words(self, *words: str) -> Flags:
        """The flags of the same command line with more words at its end."""
        return _parse((*self.words(), *words), self.app)

    def with_app(self, app: str) -> Flags:
        """The flags of the same command line given to another program. Raises FlagError."""
        return _parse(self.words(), app)

    def without(self, flags: Collection[str]) -> Flags:
        """The flags of the same command line without some flags, each as ``normalized`` spells it."""
        return _parse(without(self.words(), flags), self.app)

    @property
    def n_outputs_max(self) -> int:
        """The most outputs of a batch (``server-context.cpp``: ``server_output_limits``; llama-cli: one a token)."""
        if self.app == "cli" or self.embeddings:
            return self.n_batch
        return max(1, min(self.n_batch, self.n_parallel * (1 + self.n_draft)))


def parse_flags(argv: Sequence[str], app: str = "server") -> Flags:
    """The settings that llama-server (``app`` "server") or llama-cli ("cli") takes from these flags.

    Raises FlagError, in one line, for an unknown flag, a missing value, and a value that llama.cpp would not take.
    """
    if isinstance(argv, str):
        raise FlagError(f"{shown(argv)}: give a list of words, as in {argv.split()[:4]!r}")
    words = tuple(argv)
    if not all(isinstance(word, str) for word in words):
        raise TypeError("llama-server's flags are a list of words, each of them a text")
    return _parse(words, app)


@lru_cache(maxsize=256)
def _parse(argv: tuple[str, ...], app: str) -> Flags:
    values.choice("--app", app, ("server", "cli"))
    server = app == "server"
    # -1 is llama-server's own word for "no -np": see common_params_parser_init
    flags = Flags(app="server" if server else "cli", n_parallel=-1 if server else 1, kv_unified=False, argv=argv)
    speculation = Speculation()
    texts: dict[str, str] = {}
    for flag, text in read_flags(argv):
        texts[flag] = text
        if speculation.read(flag, text):
            continue
        if flag in _FIELDS:
            name, read = _FIELDS[flag]
            value = read(flag, text)
            if name in _ADDED:
                value = getattr(flags, name) + value
            flags = replace(flags, **{name: value})
    return _resolve(_remember(flags, texts, speculation), texts)


def read_flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The flags in order, each with its value ("" when it has none, the last of two).

    As in llama.cpp, whatever follows a flag with a value is that value, dashes and all. Raises FlagError.
    """
    i = 0
    while i < len(argv):
        flag = normalized(argv[i])
        if flag in table.REMOVED:
            raise FlagError(f"{flag} was removed from llama-server: use {table.REMOVED[flag]}")
        if flag in table.ANSWERS:
            raise FlagError(f"{flag}: llama-server only prints something and ends, there is nothing to estimate")
        if flag in table.OTHER_MODEL:
            raise FlagError(f"{flag} stands for a model of its own: give that model and its flags instead")
        count = table.ARITY.get(flag)
        if count is None:
            raise unknown_flag(argv[i])
        if i + count >= len(argv):
            raise FlagError(f"{flag} needs {'a value' if count == 1 else f'{count} values'} after it")
        text = argv[i + count] if count else ""
        if flag in table.NUMBER:
            values.whole(flag, text)
        yield flag, text
        i += 1 + count


def split_words(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The flags among words in order, each with its values, as they were spelled."""
    i = 0
    while i < len(argv):
        end = i + 1 + (arity(argv[i]) or 0)
        yield tuple(argv[i:end])
        i = end


def without(argv: Sequence[str], flags: Collection[str]) -> tuple[str, ...]:
    """The words without these flags and their values; ``flags`` as ``normalized`` spells them."""
    return tuple(word for words in split_words(argv) if normalized(words[0]) not in flags for word in words)


def arity(flag: str) -> int | None:
    """How many values llama-server takes after ``flag``; None when it does not know the flag."""
    flag = normalized(flag)
    if flag in table.REMOVED:
        return 1
    return 0 if flag in table.ANSWERS or flag in table.OTHER_MODEL else table.ARITY.get(flag)


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's words without the flags whose values are secret, and those flags, for what is shown of it."""
    kept: list[str] = []
    left_out: list[str] = []
    i = 0
    while i < len(words):
        flag, equals, _ = words[i].partition("=")
        end = i + 1 + (0 if equals else arity(flag) or 0)
        if normalized(flag) in table.SECRET:
            left_out.append(flag)
        else:
            kept += words[i:end]
        i = end
    return kept, left_out


def same_setting(flag: str) -> frozenset[str]:
    """All flags that set what ``flag`` sets, itself among them: a later one replaces an earlier one's value.

    Of flags whose values add up (``-ot``, ``-ncmoe``), other spellings of the same one.
    """
    flag = normalized(flag)
    known = _FIELDS.get(flag)
    if known is None:
        return frozenset({flag})
    adds_up = known[0] in _ADDED
    return frozenset(
        name for name, other in _FIELDS.items() if other[0] == known[0] and (not adds_up or other[1] is known[1])
    )


def normalized(flag: str) -> str:
    """``flag`` with dashes for underscores, if it is a long one (``common_params_parse_ex``)."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def unknown_flag(flag: str, others: Sequence[str] = ()) -> FlagError:
    """The error for a flag that is neither llama-server's nor one of ``others``, with the nearest spellings."""
    import difflib

    name, equals, value = flag.partition("=")
    if equals and arity(name) == 0:
        return FlagError(f"{shown(flag)}: {name} takes no value, give it alone")
    if equals and arity(name):
        if normalized(name) in table.SECRET:
            return FlagError(f"{name}=...: llama-server wants a space, not an equals sign: {name} ...")
        return FlagError(f"{shown(flag)}: llama-server wants a space, not an equals sign: {name} {_cut(value)}")
    known = dict.fromkeys([*others, *table.ARITY])
    begun = sorted((flag for flag in known if flag.startswith(f"{normalized(name)}-")), key=len)[:3]
    near = begun or difflib.get_close_matches(normalized(name), known, n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; neither memplan nor llama-server has it"
    return FlagError(f"unknown flag {shown(name)}{hint}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."


def check_devices(flags: Flags, rig: Rig | int) -> None:
    """Check every device that the flags name against a rig, or so many CUDA GPUs, as llama.cpp does before it loads.

    Raises FlagError for a buffer type or a device that is not there, for a main GPU out of range, and for servers in
    another order than the rig's, since devices would be counted wrong.
    """
    names = [f"CUDA{i}" for i in range(rig)] if isinstance(rig, int) else list(rig.names)
    bufts = names if isinstance(rig, int) else list(rig.buffer_names)
    for flag, overrides in (("-ot", flags.overrides), ("-otd", flags.draft_overrides)):
        for pattern, buffer_type in overrides:
            if buffer_type not in (*bufts, "CPU"):
                there = ", ".join([*bufts, "CPU"])
                said = shown(f"{pattern}={buffer_type}")
                raise FlagError(f"{flag} {said}: no such buffer type; this rig has {there}")
    for flag, devices in (("-dev", flags.devices), ("-devd", flags.draft_devices)):
        for name in devices or ():
            if name not in names:
                raise FlagError(f"{flag} {shown(name)}: no such device; this rig has {', '.join(names) or 'none'}")
    servers = () if isinstance(rig, int) else tuple(dict.fromkeys(gpu.endpoint for gpu in rig.gpus if gpu.endpoint))
    shared = [name for name in dict.fromkeys(flags.rpc) if name in servers]
    if shared != [name for name in servers if name in shared]:
        raise FlagError(
            f"--rpc {shown(','.join(flags.rpc))}: llama.cpp counts servers' devices in this order, but the rig has"
            f" {', '.join(servers)}: use one order in both"
        )
    selected = len(names) if flags.devices is None else len(flags.devices)
    if flags.split_mode == "none" and 0 < selected <= flags.main_gpu:
        raise FlagError(f"-mg {flags.main_gpu}: the rig's GPUs are numbered from 0 to {selected - 1}")


def _resolve(flags: Flags, texts: Mapping[str, str]) -> Flags:
    """What the programs settle once all flags are read (``server.cpp``, then ``llama_context``'s constructor)."""
    if len(flags.overrides) > values.MAX_OVERRIDES:
        raise FlagError(f"{len(flags.overrides)} tensor overrides; llama.cpp takes at most {values.MAX_OVERRIDES}")
    if flags.app == "cli" and flags.n_parallel < 0:
        raise FlagError(f"-np {flags.n_parallel}: must be 1 or more with --app cli")
    if flags.embeddings and flags.n_batch > flags.n_ubatch > 0:
        flags = replace(flags, n_batch=flags.n_ubatch)
    if flags.n_parallel < 0:
        flags = replace(flags, n_parallel=4, kv_unified=True)
    # -c 0 asks for the whole training context, no -c lets --kv-unified-per-slot decide
    per_slot = int(texts.get("--kv-unified-per-slot", 0))
    if flags.n_ctx == 0 and per_slot > 0 and not {"-c", "--ctx-size"} & texts.keys():
        if per_slot * flags.n_parallel > 2**31 - 1:
            raise FlagError(f"--kv-unified-per-slot {per_slot}: too large for {flags.n_parallel} slots")
        flags = replace(flags, n_ctx=per_slot * flags.n_parallel)
    if flags.n_ubatch == 0:
        flags = replace(flags, n_ubatch=flags.n_batch)
    return flags


def _remember(flags: Flags, texts: Mapping[str, str], speculation: Speculation) -> Flags:
    """Add what the flags ask for beside the model, and what of it is not modelled."""
    inexact = dict.fromkeys(table.NOT_MODELLED[flag] for flag in texts if flag in table.NOT_MODELLED)
    pooling = values.choice("--pooling", texts.get("--pooling", "none"), table.POOLING) != "none"
    if pooling:
        inexact["pooling changes the graph's outputs"] = None
    return replace(
        flags,
        model=flags.model or _hf_model(texts),
        embeddings=flags.embeddings or pooling,
        n_draft=speculation.n_draft,
        n_rs_seq=speculation.n_rs_seq,
        load_mtp="draft-mtp" in speculation.types,
        drafting=speculation.drafting,
        given=frozenset(texts),
        inexact=tuple(inexact),
    )


def _hf_model(texts: Mapping[str, str]) -> str:
    repository = next((texts[flag] for flag in ("-hf", "-hfr", "--hf-repo") if flag in texts), "")
    file = next((texts[flag] for flag in ("-hff", "--hf-file") if flag in texts), "")
    if not file:
        return f"hf:{repository}" if repository else ""
    return f"hf:{repository.partition(':')[0]}/{file}"


def _named(flag: str, text: str) -> str:
    if not text:
        raise FlagError(f"{flag} needs the name of a model after it")
    return text


def _named_repository(flag: str, text: str) -> str:
    return f"hf:{_named(flag, text)}"


def _servers(flag: str, text: str) -> tuple[str, ...]:
    """Each occurrence of ``--rpc`` adds its servers (``add_rpc_devices``)."""
    return tuple(name for name in text.split(",") if name)


def _constant(value: bool | str) -> Callable[[str, str], Any]:
    return lambda flag, text: value


_ADDED: Final = ("overrides", "kv_overrides", "rpc", "draft_overrides")

_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    spelling: (field, read)
    for spellings, field, read in (
        ("-m --model -mu --model-url", "model", _named),
        ("-c --ctx-size", "n_ctx", values.not_negative),
        ("-b --batch-size", "n_batch", values.positive),
        ("-ub --ubatch-size", "n_ubatch", values.not_negative),
        ("-np --parallel", "n_parallel", values.n_parallel),
        ("-kvu --kv-unified", "kv_unified", _constant(True)),
        ("-no-kvu --no-kv-unified", "kv_unified", _constant(False)),
        ("-fa --flash-attn", "flash_attn", values.flash_attn),
        ("-ctk --cache-type-k", "type_k", values.cache_type),
        ("-ctv --cache-type-v", "type_v", values.cache_type),
        ("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", values.n_gpu_layers),
        ("-sm --split-mode", "split_mode", values.split_mode),
        ("-mg --main-gpu", "main_gpu", values.whole),
        ("-ts --tensor-split", "tensor_split", values.tensor_split),
        ("-ot --override-tensor", "overrides", values.override_tensor),
        ("-cmoe --cpu-moe", "overrides", values.cpu_moe),
        ("-ncmoe --n-cpu-moe", "overrides", values.n_cpu_moe),
        ("-ncffn --n-cpu-ffn", "overrides", values.n_cpu_ffn),
        ("-dev --device", "devices", values.devices),
        ("--rpc", "rpc", _servers),
        ("-kvo --kv-offload", "offload_kqv", _constant(True)),
        ("-nkvo --no-kv-offload", "offload_kqv", _constant(False)),
        ("--op-offload", "op_offload", _constant(True)),
        ("--no-op-offload", "op_offload", _constant(False)),
        ("--swa-full", "swa_full", _constant(True)),
        ("--no-host", "no_host", _constant(True)),
        ("--repack", "repack", _constant(True)),
        ("-nr --no-repack", "repack", _constant(False)),
        ("-cram --cache-ram", "cache_ram", values.whole),
        ("-ctxcp --ctx-checkpoints --swa-checkpoints", "ctx_checkpoints", values.whole),
        ("-lm --load-mode", "load_mode", values.load_mode),
        ("-lzm --lazy-mode", "lazy_mode", values.lazy_mode),
        ("--mlock", "load_mode", _constant("mlock")),
        ("--mmap", "load_mode", _constant("mmap")),
        ("--no-mmap -ndio --no-direct-io", "load_mode", _constant("none")),
        ("-dio --direct-io", "load_mode", _constant("dio")),
        ("--embedding --embeddings --rerank --reranking", "embeddings", _constant(True)),
        ("--override-kv", "kv_overrides", values.override_kv),
        ("-mm --mmproj -mmu --mmproj-url", "projector", _named),
        ("--mmproj-offload", "projector_offload", _constant(True)),
        ("--no-mmproj-offload", "projector_offload", _constant(False)),
        ("-mmdev --mmproj-device", "projector_device", _named),
        ("-md --model-draft --spec-draft-model", "draft_model", _named),
        ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "draft_model", _named_repository),
        ("-ctkd --spec-draft-type-k --cache-type-k-draft", "draft_type_k", values.cache_type),
        ("-ctvd --spec-draft-type-v --cache-type-v-draft", "draft_type_v", values.cache_type),
        ("-ngld --spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft", "draft_gpu_layers", values.n_gpu_layers),
        ("-devd --spec-draft-device --device-draft", "draft_devices", values.devices),
        ("-otd --spec-draft-override-tensor --override-tensor-draft", "draft_overrides", values.override_tensor),
        ("-cmoed --spec-draft-cpu-moe --cpu-moe-draft", "draft_overrides", values.cpu_moe),
        ("-ncmoed --spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft", "draft_overrides", values.n_cpu_moe),
        ("--spec-draft-backend-sampling", "draft_sampling", _constant(True)),
        ("--no-spec-draft-backend-sampling", "draft_sampling", _constant(False)),
        ("-fit --fit", "fit", values.on_or_off),
        ("-fitt --fit-target", "fit_target", values.fit_target),
    )
    for spelling in spellings.split()
}


def _one(flag: str) -> Callable[[object], tuple[str, ...]]:
    return lambda value: (flag, str(value))


def _switch(on: str, off: str = "") -> Callable[[object], tuple[str, ...]]:
    return lambda value: (on,) if value else (off,) if off else ()


def _list(flag: str, item: Callable[[Any], str] = str, empty: tuple[str, ...] = ()) -> Callable[[Any], tuple[str, ...]]:
    return lambda many: (flag, ",".join(map(item, many))) if many else empty


def _override(override: Override) -> str:
    return "=".join(override)


def _kv_override(override: KvOverride) -> str:
    key, value = override
    kind = "bool" if isinstance(value, bool) else type(value).__name__
    text = f"{key}={kind}:{str(value).lower() if kind == 'bool' else value}"
    return '"{}"'.format(text.replace('"', '""'))


_WRITTEN: Final[Mapping[str, Callable[[Any], tuple[str, ...]]]] = {
    "model": lambda name: ("-m", name) if name else (),
    "n_ctx": _one("-c"),
    "n_batch": _one("-b"),
    "n_ubatch": _one("-ub"),
    "n_parallel": _one("-np"),
    "kv_unified": _switch("-kvu"),
    "flash_attn": _one("-fa"),
    "type_k": _one("-ctk"),
    "type_v": _one("-ctv"),
    "n_gpu_layers": _one("-ngl"),
    "split_mode": _one("-sm"),
    "main_gpu": _one("-mg"),
    "tensor_split": _list("-ts", lambda share: f"{share:.9g}"),
    "overrides": _list("-ot", _override),
    "devices": lambda names: () if names is None else ("-dev", ",".join(names) or "none"),
    "offload_kqv": _switch("-kvo", "-nkvo"),
    "op_offload": _switch("--op-offload", "--no-op-offload"),
    "swa_full": _switch("--swa-full"),
    "no_host": _switch("--no-host"),
    "repack": _switch("--repack", "-nr"),
    "cache_ram": _one("--cache-ram"),
    "ctx_checkpoints": _one("--ctx-checkpoints"),
    "load_mode": _one("-lm"),
    "lazy_mode": _one("-lzm"),
    "embeddings": _switch("--embeddings"),
    "kv_overrides": _list("--override-kv", _kv_override),
    "projector": lambda name: ("--mmproj", name) if name else (),
    "projector_offload": _switch("--mmproj-offload", "--no-mmproj-offload"),
    "projector_device": lambda name: () if name is None else ("-mmdev", name),
    "draft_model": lambda name: ("-md", name) if name else (),
    "draft_type_k": _one("-ctkd"),
    "draft_type_v": _one("-ctvd"),
    "draft_gpu_layers": _one("-ngld"),
    "draft_devices": lambda names: () if names is None else ("-devd", ",".join(names) or "none"),
    "draft_overrides": _list("-otd", _override),
    "draft_sampling": _switch("--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"),
    "rpc": _list("--rpc"),
    "fit": lambda on: ("--fit", "on" if on else "off"),
    "fit_target": _list("--fit-target"),
}
"""How each field is written; what has none here follows from other flags."""
