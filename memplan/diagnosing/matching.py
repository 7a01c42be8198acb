"""From what a log shows to what memplan asks: the model, the flags, the GPUs and the release."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from memplan.backends.devices import Rig
from memplan.diagnosing.log import Load, Stage
from memplan.errors import MemplanError
from memplan.estimator import model_of, workshop_of
from memplan.gguf.header import Header
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_words import arity, normalized, split_words
from memplan.llama.flags import parse_flags
from memplan.llama.placement import Placement, place
from memplan.models.builtin import builtin_header
from memplan.models.catalogue import MODELS
from memplan.question import Question
from memplan.releases import Release

_MIB: Final = 1 << 20
_CUDA: Final = re.compile(r"CUDA(\d{1,3})")
_EXPERTS: Final = re.compile(r"blk\.(\d+)\.ffn_(?:up|down|gate)(?:_ch)?_exps")
_BLOCK: Final = re.compile(r"blk\.(\d+)\.")
_OVERRIDES: Final = same_setting("-ot") | same_setting("-cmoe") | same_setting("-ncmoe")
_TYPES: Final = re.compile(r"different K \((\w{1,10})\) and V \((\w{1,10})\) cache types")
_SUMMED: Final = frozenset[str]().union(
    *(same_setting(flag) for flag in ("-ot", "-otd", "--override-kv", "--rpc", "--lora", "--lora-scaled"))
)
"""Flags of which each counts, however many there are."""
_PLACES: Final = _OVERRIDES | same_setting("-ncffn")


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
    """Built-in models of the log's architecture with as many tensors of each type as it counts."""
    if not load.types:
        return []
    architecture = load.metadata.get("general.architecture")
    models = [model for model in MODELS.values() if architecture in (None, model.arch)]
    names = [f"{model.name}:{recipe}" for model in models for recipe in model.recipes]
    return [name for name in names if same_types(load, builtin_model(name)) is True]


@lru_cache(maxsize=256)
def builtin_model(name: str) -> Header:
    """A built-in model's header, the same object each time, so that what is known of it is kept."""
    return builtin_header(name)


def same_types(load: Load, header: Header) -> bool | None:
    """Whether the log counts as many tensors of each type as ``header`` has; None when it does not count them."""
    if not load.types:
        return None
    key = f"{header.metadata.get('general.architecture')}.block_count"
    if load.metadata.get(key, str(header.metadata.get(key))) != str(header.metadata.get(key)):
        return False
    return Counter(tensor.type.name for tensor in header.tensors.values()) == Counter(load.types)


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


def guess_placement(load: Load, header: Header, seen: Seen, rig: Rig, release: Release) -> Seen:
    """``seen``, with the ``-ncmoe`` that gives the log's weights on every GPU, when nothing else tells it; of a model
    without experts, the ``-ngl``."""
    wanted = {name: mib for name, mib in load.model.items() if _CUDA.fullmatch(name)}
    failed, limits = load.failed, dict[str, int]()
    if (
        failed is not None
        and failed.stage is Stage.MODEL
        and not failed.drafting
        and failed.size
        and _CUDA.fullmatch(failed.buffer)
    ):
        wanted[failed.buffer] = failed.size / _MIB
        # buffers are made in the order of their names: those before it were there
        limits = {n: gpu.free for n, gpu in zip(rig.names, rig.gpus, strict=True) if n < failed.buffer}
    if seen.placed or load.dry or not wanted or not any(wanted.values()):
        return seen
    blocks = layer_bytes(header)
    for candidate in _candidates(header, load, seen, wanted, rig, release):
        split = split_of(load, blocks, candidate) if load.model and not load.layers else []
        if split is None:
            continue
        argv = (*seen.argv, *candidate)
        placement = _place(header, argv, seen.app, rig, release)
        if split and not _gives(placement, wanted):
            candidate = [*candidate, *split]
            argv = (*seen.argv, *candidate)
            placement = _place(header, argv, seen.app, rig, release)
        if _gives(placement, wanted) and _within(placement, limits):
            return Seen(argv, seen.app, seen.from_command, tuple(candidate), True)
    return seen


def _gives(placement: Placement | None, wanted: Mapping[str, float]) -> bool:
    """Whether the weights on each GPU are those of the log."""
    if placement is None:
        return False
    return all(abs(placement.model.get(name, 0) / _MIB - mib) < 0.02 for name, mib in wanted.items())


def _within(placement: Placement | None, limits: Mapping[str, int]) -> bool:
    """Whether the weights on these GPUs are no more than was free."""
    return placement is not None and all(placement.model.get(name, 0) <= free for name, free in limits.items())


def split_of(load: Load, blocks: Sequence[tuple[int, int]], candidate: Sequence[str]) -> list[str] | None:
    """The ``-ts`` that deals layers over several GPUs so that each has the log's weights; None when there is none.

    ``blocks``: the ``layer_bytes`` of the model.
    """
    used = any(gpu.used for gpu in load.gpus.values())
    names = [name for name, gpu in load.gpus.items() if _CUDA.fullmatch(name) and (gpu.used or not used)]
    names.sort(key=lambda name: int(name[4:]))
    if len(names) < 2:
        return []
    on_host = len(blocks) if "-cmoe" in candidate else int(candidate[-1]) if "-ncmoe" in candidate else 0
    sizes = [(size - (experts if i < on_host else 0)) / _MIB for i, (size, experts) in enumerate(blocks)]
    # with fewer layers offloaded than there are, the first ones stay on the host
    counts, at = [], load.offloaded[1] - load.offloaded[0] if load.offloaded else 0
    if not 0 <= at < len(sizes):
        return None
    for name in names:
        wanted, first, held = load.model.get(name, 0.0), at, 0.0
        while at < len(sizes) and held + sizes[at] <= wanted + 1:
            held += sizes[at]
            at += 1
        counts.append(at - first)
        if name != names[-1] and abs(held - wanted) > 1:
            return None
    if at < len(sizes):
        return None
    counts[-1] += 1  # the output layer
    return ["-ts", ",".join(map(str, counts))]


def layer_bytes(header: Header) -> list[tuple[int, int]]:
    """Bytes of each layer's tensors, and of its experts among them."""
    sizes: dict[int, list[int]] = {}
    for tensor in header.tensors.values():
        if m := _BLOCK.match(tensor.name):
            of_layer = sizes.setdefault(int(m[1]), [0, 0])
            of_layer[0] += tensor.nbytes
            of_layer[1] += tensor.nbytes if _EXPERTS.match(tensor.name) else 0
    return [(sizes[i][0], sizes[i][1]) for i in sorted(sizes)]


def _candidates(
    header: Header, load: Load, seen: Seen, wanted: Mapping[str, float], rig: Rig, release: Release
) -> Iterator[list[str]]:
    """Where experts may lie. Of numbers of layers on the host, where layers lie as they do without the log's help, the
    one that comes nearest from above; the more there are, the less lies on GPUs."""
    blocks = {int(m[1]) for name in header.tensors if (m := _EXPERTS.match(name))}
    yield []
    if not blocks:
        if load.offloaded is None and not same_setting("-ngl") & {normalized(word) for word in seen.argv}:
            yield from _layers_on_gpus(header, seen, wanted, rig, release)
        return
    yield ["-cmoe"]
    if len(rig.gpus) > 1 and not load.layers:
        yield from (["-ncmoe", str(n)] for n in range(1, len(blocks)))
        return
    numbers = range(1, len(blocks) + 1)
    yield _nearest([["-ncmoe", str(n)] for n in numbers], header, seen, wanted, rig, release)


def _layers_on_gpus(
    header: Header, seen: Seen, wanted: Mapping[str, float], rig: Rig, release: Release
) -> Iterator[list[str]]:
    """Whole layers on the host; where the log does not say how many, the number that comes nearest from above."""
    numbers = range(len(layer_bytes(header)), 0, -1)
    if numbers:
        yield _nearest([["-ngl", str(n)] for n in numbers], header, seen, wanted, rig, release)


def _nearest(
    candidates: Sequence[list[str]], header: Header, seen: Seen, wanted: Mapping[str, float], rig: Rig, release: Release
) -> list[str]:
    """Of candidates, each of which puts less on GPUs than those before it, the first that is no more than the log."""
    low, high, total = 0, len(candidates) - 1, sum(wanted.values()) + 0.02 * len(wanted)
    while low < high:
        n = (low + high) // 2
        placement = _place(header, (*seen.argv, *candidates[n]), seen.app, rig, release)
        fits = placement is None or sum(placement.model.get(name, 0) for name in wanted) / _MIB <= total
        low, high = (low, n) if fits else (n + 1, high)
    return candidates[low]


def _place(header: Header, argv: Sequence[str], app: str, rig: Rig, release: Release) -> Placement | None:
    try:
        flags = parse_flags(argv, app)
        question = Question.of(header, flags, rig, release)
        model = model_of(question)
        placed = place(model.tensors.tensors, model.hparams.n_layer_all, flags, workshop_of(question).machine)
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


def named_model(command: Sequence[str]) -> str:
    """The model that a command line in the log names; empty where it names none."""
    flags = [words for words in split_words(command[1:]) if len(words) > 1]
    return next((words[1] for words in flags if normalized(words[0]) in NAMES_MODEL), "")


def without_flags(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``argv`` without what ``flags`` set, which may stand after it."""
    replaced = frozenset[str]().union(*(same_setting(flag) for flag in flags))
    words, kept = list(argv), []
    while words:
        count = 1 + (arity(words[0]) or 0)
        if normalized(words[0]) not in replaced:
            kept += words[:count]
        del words[:count]
    return kept


def _less(argv: Sequence[str], later: Sequence[str]) -> list[str]:
    """``argv`` without what flags that stand after it replace."""
    return without_flags(argv, [flag for flag, _ in _flags_of(later)])


def _once(argv: Sequence[str]) -> list[str]:
    """``argv``, of flags that replace each other the last."""
    kept = list[str]()
    for _, words in _flags_of(argv):
        kept = [*_less(kept, words), *words]
    return kept


def _flags_of(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with its values; no name for one whose values add up."""
    words = list(argv)
    while words:
        count = 1 + (arity(words[0]) or 0)
        yield ("" if normalized(words[0]) in _SUMMED else words[0]), words[:count]
        del words[:count]


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
    said = _TYPES.search(load.failed.said) if load.failed is not None else None
    types = load.cache_types or (said.groups() if said is not None else None)
    if types:
        for flag, kind in zip(("-ctk", "-ctv"), types, strict=True):
            if kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"):
                yield from (flag, kind)


def _drafting(load: Load, known: set[str], kind: str) -> Iterator[str]:
    """What drafts, where no flag tells and the log's lines do; ``kind``: how its model drafts, where it has one."""
    if load.draft is None or (same_setting("-md") | same_setting("-hfd")) & known or "--spec-type" in known:
        return
    yield from ("-md", load.draft.path) if load.draft.path else ()
    yield from ("--spec-type", kind if load.draft.path else "draft-mtp")
    if (number := _number(load, "n_rs_seq")) is not None and 0 < number < 2**31:
        yield from ("--spec-draft-n-max", str(number))


def _placement(load: Load, known: set[str]) -> Iterator[str]:
    """Layers and tensors where the log's own lines put them."""
    if load.offloaded is not None and load.offloaded[0] < 2**31:
        yield from ("-ngl", str(load.offloaded[0]))
    counts = Counter(device for device in load.layers.values() if _CUDA.fullmatch(device))
    gpus = [name for name in load.gpus if _CUDA.fullmatch(name)]
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
    on_gpu = any(_CUDA.fullmatch(name) for name in load.context)
    if load.context and not on_gpu and load.offloaded is not None and load.offloaded[0] > 0:
        yield "-nkvo"
    n_ctx, ubatch = _number(load, "n_ctx_seq"), _number(load, "n_ubatch")
    # a window and a batch need less; the default pads to 256
    if load.swa_cells is not None and n_ctx == load.swa_cells and ubatch and n_ctx > ubatch + 1024:
        yield "--swa-full"


def guess_computing(load: Load, seen: Seen, header: Header, rig: Rig) -> Iterator[Seen]:
    """``seen`` with flags that only show in the compute buffers, one guess after another."""
    guesses: list[list[str]] = [["--no-op-offload"], ["--no-host"]]
    if load.swa_cells is not None and load.swa_cells == _number(load, "n_ctx_seq") and "--swa-full" not in seen.argv:
        guesses += [["--swa-full"], ["--swa-full", "--no-op-offload"]]  # a window as long as the context in any case
    count = next((int(n) for flag, n in zip(seen.argv, seen.argv[1:], strict=False) if flag == "-ncmoe"), 0)
    if seen.guessed and count and len(rig.gpus) == 1:
        # as many layers' experts on the GPU, but the first ones
        layers = {int(m[1]) for name in header.tensors if (m := _EXPERTS.match(name))}
        numbers = "|".join(str(i) for i in range(len(layers) - count))
        pattern = rf"blk\.({numbers})\.ffn_(up|down|gate)_exps=CUDA0,exps=CPU"
        guesses = [["-ot", pattern], ["-ot", pattern, "--no-op-offload"], *guesses]
    for guess in guesses:
        kept = seen.argv[: len(seen.argv) - len(seen.guessed)] if "-ot" in guess else seen.argv
        found = tuple(guess) if "-ot" in guess else (*seen.guessed, *guess)
        yield Seen((*kept, *guess), seen.app, seen.from_command, found, True)


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
        for pattern in _patterns(names):
            yield from ("-ot", f"^{pattern}$={place}")


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Patterns for exactly these tensors: one for all layers that have the same of them, one for all others."""
    of_layer: dict[str, list[str]] = {}
    alone = []
    for name in names:
        if m := _BLOCK.match(name):
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


def _number(load: Load, name: str) -> int | None:
    text = load.settings.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) else None
