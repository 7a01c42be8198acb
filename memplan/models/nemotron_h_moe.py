"""Nemotron-H with experts in place of dense feed-forward parts: Nemotron 3.

Follows src/models/nemotron-h-moe.cpp and nemotron-h.cpp, v0.5.0.
"""

from __future__ import annotations

from memplan.models.nemotron_h import NemotronH


class NemotronHMoe(NemotronH):
    """``llama_model_nemotron_h_moe``: what it has of its own is the graph of its MTP block."""

    name = "nemotron_h_moe"


ARCHITECTURE = NemotronHMoe()
