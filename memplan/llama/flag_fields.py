"""What each flag sets: the field of ``Flags``, how its value is read, and how it is written again.

Follows ``common_params_parser_init`` (common/arg.cpp), v0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from memplan.errors import FlagError
from memplan.llama import flag_values as values
from memplan.llama.flag_values import KvOverride, Override
from memplan.llama.flag_words import normalized


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


ADDED: Final = ("overrides", "kv_overrides", "rpc", "draft_overrides")
"""Fields to which each flag adds; of all others the last flag counts."""

FIELDS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
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
        ("-mmdev --mmproj-device", "projector_device", values.device),
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
"""The field that each spelling sets, and how its value is read."""


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


WRITTEN: Final[Mapping[str, Callable[[Any], tuple[str, ...]]]] = {
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


def same_setting(*flags: str) -> frozenset[str]:
    """All flags that set what one of ``flags`` sets, these among them: a later one replaces an earlier one's value.

    Of flags whose values add up (``-ot``, ``-ncmoe``), other spellings of the same one.
    """
    return frozenset[str]().union(*map(_same, flags))


def _same(flag: str) -> frozenset[str]:
    flag = normalized(flag)
    known = FIELDS.get(flag)
    if known is None:
        return frozenset({flag})
    adds_up = known[0] in ADDED
    return frozenset(
        name for name, other in FIELDS.items() if other[0] == known[0] and (not adds_up or other[1] is known[1])
    )


NAMES_MODEL: Final = same_setting("-m", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-dr", "--docker-repo")
"""Flags that name the model."""

PLACEMENT: Final = same_setting("-ngl", "-ts", "-ot", "-cmoe", "-ncmoe", "-ncffn")
"""Flags that say where weights lie; llama-server's ``--fit`` gives up when one of them is given."""

PLACEMENT_AND_DEVICES: Final = PLACEMENT | same_setting("-sm", "-mg", "-dev")
"""The same, and those that say which devices there are for them."""
