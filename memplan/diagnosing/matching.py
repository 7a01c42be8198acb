"""From what a log shows to what memplan asks: the model, the flags, the GPUs and the release."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from memplan.backends.cards import CONTEXT_MIB, find_card
from memplan.backends.devices import Gpu, Rig
from memplan.diagnosing.log import Load
from memplan.errors import MemplanError
from memplan.estimator import Question, load_model
from memplan.gguf.header import Header
from memplan.llama.flags import arity, normalized, parse_flags, same_setting
from memplan.llama.placement import Placement, place
from memplan.models.builtin import MODELS, RECIPES, builtin_header
from memplan.releases import Release

_MIB: Final = 1 << 20
_CUDA: Final = re.compile(r"CUDA(\d{1,3})")
_EXPERTS: Final = re.compile(r"blk\.(\d+)\.ffn_(?:up|down|gate)(?:_ch)?_exps")
_OVERRIDES: Final = frozenset({"-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"})
_PLACES: Final = _OVERRIDES | {"-ncffn", "--n-cpu-ffn"}


@dataclass(frozen=True, slots=True)
class Seen:
    """Flags that reproduce a load: ``argv`` for ``parse_flags``, the app, and where they come from."""

    argv: tuple[str, ...]
    app: str
    from_command: bool
    guessed: tuple[str, ...] = ()
    """Those of them that were found by trying what gives the buffers of the log."""
    placed: bool = False
    """Whether where tensors lie is known: from the command line, the log's own lines, or by trying."""


def builtin_models(load: Load) -> list[str]:
    """Built-in models with as many tensors of each type as the log counts."""
    if not load.types:
        return []
    return [header.name for header in _builtin_headers() if same_types(load, header) is True]


@lru_cache(maxsize=1)
def _builtin_headers() -> tuple[Header, ...]:
    return tuple(builtin_header(f"{name}:{recipe}") for name in MODELS for recipe in RECIPES)


def builtin_model(name: str) -> Header:
    """A built-in model's header, the same object each time, so that what is known of it is kept."""
    return next(header for header in _builtin_headers() if header.name == name)


def same_types(load: Load, header: Header) -> bool | None:
    """Whether the log counts as many tensors of each type as ``header`` has; None when it does not count them."""
    if not load.types:
        return None
    key = f"{header.metadata.get('general.architecture')}.block_count"
    if load.metadata.get(key, str(header.metadata.get(key))) != str(header.metadata.get(key)):
        return False
    return Counter(tensor.type.name for tensor in header.tensors.values()) == Counter(load.types)


def rig_of(load: Load) -> Rig | None:
    """The GPUs that the load used, with what was free before it; None when it names none, or none of CUDA's."""
    names = sorted((int(m[1]), gpu) for name, gpu in load.gpus.items() if (m := _CUDA.fullmatch(name)))
    if not names or any(gpu.free_mib is not None and not _CUDA.fullmatch(name) for name, gpu in load.gpus.items()):
        return None
    gpus = []
    for _, gpu in names:
        card = find_card(gpu.description)
        free = gpu.free_mib
        total = gpu.total_mib or (card.total_mib if card else 0) or free or 0
        total = max(total, free or 0)
        if total <= 0:
            return None
        if free is None:
            free = max(total - CONTEXT_MIB, 0)
        capability = gpu.capability or (card.compute_capability if card else (8, 6))
        gpus.append(Gpu(gpu.description or gpu.name, total * _MIB, free * _MIB, capability))
    return Rig(tuple(gpus))


def seen_flags(load: Load, extra: Sequence[str]) -> Seen:
    """The flags that the log shows, with those that the user adds: the command line, the settings, the placement."""
    app, argv = _command(load.command)
    from_command = bool(argv)
    known = {normalized(word) for word in (*argv, *extra) if word.startswith("-")}
    if not from_command and _is_cli(load):
        app = "cli"
    slots = frozenset({"-np", "--parallel"})
    unasked = from_command and app == "server" and not known & slots and load.settings.get("n_seq_max") == "4"
    settings = list(_settings(load, with_slots=not unasked))
    argv = _without(argv, [word for word in settings if word.startswith("-")]) + settings
    argv += list(_placement(load, known))
    argv += extra
    placed = from_command or bool(load.overridden) or bool(known & _PLACES)
    return Seen(tuple(argv), app, from_command, placed=placed)


def guess_placement(load: Load, header: Header, seen: Seen, rig: Rig, release: Release) -> Seen:
    """``seen``, with the ``-ncmoe`` that gives the log's weights on every GPU, when nothing else tells it."""
    wanted = {name: mib for name, mib in load.model.items() if _CUDA.fullmatch(name)}
    if seen.placed or load.dry or not wanted or not any(wanted.values()):
        return seen
    for candidate in _candidates(header):
        argv = (*seen.argv, *candidate)
        placement = _place(header, argv, seen.app, rig, release)
        if placement is not None and all(
            abs(placement.model.get(name, 0) / _MIB - mib) < 0.02 for name, mib in wanted.items()
        ):
            return Seen(argv, seen.app, seen.from_command, tuple(candidate), True)
    return seen


def _candidates(header: Header) -> Iterator[list[str]]:
    blocks = {int(m[1]) for name in header.tensors if (m := _EXPERTS.match(name))}
    yield []
    yield ["-cmoe"]
    for n in range(1, len(blocks)):
        yield ["-ncmoe", str(n)]


def _place(header: Header, argv: Sequence[str], app: str, rig: Rig, release: Release) -> Placement | None:
    try:
        flags = parse_flags(argv, app)
        question = Question(load_model(header, flags), flags, rig, release, ())
        placed = place(question.model.tensors.tensors, question.model.hparams.n_layer_all, flags, question.machine)
    except MemplanError:
        return None
    return placed if isinstance(placed, Placement) else None


def _command(command: Sequence[str]) -> tuple[str, list[str]]:
    """The app and the flags of a command line in the log, up to the first word that is no flag of llama.cpp's."""
    if not command:
        return "server", []
    app = "server" if command[0] == "llama-server" else "cli"
    words, argv = list(command[1:]), []
    while words:
        count = arity(words[0]) if words[0].startswith("-") else None
        if count is None or len(words) <= count:
            break
        flag = normalized(words[0])
        if flag not in ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"):
            argv += words[: 1 + count]
        del words[: 1 + count]
    try:
        parse_flags(argv, app)
    except MemplanError:
        return app, []
    return app, argv


def _without(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``argv`` without what ``flags`` set again after it."""
    replaced = frozenset[str]().union(*(same_setting(flag) for flag in flags))
    words, kept = list(argv), []
    while words:
        count = 1 + (arity(words[0]) or 0)
        if normalized(words[0]) not in replaced:
            kept += words[:count]
        del words[:count]
    return kept


def _is_cli(load: Load) -> bool:
    outputs, batch = _number(load, "n_outputs_max"), _number(load, "n_batch")
    return outputs is not None and outputs == batch and outputs > (_number(load, "n_seq_max") or 1)


def _settings(load: Load, with_slots: bool) -> Iterator[str]:
    """Settings as llama_context prints them, after ``--fit`` and after defaults; slots only if they were asked for."""
    for name, flag in (("n_ctx", "-c"), ("n_batch", "-b"), ("n_ubatch", "-ub"), ("n_seq_max", "-np")):
        if flag == "-np" and not with_slots:
            continue
        number = _number(load, name)
        if number is not None and 0 < number < 2**31:
            yield from (flag, str(number))
    if with_slots and (unified := load.settings.get("kv_unified")) in ("true", "false"):
        yield "--kv-unified" if unified == "true" else "--no-kv-unified"
    words = {"enabled": "on", "disabled": "off", "auto": "auto", "1": "on", "0": "off"}
    if (flash := words.get(load.settings.get("flash_attn", ""))) is not None:
        yield from ("-fa", flash)
    if load.cache_types:
        for flag, kind in zip(("-ctk", "-ctv"), load.cache_types, strict=True):
            if kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"):
                yield from (flag, kind)


def _placement(load: Load, known: set[str]) -> Iterator[str]:
    """Layers and tensors where the log's own lines put them."""
    if load.offloaded is not None and load.offloaded[0] < 2**31:
        yield from ("-ngl", str(load.offloaded[0]))
    counts = Counter(device for device in load.layers.values() if _CUDA.fullmatch(device))
    gpus = [name for name in load.gpus if _CUDA.fullmatch(name)]
    if len(gpus) > 1 and counts and len(load.layers) >= 2:
        yield from ("-ts", ",".join(str(counts[f"CUDA{i}"]) for i in range(len(gpus))))
    if load.overridden and not known & _PLACES:
        yield from _overrides(load)


def _overrides(load: Load) -> Iterator[str]:
    by_buffer: dict[str, list[str]] = {}
    for tensor, buffer in load.overridden.items():
        place = buffer if _CUDA.fullmatch(buffer) else "CPU"
        by_buffer.setdefault(place, []).append(tensor)
    if set(by_buffer) == {"CPU"}:
        layers = {int(m[1]) if (m := _EXPERTS.match(name)) else -1 for name in by_buffer["CPU"]}
        if layers == set(range(len(layers))) and len(by_buffer["CPU"]) == 3 * len(layers):
            yield from ("-ncmoe", str(len(layers)))
            return
    for place, names in by_buffer.items():
        alternatives = "|".join(re.escape(name) for name in names)
        yield from ("-ot", f"^({alternatives})$={place}")


def _number(load: Load, name: str) -> int | None:
    text = load.settings.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) else None
