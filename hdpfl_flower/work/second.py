"""A second model of a site's own, pulled to the global one: Ditto.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021), with a pull λ for each privacy level as in FedHDP, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from pydantic import Field

from hdpfl_flower.config.kind import Kind, Proposal
from hdpfl_flower.config.settings import NotNegative


class SecondModel(Kind):
    """A site's model beside the global one, pulled to it.

    Attributes:
        models: that a round trains under the plan.
    """

    key = "second"
    models: ClassVar[int] = 1
    pull: NotNegative = Field(
        0.1, description="Pull λ towards the global model of the round. 0 means local training."
    )
    opted_out: NotNegative | Literal["same"] = Field(
        "same",
        description=("Pull of sites without privacy (ε = inf). same means the value of pull."),
    )

    @property
    def is_unlike_rounds(self) -> bool:
        """Whether a round trains two models under the plan."""
        return self.models > 1

    def pull_of(self, epsilon: float) -> float:
        """Return λ of a site with ``epsilon`` for the run."""
        is_out = math.isinf(epsilon) and self.opted_out != "same"
        return float(self.opted_out) if is_out else self.pull

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield steps beyond the global model.

        A step goes η·λ of the way to it: above 1 it ends beyond, from 2 on further and further.
        """
        if max(self.pull_of(0), self.pull_of(math.inf)) * terms.learning_rate > 1:
            yield (
                "'second.pull' or 'second.opted-out', times 'learning-rate' = "
                f"{terms.learning_rate:g}, is above 1, so a step would go beyond the global "
                "model; lower one of them"
            )


class Private(SecondModel):
    """Trained by DP-SGD; its steps are charged like the round's."""

    kind = "private"
    models = 2


class Kept(SecondModel):
    """Trained by plain SGD: costs nothing, and is for the site's own eyes."""

    kind = "kept"


SECONDS: Final[dict[str, type[SecondModel]]] = {kind.kind: kind for kind in (Private, Kept)}
"""Every kind by its name."""
