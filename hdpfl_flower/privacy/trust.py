"""Who may add a run's noise: what a site lets a server choose beside DP-SGD on its records.

Clipped updates without noise leave for a server that the site trusts alone, and updates that the
site noises as a whole only where its policy says so: their unit is another one.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined
from hdpfl_flower.config.profile import Profile

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


def check_client_noise(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms whose unit is all of the site's records, unless the policy allows them.

    Raises:
        Declined: ``noise = client`` without ``policy.client-noise``; a simulated site may.
    """
    if terms.noise != "client" or profile.policy.client_noise or profile.simulated:
        return
    raise Declined(
        "policy: 'client-noise' is not set, and noise = 'client' makes the whole update the unit "
        "in place of a record; set 'policy.client-noise = true' to allow it, or ask the "
        "coordinator for noise = 'records'"
    )
