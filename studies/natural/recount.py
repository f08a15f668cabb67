"""Recount of ledgers, required for an entry to count.

The ledgers of its sites must give the ε that it claims.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.invariants import check_entries
from hdpfl_flower.monitoring.journal import Event
from server_app.in_process.comparison import OnRound, RunJob
from studies.framework.kept_runs import keep


def keep_recounted(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run a job, recount its sites' ledgers, and keep it.

    Raises:
        LedgerError: as :func:`recount`; the run is not kept.
        HDPFLError: the job cannot run.
    """
    return keep(job, on_round, recount)


def recount(folder: Path) -> None:
    """Verify the ledger of every site of a run.

    Raises:
        LedgerError: a ledger breaks an invariant, such as a release that no plan pays for, or a
            plan that costs more than was charged, computed again from its text; or there is none.
    """
    paths = sorted(folder.glob("sites/*/ledger.sqlite"))
    if not paths:
        raise LedgerError(f"run '{folder.name}' has no ledger to recount; it is not counted")
    for path in paths:
        with contextlib.closing(Chain(path)) as chain, chain.transaction() as entries:
            found = [one for one in check_entries(entries) if one.failures]
        if found:
            raise LedgerError(
                f"run '{folder.name}', site {path.parent.name}: {found[0].failures[0]}; it is not "
                "counted"
            )
