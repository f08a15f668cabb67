"""One noisy histogram of the final model's scores by class."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from hdpfl_flower.config.settings import ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once


class Scores(ReleaseKind):
    """Counts of one held-out record of each person, sent to the server once.

    AUROC and calibration over all sites are estimated from them.
    """

    kind, main, release = "scores", "share", "scores"
    is_sent = True
    consent = "at the end of the run, one noisy histogram of the scores of its held-out records"
    event = "federated-measures"
    title = "Measures of the final model on held-out records of the sites"
    price = "noise of a count in the histogram of scores, sent once, after the last round"
    item = "histogram"
    content = "of a model's scores on held-out records, with noise in each count"
    report = (
        "Scores: once a run the final model predicts the held-out records, one for each unit; "
        "the predictions are counted by class in public bins and sent with noise of that z in "
        "each count. The run's ε covers their cost."
    )
    share: ShareOrNone = Field(
        0.0,
        description="Share of a site's ε that the histogram would cost by itself. 0 means "
        "that none is sent.",
    )

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield models of which a part stays at its site."""
        work = terms.work
        if work.sent_part:
            yield (
                f"{self.words} needs a model that all sites share, and {work.words} keeps a "
                "part of the model at each site; leave one of them out"
            )

    def check_task(self, task: Task) -> None:
        """Refuse tasks of other than two classes; raises ``DataError``."""
        if task.classes != 2:
            targets = f"{task.classes} classes" if task.classes else "numbers"
            targets = "survival" if task.intervals else targets
            # With more classes a record has a score for each: one would fill several histograms.
            raise DataError(
                f"{self.words} is only for tasks of two classes, and this task has {targets}"
            )

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: one record more or less moves one count by 1."""
        return once(basis, self.share)
