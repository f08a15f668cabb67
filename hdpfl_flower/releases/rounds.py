"""Kinds of release that rounds bring about: updates, private choices, metrics."""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.accounting import ExtraRelease
from hdpfl_flower.releases.base import Basis, ReleaseKind
from hdpfl_flower.work.choice import Gaussian


class Update(ReleaseKind):
    """Noisy update of a round; the rounds of a plan are its price."""

    release = "update"
    is_update = is_sent = True


class ClippedUpdate(ReleaseKind):
    """Clipped update without noise, sent to a server that the site trusts to add it."""

    release = "clipped-update"
    is_update = is_sent = True
    is_covered = is_charged = False

    def most(self, terms: RunTerms) -> int:
        """Return the rounds that the server accounts for."""
        return rounds_asked(terms)


class PrivateChoice(ReleaseKind):
    """Choice among the models of a message, at most one a round."""

    release = "choice"
    is_sent = True
    price = "of one of the server's models"
    plural = "private choices"

    def cost(self, basis: Basis) -> ExtraRelease | None:
        """Return the run's choices at their share of ε."""
        choice = basis.terms.choice
        if not isinstance(choice, Gaussian):
            return None
        from hdpfl_flower.privacy.noisy_max import selections_of

        times, mechanism = choice.count(basis.terms.rounds), choice.mechanism
        return selections_of(times, choice.share, basis.epsilon, basis.delta, mechanism=mechanism)


class Metrics(ReleaseKind):
    """Exact metrics of models on held-out records, in the rounds that the site took part in."""

    release = "metrics"
    is_sent = True
    is_covered = is_charged = False


UPDATE, CLIPPED_UPDATE = Update(), ClippedUpdate()


def rounds_asked(terms: RunTerms) -> int:
    """Return the rounds to pay for: all, or ``participations``."""
    return min(terms.last_round, terms.participations or terms.last_round)
