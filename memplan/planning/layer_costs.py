"""What each layer of a model takes on a GPU, and what of it a plan may move: sums that need no graph.

Bytes here are those that llama.cpp's buffers hold: allocation sizes, padded (``memplan.llama.allocation``). Compute
buffers are not among them; only an exact estimate knows those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from memplan.estimator import model_of, workshop_of
from memplan.ggml.backend import BufferType
from memplan.ggml.tensor import new_tensor
from memplan.llama.batch import ContextParams
from memplan.llama.flag_fields import same_setting
from memplan.llama.memory.kv import CacheBuilder
from memplan.llama.patterns import matches
from memplan.llama.placement import Placement, place, place_layers, split_points, too_many_devices
from memplan.llama.refusals import Refusal
from memplan.llama.weights import INPUT, OUTPUT, ModelTensor
from memplan.question import Question

_EXPERTS = re.compile(r"blk\.[0-9]+\.ffn_([a-z_]+)_exps\.")
_FEED_FORWARD = re.compile(r"blk\.[0-9]+\.ffn_(gate|up|down)\.weight")


@dataclass(frozen=True, slots=True)
class Expert:
    """The routed experts of one kind (``gate``, ``up``, ``down``) in one layer: what a plan moves as one.

    Of a model without any it is the feed-forward weight of the kind, where parts of layers are looked at.

    ``names``: the weight, and its scales if it has any.  ``size``: bytes in a GPU's buffer.  ``nbytes``: bytes of data.
    """

    layer: int
    kind: str
    names: tuple[str, ...]
    size: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A model with the user's flags, as a planner sees it.

    Attributes:
        devices: the rig's number of each GPU in use, in order.  names: their buffer types.
        n_items: blocks (MTP blocks too) and the output layer, which is the last item.
        dense: bytes of each item on the GPU that it is on, apart from what may be moved; its caches and states too.
        read: bytes of each item's weights (apart from experts) that a token reads.
        experts: what may be moved, by layer; what the user has placed is not there.
        pinned: bytes that the user has placed on each GPU, whatever layer they are of.
        pinned_read: expert bytes that a token reads from what the user has placed: by device, -1 for the host.
        used_share: the share of a layer's experts that a token reads.
        fixed_homes: the device of each item (-1: the host) when the user gave ``-ts``; None when it is free.
        first: the first item on a GPU when the user gave ``-ngl``; None when that is free.
        all_names: every loaded tensor.
    """

    devices: tuple[int, ...]
    names: tuple[str, ...]
    n_items: int
    dense: tuple[int, ...]
    read: tuple[int, ...]
    experts: tuple[tuple[Expert, ...], ...]
    pinned: tuple[int, ...]
    pinned_read: Mapping[int, int]
    used_share: float
    fixed_homes: tuple[int, ...] | None
    first: int | None
    all_names: tuple[str, ...]

    def dense_sums(self) -> list[int]:
        """Sums of ``dense``: bytes of items a to b are ``sums[b] - sums[a]``."""
        return [0, *accumulate(self.dense)]

    def read_sums(self) -> list[int]:
        """Sums of ``read``."""
        return [0, *accumulate(self.read)]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of experts that may be moved."""
        return frozenset(e.kind for layer in self.experts for e in layer)


def layer_costs_of(question: Question, feed_forward: bool = False) -> LayerCosts | Refusal | None:
    """The costs of a question; its flags are the user's own.

    ``feed_forward``: whether feed-forward weights may be moved, in place of experts.
    A Refusal when llama.cpp would not load the model, None when no GPU is in use.
    """
    model, flags, machine = model_of(question), question.flags, workshop_of(question).machine
    if model.tensors.refusal is not None:
        return model.tensors.refusal
    hp = model.hparams
    home = replace(flags, n_gpu_layers=hp.n_layer_all + 1, tensor_split=(1.0,))
    placement = place(model.tensors.tensors, hp.n_layer_all, home, machine)
    if isinstance(placement, Refusal):
        return placement
    devices = placement.devices
    if not devices:
        return None
    too_many = too_many_devices(placement)
    if too_many is not None:
        return too_many
    by_name = {d.buft.name: i for i, d in enumerate(devices)}
    numbers = {d: i for i, d in enumerate(machine.gpus)}
    rules = tuple(pattern for pattern, _ in flags.overrides)
    tensors = model.tensors.tensors
    all_names = tuple(t.name for t in tensors)
    matched = {i: rule for i, rule in matches(rules, all_names)} if rules else {}
    movable = _FEED_FORWARD if feed_forward else _EXPERTS
    share = max(hp.n_expert_used) / hp.n_expert if hp.n_expert and not feed_forward else 1.0

    n_items = hp.n_layer_all + 1
    dense, read = [0] * n_items, [0] * n_items
    units: dict[tuple[int, str], list[tuple[str, int, int]]] = {}
    pinned = [0] * len(devices)
    pinned_read: dict[int, int] = {}
    own = devices[0].buft
    for i, t in enumerate(tensors):
        expert = movable.match(t.name)
        if i in matched:
            where = by_name.get(flags.overrides[matched[i]][1], -1)
            if where >= 0:
                pinned[where] += _size(t, devices[where].buft)
            nbytes = t.nbytes * share if expert else t.nbytes
            if t.layer != INPUT:
                pinned_read[where] = pinned_read.get(where, 0) + int(nbytes)
        elif placement.tensors[t.role] is own and t.layer != INPUT:
            item = n_items - 1 if t.layer == OUTPUT else t.layer
            if expert:
                units.setdefault((item, expert[1]), []).append((t.name, _size(t, own), t.nbytes))
            else:
                dense[item] += _size(t, own)
                read[item] += t.nbytes
    for il, size in enumerate(_caches(question, placement)):
        dense[il] += size
    experts: list[list[Expert]] = [[] for _ in range(n_items)]
    for (il, kind), parts in sorted(units.items()):
        names, sizes, nbytes_ = zip(*parts, strict=True)
        experts[il].append(Expert(il, kind, names, sum(sizes), sum(nbytes_)))
    first, homes = _fixed(question, placement, n_items)
    return LayerCosts(
        devices=tuple(numbers[d] for d in devices),
        names=tuple(d.buft.name for d in devices),
        n_items=n_items,
        dense=tuple(dense),
        read=tuple(read),
        experts=tuple(tuple(layer) for layer in experts),
        pinned=tuple(pinned),
        pinned_read=pinned_read,
        used_share=share,
        fixed_homes=homes,
        first=first,
        all_names=all_names,
    )


def _fixed(question: Question, placement: Placement, n_items: int) -> tuple[int | None, tuple[int, ...] | None]:
    """What ``-ngl`` and ``-ts`` leave no choice about."""
    flags = question.flags
    n_gpu_layers = flags.n_gpu_layers if flags.n_gpu_layers >= 0 else n_items
    first = max(n_items - n_gpu_layers, 0) if flags.given & same_setting("-ngl") else None
    if not any(flags.tensor_split) or len(placement.devices) == 1:
        return first, None
    splits = split_points(placement.devices, flags.tensor_split)
    return first, tuple(place_layers(n_items - 1, n_gpu_layers, placement.devices, splits))


def _caches(question: Question, placement: Placement) -> list[int]:
    """Bytes of caches and states of each layer on its own device."""
    model, flags = model_of(question), question.flags
    hp = model.hparams
    sizes = [0] * hp.n_layer_all
    if not flags.offload_kqv:
        return sizes
    build = CacheBuilder(hp, flags, ContextParams.of(flags, hp), placement)
    for t in model.arch.memory(hp, build, question.release).tensors:
        sizes[t.layer] += t.nbytes
    return sizes


def _size(t: ModelTensor, buft: BufferType) -> int:
    return buft.padded_size(new_tensor(t.type, *t.ne))
