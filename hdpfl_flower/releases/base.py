"""Release beside a round's update. Base class of every kind: its shared half.

A kind has two halves, a file each: here its settings, price, checks and sentences, and the reading
of its replies; its work at a site in ``client_app/releases/``. Plan, ledger, consent, reports,
messages and server know a kind by its name alone, so that a new one changes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import ExtraRelease, Gaussians, Steps, calibrate

Cost = Steps | ExtraRelease
"""Price of a kind in a plan: noisy steps like a round's, or releases with noise of their own."""
When = Literal["start", "end", "asked"]
"""Moment of the work: before the first update, after the final model, or for a message."""


@dataclass(frozen=True)
class Basis:
    """Facts of a site's plan from which a kind makes its price.

    Attributes:
        terms: the run's.
        steps: of a round.
        epsilon: ε of the whole run.
        delta: δ of the whole run.
    """

    terms: RunTerms
    steps: Steps
    epsilon: float
    delta: float


class ReleaseKind(Settings):
    """Settings of one kind, and its effect on plan, checks, messages and sentences.

    Attributes:
        kind: its name, a Python identifier: ``[after.NAME]`` in a run config.
        main: the setting that asks for it; at its default, 0, the run does without.
        release: name of its payload in ledgers; empty: it releases nothing.
        is_charged: a plan pays for another mechanism than the rounds' noisy steps.
        is_sent: its payload leaves the site, in the answer to a message of its own; else it is
            sealed for the site alone.
        is_optional: a payload lost before its seal leaves the rest of the run as it is.
        makes_model: the run ends with a personal model at its site.
        consent: what leaves the site, for the operator who approves; of sent kinds.
        event: of the server's journal with the facts of the replies; of sent kinds.
        title: of the section of a run's page; of sent kinds.
        price: meaning of its noise, for ``hdpfl-site plan``.
        item: one payload, in a report; of sent kinds.
        content: of the item.
        report: paragraph of a report on its noise and cost.
    """

    kind: ClassVar[str] = ""
    main: ClassVar[str] = ""
    release: ClassVar[str] = ""
    is_charged: ClassVar[bool] = True
    is_sent: ClassVar[bool] = False
    is_optional: ClassVar[bool] = False
    makes_model: ClassVar[bool] = False
    consent: ClassVar[str] = ""
    event: ClassVar[str] = ""
    title: ClassVar[str] = ""
    price: ClassVar[str] = ""
    item: ClassVar[str] = ""
    content: ClassVar[str] = ""
    report: ClassVar[str] = ""

    @property
    def words(self) -> str:
        """Name of its table, for messages."""
        return f"'after.{self.kind}'"

    @property
    def is_asked(self) -> bool:
        """Whether its main setting asks for it."""
        return bool(getattr(self, self.main))

    def check(self, terms: RunTerms) -> None:
        """Refuse contradictions with other terms.

        Raises:
            TermsError: names the keys, and the remedy.
        """

    def check_task(self, task: Task) -> None:
        """Refuse a task without meaning for it; raises ``DataError``."""

    def is_unlike_rounds(self, terms: RunTerms) -> bool:
        """Return whether only plans of unequal rounds can pay for it."""
        del terms
        return self.is_charged

    def cost(self, basis: Basis) -> Cost | None:
        """Return its price in a site's plan; None: free of charge.

        Raises:
            AccountingError: no noise can pay for it.
        """
        del basis
        return None

    def noisy_steps(self, terms: RunTerms) -> int:
        """Return its noisy steps, known before any calibration."""
        del terms
        return 0

    def when(self, task: Task) -> When:
        """Return the moment of its work."""
        del task
        return "asked" if self.is_sent else "end"

    def place(self, terms: RunTerms) -> int:
        """Return the round that its one release stands under in the ledger."""
        return terms.rounds

    def numbers(self, terms: RunTerms, task: Task) -> int:
        """Return the public number of float32 values of its payload; of sent kinds."""
        raise NotImplementedError

    def read(
        self, rows: npt.NDArray[np.float32], without: Mapping[str, str], terms: RunTerms, task: Task
    ) -> dict[str, Any]:
        """Return the facts of the replies, for journal and report; of sent kinds.

        Args:
            rows: payloads of the sites that answered, shape ``(sites, numbers)``.
            without: site → reason of its absence.
            terms: the run's.
            task: of the run.

        Returns:
            ``measures``: name → ``value``, ``low``, ``high``; ``missing``: name → reason; ``on``:
            the records; and more of the kind's own.
        """
        raise NotImplementedError

    @classmethod
    def about(cls, facts: Mapping[str, Any]) -> str:
        """Return the sentence below the measures on a run's page; raises ``LookupError``."""
        del facts
        return ""


def once(basis: Basis, share: float) -> Gaussians:
    """Return one Gaussian release of sensitivity 1 whose cost alone is a share of ε.

    Every record counts, so that no sampling amplifies.
    """
    return Gaussians(calibrate([Steps(1.0, 1)], share * basis.epsilon, basis.delta), 1)
