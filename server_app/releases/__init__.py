"""A server's halves of the kinds of release that are sent: the reading of their payloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.base import ReleaseKind

ELSEWHERE: Final[dict[str, str]] = {}
"""Kind → module of its half, where that is not the module of the kind's name in this room."""


class ServerHalf(ABC):
    """Reading of the payloads of a kind."""

    @abstractmethod
    def numbers(self, kind: ReleaseKind, terms: RunTerms, task: Task) -> int:
        """Return the public number of float32 values of a payload."""

    @abstractmethod
    def read(
        self,
        kind: ReleaseKind,
        rows: npt.NDArray[np.float32],
        without: Mapping[str, str],
        terms: RunTerms,
    ) -> dict[str, Any]:
        """Return the facts of the replies, for journal and report.

        Args:
            kind: its settings.
            rows: payloads of the sites that answered, shape ``(sites, numbers)``; of a masked sum
                one row.
            without: site → reason of its absence.
            terms: the run's.

        Returns:
            ``measures``: name → ``value``, ``low``, ``high``; ``missing``: name → reason; ``on``:
            the records; and more of the kind's own.
        """

    def of_model(self, model: Arrays) -> ServerHalf:
        """Return the half that reads payloads at ``model``, the one that sites were sent."""
        del model
        return self

    def about(self, facts: Mapping[str, Any]) -> str:
        """Return the sentence below the measures on a run's page; raises ``LookupError``."""
        del facts
        return ""


def half_of(kind: str) -> ServerHalf:
    """Return the server's half of a registered kind that is sent, by its name."""
    half: ServerHalf = import_module(ELSEWHERE.get(kind, f"{__name__}.{kind}")).HALF
    return half
