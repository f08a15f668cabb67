"""Noisy steps of a site on its own records after the last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from hdpfl_flower.config.settings import Count
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.releases.base import Basis, ReleaseKind

STEPS_OF_AN_EPOCH = 10
"""Tuning steps an epoch where the terms set no ``local-steps``: a site's batches are often a tenth
of its records, and the terms are public and the same for all sites."""


class Tuning(ReleaseKind):
    """DP-SGD steps from the final model, charged like rounds."""

    kind, main, release = "tuning", "steps", "tuning"
    makes_model = True
    price = "after the last round, on this site's model"
    steps: Count | Literal["round"] = Field(
        0,
        description="Number of steps; round means as many as in one round. 0 means none, "
        "unless the strategy states a number.",
    )
    part: Literal["auto", "head", "all"] = Field(
        "auto",
        description=("Part that is trained: head (the last layer), or all. auto means head."),
    )

    @property
    def trains_all(self) -> bool:
        """Whether the steps train the whole model."""
        return self.part == "all"

    def noisy_steps(self, terms: RunTerms) -> int:
        """Return the number of steps: stated, or those of a round."""
        if self.steps != "round":
            return self.steps
        return terms.local_steps or STEPS_OF_AN_EPOCH * terms.local_epochs

    def is_unlike_rounds(self, terms: RunTerms) -> bool:
        """Elsewhere the steps are plain SGD, kept at the site."""
        return terms.source.per_record

    def cost(self, basis: Basis) -> Steps | None:
        """Return steps with a round's batches; none where they are not noisy."""
        if not basis.terms.source.per_record:
            return None
        return replace(basis.steps, count=self.noisy_steps(basis.terms))
