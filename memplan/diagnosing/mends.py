"""Flags, or a newer llama.cpp, that mend a load that failed: each tried before it is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memplan.halving import last_before
from memplan.llama.flag_fields import same_setting
from memplan.llama.flags import Flags
from memplan.llama.patterns import compile_pattern
from memplan.releases import LATEST, RELEASES, Release
from memplan.result import DeviceUse, Estimate

Words = tuple[str, ...]

MOST: Final = 4
"""Mends by flags that are named."""

LEAST: Final = 128 << 20
"""Bytes that a mend has to bring where it is not known how many are missing."""

HOST: Final = "the host"
"""In place of a GPU's name."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The load with something changed: ``args`` after the other flags, or before them if ``first``.

    ``drop``: flags of the load that go.  ``release``: another llama.cpp.
    """

    args: Words = ()
    first: bool = False
    drop: Words = ()
    release: Release | None = None


Try = Callable[[Variant], "Estimate | None"]
"""The estimate of a variant; None when its flags cannot be given."""

Weigh = Callable[[Variant], "Mapping[str, int] | None"]
"""Bytes of a variant's weights on each GPU, for which nothing is built; None when its flags cannot be given."""


@dataclass(frozen=True, slots=True)
class Mend:
    """``args``: flags to add.  ``left``: bytes that the fullest GPU has left.  ``first``: they go before others.

    ``drop``: flags that go.  ``llama``: the oldest newer release that does it, with the same flags.  ``less``: bytes
    that ``where`` takes less, for a load that should have fitted already; else 0.
    """

    args: Words
    left: int
    first: bool = False
    drop: Words = ()
    llama: str = ""
    less: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """What a mend has to bring: every GPU keeps its reserve; where all should have fitted, ``less`` bytes on ``where``.

    ``kind``: the cause's.  ``said``: llama.cpp's words.
    """

    kind: str
    said: str = ""
    where: str = ""
    less: int = 0


@dataclass(frozen=True, slots=True)
class _Finder:
    estimate: Estimate
    attempt: Try
    weigh: Weigh
    need: Need
    experts: bool

    def mend(self, variant: Variant) -> Mend | None:
        """A variant as a mend; None when it does not bring what is needed."""
        tried = self.attempt(variant)
        if tried is None or not tried.fits_with_reserve:
            return None
        less = used(self.estimate, self.need.where) - used(tried, self.need.where) if self.need.less else 0
        if less < self.need.less:
            return None
        llama = variant.release.name if variant.release is not None else ""
        left = min((device.left for device in tried.devices), default=0)
        return Mend(variant.args, left, variant.first, variant.drop, llama, less, self.need.where if less else "")

    def first(self, variants: Iterator[Variant], *, by_weights: bool = False) -> Mend | None:
        """The first of some variants that is a mend.

        ``by_weights``: they differ in where weights lie, and those are not tried that would take too much even without
        a compute buffer.
        """
        room = {use.name: size + use.compute for use, size in self._room(self.estimate)}
        tried = (variant for variant in variants if not by_weights or self._holds(variant, room))
        return next((mend for variant in tried if (mend := self.mend(variant)) is not None), None)

    def least(self, variants: Sequence[Variant], *, by_weights: bool = False) -> Mend | None:
        """The first of some variants, each of which takes less than those before it, that is a mend.

        ``by_weights``: they differ in where weights lie, which tells about which it is.
        """
        low, high = -1, len(variants) - 1
        if not variants or self.mend(variants[high]) is None:
            return None
        if by_weights:
            low, high = self._near(variants)
        too_much = last_before(low, high, lambda at: self.mend(variants[at]) is None)
        return self.mend(variants[too_much + 1])

    def _near(self, variants: Sequence[Variant]) -> tuple[int, int]:
        """A variant that takes too much, or -1, and a later one that is a mend: neighbours, where all but weights takes
        as much as with the last."""
        low, high = -1, len(variants) - 1
        last = self.attempt(variants[high])
        room = {use.name: size for use, size in self._room(last)} if last is not None else {}
        guess = last_before(low, high, lambda at: not self._holds(variants[at], room)) + 1
        for at in (guess, guess - 1, guess + 1):
            if low < at < high:
                low, high = (at, high) if self.mend(variants[at]) is None else (low, at)
        return low, high

    def _holds(self, variant: Variant, room: Mapping[str, int]) -> bool:
        """Whether a variant's weights are no more than ``room``."""
        weights = self.weigh(variant)
        return weights is not None and all(weights.get(name, 0) <= size for name, size in room.items())

    def _room(self, tried: Estimate) -> Iterator[tuple[DeviceUse, int]]:
        """Each GPU, and bytes that weights may take of it, where all else takes what it does in an estimate."""
        for use in tried.devices:
            most = use.free - use.reserve
            if self.need.less and use.name == self.need.where:
                most = min(most, used(self.estimate, use.name) - self.need.less)
            yield use, most - (use.used - use.model)


def find_mends(
    estimate: Estimate,
    attempt: Try,
    weigh: Weigh,
    n_layers: int,
    need: Need,
    release: Release,
    most: int = MOST,
    experts: bool = True,
) -> tuple[Mend, ...]:
    """Flags with which the same load works, those that change least first, and the oldest newer release that does.

    ``experts``: whether the model has any, which can be kept on the host; else whole layers are.
    """
    finder = _Finder(estimate, attempt, weigh, need, experts)
    found: list[Mend] = []
    for mend in _by_flags(finder, n_layers):
        if mend is not None:
            found.append(mend)
        if len(found) == most:
            break
    if not found and need.where != HOST and estimate.refused is None:
        together = finder.first(_together(estimate, experts))
        found += [together] if together is not None else []
    newer = None if need.where == HOST else _newer(finder, release)
    return (*found, *((newer,) if newer is not None else ()))


def _by_flags(finder: _Finder, n_layers: int) -> Iterator[Mend | None]:
    """One way after another, the smallest changes first."""
    estimate, need = finder.estimate, finder.need
    if need.where == HOST:
        yield finder.first(_fewer_on_host(estimate, n_layers))
    elif need.kind in _REFUSED:
        for words in _REFUSED[need.kind](estimate.flags, need.said):
            yield _after(finder, words, n_layers)
    elif estimate.refused is None:
        yield finder.first(_drafter_elsewhere(estimate))
        yield finder.first(_slots(estimate))
        yield finder.first(_moves(estimate, n_layers, finder.experts), by_weights=True)
        yield finder.least(list(_ubatch(estimate)))
        yield finder.least(list(_on_the_host(estimate, n_layers, finder.experts)), by_weights=True)
        shorter = finder.least(list(_context(estimate)))  # before caches, with which the graph is another
        caches = list(_smaller_caches(estimate))
        yield finder.first(iter(caches)) or (None if finder.experts else _beside(finder, caches, n_layers))
        yield shorter
        yield finder.first(_without_drafter(estimate))


def used(estimate: Estimate, where: str) -> int:
    """Bytes that a GPU, or the host, takes."""
    if where == HOST:
        return estimate.host.used
    return next((device.used for device in estimate.devices if device.name == where), 0)


def _newer(finder: _Finder, release: Release) -> Mend | None:
    """The oldest newer release with which the same flags work; none if the newest does not."""
    newer = [Variant(release=other) for other in RELEASES if other.build > release.build]
    known = [variant for variant in newer if variant.release is not None and variant.release.build <= LATEST.build]
    return finder.least(known) or finder.least(newer)  # the latest is asked about anyway


# --- what llama.cpp refuses ---


def _cache_types(flags: Flags, said: str) -> Sequence[Words]:
    """One type for both caches: that of V, or that of K."""
    named = re.search(r"K \((\w{1,10})\) and V \((\w{1,10})\)", said)
    k, v = named.groups() if named else (flags.type_k, flags.type_v)
    return [("-ctk", k, "-ctv", k), ("-ctk", v, "-ctv", v)]


_F16: Final = ("-ctk", "f16", "-ctv", "f16")
_REFUSED: Final[Mapping[str, Callable[[Flags, str], Sequence[Words]]]] = {
    "k-v-types-differ": _cache_types,
    "quantized-v-needs-flash-attention": lambda flags, said: [("-fa", "on"), _F16],
    "permuted-quantized-tensor": lambda flags, said: [_F16, ("-fa", "on"), ("-ngl", "99")],
    "override-to-unused-device": lambda flags, said: [("-ngl", "99")],
    "too-many-split-inputs": lambda flags, said: [("-ub", "16"), ("--no-op-offload",)],
}
"""What mends a refusal, one alternative after another; experts go to the host where it then does not fit."""


def _beside(finder: _Finder, variants: Sequence[Variant], n_layers: int) -> Mend | None:
    """A change that is not enough, with as few more layers on the host as it takes."""
    more = _on_the_host(finder.estimate, n_layers, finder.experts)
    both = [Variant((*each.args, *variant.args)) for variant in more for each in variants]
    return finder.least(both, by_weights=True)


def _after(finder: _Finder, words: Words, n_layers: int) -> Mend | None:
    """``words`` alone, or if llama.cpp then starts but does not fit, with more experts on the host."""
    tried = finder.attempt(Variant(words))
    if tried is None or tried.refused is not None:
        return None
    more = [Variant((*words, *variant.args)) for variant in _on_the_host(tried, n_layers, finder.experts)]
    return finder.mend(Variant(words)) or finder.least(more, by_weights=True)


# --- what takes less memory ---


def _slots(estimate: Estimate) -> Iterator[Variant]:
    if estimate.flags.n_parallel > 1:
        yield Variant(("-np", "1"))


def _drafter_elsewhere(estimate: Estimate) -> Iterator[Variant]:
    """What drafts on one card that has room, or its experts on the host."""
    draft = estimate.draft
    if draft is None or not any(use.model for use in draft.buffers.values()):
        return  # weights of the model's own stay with it
    for device in sorted(estimate.devices, key=lambda device: device.left, reverse=True):
        if device.left > 0:
            yield Variant(("-devd", device.name))
    yield Variant(("-cmoed",))


def _without_drafter(estimate: Estimate) -> Iterator[Variant]:
    drop = tuple(sorted(same_setting("-md", "-hfd", "--spec-type") & estimate.flags.given))
    if drop and estimate.draft is not None:
        yield Variant(drop=drop)


def _ubatch(estimate: Estimate) -> Iterator[Variant]:
    size = min(estimate.flags.n_ubatch, estimate.flags.n_batch, estimate.n_ctx)
    size = 1 << (max(size, 2) - 1).bit_length() - 1
    while size >= 64:
        yield Variant(("-ub", str(size)))
        size //= 2


def _smaller_caches(estimate: Estimate) -> Iterator[Variant]:
    """Caches of 8 bits a value; that of V as well where flash attention is not off."""
    flags = estimate.flags
    if {flags.type_k, flags.type_v} <= {"f32", "f16", "bf16"}:
        yield Variant(("-ctk", "q8_0") if flags.flash_attn == "off" else ("-ctk", "q8_0", "-ctv", "q8_0"))


def _context(estimate: Estimate) -> Iterator[Variant]:
    size = estimate.n_ctx // 2
    while size >= 8192:
        yield Variant(("-c", str(size // 256 * 256)))
        size //= 2


def _on_the_host(estimate: Estimate, n_layers: int, experts: bool) -> Iterator[Variant]:
    """More layers' experts on the host, one at a time, or more whole layers of a model that has none."""
    if not experts:
        on_gpus = min(estimate.flags.n_gpu_layers, n_layers) if estimate.flags.n_gpu_layers >= 0 else n_layers
        for n in range(on_gpus - 1, -1, -1):
            yield Variant(("-ngl", str(n)))
        return
    if not estimate.devices or any(device.compute + device.context > device.free for device in estimate.devices):
        return
    lowest = max(_on_host(estimate), default=0) + 1
    for n in range(lowest, n_layers):
        yield Variant(("-ncmoe", str(n)))
    yield Variant(("-cmoe",))


def _fewer_on_host(estimate: Estimate, n_layers: int) -> Iterator[Variant]:
    """Fewer layers' experts on the host, as few as fit the GPUs, in place of the -ncmoe or -cmoe that is given."""
    drop = tuple(sorted(_EXPERTS & estimate.flags.given))
    if drop and not same_setting("-ot") & estimate.flags.given:
        for n in range(0, max(_on_host(estimate), default=n_layers), _step(n_layers)):
            yield Variant(("-ncmoe", str(n)), drop=drop)


_EXPERTS: Final = same_setting("-cmoe", "-ncmoe")


def _on_host(estimate: Estimate) -> list[int]:
    """One more than each layer whose experts the flags put on the host by its number."""
    given = [pattern for pattern, buffer in estimate.flags.overrides if buffer == "CPU"]
    return [int(m[1]) + 1 for p in given if (m := re.match(r"blk\\\.(\d+)\\\.", p))]


def _step(n_layers: int) -> int:
    return max(1, n_layers // 12)


def _moves(estimate: Estimate, n_layers: int, experts: bool) -> Iterator[Variant]:
    """Feed-forward weights of a short GPU's layers to the one with most room, of experts if there are any."""
    if len(estimate.short) != 1 or len(estimate.devices) < 2:
        return
    short = estimate.short[0]
    roomy = max(estimate.devices, key=lambda device: device.left)
    if roomy.left <= 0:
        return
    layers = _layers_of(estimate, short.name, n_layers)
    for count in range(1, min(4, len(layers)) + 1):
        numbers = "|".join(map(str, layers[-count:]))
        which = f"({numbers})" if count > 1 else numbers
        for kinds in ("down", "(up|down)", "(up|down|gate)"):
            which_of = "_exps" if experts else r"\.weight"
            yield Variant(("-ot", rf"blk\.{which}\.ffn_{kinds}{which_of}={roomy.name}"), first=True)


def _layers_of(estimate: Estimate, device: str, n_layers: int) -> list[int]:
    """Layers whose experts lie on ``device``: by the overrides; without any that hold, in the layers' own places.

    Those follow ``-ts``, or else free memory; where the experts lie exactly the trial shows.
    """
    shares = estimate.flags.tensor_split[: len(estimate.devices)] or tuple(max(d.free, 1) for d in estimate.devices)
    total = sum(shares)
    if total <= 0:
        return []
    names = [d.name for d in estimate.devices]
    index = names.index(device)
    low, high = sum(shares[:index]) / total, sum(shares[: index + 1]) / total
    rules = [(compile_pattern(pattern), buffer) for pattern, buffer in estimate.flags.overrides]
    found = []
    for layer in range(n_layers):
        name = f"blk.{layer}.ffn_down_exps.weight"
        held = next((buffer for search, buffer in rules if search(name)), None)
        if held == device or (held is None and low <= layer / (n_layers + 1) < high):
            found.append(layer)
    return found


def _together(estimate: Estimate, experts: bool) -> Iterator[Variant]:
    """Several at once, when none is enough."""
    one = ("-np", "1") if estimate.flags.n_parallel > 1 else ()
    host = ("-cmoe",) if experts else ("-ngl", "0")
    for args in ((*one, "-ub", "512"), (*one, "-ub", "256", *host), (*one, "-ub", "128", *host, "-c", "32768")):
        yield Variant(args)
