"""A site's summed deviation, shrunk by its noise, free of charge."""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import NotNegative
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.work.base import BESIDE_GLOBAL


class Shrink(ReleaseKind):
    """Deviation added to the final model: post-processing."""

    kind, main = "shrink", "scale"
    is_charged = False
    makes_model = True
    scale: NotNegative = Field(
        0.0, description="Factor of the deviation that is added, such as 0.05; 0: none is."
    )

    def check(self, terms: RunTerms) -> None:
        """Refuse updates that are not of one noise a step, or that are added already."""
        if terms.noise != "records":
            raise TermsError(
                f"run config: {self.words} follows the noise of a site's steps, and under "
                f"'noise' = '{terms.noise}' they have none; leave it out"
            )
        if terms.work.carries_updates:
            raise TermsError(
                f"run config: {self.words} adds a site's own updates a second time, which "
                f"'work' = '{terms.work.kind}' carries on already: leave one of them out"
            )
        if terms.second is not None:
            raise TermsError(BESIDE_GLOBAL)
