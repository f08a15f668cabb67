"""Reported model of a run: the broadcast one, or a mean.

``average`` names the mean: Polyak and Juditsky, Acceleration of Stochastic Approximation by
Averaging (1992), over the last half of the rounds (``tail``) or all (``ergodic``), or with decaying
weights (``ema``). Sites train from the broadcast model whatever it is. A mean of noisy models costs
no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from hdpfl_flower import server_wire
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.updates import Outcome

Vector = npt.NDArray[np.float32]
DECAY = 0.8
"""Share of the last mean that is kept in a round, of ``average = "ema"``."""


@dataclass(frozen=True)
class ReportedState:
    """State of the reported model between rounds.

    Attributes:
        mean: of the models so far, float64, shape ``(d,)``; None: none counts yet.
        count: the models in it.
        ahead: reported − broadcast model of the last round by the strategy itself, float32, shape
            ``(d,)``; None: they are the same.
    """

    mean: npt.NDArray[np.float64] | None = None
    count: int = 0
    ahead: Vector | None = None


class ReportedModel:
    """Which model a run reports.

    Attributes:
        state: after the last round; checkpoints store it.
    """

    def __init__(self, server: ServerTerms, rounds: int) -> None:
        """Prepare for a run of so many ``rounds``."""
        self._kind = server.average
        self._first = rounds // 2 + 1 if self._kind == "tail" else 1
        self.state = ReportedState()

    def take_in(self, server_round: int, record: ArrayRecord, outcome: Outcome) -> Outcome:
        """Take in a round's model; return the outcome with gauges.

        Args:
            server_round: from 1.
            record: the model that sites train from now on.
            outcome: the round's, after the server's step.

        The journal's ``averaged_models`` counts the models in the mean that is reported.
        """
        if self._kind == "none" and outcome.reported is None:
            return outcome
        ahead = None if outcome.reported is None else outcome.reported - outcome.update
        self.add(server_round, flatten(server_wire.read_own(record)), ahead)
        if not (count := self.state.count):
            return outcome
        return replace(outcome, gauges={**outcome.gauges, "averaged_models": float(count)})

    def record(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the record of the reported model."""
        if not self.differs:
            return arrays
        broadcast = server_wire.read_own(arrays)
        return server_wire.write_model(unflatten(self.model(flatten(broadcast)), broadcast))

    @property
    def differs(self) -> bool:
        """Whether it is another model than the broadcast one."""
        return self.state.mean is not None or self.state.ahead is not None

    def add(self, server_round: int, model: Vector, ahead: Vector | None) -> None:
        """Take in a round's model.

        Args:
            server_round: from 1.
            model: broadcast from now on, shape ``(d,)``.
            ahead: the strategy's reported model, less ``model``; None: they are the same.
        """
        state = self.state
        if self._kind == "none" or server_round < self._first:
            self.state = ReportedState(ahead=ahead)
            return
        reported = model.astype(np.float64)
        if ahead is not None:
            reported += ahead
        if state.mean is None:
            mean = reported
        else:
            share = 1 - DECAY if self._kind == "ema" else 1 / (state.count + 1)
            mean = state.mean + share * (reported - state.mean)
        self.state = ReportedState(mean, state.count + 1, ahead)

    def model(self, broadcast: Vector) -> Vector:
        """Return the reported model, shape ``(d,)``."""
        state = self.state
        if state.mean is not None:
            return state.mean.astype(np.float32)
        return broadcast if state.ahead is None else broadcast + state.ahead
