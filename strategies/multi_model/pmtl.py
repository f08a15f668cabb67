"""PMTL-FT: every site trains a model pulled to the mean of all, then tunes all of it.

Hu, Wu and Smith, Private Multi-Task Learning: Formulation and Applications to Federated Learning
(TMLR 2023), by the form of Liu et al. (NeurIPS 2022) that ``mr-mtl`` has; then ``tuning-steps``
noisy steps without the pull, a baseline of DP-pFedDSU (arXiv:2503.09192). The steps are DP-SGD's
and charged with the rounds', T + ``tuning-steps`` in all; by default they are as many as one
round's. The tuned model stays at its site.

Threat model: as for ``mr-mtl``.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.multi_model.mr_mtl import MRMTL
from strategies.personal.own_terms import with_tuning


class PMTL(MRMTL):
    """A model a site, a pull to their mean, and tuning at the end."""

    name = "pmtl"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with λ and the tuning of all coordinates."""
        return super().complete_terms(with_tuning(terms, cls.name, "all"))
