"""MMSE averaging: weights of the least mean squared error.

Ours, on top of Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially
Private Federated Learning (ICML 2024). The weights are those of
``hdpfl_flower/weighting/least_error.py``.

Threat model: an untrusted server that learns nothing but the noisy updates, and batch sizes,
records and ε where sites disclose them. k is the terms' ``local-steps``, or ⌈K·N/b⌉ of disclosed
facts; a lie about it changes a site's share tenfold at most (``local_steps.py``). A site that
discloses ε, too, counts as no quieter than an honest site of these facts (``claimed_noise.py``).
Without any the target is the plain mean of the updates.

Known limits: as long as no difference is above the noise of the run so far, the weights lean to the
quiet clients: where these are odd, a run that ends before goes their way. After a server step with
rates of its own (``+adam``, ``+anderson``), inside another part (``mmse+fedprox``) and with the
guard ``cap`` only coming rounds return to the target. Lies about content are a guard's business.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.claimed_noise import CLAIMS
from hdpfl_flower.weighting.inverse_variance import RobustHDPSettings
from hdpfl_flower.weighting.least_error import LeastError, MMSEState
from strategies.core.base import Declaration, Disclosed, HDPStrategy


class MMSE(HDPStrategy):
    """Weigh updates for the least mean squared error, by class row.

    Attributes:
        by_row: whether the weights may differ by row.
    """

    name = "mmse"
    by_row: ClassVar[bool] = True
    settings_type = RobustHDPSettings
    settings: RobustHDPSettings

    @property
    def rule(self) -> LeastError:
        """The weights' rule under the run's terms."""
        return LeastError(self.terms, self.settings, self.by_row, self.declare().is_final)

    def declare(self) -> Declaration:
        """Declare the facts that show a site's steps and bound its noise.

        The step may be longer than any client's, and later rounds may take back a part of it,
        unless the guard bounds the weights after them.
        """
        facts, is_final = CLAIMS | self.settings.facts, self.server.guard == "cap"
        return Declaration(
            optional_facts=facts, is_convex=False, is_final=is_final, survives_projection=False
        )

    def inside(self) -> HDPStrategy:
        """Return the form with one weight per client."""
        return OneWeightMMSE(self.config)

    def initial_state(self, disclosed: Disclosed | None = None) -> MMSEState:
        """Return no uploads and no sums."""
        return MMSEState()

    def combine(
        self, state: Any, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[Any, Outcome]:
        """Return the step of the rule."""
        return self.rule.combine(state, updates)

    def after_step(self, state: Any, moved: Outcome) -> Any:
        """Return the state with the departure as the server's step has moved the model by it."""
        return self.rule.after_step(state, moved)


class OneWeightMMSE(MMSE):
    """MMSE averaging with one weight per client and final steps, for parts."""

    by_row = False

    def declare(self) -> Declaration:
        """Declare the same facts, and final steps."""
        return replace(super().declare(), is_final=True)
