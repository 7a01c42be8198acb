"""What the page's worker asks: a question as JSON, answered as the commands answer it, as JSON.

This runs in the browser, where Pyodide is the Python: nothing here needs more than the standard library. A question is
one object: ``model`` (a built-in name, or the path at which the worker put a file), ``flags`` (llama-server's words),
``more`` (others, as one text), ``gpus`` (``--gpu`` specs), ``host_mib`` (null: not known), ``llama`` (a release) and
``app`` (server or cli).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final

from memplan.errors import (
    HeaderError,
    MemplanError,
    ModelError,
    RigError,
    ShardError,
    SourceError,
    UnknownModel,
    UnknownRelease,
)
from memplan.gguf.header import Header
from memplan.question import Question

LEAST_CONTEXT: Final = 4096
"""Where the chart begins, as that of ``memplan plot`` does."""

TENSORS: Final = 12
"""Lines of tensors that are shown of each compute buffer, at most; each holds a hundredth of it or more."""

_ABOUT: Final[Mapping[str, tuple[type[MemplanError], ...]]] = {
    "model": (SourceError, HeaderError, ShardError, ModelError, UnknownModel),
    "cards": (RigError,),
    "release": (UnknownRelease,),
}
"""The part of the form that an error is about; of a flag's, the flag itself tells."""


def answer(kind: str, text: str) -> str:
    """The answer of one ``kind`` to the question in ``text``; or an ``error``, its type, and what it is ``about``."""
    try:
        return json.dumps(_KINDS[kind](json.loads(text)))
    except MemplanError as error:
        about = next((part for part, kinds in _ABOUT.items() if isinstance(error, kinds)), "")
        return json.dumps({"error": str(error), "type": type(error).__name__, "about": about})


def catalogue(_: Mapping[str, Any]) -> dict[str, Any]:
    """What the form offers: models with their recipes, cards, releases, types of caches."""
    from memplan import __version__
    from memplan.llama.flag_table import CACHE_TYPES
    from memplan.models.catalogue import MODELS
    from memplan.output.cards import known_object
    from memplan.releases import BUILDS, FORKS, LATEST

    models = [
        {
            "name": model.name,
            "about": model.about,
            "default": model.default,
            "recipes": [{"name": name, "about": recipe.about} for name, recipe in model.recipes.items()],
        }
        for model in MODELS.values()
    ]
    return {
        "version": __version__,
        "models": models,
        **json.loads(known_object()),
        "releases": [release.name for release in (*reversed(BUILDS), *FORKS)],
        "latest": LATEST.name,
        "cache_types": list(CACHE_TYPES),
    }


@lru_cache(maxsize=8)
def _header(model: str) -> Header:
    from memplan.models.open import open_model

    return open_model(model)


def _question(asked: Mapping[str, Any]) -> Question:
    """The question that the form asks. Raises MemplanError."""
    from memplan.llama.flag_values import whole
    from memplan.llama.flags import check_devices, parse_flags
    from memplan.llama.spelling import spelled_for
    from memplan.models.paths import parse_paths
    from memplan.page.pasted import BESIDE, sort_words, split_line
    from memplan.releases import find_release
    from memplan.rig import FEW_HOST_MIB, check_mib, one_each, parse_gpus, parse_mibs

    release, note = find_release(asked["llama"])
    own, more, names = sort_words(split_line(asked["more"]), BESIDE)
    words, respelled = spelled_for([*asked["flags"], *more, *names], release.build, release.name)
    flags = parse_flags(words, asked["app"])
    rig = parse_gpus(asked["gpus"])
    if asked["host_mib"] is not None:
        rig = replace(rig, host_total=check_mib("--host-mib", asked["host_mib"], few=FEW_HOST_MIB))
    check_devices(flags, rig)
    draft, projector = (_header(path) if path else None for path in (flags.draft_model, flags.projector))
    reserve = [mib for text in own["--reserve"][-1:] for mib in parse_mibs("--reserve", text)]
    filled = [whole("--filled", text, 0, 1 << 31) for text in own["--filled"][-1:]]
    question = Question.of(
        _header(asked["model"]), flags, rig, release, own["--without-op"], parse_paths(own["--path"], {}),
        draft=draft, filled=filled[0] if filled else None, projector=projector,
    )  # fmt: skip
    left = one_each("--reserve", reserve, len(rig.gpus))
    return question.with_(release_note=note or "", notes=tuple(respelled), reserve=left)


def estimate(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp allocates, or why it does not start; with the lines that the command prints below its table."""
    from memplan.full_estimate import full_estimate
    from memplan.output.json import estimate_object
    from memplan.output.table import notes, verdict
    from memplan.output.words import model_line, settings_line

    question = _question(asked)
    result = full_estimate(question)
    return {
        **estimate_object(result),
        "shape": _shape(question.header),
        "model_line": model_line(result),
        "settings_line": settings_line(result),
        "verdict": [line for line, _ in verdict(result)],
        "said": list(notes(result)),
    }


def _shape(header: Header) -> dict[str, Any]:
    """What of a model the form has use for: layers, experts, the context it was trained for, its own drafter."""
    architecture = header.metadata.get("general.architecture")
    keys = ("block_count", "expert_count", "context_length", "nextn_predict_layers")
    return {key: header.metadata.get(f"{architecture}.{key}", 0) for key in keys}


def header(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the header of ``model`` is all there."""
    return _shape(_header(asked["model"]))


def locate(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The address of what a hub or a web server calls ``name``, or of the listing to look it up in."""
    from memplan.gguf import hub

    place = hub.locate(asked["name"])
    return {"address": place.address, "listing": place.listing}


def choose(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The address of the file that ``name`` means in its repository's ``listing``."""
    from memplan.gguf import hub

    place = hub.locate(asked["name"])
    return {"address": place.file(hub.choose(place, hub.parse_listing(place, asked["listing"].encode())))}


def line(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the form holds for a pasted command line, in ``text``; ``gpus``: its cards now."""
    from memplan.page.pasted import read_pasted

    return read_pasted(asked["text"], asked.get("gpus", ()))


def largest(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The largest context that fits, and why the next does not; ``value`` is None where none does."""
    from memplan.output.words import verdict_line
    from memplan.sweeping.largest import candidates, largest_of
    from memplan.sweeping.sweep import Sweeper

    question = _question(asked)
    axis, values = candidates(Sweeper(question, ()), "ctx")
    found = largest_of(Sweeper(question, [axis]), axis, values, ())
    beyond = None
    if found.beyond is not None:
        beyond = {"value": found.beyond[0], "said": verdict_line(found.beyond[1])}
    said = verdict_line(found.estimate)
    return {"value": found.value, "first": found.first, "said": said, "beyond": beyond, "tried": found.tried}


def chart(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Context against memory as ``memplan plot`` draws it."""
    from memplan.estimator import model_of
    from memplan.output.chart import make_chart
    from memplan.sweeping.axes import make_axis
    from memplan.sweeping.sweep import Sweeper

    question = _question(asked)
    most = max(2 * LEAST_CONTEXT, model_of(question).hparams.n_ctx_train)
    sweeper = Sweeper(question, [make_axis("ctx", [f"{LEAST_CONTEXT}:{most}"])])
    drawn = make_chart(sweeper, sweeper.run(), "ctx", sweeper.question.flags.words())
    panels = [{**asdict(panel), "top": panel.top} for panel in drawn.panels]
    return {"panels": panels, "answer": drawn.in_short}


def why(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What each compute buffer is made of when it is fullest."""
    from memplan.estimator import check_compute
    from memplan.explaining.explain import explained
    from memplan.output.explain_words import meaning, verdict

    question = _question(asked)
    check_compute(question)
    found = explained(question)
    buffers = []
    for buffer in found.buffers:
        groups = [group for group in buffer.groups[:TENSORS] if group.bytes * 100 >= buffer.bytes]
        said = {
            "device": buffer.device,
            "bytes": buffer.bytes,
            "verdict": verdict(buffer),
            "meaning": meaning(buffer, found.meanings),
            "groups": [asdict(group) for group in groups],
            "rest": sum(group.bytes for group in buffer.groups[len(groups) :]),
            "gaps": buffer.lost,
        }
        buffers.append(said)
    return {"buffers": buffers}


def plan(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Flags with which the model fits, whatever placement the form asks for.

    ``more``: they, and the form's other flags that have no field.
    """
    from memplan.llama.flag_fields import PLACEMENT_AND_DEVICES
    from memplan.llama.flag_words import without
    from memplan.output.plan import plan_args, plan_ini, plan_object
    from memplan.page.pasted import split_line
    from memplan.planning.plan import NoPlan, make_plan
    from memplan.planning.problem import Problem

    question = _question(asked).without(PLACEMENT_AND_DEVICES)
    if not question.rig.gpus:
        raise RigError("a plan is for GPUs: add one")
    found = make_plan(Problem.of(question))
    if isinstance(found, NoPlan):
        return plan_object(found)
    more = [*without(split_line(asked["more"]), PLACEMENT_AND_DEVICES), *found.args]
    return {
        **plan_object(found),
        "more": shlex.join(more),
        "line": plan_args(found).strip(),
        "ini": plan_ini(found, None, question.header.name),
    }


def fit(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Margins for llama.cpp's own ``--fit``."""
    from memplan.llama.flag_fields import PLACEMENT_AND_DEVICES
    from memplan.output.fit import fit_json
    from memplan.planning.fit import fit_preset
    from memplan.planning.problem import Problem

    question = _question(asked).without(PLACEMENT_AND_DEVICES)
    preset = fit_preset(Problem.of(question, (0,) * len(question.rig.gpus)))
    found: dict[str, Any] = json.loads(fit_json(preset))
    return found


_KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    kind.__name__: kind for kind in (catalogue, header, locate, choose, line, estimate, largest, chart, why, plan, fit)
}
