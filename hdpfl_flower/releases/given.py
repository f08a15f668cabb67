"""Settings of kinds as a run config gives them, and as the terms send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hdpfl_flower.config.settings import PREFIX, Value
from hdpfl_flower.config.tables_of_terms import Pairs, flattened, read_pairs, tables_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases import KINDS, kind_named, parsed
from hdpfl_flower.releases.base import AfterKind


def changes_of(pairs: Pairs, table: str = "after") -> Pairs:
    """Return the settings of a run config that differ from their defaults.

    Args:
        pairs: of the table.
        table: its name.

    Raises:
        TermsError: as :func:`asked`.
    """
    tables = tables_of(pairs)
    changed = {name: _changed(kind_named(name, table), keys) for name, keys in tables.items()}
    return read_pairs(dict(flattened({name: keys for name, keys in changed.items() if keys})))


def completed(terms: RunTerms, table: str, defaults: Iterable[AfterKind]) -> Pairs:
    """Return the settings to send: those given, else a strategy's; each kind whole.

    Args:
        terms: with the settings given.
        table: ``first`` or ``after``.
        defaults: of the strategy.

    Raises:
        TermsError: as :func:`asked`.
    """
    tables = {kind.kind: kind.as_config() for kind in defaults}
    for name, keys in tables_of(getattr(terms, table)).items():
        tables[name] = {**tables.get(name, {}), **_changed(kind_named(name, table), keys)}
    kinds = [parsed(KINDS[name], keys).settled(terms) for name, keys in tables.items()]
    for kind in kinds:
        none = type(kind)()
        if not kind.is_asked and kind != none.updated(**{kind.main: getattr(kind, kind.main)}):
            raise TermsError(
                f"{PREFIX}{kind.words} is set without '{kind.main}', which asks for the "
                f"release; set '{kind.main}', or leave the other settings out"
            )
    asked_tables = {kind.kind: kind.as_config() for kind in kinds if kind.is_asked}
    return read_pairs(dict(flattened(asked_tables)))


def _changed(kind: type[AfterKind], table: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings unlike the kind's defaults."""
    default, given = kind().as_config(), parsed(kind, table).as_config()
    return {key: value for key, value in given.items() if value != default[key]}
