"""Plans from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.gguf.header import Header
from memplan.planning.plan import NoPlan, Plan, make_plan
from memplan.planning.problem import Problem
from memplan.question import Question
from memplan.releases import Release
from memplan.rig import MIB


def plan(
    header: Header,
    flags: Sequence[str],
    rig: Rig,
    margin_mib: int | Sequence[int] | None = None,
    search: Iterable[str] = (),
    release: str | Release = "latest",
    without_ops: Iterable[str] = (),
    app: str = "server",
    draft: Header | None = None,
    projector: Header | None = None,
) -> Plan | NoPlan:
    """Flags with which a model fits a rig, or what to change.

    Args:
        header: the model, from ``read_model``.  rig: the GPUs; bandwidths that it has rank placements.
        flags: llama-server's flags that are kept, as words: ``["-c", "65536", "-np", "1"]``.
        margin_mib: what to leave free, on every GPU or on each; None for what ``--fit-target``
            says, or the reserve: 300 MiB on CUDA.
        search: what may be chosen too, of ``c``, ``ub``, ``np``, ``cache``.
        release, without_ops, draft, projector: as in ``estimate``.  app: ``server`` or ``cli``.
    Returns:
        A ``Plan``, whose ``args`` are to be added to ``flags``, or a ``NoPlan`` with the ``nearest`` changes that fit.
    Raises:
        MemplanError: what cannot be answered, in one line.
    """
    from memplan.llama.flags import parse_flags

    if isinstance(flags, str):
        raise FlagError(f"{shown(flags)}: give flags as a list of words, as in {shown(str(flags.split()[:2]))}")
    if isinstance(search, str):
        raise FlagError(f"{shown(search)}: give a list of names, as in [{shown(search)}]")
    words, names = _words("flags", flags), _words("search", search)
    parsed = parse_flags(words, app)
    question = Question.of(header, parsed, rig, release, without_ops, draft=draft, projector=projector)
    margins = None if margin_mib is None else _margins(margin_mib, rig)
    return make_plan(Problem.of(question, margins), names)


def _words(name: str, given: object) -> tuple[str, ...]:
    """A list of strings, whatever kind of list. Raises TypeError, saying what else it is."""
    words = tuple(given) if isinstance(given, Iterable) else (given,)
    odd = [word for word in words if not isinstance(word, str)]
    if odd:
        raise TypeError(f"{name} must be a list of strings; this is of type {type(odd[0]).__name__}")
    return tuple(word for word in words if isinstance(word, str))


def _margins(mibs: object, rig: Rig) -> tuple[int, ...]:
    each = (mibs,) * len(rig.gpus) if isinstance(mibs, int) else tuple(mibs) if isinstance(mibs, Sequence) else ()
    whole = tuple(mib for mib in each if isinstance(mib, int))
    if len(whole) < len(each) or not isinstance(mibs, (int, Sequence)) or isinstance(mibs, str):
        raise TypeError(f"margin_mib must be a whole number or a list of them; this is of type {type(mibs).__name__}")
    if any(mib < 0 for mib in whole):
        raise FlagError(f"a margin of {min(whole)} MiB: must be 0 or more")
    return tuple(mib * MIB for mib in whole)
