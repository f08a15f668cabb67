"""Whether a site lets clipped updates without noise leave it, for a server that it trusts."""

from __future__ import annotations

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import Declined
from hdpfl_flower.profile import Profile

CLIPPED_UPDATE = "clipped-update"
"""The kind of release, in a site's ledger, that no plan of the site's pays for: the server adds the
noise and keeps the account."""


def check_trust(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms under which updates leave without noise, unless the profile says otherwise.

    Raises:
        Declined: ``noise = server`` and no ``trust-server``, or a looser δ than the site's own.
    """
    if terms.noise != "server":
        return
    if not profile.trust_server:
        raise Declined(
            "profile: 'trust-server' is not set, and noise = 'server' asks for updates without "
            "noise; set 'trust-server = true' to send them to this server, or ask the coordinator "
            "for noise = 'records' or 'client'"
        )
    if terms.delta > profile.run.delta:
        raise Declined("policy: 'delta' is above 'run.delta'")
