"""A placement, and the flags that ask llama.cpp for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.planning.layer_costs import Expert, LayerCosts
from memplan.planning.overrides import override_words, write_overrides

HOST = "CPU"
"""llama.cpp's buffer type name for the host."""

EVERY_LAYER = 99
"""What people write for ``-ngl``: more layers than the model has."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where layers and experts go.

    Attributes:
        first: items before this one are on the host.
        ends: each device's layers end before this item; it begins where the one before ends.
        host: names of experts on the host, though their layer is on a GPU.
        moved: names of experts on another GPU than their layer's, and the device.
        one_copy: whether an override is wanted for its own sake: any turns pipeline parallelism off.
        no_op_offload: whether experts on the host are computed there, for prompts too.
    """

    first: int
    ends: tuple[int, ...]
    host: frozenset[str] = frozenset()
    moved: Mapping[str, int] = field(default_factory=dict)
    one_copy: bool = False
    no_op_offload: bool = False

    def ranges(self) -> list[tuple[int, int]]:
        """Each device's first item and the one after its last."""
        begins = (self.first, *self.ends[:-1])
        return list(zip(begins, self.ends, strict=True))

    def place(self, expert: Expert, home: int) -> int:
        """The device of an expert, -1 for the host; ``home``: that of its layer."""
        name = expert.names[0]
        return self.moved.get(name, -1 if name in self.host else home)

    def homes(self) -> list[int]:
        """The device of each item, -1 for the host."""
        homes = [-1] * self.first
        for device, (begin, end) in enumerate(self.ranges()):
            homes += [device] * (end - begin)
        return homes


def layout_args(layout: Layout, costs: LayerCosts) -> list[str]:
    """The flags to add to the user's own: ``-ngl``, ``-ts``, ``-ot``, ``--no-op-offload``, those that are needed."""
    args: list[str] = []
    active = costs.n_items - layout.first
    if costs.first is None:
        all_on_gpus = layout.first == 0 and active <= EVERY_LAYER
        args += ["-ngl", str(EVERY_LAYER if all_on_gpus else active)]
    if len(costs.devices) > 1 and costs.fixed_homes is None and active:
        args += ["-ts", ",".join(str(end - begin) for begin, end in layout.ranges())]
    wanted = {name: HOST for name in layout.host}
    wanted.update((name, costs.names[device]) for name, device in layout.moved.items())
    rules = write_overrides(wanted, costs.all_names)
    if not rules and layout.one_copy:
        rules = [("output_norm", costs.names[layout.homes()[-1]])]
    args += override_words(rules)
    if layout.no_op_offload:
        args.append("--no-op-offload")
    return args
