"""Diagnoses as text and as JSON: pure functions from data to a string."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from memplan.diagnosing.figures import Row
from memplan.diagnosing.log import Stage
from memplan.diagnosing.mends import Mend
from memplan.diagnosing.result import Diagnosis
from memplan.errors import printable
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_words import without
from memplan.notes import mib
from memplan.output.wrapping import wrap_words

_MIB = 1 << 20
_BEFORE = ("incomplete-file", "no-such-file", "argument-not-of-this-release")
"""Causes that no prediction is about."""

_FAILED = {Stage.RUNNING: "failed while running", Stage.UNKNOWN: "failed while loading"}


def render_diagnoses(diagnoses: Sequence[Diagnosis], *, width: int = 100) -> str:
    """All loads of a log, for people, those of which the same is to be said once; ending in a newline."""
    width = min(max(width, 40), 110)
    same: dict[tuple[str, ...], list[int]] = {}
    for i, diagnosis in enumerate(diagnoses):
        same.setdefault(tuple(_lines(diagnosis, "", width)), []).append(i)
    blocks = []
    for first, *others in same.values():
        diagnosis = diagnoses[first]
        number = f"load {first + 1} of {len(diagnoses)}, line {diagnosis.load.line}: " if len(diagnoses) > 1 else ""
        lines = list(_lines(diagnosis, number, width))
        if others:
            last = diagnoses[others[-1]].load.line
            lines += _wrapped(f"the same load {len(others) + 1} times, the last from line {last} on", width)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def render_diagnoses_json(diagnoses: Sequence[Diagnosis]) -> str:
    """The same as one JSON object, sizes in bytes; ending in a newline."""
    return json.dumps({"loads": [diagnosis_object(diagnosis) for diagnosis in diagnoses]}, indent=2) + "\n"


def diagnosis_object(diagnosis: Diagnosis) -> dict[str, Any]:
    """One load as plain dictionaries and lists; sizes in bytes."""
    load, failure = diagnosis.load, diagnosis.load.failed
    estimate = diagnosis.estimate
    return {
        "line": load.line,
        "build": load.build,
        "llama": diagnosis.release or None,
        "path": load.path or None,
        "model": diagnosis.model or None,
        "args": list(diagnosis.argv),
        "guessed": list(diagnosis.guessed),
        "assumed": list(diagnosis.assumed),
        "failed": None
        if failure is None
        else {
            "kind": failure.kind,
            "stage": failure.stage.value,
            "buffer": failure.buffer or None,
            "bytes": failure.size,
            "said": failure.said,
        },
        "cause": {
            "kind": diagnosis.cause.kind,
            "text": diagnosis.cause.text,
            "mend": diagnosis.cause.mend or None,
        },
        "placement": list(diagnosis.placement) or None,
        "mends": [_mend_object(mend) for mend in diagnosis.mends],
        "buffers": [
            {
                "name": row.buffer,
                "part": row.part,
                "draft": row.draft,
                "logged": row.logged,
                "predicted": row.predicted,
                "agrees": row.agrees,
            }
            for row in diagnosis.rows
        ],
        "nodes": None if diagnosis.nodes is None else [list(pair) for pair in diagnosis.nodes],
        "agrees": diagnosis.agrees,
        "refused": None if estimate is None or estimate.refused is None else estimate.refused.kind,
        "notes": list(diagnosis.notes),
    }


def _lines(diagnosis: Diagnosis, number: str, width: int) -> Iterator[str]:
    load, failure = diagnosis.load, diagnosis.load.failed
    model = diagnosis.model or load.path.replace("\\", "/").rpartition("/")[2] or "an unknown model"
    release = diagnosis.release or "an unknown build"
    build = f" (build {load.build})" if load.build and diagnosis.release != f"b{load.build}" else ""
    yield from _wrapped(f"{number}{model}, llama.cpp {release}{build}", width)
    if failure is not None:
        asked = f"{failure.size / _MIB:,.2f} MiB " if failure.size is not None else ""
        where = f"of {failure.buffer} " if failure.buffer and asked else f"{failure.buffer} " if failure.buffer else ""
        what = f": {asked}{where}".rstrip() if asked or where else ""
        yield from _wrapped(f"{_FAILED.get(failure.stage, f'failed at the {failure.stage.value}')}{what}", width)
        yield from _wrapped(f"it says: {failure.said}", width)
    yield from _wrapped(f"cause ({diagnosis.cause.kind}): {diagnosis.cause.text}", width)
    if diagnosis.cause.mend:
        yield from _wrapped(f"to fix it: {diagnosis.cause.mend}", width)
    if diagnosis.mends:
        takes_less = any(mend.less for mend in diagnosis.mends)
        defaults = f", with defaults for {' and '.join(diagnosis.assumed)}" if diagnosis.assumed else ""
        yield f"tried{defaults}, and each {'takes less' if takes_less else 'fits'}:"
        yield from (_mend_line(mend) for mend in diagnosis.mends)
    if diagnosis.placement:
        yield "as memplan plan would place it, all else kept, it fits:"
        program = f"llama-{diagnosis.estimate.flags.app if diagnosis.estimate else 'server'}"
        words = diagnosis.placement
        if load.path:
            words = ("-m", load.path, *without(words, same_setting("-m")))
        yield from _pasted("  ", (program, *words), width)
    if diagnosis.rows:
        yield ""
        yield from _table(diagnosis.rows)
        if diagnosis.nodes is not None and diagnosis.nodes[0] != diagnosis.nodes[1]:
            logged, predicted = (" / ".join(map(str, pair)) for pair in diagnosis.nodes)
            yield f"graph nodes: {logged} in the log, {predicted} predicted"
        yield "they agree" if diagnosis.agrees else "they differ: flags that the log does not show, or another build"
    elif diagnosis.estimate is not None and diagnosis.estimate.refused is not None:
        refused = diagnosis.estimate.refused
        same = "the same" if diagnosis.agrees else f"{refused.kind}: {refused.message}"
        yield from _wrapped(f"memplan predicts {same}", width)
    elif (
        diagnosis.estimate is not None
        and failure is not None
        and failure.kind in ("assertion", "refused")
        and (diagnosis.cause.kind not in _BEFORE)
    ):
        yield "memplan does not predict that: by its figures it loads"
    if diagnosis.argv:
        yield from _pasted("predicted with: ", diagnosis.argv, width)
    for note in diagnosis.notes:
        yield from _wrapped(note, width, "- ")


def _pasted(start: str, argv: Sequence[str], width: int) -> Iterator[str]:
    """Flags for a shell, over as many lines as it takes, of which all but the last end in a backslash."""
    flags = list[str]()
    for word in map(printable, map(shlex.quote, argv)):
        if flags and not word.startswith("-"):
            flags[-1] += f" {word}"
        else:
            flags.append(word)
    line = start + flags[0]
    for flag in flags[1:]:
        if len(f"{line} {flag} \\") > width:
            yield f"{line} \\"
            line = f"  {flag}"
        else:
            line += f" {flag}"
    yield line


def _mend_line(mend: Mend) -> str:
    """A mend, and what it comes to."""
    what = f"llama.cpp {mend.llama}, with the same flags" if mend.llama else shlex.join(mend.args)
    about = [f"{mib(mend.left)} left on the fullest GPU"]
    if mend.less:
        about = [f"{mib(mend.less)} less on {mend.where}"]
    about += ["before other -ot"] if mend.first else []
    if mend.drop and not mend.args:
        what = f"without {' and '.join(mend.drop)}"
    elif mend.drop:
        about.append(f"in place of {' and '.join(mend.drop)}")
    return f"  {what}  ({', '.join(about)})"


def _mend_object(mend: Mend) -> dict[str, Any]:
    return {
        "args": list(mend.args),
        "first": mend.first,
        "drop": list(mend.drop),
        "llama": mend.llama or None,
        "left": mend.left,
        "less": mend.less or None,
        "where": mend.where or None,
    }


def _table(rows: Sequence[Row]) -> Iterator[str]:
    labels = [f"{row.buffer}, drafter" if row.draft else row.buffer for row in rows]
    names = max(len("MiB"), *map(len, labels))
    yield f"{'MiB':{names}}  {'part':7}  {'asked for':>13}  {'predicted':>13}"
    for row, label in zip(rows, labels, strict=True):
        part = "weights" if row.part == "model" else row.part
        mark = "" if row.agrees else "  differs"
        yield f"{label:{names}}  {part:7}  {row.logged / _MIB:>13,.2f}  {row.predicted / _MIB:>13,.2f}{mark}"


def _wrapped(text: str, width: int, mark: str = "") -> list[str]:
    return wrap_words(printable(text), width, mark, "  ")
