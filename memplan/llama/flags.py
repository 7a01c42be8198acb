"""llama-server's command line, read as llama-server reads it.

Follows ``common/arg.cpp`` (``common_params_parse_ex``), ``common/common.h`` (defaults) and, for slots and outputs,
``tools/server/server.cpp`` and ``server-context.cpp`` of llama.cpp v0.5.0. What depends on the model stays as given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.llama import flag_table as table
from memplan.llama import flag_values as values
from memplan.llama.flag_fields import ADDED, FIELDS, PLACEMENT, WRITTEN
from memplan.llama.flag_values import ALL_LAYERS, FlashAttention, KvOverride, Override, SplitMode
from memplan.llama.flag_words import read_flags, without, without_secrets
from memplan.llama.speculation import Speculation

DEFAULT_FIT_TARGET: Final = (1024,)
"""What ``--fit`` leaves free of a GPU for which ``--fit-target`` says nothing, MiB (``common_params``)."""

_REPOSITORY: Final = ("-hf", "-hfr", "--hf-repo")


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
    fit_target: tuple[int, ...] = DEFAULT_FIT_TARGET
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
            changed = [name for name in WRITTEN if getattr(read, name) != getattr(self, name)]
            if not changed:
                return argv
            if "kv_unified" in changed and not self.kv_unified and "n_parallel" not in changed:
                changed.append("n_parallel")  # llama-server's own slots are unified
            for name in changed:
                value = getattr(self, name)
                if name in ADDED and value[: (count := len(getattr(read, name)))] == getattr(read, name):
                    value = value[count:]
                else:
                    argv = without(argv, [flag for flag, known in FIELDS.items() if known[0] == name])
                argv += WRITTEN[name](value)
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
    def lacks_drafter(self) -> bool:
        """Whether drafts are asked for that take a model of their own, and none is named.

        llama-server starts without a second context then, and drafts nothing (``load_model``, ``has_spec``; builds
        9840 to v0.5.0). With ``-hf`` it looks for one in the repository (``common_models_handler_init``).
        """
        return self.drafting not in ("", "draft-mtp") and not self.draft_model and self.given.isdisjoint(_REPOSITORY)

    @property
    def asks_fit(self) -> bool:
        """Whether ``--fit`` may change what was not given: llama-cli does not ask it."""
        return self.fit and self.app != "cli"

    @property
    def stops_fit(self) -> tuple[str, ...]:
        """The flags that were given for which ``--fit`` stops at once, in order."""
        return tuple(sorted(PLACEMENT & self.given))

    @property
    def n_outputs_max(self) -> int:
        """The most outputs of a batch (``server-context.cpp``: ``server_output_limits``; llama-cli: one a token)."""
        if self.app == "cli" or self.embeddings:
            return self.n_batch
        return max(1, min(self.n_batch, self.n_parallel * (1 + self.n_draft)))


def parse_flags(argv: Sequence[str], app: str = "server") -> Flags:
    """The settings that llama-server (``app`` "server") or llama-cli ("cli") takes from these flags.

    What is secret is not kept: ``words`` has it no more. Raises FlagError, in one line, for an unknown flag, a missing
    value, and a value that llama.cpp would not take.
    """
    if isinstance(argv, str):
        raise FlagError(f"{shown(argv)}: give a list of words, as in {argv.split()[:4]!r}")
    words = tuple(argv)
    if not all(isinstance(word, str) for word in words):
        raise TypeError("llama-server's flags are a list of words, each of them a text")
    kept, left_out = without_secrets(words)
    if left_out:
        tuple(read_flags(words))  # a secret that is missing is said as any other value is
    return _parse(tuple(kept), app)


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
        if flag in FIELDS:
            name, read = FIELDS[flag]
            value = read(flag, text)
            if name in ADDED:
                value = getattr(flags, name) + value
            flags = replace(flags, **{name: value})
    return _resolve(_remember(flags, texts, speculation), texts)


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
    projectors = () if flags.projector_device in (None, "none") else (flags.projector_device,)
    for flag, devices in (("-dev", flags.devices), ("-devd", flags.draft_devices), ("-mmdev", projectors)):
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
    if len(speculation.kinds) > 1:
        inexact["several kinds of --spec-type that share one more context"] = None
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
    repository = next((texts[flag] for flag in _REPOSITORY if flag in texts), "")
    file = next((texts[flag] for flag in ("-hff", "--hf-file") if flag in texts), "")
    if not file:
        return f"hf:{repository}" if repository else ""
    return f"hf:{repository.partition(':')[0]}/{file}"
