"""Releases beside a round's update: a kind, two halves, one registry by name.

:func:`register` makes a kind known to plan, ledger, consent, reports, wire and server; its half at
a site is registered in ``client_app/releases/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from hdpfl_flower.config.settings import PREFIX, Value
from hdpfl_flower.config.tables_of_terms import Pairs, read_pairs, tables_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.prior import Prior
from hdpfl_flower.releases.scores import Scores
from hdpfl_flower.releases.shrink import Shrink
from hdpfl_flower.releases.tuning import Tuning

KINDS: Final[dict[str, type[ReleaseKind]]] = {}
"""Every kind by its name, in the order of their work at a run's end."""
RESERVED: Final = frozenset({"update", "clipped-update", "choice", "metrics"})
"""Names of the releases of rounds in ledgers."""
KindT = TypeVar("KindT", bound=ReleaseKind)


def register(kind: type[ReleaseKind]) -> None:
    """Make a kind known by its name.

    Raises:
        ValueError: its release has the name of another one, whose price would pay for both.
    """
    others = {known.release for name, known in KINDS.items() if name != kind.kind}
    if kind.release and kind.release in others | RESERVED:
        raise ValueError(f"'{kind.release}' names another release; take another name")
    KINDS[kind.kind] = kind


def asked(terms: RunTerms) -> tuple[ReleaseKind, ...]:
    """Return the kinds that the terms ask for, in the order of the registry.

    Raises:
        TermsError: a kind that this version does not know, by its name, or a wrong setting.
    """
    return _asked(terms.after, tuple(KINDS.values()))


@lru_cache(maxsize=64)
def _asked(pairs: Pairs, known: tuple[type[ReleaseKind], ...]) -> tuple[ReleaseKind, ...]:
    tables = tables_of(pairs)
    for name in tables:
        _find(name)
    settings = [_parse(kind, tables[kind.kind]) for kind in known if kind.kind in tables]
    return tuple(kind for kind in settings if kind.is_asked)


def asked_kind(terms: RunTerms, kind: type[KindT]) -> KindT | None:
    """Return the settings of one kind; None: the terms do not ask for it."""
    return next((settings for settings in asked(terms) if isinstance(settings, kind)), None)


def changes_of(pairs: Pairs) -> Pairs:
    """Return the settings of a run config that differ from their defaults.

    Raises:
        TermsError: as :func:`asked`.
    """
    tables = tables_of(pairs)
    return read_pairs({name: _changed(_find(name), table) for name, table in tables.items()})


def completed(given: Pairs, defaults: Iterable[ReleaseKind]) -> Pairs:
    """Return the settings to send: those given, else a strategy's; each kind whole.

    Raises:
        TermsError: as :func:`asked`.
    """
    tables = {kind.kind: kind.as_config() for kind in defaults}
    for name, table in tables_of(given).items():
        tables[name] = {**tables.get(name, {}), **_changed(_find(name), table)}
    kinds = [_parse(KINDS[name], table) for name, table in tables.items()]
    for kind in kinds:
        if not kind.is_asked and kind != type(kind)():
            raise TermsError(
                f"{PREFIX}{kind.words} is set without '{kind.main}', which asks for it; state it, "
                "or leave the others out"
            )
    return read_pairs({kind.kind: kind.as_config() for kind in kinds if kind.is_asked})


def kind_of_release(release: str) -> type[ReleaseKind] | None:
    """Return the kind of a payload in a ledger; None: of none that this version knows."""
    return next((kind for kind in KINDS.values() if release and kind.release == release), None)


def stays(release: str) -> bool:
    """Return whether a payload is sealed for the site alone, and never sent."""
    kind = kind_of_release(release)
    return kind is not None and not kind.is_sent


def _find(name: str) -> type[ReleaseKind]:
    if name not in KINDS:
        raise TermsError(
            f"{PREFIX}'after.{name}' is of a kind that this version does not know"
            f"{hint(f'after.{name}', [f'after.{known}' for known in KINDS])}"
        )
    return KINDS[name]


def _parse(kind: type[ReleaseKind], table: Mapping[str, Any]) -> ReleaseKind:
    return kind.parse(table, f"after.{kind.kind}.")


def _changed(kind: type[ReleaseKind], table: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings unlike the kind's defaults."""
    default, given = kind().as_config(), _parse(kind, table).as_config()
    return {key: value for key, value in given.items() if value != default[key]}


for _kind in (Tuning, Prior, Shrink, Scores):
    register(_kind)
