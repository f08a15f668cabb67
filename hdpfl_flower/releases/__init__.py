"""Releases of a site: a kind, two halves, one registry by name.

:func:`register` makes a kind known to plan, ledger, consent, reports, wire and server; its half at
a site is in ``client_app/releases/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from hdpfl_flower.config.settings import PREFIX
from hdpfl_flower.config.tables_of_terms import Pairs, tables_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases.base import AfterKind, ReleaseKind
from hdpfl_flower.releases.coefficients import Coefficients
from hdpfl_flower.releases.moments import Moments
from hdpfl_flower.releases.prior import Prior
from hdpfl_flower.releases.rounds import ClippedUpdate, Metrics, PrivateChoice, Update
from hdpfl_flower.releases.scores import Scores
from hdpfl_flower.releases.shrink import Shrink
from hdpfl_flower.releases.tuning import Tuning

KINDS: Final[dict[str, type[AfterKind]]] = {}
"""Every kind with a table by its name, in the order of their work at a run's end."""
RELEASES: Final[dict[str, type[ReleaseKind]]] = {}
"""Every kind of release by its name in ledgers."""
KindT = TypeVar("KindT", bound=AfterKind)


def register(kind: type[AfterKind]) -> None:
    """Make a kind known by its name.

    Raises:
        ValueError: its release has the name of another one, whose price would pay for both.
    """
    if issubclass(kind, ReleaseKind):
        other = RELEASES.get(kind.release)
        if not kind.release or (other and (other.kind != kind.kind or not kind.kind)):
            raise ValueError(
                f"'{kind.release}' is the name of another release, or no name; choose another one"
            )
        RELEASES[kind.release] = kind
    if kind.kind:
        KINDS[kind.kind] = kind


def asked(terms: RunTerms) -> tuple[AfterKind, ...]:
    """Return the kinds that the terms ask for, in the order of the registry.

    Raises:
        TermsError: a kind that this version does not know, by its name, or a wrong setting.
    """
    pairs = (("first", terms.first), ("after", terms.after))
    return _asked(pairs, tuple(KINDS.values()))


@lru_cache(maxsize=64)
def _asked(
    pairs: tuple[tuple[str, Pairs], ...], known: tuple[type[AfterKind], ...]
) -> tuple[AfterKind, ...]:
    tables: dict[str, dict[str, Any]] = {}
    for table, settings_of_table in pairs:
        for name, settings_of_kind in tables_of(settings_of_table).items():
            kind_named(name, table)
            tables[name] = settings_of_kind
    settings = [parsed(kind, tables[kind.kind]) for kind in known if kind.kind in tables]
    return tuple(kind for kind in settings if kind.is_asked)


def asked_kind(terms: RunTerms, kind: type[KindT]) -> KindT | None:
    """Return the settings of one kind; None: the terms do not ask for it."""
    return next((settings for settings in asked(terms) if isinstance(settings, kind)), None)


def releases_asked(terms: RunTerms) -> tuple[ReleaseKind, ...]:
    """Return the kinds that release something once a run; raises as :func:`asked`."""
    return tuple(kind for kind in asked(terms) if isinstance(kind, ReleaseKind))


def sent_once() -> dict[str, type[ReleaseKind]]:
    """Return the kinds that a message of their own asks for, by the names of their tables."""
    return {kind.kind: kind for kind in RELEASES.values() if kind.kind and kind.is_sent}


def is_covered(release: str) -> bool:
    """Return whether a plan has to pay for a payload in a ledger, of whichever version."""
    return release not in RELEASES or RELEASES[release].is_covered


def is_update(release: str) -> bool:
    """Return whether a payload in a ledger is a site's part in a round."""
    return release in RELEASES and RELEASES[release].is_update


def kind_named(name: str, table: str = "after") -> type[AfterKind]:
    """Return the kind of a table such as ``after.NAME``; raises ``TermsError`` if unknown."""
    if name not in KINDS or KINDS[name].table != table:
        known = [f"{kind.table}.{kind.kind}" for kind in KINDS.values()]
        raise TermsError(
            f"{PREFIX}'{table}.{name}' is of a kind that this version does not know"
            f"{hint(f'{table}.{name}', known)}"
        )
    return KINDS[name]


def parsed(kind: type[AfterKind], table: Mapping[str, Any]) -> AfterKind:
    """Return the settings of one table; raises ``TermsError`` where one is wrong."""
    return kind.parse(table, f"{kind.table}.{kind.kind}.")


_ROUNDS = (Update, ClippedUpdate, PrivateChoice, Metrics)
for _kind in (*_ROUNDS, Moments, Tuning, Prior, Shrink, Scores, Coefficients):
    register(_kind)
