"""A plan as flags, a script, a preset, a table or JSON: pure functions from data to text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import FIELDS, same_setting
from memplan.llama.flag_table import SECRET
from memplan.llama.flag_words import arity, read_flags
from memplan.notes import context_note
from memplan.output.wrapping import wrap_words

if TYPE_CHECKING:
    from memplan.planning.advice import Advice
    from memplan.planning.plan import NoPlan, Plan
    from memplan.planning.probing import Change
    from memplan.result import DeviceUse, HostUse


FORMATS: Final = ("table", "args", "sh", "ini", "json")
"""What ``--format`` takes."""

LONG: Final = {
    "-c": "ctx-size", "-b": "batch-size", "-ub": "ubatch-size", "-np": "parallel", "-fa": "flash-attn",
    "-ctk": "cache-type-k", "-ctv": "cache-type-v", "-ngl": "n-gpu-layers", "-ts": "tensor-split",
    "-ot": "override-tensor", "-ncmoe": "n-cpu-moe", "-cmoe": "cpu-moe", "-ncffn": "n-cpu-ffn", "-sm": "split-mode",
    "-mg": "main-gpu", "-dev": "device", "-nkvo": "no-kv-offload", "-kvu": "kv-unified", "-no-kvu": "no-kv-unified",
    "-m": "model", "-t": "threads",
}  # fmt: skip
"""Keys of a preset for flags that people write short."""

_SHORT: Final = {f"--{long}": short for short, long in LONG.items()}
_ADDED: Final = {"kv_overrides": "--override-kv", "draft_overrides": "-otd", "overrides": "-ot"}
"""Settings to which each flag adds, in the order in which they stand last, and the flag whose values can be joined."""
_MODEL: Final = frozenset({"-m", "--model"})

Pair = tuple[str, str | None]
"""A flag and its value; None for a flag that stands alone."""


def merged(fixed: Sequence[str], args: Sequence[str]) -> list[Pair]:
    """The user's flags and the added ones as one list: each flag once, with the value that holds; the model left out.

    ``--rpc`` stands first, since llama.cpp looks up the devices of ``-dev`` and ``-ot`` as it reads them
    (common/arg.cpp: ``parse_device_list``, v0.5.0); a preset is read in the order of its keys' spellings, where it does
    so too. Overrides stand last, in the order in which llama.cpp tries them; neighbouring ``-ot`` and ``-otd`` are one.
    """
    pairs: dict[str, str | None] = {}
    added: dict[str, list[Pair]] = {setting: [] for setting in _ADDED}
    servers: tuple[str, ...] = ()
    for spelled, value in read_flags([*fixed, *args]):
        flag = _SHORT.get(spelled, spelled)
        if flag in _MODEL or flag in SECRET:
            continue
        if flag == "--rpc":
            servers += (value,)
        elif (setting := _setting(flag)) not in added:
            pairs[flag] = value if arity(flag) else None
        elif flag in same_setting(_ADDED[setting]) and added[setting] and added[setting][-1][0] == flag:
            added[setting][-1] = (flag, f"{added[setting][-1][1]},{value}")
        else:
            added[setting].append((flag, value if arity(flag) else None))
    first: list[Pair] = [("--rpc", ",".join(servers))] if servers else []
    return [*first, *pairs.items(), *(pair for last in added.values() for pair in last)]


def _setting(flag: str) -> str:
    """What a flag sets; empty for what decides no memory."""
    return FIELDS[flag][0] if flag in FIELDS else ""


def plan_args(plan: Plan) -> str:
    """All flags in one line, quoted for a shell."""
    return " ".join(_quoted(word) for pair in merged(plan.fixed, plan.args) for word in pair if word is not None) + "\n"


def plan_script(plan: Plan, model: str | None, remark: str = "") -> str:
    """A shell script that starts the server; without a ``model`` it asks for one in the environment.

    ``remark``: what to say of the model.
    """
    program = f"llama-{plan.estimate.flags.app}"
    lines = [f"{program} -m " + ('"${MODEL:?set it to the GGUF file}"' if model is None else _quoted(model))]
    for flag, value in merged(plan.fixed, plan.args):
        words = [_quoted(word) for word in (flag, value) if word is not None]
        lines.append("  " + (f'{flag} "${{DRAFT:?{_SET_DRAFT}}}"' if _no_file(flag, value) else " ".join(words)))
    comments = "".join(f"# {line}\n" for line in [*summary(plan), *unchecked(plan), *filter(None, [remark])])
    return f"#!/bin/sh\n{comments}exec " + " \\\n".join(lines) + ' \\\n  "$@"\n'


def plan_ini(plan: Plan, model: str | None, name: str, remark: str = "") -> str:
    """A section of a file for llama-server's ``--models-preset``, with its comment; ``remark``: of the model."""
    comments = "".join(f"; {line}\n" for line in [*summary(plan), *filter(None, [remark])])
    return f"version = 1\n\n{comments}{ini_section(plan, section_name(name), model)}"


def ini_section(plan: Plan, name: str, model: str | None) -> str:
    """One section; without a ``model``, a comment stands for it.

    Keys and values as ``common/preset.cpp`` (v0.5.0) reads them. Raises FlagError for a value that it would cut short.
    """
    lines = [f"[{re.sub(r'[^A-Za-z0-9._ -]', '-', name)}]"]
    lines.append("; model = /path/to/the/first/shard.gguf" if model is None else f"model = {_ini_value('-m', model)}")
    pairs = merged(plan.fixed, plan.args)
    for setting in ("draft_overrides", "overrides"):  # a preset keeps no order between its keys
        if sum(_setting(flag) == setting for flag, _ in pairs) > 1:
            rules = ",".join(f"{pattern}={buffer}" for pattern, buffer in getattr(plan.estimate.flags, setting))
            pairs = [*(pair for pair in pairs if _setting(pair[0]) != setting), (_ADDED[setting], rules)]
    for flag, value in pairs:
        key = LONG.get(flag, flag.lstrip("-"))
        if _no_file(flag, value):
            lines.append(f"; {key} = /path/to/the/drafter.gguf")
            continue
        lines.append(f"{key} = {'true' if value is None else _ini_value(flag, value)}")
    return "\n".join(lines) + "\n"


_SET_DRAFT = "set it to the GGUF file that drafts"


def _no_file(flag: str, value: str | None) -> bool:
    """Whether a flag names a drafter that is built in here, which llama-server has to be given as a file."""
    return flag in same_setting("-md") and value is not None and not value.lower().endswith(".gguf")


def _quoted(word: str) -> str:
    """A word as a shell reads it. Raises FlagError for what nobody should paste, since a terminal would obey it."""
    if not word.isprintable():
        raise FlagError(f"{shown(word)}: has control characters or marks of direction; give what can be pasted")
    return shlex.quote(word)


def _ini_value(flag: str, value: str) -> str:
    if re.search(r"[;#]", value) or not value.isprintable() or value != value.strip():
        raise FlagError(f"{flag} {shown(value)}: a preset cannot hold ;, # or control characters; use another format")
    return value


def section_name(model: str) -> str:
    """A section's name for a model: its file's, without shard number and ending."""
    name = re.split(r"[/\\]", model)[-1]
    return re.sub(r"(-[0-9]{5}-of-[0-9]{5})?\.gguf$", "", name) or "model"


def summary(plan: Plan) -> list[str]:
    """What a script or a preset should say about itself: made for what, predicted MiB a device, what to beware of."""
    from memplan.output.words import mib

    estimate = plan.estimate
    lines = [f"llama.cpp {estimate.llama}, {'predicted' if estimate.exact else 'predicted approximately'}:"]
    for device in estimate.devices:
        lines.append(
            f"{device.name} {device.description}: weights {mib(device.model)}, context {mib(device.context)},"
            f" compute {mib(device.compute)}, run time {mib(device.run_time)}{_beside(device)} MiB;"
            f" {mib(device.left)} left of {mib(device.free)}"
        )
    host = estimate.host
    parts = f"weights {mib(host.model)}, context {mib(host.context)}, compute {mib(host.compute)}"
    lines.append(f"host: {parts}{_beside(host)} MiB")
    return [*map(_one_line, lines), *cautions(plan)]


def _beside(use: DeviceUse | HostUse) -> str:
    """What is loaded beside the model."""
    from memplan.output.words import mib

    parts = {"drafter": use.draft, "projector": use.projector}
    return "".join(f", {name} {mib(size)}" for name, size in parts.items() if size)


def _one_line(text: str) -> str:
    """What may stand in a comment: names come from files and drivers."""
    from memplan.output.words import printable

    return printable(text)


def cautions(plan: Plan) -> list[str]:
    """What must be known even by who asks for flags alone: why figures are not exact, a context beyond the model's."""
    approximate = plan.estimate.approximate
    said = [f"not exact: {approximate}" if approximate else "", context_note(plan.estimate)]
    return [_one_line(line) for line in said if line]


def unchecked(plan: Plan) -> list[str]:
    """That nobody said how large the host's memory is, where that may matter."""
    from memplan.output.words import host_notes

    return host_notes([plan.estimate])


def plan_object(plan: Plan | NoPlan) -> dict[str, Any]:
    """The plan as plain dictionaries and lists; ``args`` is None when nothing fits."""
    from memplan.output.json import estimate_object
    from memplan.planning.plan import NoPlan

    if isinstance(plan, NoPlan):
        return {
            "args": None,
            "fixed": list(plan.fixed),
            "nearest": [_change_object(change) for change in plan.nearest],
            "exact": not plan.approximate,
            "notes": [plan.why, *([f"not exact: {plan.approximate}"] if plan.approximate else [])],
            "refused": None if plan.refused is None else {"kind": plan.refused.kind, "said": plan.refused.message},
        }
    return {
        "args": list(plan.args),
        "fixed": list(plan.fixed),
        "estimate": estimate_object(plan.estimate),
        "exact": plan.estimate.exact,
        "notes": list(plan.notes),
        "placed": [
            {
                "device": share.device,
                "layers": None if share.layers is None else [share.layers[0], share.layers[1] - 1],
                "output": share.output,
                "experts": share.experts,
                "expert_bytes": share.expert_bytes,
            }
            for share in plan.shares
        ],
        "token_ms": {"estimated": round(plan.token_ms, 2), "assumed": list(plan.assumed)} if plan.shares else None,
        **({"nearest": [_change_object(change) for change in plan.nearest]} if plan.nearest else {}),
    }


def _change_object(change: Change) -> dict[str, Any]:
    from memplan.output.json import estimate_object

    found = {"change": change.change, "args": list(change.args), "estimate": estimate_object(change.estimate)}
    return {**found, "drop": list(change.drop)} if change.drop else found


def plan_json(plan: Plan | NoPlan) -> str:
    """``plan_object`` as text."""
    return json.dumps(plan_object(plan), indent=2) + "\n"


def plan_table(plan: Plan, *, width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """The flags, the estimate, what sits where, and what was traded, for people."""
    from memplan.output.table import render_table
    from memplan.output.words import to_text

    estimate = render_table(plan.estimate, width=width, colour=colour, unicode=unicode)
    lines = ["add: " + (_shell(plan.args) or "nothing"), ""]
    text = to_text(lines) + estimate
    if not plan.shares:
        return text
    more = ["", *_share_lines(plan, unicode), ""]
    per_second = 1000 / plan.token_ms if plan.token_ms else 0
    more.append(
        f"about {plan.token_ms:.1f} ms a token ({per_second:.0f} a second), estimated: {'; '.join(plan.assumed)}"
    )
    more += [f"- {note}" for note in plan.notes]
    more += [f"- {change.change} has every layer on a GPU:{PASTE}{_shell(change.args)}" for change in plan.nearest]
    return text + to_text(_wrapped(more, width))


def _share_lines(plan: Plan, unicode: bool) -> list[Any]:
    from memplan.output.columns import column_lines
    from memplan.output.words import mib

    experts = any(share.experts for share in plan.shares)
    rows = []
    for share in plan.shares:
        layers = "" if share.layers is None else _span(share.layers)
        rows.append(
            (
                share.device,
                ", ".join(filter(None, (layers, "output" if share.output else ""))),
                *((f"{share.experts}", mib(share.expert_bytes)) if experts else ()),
            )
        )
    titles = ("", "layers", *(("experts", "MiB") if experts else ()))
    return column_lines(titles, rows, (False, False, *((True, True) if experts else ())), unicode)


def _shell(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _span(layers: tuple[int, int]) -> str:
    first, last = layers[0], layers[1] - 1
    return f"{first}" if first == last else f"{first} to {last}"


def no_plan_text(plan: NoPlan, width: int = 80) -> str:
    """Why nothing fits, and what would."""
    from memplan.output.words import to_text

    lines = [plan.why]
    if plan.refused is not None and plan.refused.fix:
        lines.append(f"to fix it: {plan.refused.fix}")
    for change in plan.nearest:
        on_host = f" with {change.host_layers} layers on the host" if change.host_layers else ""
        lines.append(f"- {change.change} fits{on_host}:{PASTE}{_shell(change.args)}")
    if not plan.nearest and plan.refused is None:
        lines.append("no smaller context, ubatch or cache, and no fewer slots, would fit either")
    if plan.approximate:
        lines.append(f"not exact: {plan.approximate}")
    return to_text(_wrapped(lines, width))


PASTE = "\t"
"""Before what is to be pasted, at the end of a line: it is never wrapped, and has a line of its own if it is long."""


def _wrapped(lines: Iterable[Any], width: int) -> list[Any]:
    width = max(40, min(width, 110))
    out: list[Any] = []
    for line in lines:
        if isinstance(line, str) and line:
            indent = "  " if line.startswith("- ") else ""
            line, paste, command = line.partition(PASTE)
            if paste and len(line) + 1 + len(command) <= width:
                out.append(f"{line} {command}")
                continue
            out += wrap_words(line, width, later=indent)
            out += [f"{indent}  {command}"] if paste else []
        else:
            out.append(line)
    return out


def advice_text(
    advice: Advice | None,
    placed: Sequence[str] | None,
    width: int = 80,
    drop: Sequence[str] = (),
    host: int = 0,
    targets: Sequence[int] = (),
) -> str:
    """How to make settings fit: one flag, or the placement flags of a plan, with ``drop`` left out.

    ``host``: bytes that the placement needs of a host whose memory is not known; 0 where that is no matter.
    ``targets``: margins with which llama.cpp's own ``--fit`` leaves room for kernels, MiB.
    """
    from memplan.output.words import mib, to_text

    lines = []
    if advice is not None:
        freed = f"frees {_gib(advice.freed)} on {advice.device} and fits" if advice.freed > 0 else "fits"
        also = ""
        if advice.also is not None:
            words, estimate = advice.also
            also = f"; so does {_shell(words)}, with {estimate.n_ctx_seq:,} tokens for each slot"
        lines.append(f"- {_shell(advice.args)} {freed}{also}")
    if placed is not None:
        kept = f"without {' '.join(drop)}" if drop else "with all of it kept"
        needs = f", for which the host needs {mib(host)} MiB (not checked)" if host else ""
        lines.append(f"- {kept}, another placement{needs}; add:{PASTE}{_shell(placed)}")
        lines.append("- memplan plan says what such a placement costs")
    if targets:
        fit = f"--fit-target {','.join(map(str, targets))}"
        said = "or by llama-server's own --fit, which leaves room for kernels with"
        lines.append(f"- {said} {fit} (memplan preset --fit)")
    if not lines:
        lines.append("- no single change that memplan knows makes it fit; memplan plan looks for more")
    return to_text(["", "what would fit:", *_wrapped(lines, width)])


def _gib(size: int) -> str:
    from memplan.output.words import mib

    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{mib(size)} MiB"
