"""Strategy settings in a run config: known ones and active ones.

A setting is a key of the class that its strategy names, in the strategy's own file. A run config
names it with the strategy's name: ``robust-hdp.estimator``, or ``estimator`` in the table
``[robust-hdp]``. A composed strategy has the settings of each part.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import PREFIX
from hdpfl_flower.config.tables import Row, flat_rows, rows_of, table_rows
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from strategies.composition import Combination, Owner
from strategies.core.base import table_of


def check_settings(
    config: RunConfig,
    owners: Mapping[str, Owner],
    *,
    running: Iterable[Combination],
) -> None:
    """Refuse unknown settings and settings of strategies not running.

    A setting at its default passes: Flower's run config always holds every declared key.

    Args:
        config: the run's.
        owners: every strategy and server step by its name.
        running: the run's strategy, or those of several runs.

    Raises:
        TermsError: names the key, and the nearest right one or the strategies that run.
    """
    parts = [(strategy, part) for strategy in running for part in strategy.owners]
    counting = {table_of(part): strategy.name for strategy, part in parts}
    running_owners = {table_of(part): part for _, part in parts}  # of users' own, in no table
    owners = {**running_owners, **owners}
    for name, given in config.settings.items():
        if name not in owners:
            key = f"{name}.{next(iter(given), '')}"
            suggestion = hint(key, [row.key for row in setting_rows(owners)])
            raise TermsError(f"{PREFIX}'{key}' is not a known key{suggestion}")
        settings = owners[name].settings_type.parse(given, f"{name}.").as_config()
        default = owners[name].settings_type().as_config()
        changed = [key for key in settings if settings[key] != default[key]]
        if changed and name not in counting:
            runs = ", ".join(dict.fromkeys(counting.values()))
            raise TermsError(
                f"{PREFIX}'{name}.{changed[0]}' is a setting of '{name}', but '{runs}' runs; "
                f"leave it out, or take '{name}'"
            )


def with_own_settings(config: RunConfig, running: Combination) -> RunConfig:
    """Return the configuration with its strategy's settings, no others.

    Raises:
        TermsError: one of its settings is wrong.
    """
    tables = {}
    for part in running.owners:
        name = table_of(part)
        settings = part.settings_type.parse(config.settings.get(name, {}), f"{name}.").as_config()
        if settings:
            tables[name] = settings
    return replace(config, settings=tables)


def setting_rows(owners: Mapping[str, Owner]) -> Iterator[Row]:
    """Yield a row per setting of all strategies and steps."""
    for name, owner in owners.items():
        yield from rows_of(name, owner.settings_type, f"{name}.")


def assigned(pairs: Iterable[str], running: Iterable[Combination]) -> dict[str, object]:
    """Return the run config keys of ``KEY=VALUE`` texts, values as TOML has them.

    A bare word is a text, and so is a number where the key asks for a text. A setting of a strategy
    that runs may be named without the strategy.

    Raises:
        TermsError: a pair has no ``=``.
    """
    parts = {table_of(part): part for strategy in running for part in strategy.owners}
    rows = list(setting_rows(parts))
    texts = {row.key for row in (*flat_rows(), *table_rows(), *rows) if row.type == "text"}
    values: dict[str, object] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise TermsError(f"--set '{pair}' has no '='; write KEY=VALUE")
        for name in [row.key for row in rows if row.key.partition(".")[2] == key] or [key]:
            values[name] = _value(text, is_text=name in texts)
    return values


def _value(text: str, *, is_text: bool) -> object:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    # A date or a list is no term's value: as a text it may be one.
    types = (str,) if is_text else (bool, int, float, str)
    return value if isinstance(value, types) else text
