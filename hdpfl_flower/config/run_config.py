"""A run's configuration, parsed once from Flower's ``run_config``: every group of keys.

``terms`` is what sites are sent. ``server`` stays at the server. ``simulation`` is what simulated
sites are drawn from. ``settings`` are the strategies' own, as they were given: each strategy parses
the table of its name (``strategies/settings.py``).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from hdpfl_flower.config.schema_file import with_schema_text
from hdpfl_flower.config.server_terms import FOUND, ServerTerms
from hdpfl_flower.config.settings import PREFIX, Settings, Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.errors import TermsError

GROUPS: Mapping[str, type[Settings]] = {
    "terms": RunTerms,
    "server": ServerTerms,
    "simulation": SimulationTerms,
}
"""The groups of flat keys; no key is in two of them."""
MOVED: Mapping[str, str] = {
    "estimator": "robust-hdp.estimator",
    "frozen-after": "robust-hdp.frozen-after",
    "weights": "fedavg.weights",
    "subspace": "pfa.subspace",
    "subspace-rank": "pfa.subspace-rank",
    "subspace-scope": "pfa.subspace-scope",
    "clusters": "r-dpcfl.clusters",
    "cluster-map": "r-dpcfl.cluster-map",
    "levels": "fedhdp.levels",
    "level-ratio": "fedhdp.level-ratio",
    "clip-quantile": "fedhdp.clip-quantile",
    "clip-lr": "fedhdp.clip-lr",
    "clip-floor": "fedhdp.clip-floor",
    "clip-ceiling": "fedhdp.clip-ceiling",
    "bit-noise": "fedhdp.bit-noise",
}
"""Keys that were flat once → the setting of the strategy that they were made for."""
_CLIENT_RATE = 0.1
"""Of local SGD under ``learning-rate`` = ``auto``, for C = 1."""
Tables = Mapping[str, Mapping[str, Any]]
"""Strategy → its setting's key → value, as given."""


@dataclass(frozen=True)
class RunConfig:
    """Every group of a run's keys.

    Attributes:
        terms: what a site plans, trains, tests and consents by; it alone is sent.
        server: what only the server uses.
        simulation: what a simulation draws its sites from.
        settings: the strategies' own, by the strategy's name; not validated here.
    """

    terms: RunTerms = field(default_factory=RunTerms)
    server: ServerTerms = field(default_factory=ServerTerms)
    simulation: SimulationTerms = field(default_factory=SimulationTerms)
    settings: Tables = field(default_factory=dict)

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
        flat = _with_rates(flat)
        found: dict[str, Any] = {}
        wrong: list[str] = []
        for name, group in GROUPS.items():
            try:
                found[name] = group.parse(_chosen(flat, group.keys()))
            except TermsError as error:
                wrong.append(str(error).removeprefix(PREFIX))
        if wrong:
            raise TermsError(f"{PREFIX}{'; '.join(wrong)}")
        return cls(**found, settings=tables)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the groups in the TOML file at ``path``: run config keys, and a table a strategy.

        A path in ``schema`` starts at the file's folder, and is replaced by what the file holds.

        Raises:
            TermsError: the file is missing or not TOML, or the keys are wrong.
        """
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls.parse(with_schema_text(given, path.absolute().parent))
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
        }

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
        for name, group in GROUPS.items():
            own = {key: changes.pop(key) for key in list(changes) if key in group.model_fields}
            groups[name] = getattr(self, name).updated(**own) if own else getattr(self, name)
        if changes:
            raise TermsError(f"run config: there is no '{next(iter(changes))}'")
        return replace(self, **groups)


def _chosen(run_config: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: run_config[key] for key in keys if key in run_config}


def _split(run_config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the flat keys and the tables; Flower writes a table as keys with a dot."""
    flat: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for key, value in run_config.items():
        name, dot, inner = key.partition(".")
        if isinstance(value, Mapping):
            tables.setdefault(key, {}).update(value)
        elif dot:
            tables.setdefault(name, {})[inner] = value
        else:
            flat[key] = value
    return flat, tables


def _with_rates(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with a number for ``learning-rate`` = ``auto``: no site is sent the word.

    0.1/C, with which k steps move a local model by 0.1·k at most where the noise is of records.

    Raises:
        TermsError: the server's rate, which is to be found then, is given as well.
    """
    if flat.get("learning-rate") != AUTO:
        return flat
    if flat.get("server-learning-rate", AUTO) not in (AUTO, FOUND):
        raise TermsError(
            f"{PREFIX}'learning-rate' = 'auto' finds 'server-learning-rate'; leave that out, or "
            "write a number in 'learning-rate'"
        )
    clip = flat.get("clip-norm", 1.0)
    # A wrong clip norm is refused by its own name.
    is_clip = type(clip) in (int, float) and 0 < clip < math.inf
    is_of_records = flat.get("noise", "records") == "records"
    rate = _CLIENT_RATE / (clip if is_clip and is_of_records else 1.0)
    return {**flat, "learning-rate": rate, "server-learning-rate": FOUND}


def _check_known(flat: Mapping[str, Any]) -> None:
    """Refuse unknown keys, each with the nearest right one."""
    known, wrong = RunConfig.keys(), []
    for key in flat:
        if key in MOVED:
            wrong.append(f"'{key}' is a strategy's: write its name before it, as '{MOVED[key]}'")
        elif key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            wrong.append(f"'{key}' is not a known key{hint}")
    if wrong:
        raise TermsError(f"{PREFIX}{'; '.join(wrong)}")


def _check_tables(tables: Tables) -> None:
    """Refuse a flat key in a table: whoever reads no strategy's settings would pass over it."""
    known = RunConfig.keys()
    for name, table in tables.items():
        if inner := [key for key in table if key in known]:
            raise TermsError(
                f"{PREFIX}'{name}' is not a known key of '{inner[0]}'; write '{inner[0]}' outside "
                "of any table"
            )
