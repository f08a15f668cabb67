"""Withdrawals of consent: entries of the ledger by keyed digests, their key on the site's disk.

The ledger states how many units withdrew and when. Without the key their ids cannot be found by
trying all possible ids. A lost key stops every reading of records, because the records of the
withdrawn units could no longer be left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from hdpfl_flower.config.data_source import NOBODY, DataSource, Withdrawn, keyed_digest
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.system.files import replace_file, sync

_KEY_BYTES = 32
_PATIENCE = 30.0


def load_profile(path: Path) -> Profile:
    """Return the profile at ``path``; reading its ``data`` leaves out withdrawn units.

    The ledger is opened when records are first read; before ``ledger --init`` nothing is withdrawn.

    Raises:
        ProfileError: as ``Profile.load``.
    """
    profile = Profile.load(path)
    data, paths = profile.data, profile.ledger
    if data is None or paths is None:
        return profile
    withdrawn = cache(lambda: withdrawn_by(account_at(paths), data, paths.path))
    return profile.model_copy(update={"data": data.without(withdrawn)})


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


def withdrawn_from(account: Account, column: str, ledger: Path) -> Withdrawn:
    """Return the units of ``account`` by a column of ids; as :func:`withdrawn_by`."""
    if not account.withdrawn:
        return NOBODY
    units = account.withdrawn_units
    if not column:
        raise LedgerError(
            f"{units} units withdrew their consent, and without 'data.id' no record tells its "
            "unit: set 'data.id' in the profile, or export the records without them and take the "
            "withdrawals back: hdpfl-site withdraw --undo"
        )
    noted = account.withdrawn.get(column, {})
    if len(noted) < units:
        raise LedgerError(
            f"{units} units withdrew their consent, {len(noted)} of them by the column that "
            "'data.id' names now: name the others by their ids of that column, too: hdpfl-site "
            "withdraw ID…"
        )
    return Withdrawn(_checked_key(account, ledger), frozenset(noted))


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
    key = _checked_key(account, path)
    return ledger.withdraw(_digests(key, ids), column, key_name(key), undo=True)


def renew(ledger: Ledger, path: Path, column: str, ids: Sequence[bytes]) -> int:
    """Note all withdrawn units anew under a new key, in place of one that was lost.

    Raises:
        LedgerError: fewer different ids than units that withdrew; nothing was changed.
    """
    ledger.account().check_renewal(ids)
    key = _made_key(path, anew=True)
    return ledger.withdraw(_digests(key, ids), column, key_name(key), renew=True)


def unit_key(account: Account, ledger: Path) -> bytes:
    """Return the key of the ids in prepared records, made where there is none.

    Raises:
        LedgerError: units withdrew, and the key is lost; or it cannot be written.
    """
    return _checked_key(account, ledger) if account.withdrawn else _made_key(ledger)


def key_path(ledger: Path) -> Path:
    """Return the file of the key of withdrawals, beside the ledger."""
    return ledger.with_name(f"{ledger.name}.withdrawal-key")


def key_name(key: bytes) -> str:
    """Return the name by which entries tell their key."""
    return hashlib.sha256(b"hdpfl withdrawal key" + key).hexdigest()[:32]


def _digests(key: bytes, ids: Sequence[bytes]) -> list[str]:
    return list(dict.fromkeys(keyed_digest(key, unit) for unit in ids))


def _checked_key(account: Account, ledger: Path) -> bytes:
    """Return the key of the account's withdrawals; refuse a lost or other one."""
    key = _stored_key(ledger)
    if key is None or key_name(key) != account.withdrawal_key:
        raise LedgerError(
            f"the key of the withdrawals, {key_path(ledger)}, is missing or another one, so that "
            "nobody can say whose records to leave out, and none are read; restore it from the "
            "ledger's backup, or name all who withdrew: hdpfl-site withdraw --renew ID…"
        )
    return key


def _stored_key(ledger: Path) -> bytes | None:
    try:
        key = bytes.fromhex(key_path(ledger).read_text("ascii"))
    except (OSError, ValueError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _made_key(ledger: Path, *, anew: bool = False) -> bytes:
    """Return the key, made durably where there is none yet, or ``anew``."""
    path = key_path(ledger)
    with _written(path), alone_in(path.parent, _PATIENCE):
        stored = None if anew else _stored_key(ledger)
        if stored is not None:
            return stored
        key = os.urandom(_KEY_BYTES)
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
