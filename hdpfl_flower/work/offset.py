"""Work with an offset of the site's own, which its noisy updates move: PPSGD."""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import NotNegative
from hdpfl_flower.work.base import Part, Work


class Offset(Work):
    """The whole model is sent; the site adds its offset."""

    kind = "offset"
    keeps_state = carries_updates = True
    of: Part = Field(
        "",
        description=(
            "Part of the model that has an offset: head or body. Empty means the whole model."
        ),
    )
    rate: NotNegative = Field(
        0.1,
        description="Share of its own noisy update that a site adds to its offset. With 1 the "
        "offset has as much noise as local training.",
    )

    @property
    def needs_head(self) -> bool:
        """An offset of a part."""
        return bool(self.of)
