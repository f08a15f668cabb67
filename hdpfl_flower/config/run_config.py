"""Configuration of a run, parsed once from Flower's ``run_config``.

``terms`` are sent to the sites. ``server`` stays at the server. Simulated sites are drawn from
``simulation``. ``settings`` are the strategies' own, as they were given: each strategy parses the
table of its name (``strategies/settings.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.server_terms import FOUND, ServerTerms
from hdpfl_flower.config.settings import PREFIX, Settings, Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.tables_of_terms import gathered
from hdpfl_flower.config.terms import AUTO, MOST_TERMS, RunTerms
from hdpfl_flower.config.toml_text import BOM, form_fault
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases import changes_of
from hdpfl_flower.system.fingerprints import listed

GROUPS: Mapping[str, type[Settings]] = {
    "terms": RunTerms,
    "server": ServerTerms,
    "simulation": SimulationTerms,
}
"""The groups of flat keys; no key is in two of them."""
_FOUND_RATE, _STATED_RATE = 0.3, 0.1
"""Of local SGD under ``learning-rate`` = ``auto``, for C = 1: beside a found rate, and alone."""
_MOST_HINTS = 5
Tables = Mapping[str, Mapping[str, Any]]
"""Strategy → its setting's key → value, as given."""


@dataclass(frozen=True)
class RunConfig:
    """Every group of a run's keys.

    Attributes:
        terms: plan, training, tests and consent of a site; the only group that is sent.
        server: keys of the server alone.
        simulation: draws of a simulation's sites.
        settings: the strategies' own, by the strategy's name; not validated here.
        rate_is_open: ``learning-rate`` is ``auto``, and no strategy has settled it yet; until then
            ``terms`` hold a stand-in.
    """

    terms: RunTerms = field(default_factory=RunTerms)
    server: ServerTerms = field(default_factory=ServerTerms)
    simulation: SimulationTerms = field(default_factory=SimulationTerms)
    settings: Tables = field(default_factory=dict)
    rate_is_open: bool = False

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> Self:
        """Return the groups written in ``run_config``.

        Raises:
            TermsError: a key is unknown, or a value has the wrong type or range; every mistake
                is named in one line.
        """
        flat, tables = _split(run_config)
        _check_known(flat)
        _check_tables(tables)
        rate_is_open = flat.get("learning-rate", AUTO) == AUTO
        if rate_is_open:
            flat.pop("learning-rate", None)
        groups: dict[str, Any] = {}
        wrong: list[str] = []
        for name, group in GROUPS.items():
            try:
                groups[name] = group.parse(_chosen(flat, group.keys()))
            except TermsError as error:
                wrong.append(str(error).removeprefix(PREFIX))
        if "terms" in groups:
            try:  # Flower writes each setting that a run may have, at its default
                groups["terms"] = groups["terms"].updated(after=changes_of(groups["terms"].after))
            except TermsError as error:
                wrong.append(str(error).removeprefix(PREFIX))
        if wrong:
            raise TermsError(f"{PREFIX}{'; '.join(wrong)}")
        sites, least = listed(groups["terms"].sites), groups["server"].min_sites
        if sites and len(sites) < least:
            raise TermsError(
                f"{PREFIX}'sites' lists {len(sites)}, fewer than 'min-sites' = {least}; lower "
                "'min-sites', or list more"
            )
        return cls(**groups, settings=tables, rate_is_open=rate_is_open)

    @classmethod
    def load(cls, path: Path, apart: Collection[str] = ()) -> Self:
        """Return the groups in the TOML file at ``path``: run config keys, and a table a strategy.

        A path in ``schema``, ``start`` or ``backbone`` starts at the file's folder; the text or the
        digest of its file replaces it.
        Keys ``apart`` are the server's own, and left out.

        Raises:
            TermsError: the file is missing or not TOML, or the keys are wrong.
            DataError: a file of weights that it names is not there.
        """
        try:
            read = tomllib.loads(_read_bounded(path))
            given = {key: value for key, value in read.items() if key not in apart}
            return cls.parse(with_files(given, path.absolute().parent))
        except FileNotFoundError:
            raise TermsError(
                f"terms {path} are not there; name a TOML file of run config"
            ) from None
        except (OSError, UnicodeDecodeError):
            raise TermsError(f"terms {path} cannot be read as text by this user") from None
        except TermsError as error:
            raise TermsError(f"terms {path}: {error}") from None
        except (ValueError, RecursionError) as error:  # TOML's, or of a number of 5,000 digits
            raise TermsError(f"terms {path} are not valid TOML: {error}") from None

    @staticmethod
    def keys() -> list[str]:
        """Return every flat key as users write it."""
        return [key for group in GROUPS.values() for key in group.names()]

    def as_config(self) -> dict[str, Value]:
        """Return all groups as Flower's flat run config, keys in kebab-case."""
        return {
            **self.terms.as_config(),
            **self.server.as_config(),
            **self.simulation.as_config(),
            **{
                f"{name}.{key}": value
                for name, table in self.settings.items()
                for key, value in table.items()
            },
            **({"learning-rate": AUTO} if self.rate_is_open else {}),
        }

    def with_rate(self, *, is_found: bool) -> Self:
        """Return the configuration with a number for ``learning-rate``: no site is sent ``auto``.

        0.3/C where the server finds its own rate, else 0.1/C, with which k steps move a local model
        by 0.1·k at most. C is 1 where the noise is not of records.
        """
        bound = self.terms.clip_norm if self.terms.noise == "records" else 1.0
        if is_found:
            return self.updated(learning_rate=_FOUND_RATE / bound, server_learning_rate=FOUND)
        return self.updated(learning_rate=_STATED_RATE / bound)

    def drawn(self) -> dict[str, Value]:
        """Return the keys that simulated sites read from Flower's ``context.run_config``."""
        return {**self.simulation.as_config(), "runs-dir": self.server.runs_dir}

    def updated(self, **changes: object) -> Self:
        """Return the same configuration with some fields changed, each in its group.

        >>> config = RunConfig().updated(rounds=3, quorum=2)
        >>> config.terms.rounds, config.server.quorum
        (3, 2)
        """
        groups: dict[str, Any] = {}
        if "learning_rate" in changes:
            groups["rate_is_open"] = False
        for name, group in GROUPS.items():
            changed = {key: changes.pop(key) for key in list(changes) if key in group.model_fields}
            group_now = getattr(self, name)
            groups[name] = group_now.updated(**changed) if changed else group_now
        if changes:
            raise TermsError(f"run config: there is no '{next(iter(changes))}'")
        return replace(self, **groups)


def _chosen(run_config: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: run_config[key] for key in keys if key in run_config}


def _split(run_config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the flat keys and the tables; Flower writes a table as keys with a dot."""
    flat: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for key, value in gathered(run_config, "after").items():
        name, dot, inner = key.partition(".")
        if key == "after":
            flat[key] = value
        elif isinstance(value, Mapping):
            tables.setdefault(key, {}).update(value)
        elif dot:
            tables.setdefault(name, {})[inner] = value
        else:
            flat[key] = value
    return flat, tables


def _read_bounded(path: Path) -> str:
    """Return the text of a run config, which a coordinator may have sent.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read as text.
        TermsError: it takes more work to read than its size, or is too long.
    """
    with path.open("rb") as file:
        content = file.read(MOST_TERMS + 1)
    if len(content) > MOST_TERMS:
        raise TermsError(f"{PREFIX}the file is longer than {MOST_TERMS} bytes; remove comments")
    text = content.decode().removeprefix(BOM)
    if fault := form_fault(text):
        raise TermsError(f"{PREFIX}{fault}")
    return text


def _check_known(flat: Mapping[str, Any]) -> None:
    """Refuse unknown keys, each with the nearest right one."""
    keys, wrong = RunConfig.keys(), list[str]()
    for key in flat:
        if key not in keys:
            # Of the first few, for a search takes a millisecond.
            suggestion = hint(key, keys) if len(wrong) < _MOST_HINTS else ""
            wrong.append(f"'{key}' is not a known key{suggestion}")
    if wrong:
        raise TermsError(f"{PREFIX}{'; '.join(wrong)}")


def _check_tables(tables: Tables) -> None:
    """Refuse a flat key in a table, where it would be ignored."""
    keys = RunConfig.keys()
    for name, table in tables.items():
        if inner := [key for key in table if key in keys]:
            raise TermsError(
                f"{PREFIX}'{name}' is not a known key of '{inner[0]}'; write '{inner[0]}' outside "
                "of any table"
            )
