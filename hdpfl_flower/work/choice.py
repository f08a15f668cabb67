"""Private choices among a strategy's models, which a site's plan pays for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import Field

from hdpfl_flower.config.kind import Kind
from hdpfl_flower.config.settings import Count, PartOfBudget
from hdpfl_flower.errors import DataError

if TYPE_CHECKING:
    from hdpfl_flower.models.task import Task


Mechanism = Literal["gaussian", "gumbel"]


class Choice(Kind):
    """No choices: each site trains the model that the server sends."""

    key, kind = "choice", "none"

    def count(self, rounds: int) -> int:
        """Return the number of choices that a site plans for in so many rounds."""
        del rounds
        return 0

    def check_task(self, task: Task) -> None:
        """Refuse a task without meaning for it; raises ``DataError``."""


class Gaussian(Choice):
    """The largest of noisy counts of right predictions, with Gaussian noise."""

    kind = "gaussian"
    is_charged = True
    mechanism: ClassVar[Mechanism] = "gaussian"
    times: Count = Field(0, description="Number of choices. 0 means a tenth of the rounds.")
    share: PartOfBudget = Field(
        0.1, description="Share of a site's ε that its choices would cost by themselves."
    )

    def count(self, rounds: int) -> int:
        """Return the number of choices: as stated, or a tenth of the rounds.

        >>> Gaussian().count(25), Gaussian(times=2).count(20)
        (3, 2)
        """
        return self.times or math.ceil(rounds / 10)

    def check_task(self, task: Task) -> None:
        """Refuse tasks without classes."""
        if not task.classes:
            raise DataError(
                f"{self.words} counts the records that a model gets right, which a regression "
                "or survival task does not have"
            )


class Gumbel(Gaussian):
    """The exponential mechanism, as in R-DPCFL's paper."""

    kind = mechanism = "gumbel"


CHOICES: Final[dict[str, type[Choice]]] = {kind.kind: kind for kind in (Choice, Gaussian, Gumbel)}
"""Every kind by its name."""
