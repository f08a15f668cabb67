"""Local momentum: rounds continue the site's last update."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hdpfl_flower.work.base import Work


class Momentum(Work):
    """β times the site's last noisy update is added over a round's steps; all of it is sent."""

    kind = "momentum"
    keeps_state = carries_updates = True
    beta: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="Share β of its last update that a site adds to the next."
    )

    @property
    def noise_is_fresh(self) -> bool:
        """An update holds noise of those before."""
        return not self.beta

    @property
    def needs_step_noise(self) -> bool:
        """The last update must be noisy, for it is added outside of the clipping."""
        return True
