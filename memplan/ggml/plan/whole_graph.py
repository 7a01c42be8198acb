"""A graph in parts, tensor by tensor again: for backends whose answers about a split depend on all of it.

Splits of like layers are alike: what of one counts is written down as its form, and asked about once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from memplan.ggml.backend import Traits
from memplan.ggml.plan.parts import GraphParts
from memplan.ggml.plan.schedule import Schedule
from memplan.ggml.tensor import Tensor, same_layout

Kept = tuple[int, int]
"""A tensor, and the backend whose copy of it is meant; -1 for the tensor itself."""


@dataclass(frozen=True, slots=True)
class SplitForm:
    """A split as what its backend goes by.

    ``key``: equal for splits about which the answer is the same.  ``kept``: the tensors that it speaks of, in the order
    in which they are met, which is how answers number them.  ``nodes``: ids.  ``after``: that of the next node, or -1.
    """

    key: Hashable
    kept: tuple[Kept, ...]
    nodes: Sequence[int]
    after: int
    backend: int


class WholeGraph:
    """A graph's tensors made anew, each once, as they are asked for; ``names`` says what each one is."""

    def __init__(self, graph: GraphParts, schedule: Schedule) -> None:
        self.graph = graph
        self.structure = structure = schedule.structure
        self.names: dict[Tensor, Kept] = {}
        self._made: dict[Kept, Tensor] = {}
        self._buffers = structure.buffers(graph)
        self._uses = structure.uses
        self._copies = {(i, j) for i, j, _ in schedule.copies}

    def form(self, start: int, end: int, backend: int, traits: Callable[[Tensor], Traits]) -> SplitForm:
        """The form of the split of ``backend`` between two places in the structure's order.

        Its nodes, the tensors that they read, and those that these read; of the last only what they are.
        """
        structure = self.structure
        at, ref, srcs, base, uses, copies = (
            structure.at, structure.ref, structure.srcs, structure.base, self._uses, self._copies,
        )  # fmt: skip
        nodes = structure.order[start:end]
        after = structure.order[end] if end < len(structure.order) else -1
        numbers: dict[Kept, int] = {(i, -1): n for n, i in enumerate(nodes)}
        parts: dict[int, int] = {}
        compared: dict[Hashable, int] = {}
        key: list[Hashable] = [len(nodes)]

        def number(i: int, copy: int = -1) -> int:
            return numbers.setdefault((i, copy), len(numbers))

        def what(i: int) -> Hashable:
            position = at[i]
            if position < 0:
                given = self.graph.inputs[ref[i]]
                return given.type.name, given.ne
            found = parts.get(position)
            if found is None:
                found = parts[position] = len(parts)
                alike, values = self.graph.parts[position].alike(traits)
                key.append((alike, *[compared.setdefault(value, len(compared)) for value in values]))
            return found, ref[i]

        def owner(i: int) -> int:
            return number(base[i]) if base[i] >= 0 else -1

        for i in nodes:
            read = [number(s, backend if (i, j) in copies else -1) for j, s in enumerate(srcs[i])]
            key.append((what(i), uses[i], owner(i), *read))
        done = len(nodes)
        for depth in (0, 1):
            met = list(numbers)[done:]
            done += len(met)
            for i, copy in met:
                own = srcs[i] if copy < 0 and not depth else ()
                key.append((what(i), copy < 0, uses[i], owner(i), *map(number, own)))
        key.append(None if after < 0 else what(after))
        return SplitForm(tuple(key), tuple(numbers), nodes, after, backend)

    def nodes(self, form: SplitForm) -> tuple[list[Tensor], Tensor | None]:
        """A split's nodes with their sources, copies in place of what lies elsewhere; and the node after them."""
        srcs, inside = self.structure.srcs, set(form.nodes)
        for i in form.nodes:
            read = [(s, form.backend if (i, j) in self._copies else -1) for j, s in enumerate(srcs[i])]
            for s, copy in read:
                if copy < 0 and s not in inside:
                    self._tensor(s).src = list(map(self._tensor, srcs[s]))
            self._tensor(i).src = [self._tensor(s) if copy < 0 else self._copy(s, copy) for s, copy in read]
        return [self._tensor(i) for i in form.nodes], self._tensor(form.after) if form.after >= 0 else None

    def forget(self) -> None:
        """Let tensors go one by one: a chain of thousands is more than a browser's stack takes."""
        for tensor in self.names:
            tensor.src.clear()

    def _tensor(self, i: int) -> Tensor:
        """The tensor of one id, without sources unless a split has given it some."""
        t = self._made.get((i, -1))
        if t is None:
            at, r = self.structure.at[i], self.structure.ref[i]
            of = self.graph.parts[at].tensor(r) if at >= 0 else self.graph.inputs[r]
            base = self.structure.base[i]
            view_src = self._tensor(base) if base >= 0 else None
            t = Tensor(of.op, of.type, of.ne, of.nb, [], view_src, of.view_offs, of.kind, of.params, of.name)
            t.flags = of.flags
            t.uses = self._uses[i]
            t.buffer = self._buffers[i]
            self._keep(t, (i, -1))
        return t

    def _copy(self, i: int, backend: int) -> Tensor:
        return self._made.get((i, backend)) or self._keep(same_layout(self._tensor(i)), (i, backend))

    def _keep(self, t: Tensor, name: Kept) -> Tensor:
        self._made[name] = t
        self.names[t] = name
        return t
