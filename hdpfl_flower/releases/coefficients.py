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
        "at the end of the run, noisy sums that show how its training records would move the "
        "final model (score and information)"
    )
    event = "coefficients"
    title = "Coefficients over all sites"
    price = "noise of the sums for coefficients (each record is clipped to length 1), sent once"
    item = "message on coefficients"
    content = "of the score and information of the final model, with noise in each number"
    report = (
        "Coefficients: once a run, at its end, each training record's score and information at "
        "the final model are clipped together, summed, and sent with noise of that z in each "
        "number. The run's ε covers their cost."
    )
    share: ShareOrNone = Field(
        0.0,
        description=(
            "Share of a site's ε that the message would cost by itself. 0 means that none is sent."
        ),
    )

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield models whose numbers are no coefficients of the columns."""
        if terms.work.sent_part:
            yield (
                f"{self.words} needs a model that all sites share, and {terms.work.words} keeps "
                "a part of the model at each site; leave one of them out"
            )
        if terms.choice:
            yield (
                f"{self.words} needs one model, and {terms.choice.words} chooses among "
                "several; leave one of them out"
            )
        if terms.model != "logreg" or terms.backbone:
            yield (
                f"{self.words} needs a model with one linear layer on the columns; set 'model' "
                "to logreg and leave out 'backbone', or leave out the table"
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
