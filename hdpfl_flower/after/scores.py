"""One noisy histogram of the final model's scores by class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from hdpfl_flower.after.base import Ending
from hdpfl_flower.config.settings import PartOfBudget
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Task

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms


class Scores(Ending):
    """Counts of one held-out record of each person, sent to the server once.

    AUROC and calibration over all sites are estimated from them.
    """

    kind = "scores"
    makes_model = False
    share: PartOfBudget = Field(
        0.5, description="Share of a site's ε that the histogram alone would cost."
    )

    def check(self, terms: RunTerms) -> None:
        """Refuse models of which a part stays at its site."""
        if terms.sent_part:
            raise TermsError(
                "run config: 'after' = 'scores' is of a model that all sites share, and 'work' "
                f"= '{terms.work.kind}' keeps a part of it at each site; leave one of them out"
            )

    def check_task(self, task: Task) -> None:
        """Refuse tasks of other than two classes."""
        from hdpfl_flower.measures.score_cells import check_binary

        check_binary(task)
