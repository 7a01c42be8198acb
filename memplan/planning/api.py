"""Plans from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.gguf.header import Header
from memplan.planning.plan import DEFAULT_MARGIN, MIB, NoPlan, Plan, make_plan
from memplan.planning.setting import Setting
from memplan.planning.speed import find_bandwidths
from memplan.releases import Release


def plan(
    header: Header,
    flags: Sequence[str],
    rig: Rig,
    margin_mib: int | Sequence[int] = DEFAULT_MARGIN,
    search: Iterable[str] = (),
    release: str | Release = "latest",
    without_ops: Iterable[str] = (),
    app: str = "server",
) -> Plan | NoPlan:
    """Flags with which a model fits a rig, or what to change.

    Args:
        header: the model, from ``read_model``.  rig: the GPUs; bandwidths that it has rank placements.
        flags: llama-server's flags that are kept, as words: ``["-c", "65536", "-np", "1"]``.
        margin_mib: what to leave free, on every GPU or on each.
        search: what may be chosen too, of ``c``, ``ub``, ``np``, ``cache``.
        release, without_ops: as in ``estimate``.  app: ``server`` or ``cli``.
    Returns:
        A ``Plan``, whose ``args`` are to be added to ``flags``, or a ``NoPlan`` with the ``nearest`` changes that fit.
    Raises:
        MemplanError: what cannot be answered, in one line.
    """
    from memplan.estimator import check_types
    from memplan.llama.flags import parse_flags

    if isinstance(flags, str):
        raise FlagError(f"{shown(flags)}: give flags as a list of words, as in {shown(str(flags.split()[:2]))}")
    if isinstance(search, str):
        raise FlagError(f"{shown(search)}: give a list of names, as in [{shown(search)}]")
    check_types(header, parse_flags(flags, app), rig, release)
    margins = [margin_mib] * len(rig.gpus) if isinstance(margin_mib, int) else list(margin_mib)
    if any(mib < 0 for mib in margins):
        raise FlagError(f"a margin of {min(margins)} MiB: must be 0 or more")
    setting = Setting(
        header,
        tuple(flags),
        rig,
        tuple(mib * MIB for mib in margins),
        find_bandwidths(rig.gpus, (), rig.host_bandwidth),
        release,
        app,
        tuple(without_ops),
    )
    return make_plan(setting, tuple(search))
