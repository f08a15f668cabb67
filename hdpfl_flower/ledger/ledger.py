"""Budget ledger with the decisions of its operator: caps, approvals, withdrawals."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import (
    APPROVED,
    READMITTED,
    RECORDS,
    REFUSED,
    WITHDRAWN,
    Account,
    check_cost,
    filter_capacity,
    reserved,
    sum_rounded_up,
    sum_within,
)
from hdpfl_flower.ledger.new_chain import create_chain
from hdpfl_flower.ledger.renyi import DOWN, MOST_ORDER, prices_of, zero_epsilon
from hdpfl_flower.ledger.site_ledger import SiteLedger

if TYPE_CHECKING:
    from hdpfl_flower.privacy.plan import Plan

MOST_UNUSED = 20
"""Runs that messages may bind to prepared records before any of them releases something."""


@dataclass(frozen=True)
class Approval:
    """Operator's approval of exactly one request.

    Attributes:
        run_id: the run.
        request: SHA-256 of the approved terms and app.
        terms: the public terms, JSON.
        app: SHA-256 of the app that may run under them.
        by: name of the approver.
    """

    run_id: str
    request: str
    terms: str
    app: str
    by: str

    def entry(self) -> dict[str, object]:
        """Return the body of the ledger's entry."""
        return asdict(self)


class Ledger(SiteLedger):
    """Ledger of a site: its operator creates it, raises its cap and decides; messages charge it."""

    @classmethod
    def create(
        cls,
        path: Path,
        epsilon: float,
        delta: float,
        anchor: Path | None = None,
        *,
        order: int = 0,
        durable: bool = True,
    ) -> Ledger:
        """Create a ledger with its cap; raises ``LedgerError`` if one exists.

        Args:
            path: the file.
            epsilon: ε of the lifetime promise.
            delta: δ of the lifetime promise.
            anchor: see :class:`Chain`.
            order: order of the Rényi filter that keeps the promise, which never changes:
                ``lifetime.order_for`` the cap. 0 means that the sums of ε and δ keep it.
            durable: see :class:`Ledger`.
        """
        check_cost(epsilon, delta)
        chain = create_chain(path, anchor, durable=durable)
        first = {"epsilon": epsilon, "delta": delta, **({"order": order} if order else {})}
        with chain.transaction():
            chain.append("cap", first)
        chain.close()
        return cls(path, anchor, durable=durable)

    def raise_cap(self, epsilon: float, delta: float) -> None:
        """Raise the lifetime cap, a local decision that is recorded and never undone.

        The order of a Rényi filter stays; its capacity becomes that of the new cap.
        """
        check_cost(epsilon, delta)
        with self._current():
            if epsilon < self._account.cap_epsilon or delta < self._account.cap_delta:
                raise LedgerError(
                    "the cap can only be raised; lower [budget] in the profile instead"
                )
            self._append("cap", {"epsilon": epsilon, "delta": delta})

    def approve(self, approval: Approval, records: tuple[str, str] | None = None) -> None:
        """Record the operator's approval of a run's request; a second call has no effect.

        Args:
            approval: the approval of the request.
            records: digests of the prepared records and of their export, see :meth:`bind_records`.

        Raises:
            LedgerError: the run was refused, which is final.
        """
        with self._current():
            if approval.run_id in self._account.refused:
                raise LedgerError(
                    "the run was refused, and a refusal is final; ask the coordinator for a new run"
                )
            if approval.request not in self._account.approved.get(approval.run_id, ()):
                self._append(APPROVED, approval.entry())
            if records is not None:
                self._bind(approval.run_id, *records)

    def bind_records(self, run_id: str, records: str, export: str, *, renew: bool = False) -> str:
        """Bind a run to prepared records; return the digest of the records to which it is bound.

        Args:
            run_id: the run.
            records: SHA-256 of the file of prepared records.
            export: SHA-256 of the export from which they were read.
            renew: whether they replace the run's earlier records, which only the operator decides.

        Raises:
            LedgerError: without ``renew``, if too many other runs are bound to records, are not
                decided on and released nothing.
        """
        with self._current():
            if renew:
                self._bind(run_id, records, export)
            elif run_id not in self._account.records:
                check_bindable(self._account)
                self._bind(run_id, records, export)
            return self._account.records[run_id]

    def refuse(self, run_id: str, by: str, terms: str = "") -> None:
        """Forbid all releases of ``run_id`` from now on, permanently.

        A second call has no effect. The entry holds the JSON of the run's ``terms`` if a message
        asked for the run.
        """
        with self._current():
            if run_id not in self._account.refused:
                asked = {"terms": terms} if terms else {}
                self._append(REFUSED, {"run_id": run_id, "by": by, **asked})

    def withdraw(
        self,
        units: Sequence[str],
        column: str,
        key: str,
        *,
        undo: bool = False,
        renew: bool = False,
    ) -> int:
        """Record the withdrawal of all ``units`` or of none; return how many are new.

        Args:
            units: keyed digests of the ids of the units.
            column: the column of the ids.
            key: name of the key of the digests.
            undo: whether the withdrawals are taken back.
            renew: whether ``units`` replace all earlier withdrawals, under another key.

        Raises:
            LedgerError: a withdrawal would be forgotten.
        """
        with self._current():
            account = self._account
            if renew:
                check_renewal(account, units)
            elif account.withdrawn and key != account.withdrawal_key:
                raise LedgerError("ledger: the withdrawals were noted under another key meanwhile")
            noted = {} if renew else dict(account.withdrawn.get(column, {}))
            new = [unit for unit in dict.fromkeys(units) if (unit in noted) == undo]
            for unit in new:
                body: dict[str, object] = {"unit": unit, "column": column, "key": key}
                self._append(READMITTED if undo else WITHDRAWN, body)
            return len(new)

    def _bind(self, run_id: str, records: str, export: str) -> None:
        if self._account.records.get(run_id) != records:
            self._append(RECORDS, {"run_id": run_id, "records": records, "export": export})


def cap_for_runs(plan: Plan, runs: int) -> tuple[float, float, int]:
    """Return (ε, δ, order) of the least cap that admits ``runs`` runs of ``plan``.

    δ is that of a run times ``runs``; the order is 0 where the plain sum of ε is less than that of
    any Rényi filter. ε is rounded up.

    Raises:
        AccountingError: a number of the plan is out of range.
        LedgerError: δ of all runs reaches 1, which promises nothing.
    """
    delta = sum_rounded_up([plan.delta] * runs)
    if delta >= 1:
        raise LedgerError(
            "the deltas of all runs together reach 1, which promises nothing; take fewer runs, or "
            "a smaller delta"
        )
    best = sum_rounded_up([plan.epsilon] * runs), 0
    for order in range(2, MOST_ORDER + 1) if delta > 0 and best[0] < math.inf else ():
        run = reserved(prices_of(plan, order))
        if float(run) * runs > best[0]:  # it grows with the order
            break
        # Below 0 where δ alone pays for the runs.
        epsilon = max(0.0, zero_epsilon(order, delta) + float(run) * runs + 2 * DOWN)
        epsilon *= 1 + 1e-9
        if epsilon < best[0] and sum_within([run] * runs, filter_capacity(order, (epsilon, delta))):
            best = epsilon, order
    return best[0], delta, best[1]


def check_bindable(account: Account) -> None:
    """Refuse one more run whose records a message would prepare.

    A server that names a new run in each message must neither fill the disk nor the ledger.

    Raises:
        LedgerError: as many runs are bound, not decided on, and released nothing.
    """
    used = (
        account.runs
        | account.ended
        | account.approved.keys()
        | {key[0] for key in account.releases}
    )
    if len(account.records.keys() - used) >= MOST_UNUSED:
        raise LedgerError(
            f"ledger: the records of {MOST_UNUSED} runs were prepared under a standing "
            "approval, and none of them released anything; list them: hdpfl-site prepare; "
            "refuse those that are not wanted: hdpfl-site requests --refuse RUN"
        )


def check_renewal(account: Account, units: Collection[object]) -> None:
    """Refuse fewer ``units`` than withdrew: some would silently be back."""
    if len({*units}) < account.withdrawn_units:
        raise LedgerError(
            f"{account.withdrawn_units} units withdrew their consent: '--renew' needs the ids of "
            "all these units; nothing was changed"
        )
