"""Base of splittings with a start per client; equations in ``starts.py``.

The server keeps two vectors a client, its start and its last answer, and sends each client its own
start. Weights must be the same in every round: P_H would be another projection each round.

The server's rate multiplies γ. The model that a run reports is P_H z.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from hdpfl_flower import wire
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.sums import square_sum
from hdpfl_flower.models.networks import layout_of
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.work import Plain, Work
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, Disclosed, HDPStrategy, Stateless
from strategies.core.declaration import Needs
from strategies.core.interface import RoundSetup, RoundStart, SiteRequest
from strategies.server_step.step import ServerStep
from strategies.splitting.scheme import Scheme
from strategies.splitting.starts import Starts, next_starts, weights_of, with_shares

log = logging.getLogger("hdpfl.server")


@dataclass(frozen=True)
class OwnStartState:
    """The state of a splitting with own starts.

    Attributes:
        starts: of the sites.
        weighting: the state of the strategy that weighs.
    """

    starts: Starts = field(default_factory=Starts)
    weighting: Any = field(default_factory=Stateless)


class OwnStarts(HDPStrategy):
    """Splitting with β ≠ 1."""

    default_weights = FedAvg
    needs_of_weights: ClassVar[Needs] = {
        "constant_weights": "take '+fedprox', or put constant weights, such as 'fedavg' or "
        "'weiavg', before it"
    }
    work: ClassVar[Work] = Plain(pull=0.1)

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The relaxations α, β, γ."""

    def declare(self) -> Declaration:
        """Declare the facts of the weights; the step includes models that the server keeps."""
        offers = super().declare()
        return replace(offers, is_weighted_sum=False, is_convex=False, common_start=False)

    def initial_state(self, disclosed: Disclosed | None = None) -> OwnStartState:
        """Return no starts: all sites begin at the run's initial model.

        Raises:
            TermsError: the sites that take part need more than ``memory-mb``.
        """
        if disclosed is not None:
            self._check_memory(len(disclosed))
        return OwnStartState(weighting=self.weights.initial_state(disclosed))

    def begin_round(self, state: OwnStartState, start: RoundStart) -> RoundSetup:
        """Refuse new sites that there is no memory for."""
        new = [site for site in start.sites if site not in state.starts.shares]
        room = max(0, self._room() - len(state.starts.shares))
        why = "there is no memory for the site's start, because 'memory-mb' is used up"
        return RoundSetup(state, self.terms, dict.fromkeys(new[room:], why))

    def request(
        self, state: OwnStartState, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Return the site's start; before its first answer, the broadcast model.

        One model for all is tested, and sent at the end.
        """
        dual = state.starts.duals.get(site)
        if kind != wire.TRAIN or dual is None:
            return SiteRequest()
        return SiteRequest(own=site, apart=dual)

    def combine(
        self, state: OwnStartState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[OwnStartState, Outcome]:
        """Return the starts after the round, the broadcast model's step and P_H z.

        The journal's ``dual_norm`` is ‖uᵢ − ū‖ of each site after the round, ``absent`` counts the
        sites with a start that sent no update that could be used.
        """
        weighting, weighed = self.weights.combine(state.weighting, updates, noise)
        shares = with_shares(state.starts.shares, updates.sites, weighed.weights)
        before, sites = replace(state.starts, shares=shares), updates.sites
        # The server's step multiplies all that it is given by its rate s: ū moves by sγ…, as the
        # starts do, and P_H z is divided by s.
        rate = ServerStep(self.config).rate(updates.server_round)
        scheme = replace(self.scheme, gamma=rate * self.scheme.gamma)
        starts, move = next_starts(scheme, before, sites, updates.updates)
        absent = sorted(starts.duals.keys() - set(sites))
        if absent:
            log.info(
                "round %d: no update of %s; their last answers count",
                updates.server_round,
                ", ".join(absent),
            )
        gauges = {
            **weighed.gauges,
            "dual_norm": np.sqrt([square_sum(starts.duals[site]) for site in sites]),
            "absent": float(len(absent)),
        }
        outcome = Outcome(
            (move.mean / rate).astype(np.float32),
            weights_of(shares, sites),
            gauges,
            reported=(move.agreed / rate).astype(np.float32),
        )
        return OwnStartState(starts, weighting), outcome

    def _megabytes(self, sites: int) -> float:
        """Return the memory of the starts: the last state and the next."""
        layout = layout_of(self.terms.model, task_for(self.terms))
        bytes_each = 8 + 4  # u − ū, and z − ū
        numbers = sites * sum(array.size for array in layout.values())
        return 2 * bytes_each * numbers * 1e-6

    def _room(self) -> int:
        return int(self.server.memory_mb / self._megabytes(1))

    def _check_memory(self, sites: int) -> None:
        if self._room() < sites:
            raise TermsError(
                f"run config: 'memory-mb' is {self.server.memory_mb:g}, and the starts "
                f"of {sites} sites take {self._megabytes(sites):.0f} MB; raise it, or take "
                "'fedprox', which keeps none"
            )
