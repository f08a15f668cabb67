"""A site's summed deviation, shrunk by its noise, free of charge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from hdpfl_flower.after.base import Ending
from hdpfl_flower.config.settings import Positive
from hdpfl_flower.errors import TermsError

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms


class Shrink(Ending):
    """Deviation added to the final model: post-processing."""

    kind = "shrink"
    is_charged = False
    scale: Positive = Field(0.05, description="Factor of the deviation that is added.")

    def check(self, terms: RunTerms) -> None:
        """Refuse updates that are not of one noise a step, or that are added already."""
        if terms.noise != "records":
            raise TermsError(
                "run config: 'after' = 'shrink' follows the noise of a site's steps, and under "
                f"'noise' = '{terms.noise}' they have none; leave it out"
            )
        if terms.work.carries_updates:
            raise TermsError(
                "run config: 'after' = 'shrink' adds a site's own updates a second time, which "
                f"'work' = '{terms.work.kind}' carries on already: leave one of them out"
            )
