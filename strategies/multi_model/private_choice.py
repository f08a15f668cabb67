"""Private choices: when a site is asked to choose its model, and what its choices add up to.

A choice is one noisy maximum (``hdpfl_flower/privacy/noisy_max.py``), which the site's plan pays for. Over
its choices a site may err; its model is the one with the most votes, where the k-th choice counts
k: the models grow apart, and later choices tell more. The paper keeps the last choice alone.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates
from strategies.multi_model.groups import OWN, Ask, Grouped, check_clusters, models_of
from strategies.multi_model.base import ManyModels
from strategies.core.rule import Disclosed, State

VOTES = "votes/"
"""Of a site: Σ k over its choices of each model, and the number of its choices, shape (M + 1,)."""


def planned_selections(terms: RunTerms) -> int:
    """Return how often a site chooses: as the terms say, or in a tenth of the rounds; 0: never.

    >>> planned_selections(RunTerms(rounds=25)), planned_selections(RunTerms(selections=3))
    (3, 3)
    """
    if not terms.selection_share:
        return 0
    return terms.selections or math.ceil(terms.rounds / 10)


class Choosing(ManyModels):
    """Sites choose among the models, in so many rounds as their plans pay for.

    Attributes:
        chooses: sites' plans pay for choices.
    """

    chooses: ClassVar[bool] = True

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Rule.propose`: how many choices there will be.

        Raises:
            StrategyError: terms with which no site could plan for choices; more models than sites.
        """
        terms = super().propose(terms, disclosed)
        selections = planned_selections(terms)
        check_clusters(terms, len(self.roster.eligible()))
        if terms.noise_multiplier or terms.participations or terms.calibration != "pld":
            raise StrategyError(
                f"'{terms.strategy}': sites plan for a first batch or choices of their own; leave "
                "'noise-multiplier', 'participations' and 'calibration' out"
            )
        if selections and not task_for(terms).classes:
            raise StrategyError(
                f"'{terms.strategy}': sites choose by the records that a model gets right, and a "
                "regression has none; set 'selection-share' to 0"
            )
        return terms.updated(selections=selections)

    def may_choose(self, state: State, site: str) -> bool:
        """Tell whether a site's plan has a choice left, and there is one."""
        return models_of(state) > 1 and choices_of(state, site) < self.terms.selections

    def ask_to_choose(self, state: State, site: str) -> Ask:
        """Return the request for a choice."""
        return Ask(self.home(state, site), wire.CHOOSE)

    def go_on(self, state: State, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.go_on`; the votes of the sites that chose are counted."""
        found, votes = super().go_on(state, updates), {}
        chose = updates.chose if updates.chose is not None else np.zeros(len(found.group), np.bool_)
        for site, model in zip(updates.sites, found.group, strict=True):
            if chose[updates.sites.index(site)]:
                tally = _tally(state, site)
                tally[-1] += 1
                tally[model] += tally[-1]
                votes[VOTES + site] = tally
        return Grouped(found.group, found.models, votes, {"chose": chose.astype(np.float64)})

    def home(self, state: State, site: str) -> int:
        """See :meth:`ManyModels.home`: of a site that chose, the model with the most votes."""
        tally = _tally(state, site)
        return int(np.argmax(tally[:-1])) if tally[-1] else super().home(state, site)


def choices_of(state: State, site: str) -> int:
    """Return how many choices a site has made."""
    return int(_tally(state, site)[-1])


def _tally(state: State, site: str) -> np.ndarray:
    known = state.get(OWN + VOTES + site)
    return np.zeros(models_of(state) + 1) if known is None else known.copy()
