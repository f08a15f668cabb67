"""Pulls of proximal maps: λ of every round."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from strategies.server_step.schedule import Schedule, read_schedule


class ProximalSettings(Settings):
    """How the proximal maps change over the rounds."""

    prox_schedule: str = Field(
        "constant",
        description="Factor of eta = 1/pull in round e + 1: constant, log (1/(log10(e + 1) + "
        "1)), sqrt (1/sqrt(e + 1)), inverse (1/(e + 1)), linear (1 - e/E) or "
        "halved:T (halved every T rounds). The pull of a round is the pull of work "
        "divided by this factor.",
    )


@dataclass(frozen=True)
class Pulls:
    """Pulls of a run's rounds.

    Attributes:
        first: that of round 1.
        schedule: of η = 1/λ.
    """

    first: float
    schedule: Schedule

    @classmethod
    def read(cls, terms: RunTerms, schedule: str, table: str) -> Pulls:
        """Return the pulls of a run.

        Raises:
            TermsError: the schedule is wrong, or makes the pull too long in some round.
        """
        key = f"{table}.prox-schedule"
        pulls = cls(terms.work.pull_factor, read_schedule(schedule, terms.rounds, key))
        if schedule == "constant":
            return pulls
        if not terms.work.pull_factor:
            raise TermsError(
                f"run config: '{key}' is '{schedule}', but 'work.pull' is 0, so there is no "
                "pull to change; set 'work.pull', or leave the schedule out"
            )
        for server_round in range(1, terms.rounds + 1):
            pull = pulls.first / pulls.schedule(server_round)
            if pull * terms.learning_rate > 1:
                raise TermsError(
                    f"run config: '{key}' = '{schedule}' makes 'work.pull' {pull:g} in round "
                    f"{server_round}, and with 'learning-rate' {terms.learning_rate:g} a step "
                    "would go beyond the model to which it is pulled; lower one of them, or "
                    "the 'rounds'"
                )
        return pulls

    def at(self, terms: RunTerms, server_round: int) -> RunTerms:
        """Return the terms with the pull of a round."""
        pull = self.first / self.schedule(server_round)
        return (
            terms
            if pull == terms.work.pull_factor
            else terms.updated(work=terms.work.updated(pull=pull))
        )
