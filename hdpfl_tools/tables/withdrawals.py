"""Withdrawals of consent by a site's operator, and a profile whose records leave them out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from hdpfl_flower.config.data_source import TABLES, DataSource, Withdrawn, keyed_digest
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.checked_table import read_facts
from hdpfl_flower.ledger.ledger import Ledger, check_renewal
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.ledger.withdrawals import (
    KEY_BYTES,
    checked_key,
    key_name,
    key_path,
    stored_key,
    withdrawn_from,
)
from hdpfl_flower.system.files import replace_file, sync
from hdpfl_tools.tables.frozen_table import checked_table, table_path

_PATIENCE = 30.0
"""Seconds to wait for another process that makes the key."""


def load_profile(path: Path) -> Profile:
    """Return the profile at ``path``; reading its ``data`` leaves out withdrawn units.

    The ledger is opened when records are first read; before ``ledger --init`` nothing is withdrawn.
    A table is read from beside the ledger, where the import that was checked lies.

    Raises:
        ProfileError: as ``Profile.load``.
    """
    profile = Profile.load(path)
    data, paths = profile.data, profile.ledger
    if data is None or paths is None:
        return profile
    withdrawn = cache(lambda: withdrawn_by(account_at(paths), data, paths.path))
    source = data.without(withdrawn)
    if data.format in TABLES:
        source = source.frozen(cache(lambda: _frozen_table(data, paths.path)))
    return profile.model_copy(update={"data": source})


def _frozen_table(source: DataSource, ledger: Path) -> Path | None:
    """Return the table beside a ledger; None where a file was not imported yet."""
    is_file = source.path != Path()
    if not ledger.parent.is_dir() or (is_file and read_facts(ledger) is None):
        return None
    return table_path(ledger, checked_table(source, ledger).table)


def account_at(paths: LedgerPaths) -> Account:
    """Return the account of the ledger at ``paths``; an empty one before there is a ledger.

    Raises:
        LedgerError: the ledger is damaged, or its anchor shows that there was one.
    """
    if not paths.path.exists() and not (paths.anchor and paths.anchor.exists()):
        return Account()
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        return ledger.account()


def withdrawn_by(account: Account, source: DataSource, ledger: Path) -> Withdrawn:
    """Return the units of ``account`` that a reading of ``source`` must leave out.

    Args:
        account: of the ledger.
        source: of the records; its column of ids is looked up.
        ledger: path of the ledger, beside which the key lies.

    Raises:
        LedgerError: the source cannot tell them: it names no column of ids or another one than
            they withdrew by, or the key is lost.
    """
    return withdrawn_from(account, source.own_column, ledger)


def withdraw(ledger: Ledger, path: Path, column: str, ids: Sequence[bytes]) -> int:
    """Note the withdrawal of units in ``ledger``, durably; return how many are new.

    Args:
        ledger: the open ledger.
        path: of it; the key is made beside it, mode 0600, where there is none.
        column: the site's own column of ids.
        ids: of the units, as a run reads them.

    Raises:
        LedgerError: the key is lost, or ledger or key cannot be written.
    """
    key = unit_key(ledger.account(), path)
    return ledger.withdraw(_digests(key, ids), column, key_name(key))


def undo(ledger: Ledger, path: Path, column: str, ids: Sequence[bytes]) -> int:
    """Take withdrawals back; return how many there were. Arguments and errors as above."""
    account = ledger.account()
    if not account.withdrawn:
        return 0
    key = checked_key(account, path)
    return ledger.withdraw(_digests(key, ids), column, key_name(key), undo=True)


def renew(ledger: Ledger, path: Path, column: str, ids: Sequence[bytes]) -> int:
    """Note all withdrawn units anew under a new key, in place of one that was lost.

    Raises:
        LedgerError: fewer different ids than units that withdrew; nothing was changed.
    """
    check_renewal(ledger.account(), ids)
    key = _made_key(path, anew=True)
    return ledger.withdraw(_digests(key, ids), column, key_name(key), renew=True)


def unit_key(account: Account, ledger: Path) -> bytes:
    """Return the key of the ids in prepared records, made where there is none.

    Raises:
        LedgerError: units withdrew, and the key is lost; or it cannot be written.
    """
    return checked_key(account, ledger) if account.withdrawn else _made_key(ledger)


def _digests(key: bytes, ids: Sequence[bytes]) -> list[str]:
    return list(dict.fromkeys(keyed_digest(key, unit) for unit in ids))


def _made_key(ledger: Path, *, anew: bool = False) -> bytes:
    """Return the key, made durably where there is none yet, or ``anew``."""
    path = key_path(ledger)
    with _written(path), alone_in(path.parent, _PATIENCE):
        stored = None if anew else stored_key(ledger)
        if stored is not None:
            return stored
        key = os.urandom(KEY_BYTES)
        # On disk before any entry that only it can tell.
        replace_file(path, key.hex().encode(), durable=True)
        sync(path.parent)
    return key


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror}") from None
