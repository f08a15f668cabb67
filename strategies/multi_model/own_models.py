"""Hooks of strategies with one model per site: ``local``, ``mr-mtl``, ``pmtl``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hdpfl_flower import wire
from hdpfl_flower.updates import RoundUpdates
from strategies.core.interface import SiteRequest
from strategies.core.roster import site_order
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import UNKNOWN, Assignment, trained_groups


def first_models(strategy: MultiModel, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
    """Return a group of its own for each client."""
    del strategy
    ranks = {site: i for i, site in enumerate(sorted(updates.sites, key=site_order))}
    return state, Assignment(np.array([ranks[site] for site in updates.sites]), len(ranks))


def models_with_new_sites(
    strategy: MultiModel, state: Any, updates: RoundUpdates
) -> tuple[Any, Assignment]:
    """Return the groups; each new site that answered starts a model."""
    del strategy
    group, models = trained_groups(updates).copy(), state.models
    # All newcomers were sent the same next number; here each gets one of its own.
    new = np.flatnonzero(group >= models)
    group[new] = models + np.arange(len(new))
    return state, Assignment(group, models + len(new))


def own_model(strategy: MultiModel, state: Any, server_round: int, site: str) -> SiteRequest:
    """Return the site's own model, initially the common one."""
    del strategy, server_round
    group = state.group_of(site)
    return SiteRequest(state.models if group == UNKNOWN else group)


def own_model_and_mean(
    strategy: MultiModel, state: Any, server_round: int, site: str
) -> SiteRequest:
    """Return the site's own model and, if there is a pull, the mean."""
    use = wire.PULL if strategy.terms.work.pull_factor else ""
    return replace(own_model(strategy, state, server_round, site), use=use)
