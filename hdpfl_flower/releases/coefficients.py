"""Noisy score and information of the final model, for coefficients with intervals."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from hdpfl_flower.config.settings import ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_scores import Design, design_of
from hdpfl_flower.data.run_task import schema_of, task_for
from hdpfl_flower.errors import DataError, ModelError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once


class Coefficients(ReleaseKind):
    """Sums of the training records' scores and information, sent to the server once.

    Coefficients over all sites, odds ratios and their intervals are estimated from them.
    """

    kind, main, release = "coefficients", "share", "coefficients"
    is_sent = True
    consent = (
        "noisy sums of how its training records would move the final model (score, information), "
        "at the end"
    )
    event = "coefficients"
    title = "Coefficients over all sites"
    price = "noise of the sums for coefficients (of records clipped to length 1), sent once"
    item = "message on coefficients"
    content = "of the final model's score and information, with noise in each number"
    report = (
        "Coefficients: once a run, at its end, each training record's score and information at the "
        "final model are clipped together, summed, and sent with noise of that z in each number. "
        "Their cost is in the run's ε."
    )
    share: ShareOrNone = Field(
        0.0, description="Share of a site's ε that the message alone would cost; 0: none is sent."
    )

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield models whose numbers are no coefficients of the columns."""
        if terms.work.sent_part:
            yield (
                f"{self.words} is of a model that all sites share, and {terms.work.words} keeps a "
                "part of it at each site; leave one of them out"
            )
        if terms.choice:
            yield f"{self.words} is of one model, and {terms.choice.words} chooses among several"
        if terms.model != "logreg" or terms.backbone:
            yield (
                f"{self.words} is of one linear layer on the columns; set 'model' to logreg and "
                "leave 'backbone' out, or leave the table out"
            )
            return
        try:
            self.design(terms, task_for(terms))
        except (DataError, ModelError) as fault:
            yield str(fault)

    def design(self, terms: RunTerms, task: Task) -> Design:
        """Return the coordinates of the message; raises ``DataError`` as ``design_of``."""
        return design_of(schema_of(terms), task)

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: a record moves the vector by at most 1 in length."""
        return once(basis, self.share)
