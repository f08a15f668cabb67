"""A noisy count a class, for label correction."""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.after.base import Ending
from hdpfl_flower.config.settings import PartOfBudget
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task


class Prior(Ending):
    """Counts of labels, or sum of residuals."""

    kind = "prior"
    share: PartOfBudget = Field(
        0.25, description="Share of a site's ε that the counts alone would cost."
    )

    def check_task(self, task: Task) -> None:
        """Refuse survival."""
        if task.intervals:
            raise DataError(
                "'after' = 'prior' counts classes or sums residuals, and survival has neither"
            )
