"""A plan never has fewer bytes of weights on GPUs than llama.cpp's own ``--fit``: when that is asked, and what then."""

from __future__ import annotations

from memplan.planning.attempt import MANY, Attempt
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import HOST
from memplan.planning.llama_fit import LUCK, fit_sizes, replay_fit
from memplan.planning.problem import Candidate, leaves_margins
from memplan.planning.search import Search


def no_less_than_fit(search: Search, found: Candidate | None) -> Candidate | None:
    """``found``, or the placement with the fewest layers on the host that has as many weights on GPUs as ``--fit``'s.

    ``--fit`` may put whole layers on the host where their attention would have had room, and fill that with experts.
    And its patterns take a layer's shared expert along: where experts of the first layers, which route by token, are on
    the host, that may close a hole in the compute buffer that is as large as an expert tensor.
    """
    costs = search.costs()
    if costs is None or (found is not None and not (found.layout.first or found.layout.host)):
        return found
    most = search.most if found is not None else None
    if found is not None and most is not None and most.weights <= found.weights:
        most = None
    always = costs.n_items > search.model.hparams.n_layer + 1  # --fit leaves layers of MTP out of its count
    if found is not None:
        # asked of every model, since bounds look at the least buffer seen
        always = _may_be_lucky(search, costs, found) or always
        always = always or (search.more and found is not search.most)
        always = always or _has_room(search, costs, found) or _reaches_more(search, costs, found)
    answer = replay_fit(search, costs, always, 0 if found is None else found.weights)
    if answer is None or not leaves_margins(answer.estimate, search.problem.margins):
        return found
    if found is not None and found.weights >= answer.weights:
        return found
    if most is not None and most.weights >= answer.weights:
        return most
    last = costs.n_items - answer.layers
    computes = search.least_computes(answer.estimate)
    for first in range(found.layout.first + 1 if found else 0, last + 1):
        attempt = Attempt(search, costs, not search.flags.op_offload, (first,))
        other = attempt.with_weights(answer.weights, computes)
        if other is not None and other.weights >= answer.weights:
            return other
    return answer.candidate(search, costs)


def _has_room(search: Search, costs: LayerCosts, found: Candidate) -> bool:
    """Whether a GPU has room for an expert of its own layers on the host: other holes in its buffer may be better."""
    margins, homes = search.problem.margins, found.layout.homes()
    left = {d: found.estimate.devices[device].left - margins[d] for d, device in enumerate(costs.devices)}
    host = (e for layer in costs.experts[found.layout.first :] for e in layer if e.names[0] in found.layout.host)
    return any(e.size <= left[homes[e.layer]] for e in host)


def _reaches_more(search: Search, costs: LayerCosts, found: Candidate) -> bool:
    """Whether ``--fit`` has more experts in the same rooms: it takes the shared expert of a layer in part along,
    and that may be what another expert lacks.
    """
    margins, gpus = search.problem.margins, search.problem.rig.gpus
    computes = search.least_computes(found.estimate)
    rooms = [gpus[d].free - margins[d] - compute for d, compute in zip(costs.devices, computes, strict=True)]
    layers = costs.experts[found.layout.first :]
    on_gpus = sum(e.size for layer in layers for e in layer if e.names[0] not in found.layout.host)
    least = min((e.size for layer in layers for e in layer), default=0) if len(rooms) >= MANY else 1
    return fit_sizes(search, costs).most(found.layout.first, (), rooms) - on_gpus >= least


def _may_be_lucky(search: Search, costs: LayerCosts, found: Candidate) -> bool:
    """Whether a shared expert on the host beside experts of the first layers makes the first compute buffer smaller."""
    hashed = costs.experts[: search.model.layers_routed_by_token]
    layers = sorted({e.layer for layer in hashed for e in layer if e.names[0] in found.layout.host})
    if found.layout.no_op_offload or "-ot" not in found.args:
        return False
    first = costs.devices[0]
    for il in layers[:2]:
        other = search.estimate((*found.args, "-ot", rf"\.{il}\.ffn_gate_shexp={HOST}"))
        if other.refused is None and other.devices[first].compute < found.estimate.devices[first].compute - LUCK:
            return True
    return False
