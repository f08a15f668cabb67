"""What a run promises to whom, for the journal and ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hdpfl_flower.central_noise import CentralPlan
from hdpfl_flower.config import RunTerms

NO_PRIVACY = "no privacy"
_UNIT = {
    "records": "one record of one client",
    "server": "one client with all of its records",
    "client": "one client with all of its records",
}
_TRUST = {
    "records": "the server is trusted with nothing; each client keeps its own account",
    "server": "the server is trusted: it sees clipped updates without noise and who took part, "
    "adds the noise and keeps the account; the promise is against whoever sees the models. This "
    "journal names who took part: keep it with the server",
    "client": "the server is trusted with nothing; each client noises its whole update and keeps "
    "its own account, without amplification by sampling",
}


def describe(
    terms: RunTerms,
    menu: Sequence[float],
    level_of: Mapping[str, int],
    plan: CentralPlan | None,
) -> dict[str, Any]:
    """Return who adds noise, what is protected from whom, and every level's ε and size.

    A level's ε is public, for its sites disclosed it. Where the sites account for themselves, a
    site's own ε may be stricter than its level's only if its profile says so; none is looser.
    """
    levels = []
    for j, epsilon in enumerate(menu):
        level: dict[str, Any] = {
            "epsilon": epsilon,
            "sites": sum(1 for each in level_of.values() if each == j),
            "promise": NO_PRIVACY if math.isinf(epsilon) else "differential privacy",
        }
        if plan is not None:
            level["delta"] = plan.levels[j].delta
            level["noise-multiplier"] = plan.levels[j].noise_multiplier
            level["divisor"] = plan.levels[j].expected
        levels.append(level)
    facts: dict[str, Any] = {
        "noise": terms.noise,
        "unit": _UNIT[terms.noise],
        "relation": "add or remove one such unit",
        "trust": _TRUST[terms.noise],
        "scope": "this run alone; the ε of several runs add up",
        "levels": levels,
    }
    if plan is not None:
        facts["sampling-prob"], facts["rounds"] = plan.sampling_prob, plan.rounds
        facts["bit-noise"] = plan.bit_noise
    return facts
