"""Statement of a run's privacy, for journal and ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.central_dp import CentralPlan
from hdpfl_flower.privacy.unit import unit_of
from hdpfl_flower.releases.feasibility import rules_of

NO_PRIVACY = "no privacy"
PRIVATE = "differential privacy"


def describe(terms: RunTerms) -> dict[str, Any]:
    """Return the place of the noise, and the protection it gives.

    The unit is that of the run's terms (``unit.py``): with an ``id`` in its schema no record, but
    all that one value of it names. Terms that release a function of clean weights violate every
    private site, under whichever strategy. Raises ``DataError`` for a schema that is none.
    """
    protected = unit_of(terms)
    facts: dict[str, Any] = {
        "noise": terms.noise,
        "unit": protected.unit,
        "relation": protected.relation,
        "trust": terms.source.trust,
        "scope": "only this run; the ε of several runs add up",
    }
    if rules := rules_of(terms):
        facts |= rules.facts(terms)
    if terms.epsilon_cap and terms.source.site_plans:
        facts["epsilon-cap"] = terms.epsilon_cap
    # Where a client's update is noised as a whole, in every coordinate, it shows no mask.
    if terms.work.reads_clean_weights and terms.source.per_record:
        facts["violates"], facts["epsilon"] = "every private site", math.inf
    return facts


def describe_levels(
    terms: RunTerms,
    menu: Sequence[float],
    level_of: Mapping[str, int],
    spent: Mapping[str, float],
    plan: CentralPlan | None,
) -> dict[str, Any]:
    """Return :func:`describe` with the ε and size of every level.

    Where the server accounts, a level's ε is that of its menu. Where the sites do, each keeps its
    own, and a level's ε is the largest of them: a bound for every site of the level that did not
    opt out.

    Args:
        terms: the run's.
        menu: ε of each level.
        level_of: site → its level.
        spent: site → the ε that the site itself spends, as it discloses it; every site of
            ``level_of`` is there.
        plan: the server's, where it adds the noise.
    """
    levels, opted_out = [], []
    for j, epsilon in enumerate(menu):
        sites = [site for site, level in level_of.items() if level == j]
        of_level = {site: epsilon if plan else spent[site] for site in sites}
        without = [site for site in sites if math.isinf(of_level[site])]
        opted_out += without
        finite = [value for value in of_level.values() if math.isfinite(value)]
        held = max(finite, default=math.inf if sites else epsilon)
        level: dict[str, Any] = {
            "epsilon": held,
            "sites": len(sites),
            "promise": NO_PRIVACY if math.isinf(held) else PRIVATE,
        }
        if without and finite:
            level["opted-out"] = len(without)
        if plan is not None:
            level["delta"] = plan.levels[j].delta
            level["noise-multiplier"] = plan.levels[j].noise_multiplier
            level["divisor"] = plan.levels[j].expected
        levels.append(level)
    facts = {**describe(terms), "levels": levels, NO_PRIVACY: opted_out}
    if plan is not None:
        facts["sampling-prob"], facts["rounds"] = plan.sampling_prob, plan.rounds
        facts["bit-noise"] = plan.bit_noise
    return facts
