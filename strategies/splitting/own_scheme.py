"""Operator splitting with chosen relaxations; FedProx to FedPi are special cases.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021), with
``splitting.alpha``, ``beta`` and ``gamma``; the defaults are FedPi's, after Pathak and Wainwright
(NeurIPS 2020). Its fixed points solve the Moreau-regularised problem at η(α + β − αβ)/β (ours):
``Scheme.effective_step``. With β = 1 all starts are equal, and ``fedprox`` with the server's rate
αγ is the same run, with any weights and without the memory.

Threat model: as ``fedsplit``.
"""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import Positive, Settings
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scheme import Scheme


class OwnSchemeSettings(Settings):
    """The relaxations."""

    alpha: Positive = Field(
        2.0, description="Relaxation of the clients' proximal maps. 2 reflects."
    )
    beta: Positive = Field(
        2.0,
        description="Relaxation of the mean over clients. With 1 all sites start from one model.",
    )
    gamma: Positive = Field(0.5, description="Relaxation of the whole step.")


class OwnScheme(OwnStarts):
    """Operator splitting with α, β and γ of the run config."""

    name = "splitting"
    settings_type = OwnSchemeSettings
    settings: OwnSchemeSettings

    @property
    def scheme(self) -> Scheme:
        """The relaxations of the settings."""
        return Scheme(self.settings.alpha, self.settings.beta, self.settings.gamma)
