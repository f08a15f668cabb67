"""IFCA under differential privacy: sites choose among M models, which grow apart by it.

Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning (NeurIPS
2020), in the form that is R-DPCFL's baseline (Malekmohammadi, Taik and Farnadi, TMLR 2025): sites
choose privately in a tenth of the rounds (``selections``) and keep their model then. All models
start from the common one, where every choice is a toss: in round 1 the server tosses, and nothing
is charged for it. The choices are charged in one accounting with the training.

Threat model: an untrusted server; each site's noise protects its records in updates and choices
alike. No site discloses anything.

Known limit: the models must grow apart by chance, which noise hides.
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates
from strategies.multi_model.private_choice import Choosing
from strategies.multi_model.groups import Ask, Grouped
from strategies.core.rule import Disclosed, State


class IFCA(Choosing):
    """M models from a common start, told apart by the sites' choices alone."""

    name = "ifca"

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Choosing.propose`; raises ``StrategyError`` without a number of models."""
        if terms.clusters < 2 or not terms.selection_share:
            raise StrategyError(
                "'ifca' needs the number of models, and choices: set 'clusters' to 2 or more and "
                "'selection-share' above 0"
            )
        return super().propose(terms, disclosed)

    def begin(self, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.begin`."""
        models = max(self.terms.clusters, 1)
        tosses = [np.random.default_rng([self.terms.seed, *s.encode()]) for s in updates.sites]
        return Grouped(np.array([int(t.integers(models)) for t in tosses], np.int64), models)

    def ask(self, state: State, server_round: int, site: str) -> Ask:
        """See :meth:`ManyModels.ask`."""
        if self.may_choose(state, site):
            return self.ask_to_choose(state, site)
        return super().ask(state, server_round, site)
