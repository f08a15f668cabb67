"""A noisy count a class, for label correction."""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, When, once


class Prior(ReleaseKind):
    """Counts of labels, or sum of residuals."""

    kind, main, release = "prior", "share", "counts"
    makes_model = is_optional = True
    price = (
        "noise of the one count per class (or of the residual) of the prior, which is never sent"
    )
    report = (
        "Counts: each class of the labels is counted once a run, with noise of that z; the "
        "numbers stay at the site. The run's ε covers their cost."
    )
    share: ShareOrNone = Field(
        0.0,
        description=(
            "Share of a site's ε that the counts would cost by themselves. 0 means no prior."
        ),
    )

    def check_task(self, task: Task) -> None:
        """Refuse survival."""
        if task.intervals:
            raise DataError(
                f"{self.words} counts classes or sums residuals, and a survival task has neither"
            )

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: one record more or less moves one count, or the sum, by 1."""
        return once(basis, self.share)

    def when(self, task: Task) -> When:
        """Return the start, or for a regression, whose residuals are of a model, the end."""
        return "start" if task.classes else "end"

    def place(self, terms: RunTerms) -> int:
        """Return 1."""
        del terms
        return 1
