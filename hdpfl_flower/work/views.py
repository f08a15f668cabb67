"""Views of each image in its one clipped gradient, as one typed value of the terms.

De et al., Unlocking High-Accuracy Differentially Private Image Classification through Scale (2022,
arXiv:2204.13650), section 4.1: the gradients of several views of a record are averaged before the
clipping, so that sensitivity and account are those of one record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from hdpfl_flower.config.kinds import Kind
from hdpfl_flower.config.settings import Count
from hdpfl_flower.errors import DataError, TermsError

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms
    from hdpfl_flower.models.task import Task


class Views(Kind):
    """Shifted and mirrored copies of an image."""

    key = "augmentation"
    kind = "images"
    views: Annotated[int, Field(ge=2, le=32)] = Field(
        4, description="Views K of a record in a step: K times the work."
    )
    shift: Annotated[Count, Field(le=64)] = Field(
        2, description="Most pixels that a view is shifted by, up, down, left or right; 0 fills."
    )
    flip: Literal["none", "sides"] = Field(
        "none", description="`sides`: half of the views are mirrored, left to right."
    )

    def check(self, terms: RunTerms) -> None:
        """Refuse noise that is not per record; raises ``TermsError``."""
        if terms.noise != "records":
            raise TermsError(
                f"run config: 'augmentation' is for DP-SGD, and 'noise' is '{terms.noise}'; set "
                "it to 'records', or leave 'augmentation' out"
            )

    def check_task(self, task: Task) -> None:
        """Refuse records that are no images, or that the model does not read itself."""
        if len(task.input_shape) != 3 or task.embedding:
            raise DataError(
                f"{self.words} changes images (channels, height, width) that the model itself "
                "reads, and here are none"
            )


AUGMENTATIONS: Final[dict[str, type[Views]]] = {Views.kind: Views}
"""Every kind by its name."""
