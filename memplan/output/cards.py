"""The cards that memplan knows by name, as a table or as JSON."""

from __future__ import annotations

import json

from memplan.backends.known import KnownCard, known_cards


def known_object() -> str:
    """All of them as one JSON object; memory in MiB, bandwidth in GB/s, null for what varies or is not there."""
    cards = [
        {
            "name": card.name,
            "maker": card.maker,
            "backend": card.backend,
            "total_mib": card.total_mib,
            "bandwidth_gb_s": card.bandwidth,
            "multiprocessors": card.sms,
            "compute_capability": _capability(card) or None,
        }
        for card in known_cards()
    ]
    return json.dumps({"cards": cards}, indent=2)


def render_known() -> str:
    """All of them, a line each."""
    lines = [f"{'card':20}{'maker':8}{'backend':>8}{'MiB':>9}{'GB/s':>7}{'SMs':>5}{'CC':>6}"]
    for card in known_cards():
        mib = "" if card.total_mib is None else f"{card.total_mib:,}"
        bandwidth = "" if card.bandwidth is None else f"{card.bandwidth:,.0f}"
        name, backend = f"{card.name:20}{card.maker:8}", "Metal" if card.backend == "MTL" else card.backend
        lines.append(f"{name}{backend:>8}{mib:>9}{bandwidth:>7}{card.sms or '':>5}{_capability(card):>6}".rstrip())
    lines += [
        "MiB: what the driver calls the whole, as llama.cpp printed it, else nvidia-smi's or the nominal figure.",
        "GB/s: its memory's peak, and SMs its multiprocessors, from its maker's data sheet. A Mac's chip is taken",
        "with the most memory that it comes with; MiB is what Metal lets a GPU take of it.",
        "Free is taken as the whole less 400 MiB, on a Mac as the whole, unless it is given.",
    ]
    return "\n".join(lines) + "\n"


def _capability(card: KnownCard) -> str:
    return "" if card.compute_capability is None else "{}.{}".format(*card.compute_capability)
