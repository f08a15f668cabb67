"""Server step: the move of the model by a round's aggregate Δ.

Reddi et al., Adaptive Federated Optimization (ICLR 2021), Algorithm 1 (FedOpt): the server treats Δ
as a gradient of its own. This file has its plain form, x ← x + ηₜΔ with ``server-learning-rate``
and ``server-schedule``; ``momentum.py``, ``adaptive.py`` and ``anderson.py`` have the others, which
follow a strategy's name after a ``+``. A step acts after the guard and sees the aggregate alone,
so that it goes with any weights; it is post-processing of noisy updates and costs no privacy.

Threat model: that of the strategy before the ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import FOUND
from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import AUTO
from hdpfl_flower.linalg.types import Updates
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.server_step.schedule import read_schedule


@dataclass(frozen=True)
class NoPast:
    """State of a step without memory."""


PAST: Mapping[str, str] = {
    "one_model": "leave it out, and set 'server-learning-rate'",
    "common_start": "leave it out; 'server-learning-rate' moves the model and the sites' starts",
}
"""Needs of steps with a past: of one model that all sites start from."""


def table_of(part: type[Any]) -> str:
    """Return the name before the dot of the settings of a strategy or server step.

    A class that inherits its settings has the table of the class that declares them.
    """
    if table := getattr(part, "_table", ""):
        return str(table)
    owner = next(base for base in part.__mro__ if "settings_type" in vars(base))
    return str(vars(owner).get("name", part.name))


class NoSettings(Settings):
    """Of a strategy or step without a setting of its own."""


class ServerStep:
    """The plain step, x ← x + ηₜΔ.

    Attributes:
        name: the word after the ``+``; empty: the plain step.
        settings_type: the class of its settings.
        is_linear: whether a part of Δ moves the model, in the end, by the same multiple in every
            round: then a guard can take a part out of the model again.
        default_rate: η where ``server-learning-rate`` is ``auto``.
        needs: properties that the strategy must offer, each with the remedy.
        settings: its own, of the run.

    Guarantees:
        With rate 1 the plain step returns Δ itself, to the bit.
    """

    name: ClassVar[str] = ""
    settings_type: ClassVar[type[Settings]] = NoSettings
    is_linear: ClassVar[bool] = True
    default_rate: ClassVar[float] = 1.0
    needs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``.

        Raises:
            TermsError: its settings or the schedule are wrong.
        """
        table = table_of(type(self))
        self.settings = self.settings_type.parse(config.settings.get(table, {}), f"{table}.")
        given = config.server.server_learning_rate
        self._rate = self.default_rate if given in (AUTO, FOUND) else float(given)
        self._schedule = read_schedule(
            config.server.server_schedule, config.terms.rounds, "server-schedule"
        )

    def rate(self, server_round: int) -> float:
        """Return ηₜ of a round, from 1."""
        return self._rate * self._schedule(server_round)

    def initial_state(self) -> Any:
        """Return the state before round 1, a frozen dataclass; checkpoints store it."""
        return NoPast()

    def move(self, state: Any, outcome: Outcome, updates: RoundUpdates) -> tuple[Any, Outcome]:
        """Return the next state, and the outcome with the step as update.

        Args:
            state: after the last round; not changed.
            outcome: of the strategy, after the guard; not changed.
            updates: the round's, for steps that ask how noisy the aggregate is; not changed.

        The journal's ``server_rate`` is ηₜ; it is left out where the step is Δ itself. A revision
        of earlier rounds is added; a step that can do nothing of the kind leaves it out.
        """
        rate, past = self.rate(updates.server_round), outcome.revision
        if past is not None:
            move = np.float32(rate) * outcome.update
            move += past.move
            return state, moved_by(outcome, move, rate)
        if rate == 1:
            return state, outcome
        return state, scaled(outcome, rate)


def moved_by(outcome: Outcome, update: Updates, rate: float) -> Outcome:
    """Return the outcome with ``update`` as its step and the rate.

    A model that the strategy reports beside the broadcast one stays as far from it as it was.
    """
    ahead = None if outcome.reported is None else outcome.reported - outcome.update
    return replace(
        outcome,
        update=update,
        reported=None if ahead is None else update + ahead,
        gauges={**outcome.gauges, "server_rate": rate},
    )


def scaled(outcome: Outcome, rate: float) -> Outcome:
    """Return the outcome with its update times ``rate``, and the rate."""
    reported = None if outcome.reported is None else np.float32(rate) * outcome.reported
    return replace(
        outcome,
        update=np.float32(rate) * outcome.update,
        reported=reported,
        gauges={**outcome.gauges, "server_rate": rate},
    )
