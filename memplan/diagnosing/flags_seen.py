"""The flags that a log shows: its command line, the settings that it prints, where it says that tensors lie."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from memplan.diagnosing.log import CUDA, Load
from memplan.errors import MemplanError
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_words import arity, normalized, split_words, without
from memplan.llama.flags import parse_flags

EXPERTS: Final = re.compile(r"blk\.(\d+)\.ffn_(?:up|down|gate)(?:_ch)?_exps")
BLOCK: Final = re.compile(r"blk\.(\d+)\.")
_TYPES: Final = re.compile(r"different K \((\w{1,10})\) and V \((\w{1,10})\) cache types")
_SUMMED: Final = same_setting("-ot", "-otd", "--override-kv", "--rpc", "--lora", "--lora-scaled")
"""Flags of which each counts, however many there are."""
_PLACES: Final = same_setting("-ot", "-cmoe", "-ncmoe", "-ncffn")


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


def seen_flags(load: Load, extra: Sequence[str], draft: str = "") -> Seen:
    """The flags that the log shows, with those that the user adds: the command line, the settings, the placement.

    ``draft``: the kind of draft that the draft model's file stands for.
    """
    app, argv = _command(load.command)
    from_command = bool(argv)
    known = {normalized(word) for word in (*argv, *extra) if word.startswith("-")}
    if not from_command and _is_cli(load):
        app = "cli"
    unasked = (
        from_command and app == "server" and not known & same_setting("-np") and load.settings.get("n_seq_max") == "4"
    )
    settings = list(_settings(load, with_slots=not unasked))
    settings += _drafting(load, known, draft or "draft-simple")
    told = [*settings, *_placement(load, known), *(flag for flag in _caches(load) if flag not in known)]
    argv = [*_less(argv, told), *told]
    argv = [*_less(argv, extra), *_once(extra)]
    placed = from_command or bool(load.overridden) or bool(known & _PLACES)
    return Seen(tuple(argv), app, from_command, placed=placed)


def assumed_flags(seen: Seen) -> tuple[str, ...]:
    """What of -c and -np nobody told, so that the program's defaults stand for it; a command line tells all."""
    known = {normalized(word) for word in seen.argv}
    return () if seen.from_command else tuple(flag for flag in ("-c", "-np") if not same_setting(flag) & known)


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
        if normalized(words[0]) not in NAMES_MODEL:
            argv += words[: 1 + count]
        del words[: 1 + count]
    try:
        parse_flags(argv, app)
    except MemplanError:
        return app, []
    return app, argv


def named_model(command: Sequence[str]) -> str:
    """The model that a command line in the log names; empty where it names none."""
    flags = [words for words in split_words(command[1:]) if len(words) > 1]
    return next((words[1] for words in flags if normalized(words[0]) in NAMES_MODEL), "")


def _less(argv: Sequence[str], later: Sequence[str]) -> tuple[str, ...]:
    """``argv`` without what flags that stand after it replace, but for those whose values add up."""
    return without(argv, same_setting(*(words[0] for words in split_words(later))) - _SUMMED)


def _once(argv: Sequence[str]) -> list[str]:
    """``argv``, of flags that replace each other the last."""
    kept = list[str]()
    for words in split_words(argv):
        kept = [*_less(kept, words), *words]
    return kept


def _is_cli(load: Load) -> bool:
    outputs, batch = number_of(load, "n_outputs_max"), number_of(load, "n_batch")
    return outputs is not None and outputs == batch and outputs > (number_of(load, "n_seq_max") or 1)


def _settings(load: Load, with_slots: bool) -> Iterator[str]:
    """Settings as llama_context prints them, after ``--fit`` and after defaults; slots only if they were asked for."""
    for name, flag in (("n_ctx", "-c"), ("n_batch", "-b"), ("n_ubatch", "-ub"), ("n_seq_max", "-np")):
        if flag == "-np" and not with_slots:
            continue
        number = number_of(load, name)
        if number is not None and 0 < number < 2**31:
            yield from (flag, str(number))
    if with_slots and (unified := load.settings.get("kv_unified")) in ("true", "false"):
        yield "--kv-unified" if unified == "true" else "--no-kv-unified"
    words = {"enabled": "on", "disabled": "off", "auto": "auto", "1": "on", "0": "off"}
    if (flash := words.get(load.settings.get("flash_attn", ""))) is not None:
        yield from ("-fa", flash)
    said = _TYPES.search(load.failed.said) if load.failed is not None else None
    types = load.cache_types or (said.groups() if said is not None else None)
    if types:
        for flag, kind in zip(("-ctk", "-ctv"), types, strict=True):
            if kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"):
                yield from (flag, kind)


def _drafting(load: Load, known: set[str], kind: str) -> Iterator[str]:
    """What drafts, where no flag tells and the log's lines do; ``kind``: how its model drafts, where it has one."""
    if load.draft is None or same_setting("-md", "-hfd") & known or "--spec-type" in known:
        return
    yield from ("-md", load.draft.path) if load.draft.path else ()
    yield from ("--spec-type", kind if load.draft.path else "draft-mtp")
    if (number := number_of(load, "n_rs_seq")) is not None and 0 < number < 2**31:
        yield from ("--spec-draft-n-max", str(number))


def _placement(load: Load, known: set[str]) -> Iterator[str]:
    """Layers and tensors where the log's own lines put them."""
    if load.offloaded is not None and load.offloaded[0] < 2**31:
        yield from ("-ngl", str(load.offloaded[0]))
    counts = Counter(device for device in load.layers.values() if CUDA.fullmatch(device))
    gpus = [name for name in load.gpus if CUDA.fullmatch(name)]
    used = [name for name in gpus if load.gpus[name].used]
    if len(used) == 1 < len(gpus):
        yield from ("-sm", "none", "-mg", used[0].removeprefix("CUDA"))
    elif used and len(used) < len(gpus):
        yield from ("-dev", ",".join(used))
    elif len(gpus) > 1 and counts and len(load.layers) >= 2:
        yield from ("-ts", ",".join(str(counts[f"CUDA{i}"]) for i in range(len(gpus))))
    if load.overridden and not known & _PLACES:
        yield from _overrides(load)


def _caches(load: Load) -> Iterator[str]:
    """``-nkvo`` and ``--swa-full``, which show in the caches' buffers."""
    on_gpu = any(CUDA.fullmatch(name) for name in load.context)
    if load.context and not on_gpu and load.offloaded is not None and load.offloaded[0] > 0:
        yield "-nkvo"
    n_ctx, ubatch = number_of(load, "n_ctx_seq"), number_of(load, "n_ubatch")
    # a window and a batch need less; the default pads to 256
    if load.swa_cells is not None and n_ctx == load.swa_cells and ubatch and n_ctx > ubatch + 1024:
        yield "--swa-full"


def _overrides(load: Load) -> Iterator[str]:
    by_buffer: dict[str, list[str]] = {}
    for tensor, buffer in load.overridden.items():
        place = buffer if CUDA.fullmatch(buffer) else "CPU"
        by_buffer.setdefault(place, []).append(tensor)
    if set(by_buffer) == {"CPU"}:
        layers = {int(m[1]) if (m := EXPERTS.match(name)) else -1 for name in by_buffer["CPU"]}
        if layers == set(range(len(layers))) and len(by_buffer["CPU"]) == 3 * len(layers):
            yield from ("-ncmoe", str(len(layers)))
            return
    for place, names in by_buffer.items():
        for pattern in _patterns(names):
            yield from ("-ot", f"^{pattern}$={place}")


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Patterns for exactly these tensors: one for all layers that have the same of them, one for all others."""
    of_layer: dict[str, list[str]] = {}
    alone = []
    for name in names:
        if m := BLOCK.match(name):
            of_layer.setdefault(m[1], []).append(name[m.end() :])
        else:
            alone.append(name)
    alike: dict[tuple[str, ...], list[str]] = {}
    for layer, tensors in of_layer.items():
        alike.setdefault(tuple(sorted(tensors)), []).append(layer)
    for same, layers in alike.items():
        yield rf"blk\.{_either(layers)}\.{_either(list(map(re.escape, same)))}"
    if alone:
        yield _either(list(map(re.escape, alone)))


def _either(alternatives: Sequence[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"({'|'.join(alternatives)})"


def number_of(load: Load, name: str) -> int | None:
    """One of llama_context's settings that is a number; None where the log does not show it."""
    text = load.settings.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) else None
