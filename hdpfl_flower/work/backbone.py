"""Settings of backbones, as one typed value of the terms; ``models/backbones.py`` builds."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from hdpfl_flower.config.kind import Kind
from hdpfl_flower.system.weight_files import DIGEST


def _check_digest(value: str) -> str:
    if value and not DIGEST.fullmatch(value):
        raise ValueError("must be a file in a run config, or sha256: and 64 digits")
    return value


Weights = Annotated[str, AfterValidator(_check_digest)]
"""Digest of a public file of weights; empty: none."""


def _check_adapter(value: str) -> str:
    if value and not _ADAPTER.fullmatch(value):
        raise ValueError("must be lora:RANK or lora-both:RANK, with a rank from 1 to 999")
    return value


_ADAPTER = re.compile("(lora|lora-both):([1-9][0-9]{0,2})")
Adapter = Annotated[str, AfterValidator(_check_adapter)]
"""Adapters of a backbone; empty: it stays as it is."""


class Backbone(Kind):
    """Frozen network of torchvision, without its last layer.

    Attributes:
        outputs: numbers that it returns for a record.
        head: name of the layer that it lacks; empty: it is a user's.
        side: height and width of its images; 0: any.
    """

    key = "backbone"
    outputs: ClassVar[int] = 0
    head: ClassVar[str] = ""
    side: ClassVar[int] = 0
    weights: Weights = Field(
        "", description="File of the backbone's numbers. Sites are sent its SHA-256."
    )
    adapter: Adapter = Field(
        "",
        description="`lora:RANK` also trains a low-rank change B·A of each layer. A is fixed, "
        "so the mean of the sites' B gives exactly the mean of their changes. "
        "`lora-both:RANK` trains A too; then the mean of the sites' models only "
        "comes near the mean of their changes.",
    )

    @property
    def size(self) -> int:
        """Numbers that it returns for a record."""
        return self.outputs

    @property
    def rank(self) -> int:
        """Rank of its adapters; 0 without."""
        return int(self.adapter.partition(":")[2] or 0)

    @property
    def trains_both(self) -> bool:
        """Whether both factors of an adapter are trained."""
        return self.adapter.startswith("lora-both")

    @property
    def code(self) -> str:
        """Name of the user's function; empty: none."""
        return ""


class ResNet18(Backbone):
    """torchvision's ResNet-18."""

    kind, outputs, head = "resnet18", 512, "fc"


class ResNet50(Backbone):
    """torchvision's ResNet-50."""

    kind, outputs, head = "resnet50", 2048, "fc"


class EfficientNetB0(Backbone):
    """torchvision's EfficientNet-B0."""

    kind, outputs, head = "efficientnet_b0", 1280, "classifier"


class ViTB16(Backbone):
    """torchvision's ViT-B/16."""

    kind, outputs, head, side = "vit_b_16", 768, "heads", 224


class OwnBackbone(Backbone):
    """User's function, called with the records' task; returns a ``torch.nn.Module``."""

    kind = "own"
    function: str = Field("", description="Name of the function, as module:function.")
    width: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1, description="Number of values that the function returns for a record."
    )

    @property
    def size(self) -> int:
        """``width``."""
        return self.width

    @property
    def code(self) -> str:
        """``function``."""
        return self.function


BACKBONES: dict[str, type[Backbone]] = {
    kind.kind: kind for kind in (ResNet18, ResNet50, EfficientNetB0, ViTB16, OwnBackbone)
}
"""Every kind by its name."""
