"""Kinds of release: base classes of their shared halves.

A kind has a file each for its halves: here its settings, price, checks and sentences; its work at a
site in ``client_app/releases/``; the reading of payloads that are sent in ``server_app/releases/``.
Plan, ledger, consent, reports, messages and server know a kind by its name alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

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


class AfterKind(Settings):
    """Settings of a table ``[after.NAME]``, with or without a release.

    Attributes:
        table: of the terms: ``first``, asked for before round 1 and of no model, or ``after``.
        kind: its name, a Python identifier; empty: it has no table, and rounds bring it about.
        main: the setting that asks for it; at its default, 0, the run does without.
        is_charged: a plan pays for another mechanism than the rounds' noisy steps.
        needs_step_noise: its content is made of the noise of single steps.
        makes_model: the run ends with a personal model at its site.
    """

    table: ClassVar[str] = "after"
    kind: ClassVar[str] = ""
    main: ClassVar[str] = ""
    is_charged: ClassVar[bool] = False
    needs_step_noise: ClassVar[bool] = False
    makes_model: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """Name of its table, for messages."""
        return f"'{self.table}.{self.kind}'"

    @property
    def is_first(self) -> bool:
        """Whether it is asked for before round 1, of no model."""
        return self.table == "first"

    @property
    def is_asked(self) -> bool:
        """Whether its main setting asks for it."""
        return bool(getattr(self, self.main))

    def settled(self, terms: RunTerms) -> Self:
        """Return its settings with open ones decided, by the run's public terms."""
        del terms
        return self

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield a sentence for each contradiction with other terms: the keys, and the remedy."""
        del terms
        yield from ()

    def check_task(self, task: Task) -> None:
        """Refuse a task without meaning for it; raises ``DataError``."""

    def is_unlike_rounds(self, terms: RunTerms) -> bool:
        """Return whether only plans of unequal rounds can pay for it."""
        del terms
        return self.is_charged


class ReleaseKind(AfterKind):
    """Kind of release of a site: its name, price, moment and sentences.

    Attributes:
        release: name of its payload in ledgers.
        is_covered: the ε of a plan covers it; else its payload is exact, or noised by the server.
        is_update: it is a site's part in its round; one of them shows that the site took part.
        is_sent: its payload leaves the site; else it is sealed for the site alone.
        is_optional: a payload lost before its seal leaves the rest of the run as it is.
        consent: what leaves the site, for the operator who approves; of sent kinds with a table.
        event: of the server's journal with the facts of the replies; likewise.
        title: of the section of a run's page; likewise.
        price: meaning of its noise, for ``hdpfl-site plan``.
        plural: name of several of them; of kinds that a plan pays for by their number.
        item: one payload, in a report; of sent kinds with a table.
        content: of the item.
        report: paragraph of a report on its noise and cost.
    """

    release: ClassVar[str] = ""
    is_charged: ClassVar[bool] = True
    is_covered: ClassVar[bool] = True
    is_update: ClassVar[bool] = False
    is_sent: ClassVar[bool] = False
    is_optional: ClassVar[bool] = False
    consent: ClassVar[str] = ""
    event: ClassVar[str] = ""
    title: ClassVar[str] = ""
    price: ClassVar[str] = ""
    plural: ClassVar[str] = ""
    item: ClassVar[str] = ""
    content: ClassVar[str] = ""
    report: ClassVar[str] = ""

    @property
    def asks(self) -> str:
        """Sentences on these settings' release, for the operator's approval."""
        return self.consent

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

    def most(self, terms: RunTerms) -> int:
        """Return the releases of a run without a plan that pays; 0: any number."""
        del terms
        return 0


def reasons_for_equal_rounds(terms: RunTerms) -> list[str]:
    """Return the keys under which a site's account covers equal rounds alone."""
    asked = {
        "'noise'": not terms.source.per_record,
        "'calibration'": terms.calibration != "pld",
        "'noise-multiplier'": bool(terms.noise_multiplier),
        "'participations'": bool(terms.participations),
    }
    return [key for key, is_asked in asked.items() if is_asked]


def once(basis: Basis, share: float) -> Gaussians:
    """Return one Gaussian release of sensitivity 1 whose cost alone is a share of ε.

    Every record counts, so that no sampling amplifies.
    """
    return Gaussians(calibrate([Steps(1.0, 1)], share * basis.epsilon, basis.delta), 1)
