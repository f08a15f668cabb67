"""Configuration of a run, parsed once from Flower's ``run_config``.

``terms`` are sent to the sites. ``server`` stays at the server. Simulated sites are drawn from
``simulation``. ``settings`` are the strategies' own, as they were given: each strategy parses the
table of its name (``strategies/settings.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.server_terms import FOUND, ServerTerms
from hdpfl_flower.config.settings import PREFIX, Settings, Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.tables_of_terms import TABLES, gathered
from hdpfl_flower.config.terms import AUTO, MOST_TERMS, RunTerms
from hdpfl_flower.config.toml_text import BOM, form_fault
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.noise_sources import DEFAULTS, SOURCES
from hdpfl_flower.releases.given import changes_of
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
        terms: keys for plan, training, tests and consent of a site; the only group that is sent.
        server: keys that only the server reads.
        simulation: keys from which simulated sites are drawn.
        settings: settings of strategies by the strategy's name; they are not validated here.
        rate_is_open: whether ``learning-rate`` is ``auto`` and no strategy has settled it yet;
            until then ``terms`` hold a stand-in.
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
            TermsError: a key is unknown, or a value has the wrong type or range; one line names
                every mistake.
        """
        flat, tables = _split(run_config)
        wrong = [*_unknown(flat), *_misplaced(tables)]
        rate_is_open = flat.get("learning-rate", AUTO) == AUTO
        if rate_is_open:
            flat.pop("learning-rate", None)
        for key, value in _defaults_of(flat.get("noise")).items():
            if flat.get(key, AUTO) == AUTO:
                flat[key] = value
        groups: dict[str, Any] = {}
        for name, group in GROUPS.items():
            try:
                groups[name] = group.parse(_chosen(flat, group.keys()))
            except TermsError as error:
                wrong.append(str(error).removeprefix(PREFIX))
        if "terms" in groups:
            try:  # Flower writes each setting that a run may have, at its default
                terms = groups["terms"]
                groups["terms"] = terms.updated(
                    first=changes_of(terms.first, "first"), after=changes_of(terms.after, "after")
                )
            except TermsError as error:
                wrong.append(str(error).removeprefix(PREFIX))
        if {"terms", "server"} <= groups.keys():
            wrong += _too_few_sites(groups["terms"], groups["server"])
        if wrong:
            raise TermsError(f"{PREFIX}{'; '.join(wrong)}")
        return cls(**groups, settings=tables, rate_is_open=rate_is_open)

    @classmethod
    def load(cls, path: Path, apart: Collection[str] = (), *, mailed: bool = False) -> Self:
        """Return the groups in the TOML file at ``path``: run config keys and tables of strategies.

        A path in ``schema``, ``start`` or ``backbone.weights`` starts at the folder of the file.
        The text or the digest of the named file replaces the path. Keys ``apart`` are left out. A
        file that was ``mailed`` by another party can open no file outside of its own folder.

        Raises:
            TermsError: the file is missing or is not TOML, or keys are wrong or name a file outside
                of the folder.
            DataError: a named file of weights does not exist.
        """
        try:
            read = tomllib.loads(_read_bounded(path))
            given = {key: value for key, value in read.items() if key not in apart}
            return cls.parse(with_files(given, path.absolute().parent, outside=not mailed))
        except FileNotFoundError:
            fault = " are not there; name a TOML file of run config"
        except (OSError, UnicodeDecodeError):
            fault = " cannot be read as text by this user; name another file"
        except TermsError as error:
            fault = f": {error}"
        except (ValueError, RecursionError) as error:  # TOML's, or of a number of 5,000 digits
            fault = f" are not valid TOML: {error}"
        raise TermsError(f"terms {path}{fault}")

    def with_noise(self, noise: str) -> Self:
        """Return the configuration with another source of noise and its defaults for open keys.

        Raises:
            TermsError: there is no source of that name.
        """
        config, before = self.as_config(), self.terms.source.defaults
        stated = {key: v for key, v in config.items() if before.get(key) != v}
        return self.parse({**stated, "noise": noise})

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

    def with_rate(self, *, is_found: bool, is_plain: bool = True) -> Self:
        """Return the configuration with a number for ``learning-rate``: no site is sent ``auto``.

        The number is 0.3/C if the server finds its own rate, and else 0.1/C, with which k steps
        move a local model by at most 0.1·k. C is 1 if the noise is not per record. ``is_plain``
        means that the server step has no default rate of its own: an open rate of the server is
        then that of the source of noise.
        """
        bound = self.terms.clip_norm if self.terms.source.per_record else 1.0
        if is_found:
            return self.updated(learning_rate=_FOUND_RATE / bound, server_learning_rate=FOUND)
        stated = self.updated(learning_rate=_STATED_RATE / bound)
        rate = self.terms.source.server_rate
        if rate != 1 and is_plain and self.server.server_learning_rate == AUTO:
            return stated.updated(server_learning_rate=rate)
        return stated

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


def _defaults_of(noise: object) -> Mapping[str, str]:
    """Return the values of keys at ``auto`` under a source of noise."""
    source = SOURCES.get(noise) if isinstance(noise, str) else None
    return source.defaults if source else DEFAULTS


def _chosen(run_config: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: run_config[key] for key in keys if key in run_config}


def _split(run_config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the keys of the groups, and the tables of strategies."""
    keys, tables = dict[str, Any](), dict[str, dict[str, Any]]()
    for key, value in gathered(run_config).items():
        name, dot, inner = key.partition(".")
        if dot:
            tables.setdefault(name, {})[inner] = value
        elif isinstance(value, Mapping) and key not in TABLES:
            tables.setdefault(key, {})  # empty
        else:
            keys[key] = value
    return keys, tables


def _read_bounded(path: Path) -> str:
    """Return the text of a run config, which a coordinator may have sent.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read as text.
        TermsError: it takes more work to read than its size, or is too long.
    """
    with path.open("rb") as file:
        content = file.read(MOST_TERMS + 1)
    if len(content) > MOST_TERMS:
        text, fault = "", f"the file is longer than {MOST_TERMS} bytes; remove comments"
    else:
        text = content.decode().removeprefix(BOM)
        fault = form_fault(text)
    if fault:
        raise TermsError(f"{PREFIX}{fault}")
    return text


def _unknown(flat: Mapping[str, Any]) -> Iterator[str]:
    """Yield unknown keys, each with the nearest right one."""
    keys = RunConfig.keys()
    for number, key in enumerate(key for key in flat if key not in keys):
        # Of the first few, for a search takes a millisecond.
        yield f"'{key}' is not a known key{hint(key, keys) if number < _MOST_HINTS else ''}"


def _misplaced(tables: Tables) -> Iterator[str]:
    """Yield flat keys in a table, where they would be ignored."""
    keys = RunConfig.keys()
    for name, table in tables.items():
        if inner := [key for key in table if key in keys]:
            yield (
                f"'{name}' is not a known key of '{inner[0]}'; write '{inner[0]}' outside of any "
                "table"
            )


def _too_few_sites(terms: RunTerms, server: ServerTerms) -> Iterator[str]:
    """Yield a list of sites that is shorter than the least number of them."""
    sites = listed(terms.sites)
    if sites and len(sites) < server.min_sites:
        yield (
            f"'sites' lists {len(sites)}, fewer than 'min-sites' = {server.min_sites}; lower "
            "'min-sites', or list more"
        )
