"""Withdrawals of consent: entries of the ledger by keyed digests, their key on the site's disk.

The ledger states how many units withdrew and when. Without the key their ids cannot be found by
trying all possible ids. A lost key stops every reading of records, because the records of the
withdrawn units could no longer be left out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hdpfl_flower.config.data_source import NOBODY, Withdrawn
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import Account

KEY_BYTES = 32


def withdrawn_from(account: Account, column: str, ledger: Path) -> Withdrawn:
    """Return the units of ``account`` that a reading of records must leave out.

    Args:
        account: of the ledger.
        column: of the ids in the export; empty: none.
        ledger: path of the ledger, beside which the key lies.

    Raises:
        LedgerError: no column of ids, another one than they withdrew by, or the key is lost.
    """
    if not account.withdrawn:
        return NOBODY
    units = account.withdrawn_units
    if not column:
        raise LedgerError(
            f"{units} units withdrew their consent, but without 'data.id' no record tells its "
            "unit: set 'data.id' in the profile, or export the records without these units and "
            "take the withdrawals back: hdpfl-site withdraw --undo"
        )
    noted = account.withdrawn.get(column, {})
    if len(noted) < units:
        raise LedgerError(
            f"{units} units withdrew their consent, but only {len(noted)} of them by the column "
            "that 'data.id' names now: name the other units by their ids in that column, too: "
            "hdpfl-site withdraw ID…"
        )
    return Withdrawn(checked_key(account, ledger), frozenset(noted))


def key_path(ledger: Path) -> Path:
    """Return the file of the key of withdrawals, beside the ledger."""
    return ledger.with_name(f"{ledger.name}.withdrawal-key")


def key_name(key: bytes) -> str:
    """Return the name by which entries tell their key."""
    return hashlib.sha256(b"hdpfl withdrawal key" + key).hexdigest()[:32]


def checked_key(account: Account, ledger: Path) -> bytes:
    """Return the key of the account's withdrawals; refuse a lost or other one."""
    key = stored_key(ledger)
    if key is None or key_name(key) != account.withdrawal_key:
        raise LedgerError(
            f"the key of the withdrawals, {key_path(ledger)}, is missing or is another key, so "
            "nobody can say whose records to leave out, and no record is read; restore the key "
            "from the ledger's backup, or name all who withdrew: hdpfl-site withdraw --renew ID…"
        )
    return key


def stored_key(ledger: Path) -> bytes | None:
    """Return the key beside the ledger; None: it is missing or damaged."""
    try:
        key = bytes.fromhex(key_path(ledger).read_text("ascii"))
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None
