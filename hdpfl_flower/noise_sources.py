"""Sources of a run's noise, the values of ``noise``, with their properties.

Plans, checks, reports and messages ask a source for its properties, never for its name: a new one
is a row here and a file of its own work (``client_app/training``). One with terms, messages or
promises of its own has modules of one name, ``own``, in the rooms that ask for a half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

ONE_MORE_OR_LESS = "add or remove one such unit"
DEFAULTS: Final[Mapping[str, str]] = {"strategy": "mmse", "batch-sizes": "16,32,64,128"}
"""Of each source that states no other ones."""
ANY_CHANGE = "change, add or remove any of these records, one or all of them"


@dataclass(frozen=True)
class NoiseSource:
    """A value of ``noise``.

    Attributes:
        name: the value.
        meaning: of the value, for the table of keys.
        trust: against whom the promise holds, for journals and reports.
        leaves: what leaves a site each round, for its operator.
        permission: key of the profile that allows it at a deployed site; empty: none is needed.
        asks: why a site has to allow it, and the remedy, after "'KEY' is not set, and".
        unit: the unit in words; empty: a record, or all records of an id (``privacy/unit.py``).
        relation: of the two data sets compared.
        site_plans: a site's own plan pays for it; else the server keeps the account.
        own_noise: a site's update leaves with the noise of its own steps.
        noises_parts: a part of the model that stays at its site is trained with noise, too.
        per_record: gradients of records are clipped, and accounted in a site's plan.
        server_rate: server's rate beside an open rate of the sites that it does not find.
        defaults: values of keys that are left at ``auto``.
        is_summed: the server sees the sum of the sites, of one step a round, and no update alone;
            a round is lost where a site of its sum does not answer, and may be replaced.
        added: where the noise is added, for a run's page.
        needs: property that a strategy must have (``strategies/core/declaration.py``) → remedy.
        own: name of its own modules; empty: it has none.
        head: key of its own text in the head of a message to a site; empty: none.
    """

    name: str
    meaning: str
    trust: str
    leaves: str
    added: str
    permission: str = ""
    asks: str = ""
    unit: str = ""
    relation: str = ONE_MORE_OR_LESS
    site_plans: bool = True
    own_noise: bool = False
    noises_parts: bool = False
    per_record: bool = True
    is_summed: bool = False
    server_rate: float = 1.0
    defaults: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    needs: Mapping[str, str] = field(default_factory=dict)
    own: str = ""
    head: str = ""

    def half(self, place: str) -> Any:
        """Return the source's own module at a dotted place, ``{}`` for ``own``; None: no own."""
        return import_module(place.format(self.own)) if self.own else None


_ROWS = (
    NoiseSource(
        "records",
        "each site adds noise by DP-SGD (unit: a record)",
        trust="the server is trusted with nothing, and each client keeps its own account",
        leaves="one update in each round, with this site's own noise on the clipped gradients "
        "of the records",
        added="each site adds noise to the clipped gradients of its records",
        own_noise=True,
        noises_parts=True,
    ),
    NoiseSource(
        "shared",
        "the sites add noise together, in a sum that hides each single update (unit: a record; "
        "sites must set policy.shared-noise)",
        trust="the server is trusted with nothing and sees only a sum over the sites; the "
        "promise holds against the server together with any 'colluders' other sites; "
        "each client keeps its own account",
        leaves="one masked part of a sum in each round: the server can read only the sum of "
        "all sites, and the sites share the noise in it",
        added="each site adds a share of the noise to its part of a sum, and only this sum can "
        "be read",
        permission="policy.shared-noise",
        asks="noise = 'shared' relies on other sites for a part of the noise; set "
        "'policy.shared-noise = true' to allow it, or ask the coordinator for noise = 'records'",
        is_summed=True,
        # One step a round in place of a round's many, which move the model by 0.1 each.
        server_rate=20.0,
        noises_parts=True,
        # One clipped sum a round: batches of all records have the best signal for their noise.
        defaults={"strategy": "fedavg", "batch-sizes": "all"},
        needs=dict.fromkeys(
            ("sum_alone", "weights_alone"), "take 'fedavg', or leave out 'strategy'"
        ),
        own="shared_noise",
        head="sum-of",
    ),
    NoiseSource(
        "server",
        "a trusted server adds the noise (unit: a client; sites must set trust-server)",
        trust="the server is trusted: it sees clipped updates without noise, knows who took "
        "part, adds the noise and keeps the account; the promise holds against everyone "
        "who sees the models. This journal names who took part, so keep it at the server",
        leaves="one update WITHOUT noise in each round: the server is trusted to add the noise",
        added="the server adds noise to the sum of the sites' clipped updates",
        permission="trust-server",
        asks="noise = 'server' asks for updates without noise; set 'trust-server = true' to send "
        "them to this server, or ask the coordinator for noise = 'records' or 'client'",
        unit="one client with all of its records",
        site_plans=False,
        per_record=False,
        needs={"adds_noise": "take fedhdp or dp-fedavg, or leave the noise to the sites"},
    ),
    NoiseSource(
        "client",
        "each client adds noise to its whole update (unit: all records of a client, against "
        "any change; sites must set policy.client-noise)",
        trust="the server is trusted with nothing; each client adds noise to its whole update "
        "and keeps its own account, without amplification by sampling",
        leaves="one update in each round, clipped and noised as a whole",
        added="each site adds noise to its clipped update",
        permission="policy.client-noise",
        asks="noise = 'client' protects all records of a client as one unit, and not each "
        "record; set 'policy.client-noise = true' to allow it, or ask the coordinator for "
        "noise = 'records'",
        unit="all records of one client",
        relation=ANY_CHANGE,
        per_record=False,
    ),
)
SOURCES: Final = {source.name: source for source in _ROWS}
"""Every source by its name."""


def by_source(key: str) -> str:
    """Return the values of a key at ``auto``, in words.

    >>> by_source("strategy")
    'mmse, or fedavg with noise = shared'
    """
    others = [
        f", or {source.defaults[key]} with noise = {source.name}"
        for source in _ROWS
        if source.defaults[key] != DEFAULTS[key]
    ]
    return DEFAULTS[key] + "".join(others)
