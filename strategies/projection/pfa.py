"""PFA: private updates are projected on the subspace of the public updates.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021), Algorithms 2 and 3: sites are split by ε into public and private; the private sites'
mean is projected on the top directions of the public updates; both are combined by their share of Σ
ε. Four published maps differ, and ``subspace`` names three: ``mean`` is Algorithm 3 as printed
(Σ = mean·meanᵀ has rank 1, so any k above 1 is the same), ``span`` is Appendix D.2, ``centred`` is
the authors' code. The fourth, of Robust-HDP's code, standardises each coordinate over the public
updates and is not offered, nor is the authors' projection of each parameter on its own. The public
sites are those of ``public-split``, among all sites that joined;
PFA's own split is ``gmm``.

Threat model: an untrusted server to which each site discloses its ε, which the updates' own (ε, δ)
does not cover; an overstated ε makes a site public and lets it choose the subspace. Projection is
post-processing of noisy updates: it costs no budget. Here every site sends its whole
update; for one number in its place see ``pfa_plus.py``.

Known limit: with tight accounting PFA need not beat WeiAvg, or the public sites alone
(``public-only``); compare with both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.linalg.projection import project_private
from hdpfl_flower.linalg.sums import inner_products, weighted_sum
from hdpfl_flower.updates import RoundUpdates
from strategies.projection.base import Projected, Projection, ProjectionSettings


class SubspaceSettings(ProjectionSettings):
    """Which directions the private part is projected on."""

    subspace: Literal["span", "centred", "mean"] = Field(
        "span",
        description="Directions that are kept: those of the public updates (span), those of "
        "the public updates minus their mean (centred), or only the direction of "
        "their weighted mean (mean).",
    )


class PFA(Projected):
    """Project private updates on the directions of public updates; default weights follow ε."""

    name = "pfa"
    settings_type = SubspaceSettings
    settings: SubspaceSettings

    def project(
        self,
        updates: RoundUpdates,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Projection:
        """Return the projected private part plus the public part."""
        settings, rows = self.settings, updates.updates
        # A projection of rows on rows is a combination of rows: (n, n) products and n coefficients
        # are enough, and no (d, k) basis is made.
        coefficients, directions = project_private(
            inner_products(rows), weights, public, settings.subspace_rank, settings.subspace
        )
        return weighted_sum(coefficients, rows), directions
