"""Work with a part at its site: joint, alternate, frozen.

Every step is noisy, whichever coordinates it moves: a part that was trained without noise between
releases would shift the gradients of all other records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hdpfl_flower.config.kind import Proposal
from hdpfl_flower.config.settings import Count, Share
from hdpfl_flower.work.base import Part, Work

Mask = Literal["none", "noisy-updates", "charged-top-k", "random", "global-magnitude", "published"]
"""Selection of the coordinates that are trained and sent."""


class Parted(Work):
    """A part stays, the other is sent, under a mask or whole."""

    keeps_state = True
    stays: Literal["head", "body"] = Field(
        "head",
        description=(
            "Part that stays at its site: head (the last layer), or body (all other layers)."
        ),
    )
    mask: Mask = Field(
        "none",
        description="Coordinates of the sent part that are trained and sent: all of them "
        "(none), or those that are chosen by the site's noisy updates "
        "(noisy-updates), by a noisy gradient whose ε is charged (charged-top-k), "
        "at random (random), or by the global model (global-magnitude). published "
        "chooses by the site's clean weights, which violates privacy and works "
        "only in simulations.",
    )
    share: Share = Field(0.5, description="Share of the coordinates that the mask chooses.")

    @property
    def own_part(self) -> Part:
        """Part of the model that stays at its site."""
        return self.stays

    @property
    def extra_steps(self) -> int:
        """One under a charged mask, which its noisy gradient selects."""
        return int(self.mask == "charged-top-k")

    @property
    def sends_every_coordinate(self) -> bool:
        """No mask leaves coordinates out."""
        return self.mask == "none"

    @property
    def sums_updates(self) -> bool:
        """A mask of the summed updates."""
        return self.mask == "noisy-updates"

    @property
    def needs_step_noise(self) -> bool:
        """A mask that is made of the noise of steps."""
        return self.mask in {"noisy-updates", "charged-top-k"}

    @property
    def reads_clean_weights(self) -> bool:
        """A mask of clean weights."""
        return self.mask == "published"

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield clean weights of real sites, beside those of all work."""
        yield from super().contradictions(terms)
        if self.reads_clean_weights and terms.dataset == "site":
            yield (
                "'work.mask' = 'published' releases a function of clean weights, so it runs "
                "only on simulated sites: take 'noisy-updates', or a named 'dataset'"
            )


class Joint(Parted):
    """FedPer, LG-FedAvg: each step trains both parts."""

    kind = "joint"


class Alternate(Parted):
    """FedRep, DSU: a round's first steps train the own part, the others the sent one."""

    kind = "alternate"
    own_steps: Count = Field(
        0,
        description="Steps that train the site's own part. 0 means half of the steps of a "
        "round, at least one.",
    )

    def sent_steps(self, steps: int) -> int:
        """Return 1: the other steps may train the part that stays."""
        return min(steps, 1)

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield rounds without a step for the sent part, beside those of parted work."""
        yield from super().contradictions(terms)
        if 0 < terms.local_steps <= max(1, self.own_steps):
            yield (
                f"{self.words} with 'local-steps' = {terms.local_steps} leaves no step for the "
                "shared part: raise 'local-steps', or lower 'work.own-steps'"
            )


class Frozen(Parted):
    """FedBABU: each step trains the sent part; the own one keeps its public first values."""

    kind = "frozen"
