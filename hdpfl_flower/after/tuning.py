"""Noisy steps of a site on its own records after the last round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hdpfl_flower.after.base import Ending
from hdpfl_flower.config.settings import Count

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms

STEPS_OF_AN_EPOCH = 10
"""Tuning steps an epoch where the terms set no ``local-steps``: a site's batches are often a tenth
of its records, and the terms are public and the same for all sites."""


class Tuning(Ending):
    """DP-SGD steps from the final model, charged like rounds."""

    kind = "tuning"
    steps: Count = Field(0, description="Number of steps; 0: as many as a round's.")
    part: Literal["auto", "head", "all"] = Field(
        "auto", description="What is trained: head (the last layer), or all; auto: head."
    )

    def count(self, terms: RunTerms) -> int:
        """Return the number of steps: stated, or those of a round."""
        return self.steps or terms.local_steps or STEPS_OF_AN_EPOCH * terms.local_epochs

    def is_unlike_rounds(self, terms: RunTerms) -> bool:
        """Elsewhere the steps are plain SGD, kept at the site."""
        return terms.noise == "records"
