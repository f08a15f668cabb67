"""What the journal says of a round: who took part, with what weight, and how long it took."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hdpfl_flower.monitoring.series import PHASES
from strategies.core.round_report import RoundReport


def round_facts(report: RoundReport, online: int) -> dict[str, Any]:
    """Return what the journal says of a round; ``online``: the sites that were there."""
    outcome, facts = (
        report.outcome,
        {
            "round": report.server_round,
            "online": online,
            "asked": report.asked,
            "accepted": report.accepted,
            "rejected": report.rejected,
            "quorum": report.quorum,
            "bytes_down": report.bytes_down,
            "bytes_up": report.bytes_up,
        },
    )
    if report.norms:
        facts["norms"] = [round(norm, 6) for norm in report.norms]
    if outcome is not None:
        facts["weights"] = outcome.weights
        facts["gauges"] = dict(outcome.gauges)
    return facts


def round_times(laps: list[float]) -> dict[str, Any]:
    """Return how long a round took, and what its time went to, in seconds."""
    parts = (round(end - begin, 4) for begin, end in pairwise(laps))
    return {
        "seconds": round(laps[-1] - laps[0], 4),
        "phases": dict(zip(PHASES, parts, strict=True)),
    }
