"""A site's summed deviation, shrunk by its noise, free of charge."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from hdpfl_flower.config.settings import NotNegative
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.releases.base import AfterKind


class Shrink(AfterKind):
    """Deviation added to the final model: post-processing."""

    kind, main = "shrink", "scale"
    makes_model = needs_step_noise = True
    scale: NotNegative = Field(
        0.0,
        description="Factor of the site's deviation that is added to its model, such as "
        "0.05. 0 means that none is added.",
    )

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield updates that are added already."""
        work = terms.work
        if work.carries_updates:
            yield (
                f"{self.words} adds a site's own updates a second time, because {work.words} "
                "already carries them on: leave one of them out"
            )
