"""The operator's consent, asked before any other work of a run.

A deployed site has no ``[simulation]`` in its profile; a simulated one, in the server's own process
too, has no operator.
"""

from __future__ import annotations

import sqlite3
from datetime import date

from client_app.site.app_digest import app_digest
from client_app.site.inbox import MOST_RUNS, covering_digests, file_request
from client_app.site.site import Site
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Pending, Refused
from hdpfl_flower.system.printable import site_log

log = site_log()


def check_consent(site: Site, *, ask: bool) -> None:
    """Refuse a run without its operator's approval of these terms.

    Args:
        site: opened for the message; no record of it is read.
        ask: whether a run without approval is to wait for the operator's decision.

    Raises:
        Pending: it has no approval, or one for other terms or another app.
        Refused: it was refused, under whatever terms.
        Declined: there is no ledger.
        LedgerError: the ledger cannot be used.
    """
    profile, terms = site.profile, site.terms
    if profile.simulated:
        return
    standing = is_standing(profile, terms, date.today())
    if standing and (profile.ledger is None or not profile.ledger.path.exists()):
        return  # no refusal is possible, and without a ledger nothing is released
    account = site.ledger.account()
    if terms.run_id in account.refused:
        raise Refused("the run was refused at this site")
    if standing:
        return
    app = app_digest()
    if covering_digests(terms, app) & set(account.approved.get(terms.run_id, ())):
        return
    if ask and profile.ledger is not None:
        try:
            if not file_request(profile.ledger.path, terms, app):
                log.error(
                    "run '%s' is not in the list of requests, because %d others wait; "
                    "decide on these: hdpfl-site requests",
                    terms.run_id,
                    MOST_RUNS,
                )
        except (sqlite3.Error, OSError) as error:  # the reply is the same: the server asks again
            log.error("the request could not be stored: %s", type(error).__name__)
    raise Pending(f"run '{terms.run_id}' waits for approval; see: hdpfl-site requests")


def is_standing(profile: Profile, terms: RunTerms, today: date) -> bool:
    """Return whether [standing] of the profile approves the run."""
    bounds = profile.standing
    return (
        profile.approval == "standing"
        and (bounds.until is None or today <= bounds.until)
        and (bounds.max_rounds is None or terms.last_round <= bounds.max_rounds)
    )
