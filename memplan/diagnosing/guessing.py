"""Flags that a log shows only by what they do: found by trying what gives its weights and its compute buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from memplan.backends.devices import Rig
from memplan.diagnosing.flags_seen import BLOCK, EXPERTS, Seen, number_of
from memplan.diagnosing.log import CUDA, Load, Stage
from memplan.gguf.header import Header
from memplan.halving import last_before
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_words import normalized

_MIB: Final = 1 << 20


Weigh = Callable[[Sequence[str]], "Mapping[str, int] | None"]
"""Bytes of the model's weights by buffer type with some flags; None where llama.cpp would not take them."""


def guess_placement(load: Load, header: Header, seen: Seen, rig: Rig, weigh: Weigh) -> Seen:
    """``seen``, with the ``-ncmoe`` that gives the log's weights on every GPU, when nothing else tells it; of a model
    without experts, the ``-ngl``."""
    wanted = {name: mib for name, mib in load.model.items() if CUDA.fullmatch(name)}
    failed, limits = load.failed, dict[str, int]()
    if (
        failed is not None
        and failed.stage is Stage.MODEL
        and not failed.drafting
        and failed.size
        and CUDA.fullmatch(failed.buffer)
    ):
        wanted[failed.buffer] = failed.size / _MIB
        # buffers are made in the order of their names: those before it were there
        limits = {n: gpu.free for n, gpu in zip(rig.names, rig.gpus, strict=True) if n < failed.buffer}
    if seen.placed or load.dry or not wanted or not any(wanted.values()):
        return seen
    blocks = layer_bytes(header)
    for candidate in _candidates(header, load, seen, wanted, rig, weigh):
        split = split_of(load, blocks, candidate) if load.model and not load.layers else []
        if split is None:
            continue
        argv = (*seen.argv, *candidate)
        weights = weigh(argv)
        if split and not _gives(weights, wanted):
            candidate = [*candidate, *split]
            argv = (*seen.argv, *candidate)
            weights = weigh(argv)
        if _gives(weights, wanted) and _within(weights, limits):
            return Seen(argv, seen.app, seen.from_command, tuple(candidate), True)
    return seen


def guess_computing(load: Load, seen: Seen, header: Header, rig: Rig) -> Iterator[Seen]:
    """``seen`` with flags that only show in the compute buffers, one guess after another."""
    guesses: list[list[str]] = [["--no-op-offload"], ["--no-host"]]
    if load.swa_cells is not None and load.swa_cells == number_of(load, "n_ctx_seq") and "--swa-full" not in seen.argv:
        guesses += [["--swa-full"], ["--swa-full", "--no-op-offload"]]  # a window as long as the context in any case
    count = next((int(n) for flag, n in zip(seen.argv, seen.argv[1:], strict=False) if flag == "-ncmoe"), 0)
    if seen.guessed and count and len(rig.gpus) == 1:
        # as many layers' experts on the GPU, but the first ones
        layers = {int(m[1]) for name in header.tensors if (m := EXPERTS.match(name))}
        numbers = "|".join(str(i) for i in range(len(layers) - count))
        pattern = rf"blk\.({numbers})\.ffn_(up|down|gate)_exps=CUDA0,exps=CPU"
        guesses = [["-ot", pattern], ["-ot", pattern, "--no-op-offload"], *guesses]
    for guess in guesses:
        kept = seen.argv[: len(seen.argv) - len(seen.guessed)] if "-ot" in guess else seen.argv
        found = tuple(guess) if "-ot" in guess else (*seen.guessed, *guess)
        yield Seen((*kept, *guess), seen.app, seen.from_command, found, True)


def _gives(weights: Mapping[str, int] | None, wanted: Mapping[str, float]) -> bool:
    """Whether the weights on each GPU are those of the log."""
    if weights is None:
        return False
    return all(abs(weights.get(name, 0) / _MIB - mib) < 0.02 for name, mib in wanted.items())


def _within(weights: Mapping[str, int] | None, limits: Mapping[str, int]) -> bool:
    """Whether the weights on these GPUs are no more than was free."""
    return weights is not None and all(weights.get(name, 0) <= free for name, free in limits.items())


def split_of(load: Load, blocks: Sequence[tuple[int, int]], candidate: Sequence[str]) -> list[str] | None:
    """The ``-ts`` that deals layers over several GPUs so that each has the log's weights; None when there is none.

    ``blocks``: the ``layer_bytes`` of the model.
    """
    used = any(gpu.used for gpu in load.gpus.values())
    names = [name for name, gpu in load.gpus.items() if CUDA.fullmatch(name) and (gpu.used or not used)]
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
        if m := BLOCK.match(tensor.name):
            of_layer = sizes.setdefault(int(m[1]), [0, 0])
            of_layer[0] += tensor.nbytes
            of_layer[1] += tensor.nbytes if EXPERTS.match(tensor.name) else 0
    return [(sizes[i][0], sizes[i][1]) for i in sorted(sizes)]


def _candidates(
    header: Header, load: Load, seen: Seen, wanted: Mapping[str, float], rig: Rig, weigh: Weigh
) -> Iterator[list[str]]:
    """Where experts may lie. Of numbers of layers on the host, where layers lie as they do without the log's help, the
    one that comes nearest from above; the more there are, the less lies on GPUs."""
    blocks = {int(m[1]) for name in header.tensors if (m := EXPERTS.match(name))}
    yield []
    if not blocks:
        if load.offloaded is None and not same_setting("-ngl") & {normalized(word) for word in seen.argv}:
            yield from _layers_on_gpus(header, seen, wanted, weigh)
        return
    yield ["-cmoe"]
    if len(rig.gpus) > 1 and not load.layers:
        yield from (["-ncmoe", str(n)] for n in range(1, len(blocks)))
        return
    numbers = range(1, len(blocks) + 1)
    yield _nearest([["-ncmoe", str(n)] for n in numbers], seen, wanted, weigh)


def _layers_on_gpus(header: Header, seen: Seen, wanted: Mapping[str, float], weigh: Weigh) -> Iterator[list[str]]:
    """Whole layers on the host; where the log does not say how many, the number that comes nearest from above."""
    numbers = range(len(layer_bytes(header)), 0, -1)
    if numbers:
        yield _nearest([["-ngl", str(n)] for n in numbers], seen, wanted, weigh)


def _nearest(candidates: Sequence[list[str]], seen: Seen, wanted: Mapping[str, float], weigh: Weigh) -> list[str]:
    """Of candidates, each of which puts less on GPUs than those before it, the first that is no more than the log."""
    most = sum(wanted.values()) + 0.02 * len(wanted)

    def too_much(n: int) -> bool:
        weights = weigh((*seen.argv, *candidates[n]))
        return weights is not None and sum(weights.get(name, 0) for name in wanted) / _MIB > most

    return candidates[last_before(-1, len(candidates) - 1, too_much) + 1]
