"""The shared pieces of graphs (``llm_graph_context``), and ``GraphContext``, which has them all."""

from __future__ import annotations

from memplan.llama.graph.attention import Attention, AttnInputs, IswaInputs
from memplan.llama.graph.base import Crossing, GraphBase, H, Source
from memplan.llama.graph.feed_forward import FeedForward
from memplan.llama.graph.sampling import Sampling

__all__ = ["AttnInputs", "Crossing", "GraphBase", "GraphContext", "IswaInputs", "Source"]


class GraphContext(Attention[H], FeedForward[H], Sampling[H]):
    """What an architecture's graph is built with; see ``memplan.models.base`` for what it adds."""
