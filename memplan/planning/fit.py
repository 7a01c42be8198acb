"""Margins for llama.cpp's own ``--fit``: what it does not count, a figure for each GPU; and when to leave it alone.

``--fit`` measures weights, caches and compute buffers (``common/fit.cpp``, v0.5.0) and leaves ``--fit-target`` MiB free
on each GPU. It stops as soon as a placement flag is given, and llama-server then starts as it is told. What drafts, and
a projector with its buffers, llama-server adds itself: to ``--fit-target`` (``tools/server/server-context.cpp``,
``load_model``; the projector in all releases, what drafts until 10362), or as a second model to fit
(``common_fit_extra_model``, 10852).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.backends.devices import CUDA, METAL, Gpu
from memplan.llama.flag_fields import PLACEMENT_AND_DEVICES
from memplan.llama.flags import Flags
from memplan.llama.servers import rpc_words
from memplan.planning.plan import DEFAULT_MARGIN, NoPlan, Plan, make_plan
from memplan.planning.problem import Problem
from memplan.planning.search import Search
from memplan.rig import MIB

LEAST_CONTEXT = 4096
"""llama.cpp's own ``--fit-ctx``."""


@dataclass(frozen=True, slots=True)
class FitPreset:
    """Flags for ``--fit``: ``targets`` in MiB a GPU, ``fit_ctx`` in tokens; ``reasons`` for the targets.

    ``warnings``: when ``--fit`` would stop, fail or waste; ``plan``: what to use in its place then.
    ``servers``: ``--rpc``, where it is needed.
    """

    targets: tuple[int, ...]
    fit_ctx: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    plan: Plan | NoPlan
    servers: tuple[str, ...] = ()

    @property
    def approximate(self) -> str:
        """Why the plan, and what is said of ``--fit``, is not exact; empty when it is."""
        return self.plan.approximate if isinstance(self.plan, NoPlan) else self.plan.estimate.approximate

    @property
    def args(self) -> tuple[str, ...]:
        """The flags."""
        targets = ",".join(map(str, self.targets))
        return *self.servers, "--fit", "on", "--fit-target", targets, "--fit-ctx", str(self.fit_ctx)


def fit_preset(problem: Problem, growth: int | None = None) -> FitPreset:
    """Margins for a rig, and what speaks against ``--fit`` there. Raises MemplanError.

    ``growth``: MiB that each GPU may grow by at run time; None: as kernels take.
    """
    search = Search(problem)
    flags = search.flags
    counted = _growth(problem)
    growth = counted if growth is None else growth
    targets = _targets(problem, growth)
    kept = " and ".join(map(str, dict.fromkeys(target - growth for target in targets)))
    reasons = [
        f"{kept} MiB for {_kernels(problem.rig.gpus)}",
        f"{growth} MiB for what kernels take at run time",
    ]
    # the plan counts run time itself
    margins = tuple((target - min(growth, counted)) * MIB for target in targets)
    plan = make_plan(replace(problem, margins=margins))
    return FitPreset(
        targets=tuple(targets),
        fit_ctx=flags.n_ctx or LEAST_CONTEXT,
        reasons=tuple(reasons),
        warnings=tuple(_warnings(problem, flags, plan)),
        plan=plan,
        servers=rpc_words(flags, problem.rig),
    )


def survives(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """Values of ``--fit-target`` with which ``--fit`` leaves what kernels take; none where it would not be asked."""
    flags = problem.question.flags
    if not flags.asks_fit or PLACEMENT_AND_DEVICES & flags.given:
        return ()
    return tuple(_targets(problem, _taken(plan)))


def _targets(problem: Problem, growth: int) -> list[int]:
    return [-(-reserve // MIB) + growth for reserve in problem.question.reserves]


def _growth(problem: Problem) -> int:
    plan = make_plan(replace(problem, margins=problem.question.reserves), changes=False)
    return DEFAULT_MARGIN if isinstance(plan, NoPlan) else _taken(plan)


def _taken(plan: Plan) -> int:
    """MiB that kernels take of the GPU that needs most: ``--fit`` may put any layer on any GPU."""
    return -(-max([device.run_time for device in plan.estimate.devices], default=0) // MIB)


def _kernels(gpus: Sequence[Gpu]) -> str:
    others = [gpu.backend for gpu in gpus if gpu.backend != CUDA]
    if not others:
        return "CUDA kernels loaded later"
    names = " and ".join("Metal" if name == METAL else name for name in dict.fromkeys(others))
    return f"kernels loaded or compiled later: CUDA's figure, since that of {names} is not known"


def _warnings(problem: Problem, flags: Flags, plan: Plan | NoPlan) -> Sequence[str]:
    found = []
    if flags.stops_fit:
        said = f"--fit stops at once because {' and '.join(flags.stops_fit)} is given"
        found.append(f"{said}: use memplan plan, which keeps it")
    if flags.split_mode == "row":
        found.append("--fit stops with -sm row: use memplan plan")
    if isinstance(plan, NoPlan):
        found.append(f"with these margins {plan.why}: --fit would fail, or start with less context")
        return found
    cards = {(gpu.total, gpu.compute_capability) for gpu in problem.rig.gpus}
    if plan.shares and plan.shares[-1].experts:
        if len(problem.rig.gpus) > 1:
            mixed = "mixed cards" if len(cards) > 1 else "several cards"
            found.append(
                f"not every expert fits, on {mixed}: --fit fills them from the back in whole layers and may take"
                " minutes or leave room unused; memplan plan fills every card"
            )
        if plan.shares[-1].layers is not None:
            found.append("not even all attention fits on the GPUs: --fit would put whole layers on the host")
    return found
