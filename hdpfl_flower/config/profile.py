"""A site's private terms: its budget, its batch size, its data, what it may disclose.

A profile is a TOML file on the site's own disk, readable by its owner alone. It never crosses the
network: ``repr`` and ``str`` of every part are redacted, and errors name keys, never values.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from hdpfl_flower.errors import ProfileError
from hdpfl_flower.config.validation import FROZEN, describe, kebab

MIN_DELTA = 1e-10
"""Below this the privacy-loss distribution under-reports (PRIVACY.md §2); refused."""

Epsilon = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(ge=MIN_DELTA, lt=1)]
AtLeastOne = Annotated[int, Field(ge=1)]
AFile = Annotated[
    Path, BeforeValidator(lambda value: Path(value) if isinstance(value, str) else value)
]
AList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Disclosure = Literal[
    "batch-size", "declared-records", "epsilon", "noise-std", "metrics", "personal-metrics"
]


class Private(BaseModel):
    """A part of a profile; its text shows no value."""

    model_config = FROZEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"

    __str__ = __repr__


class Budget(Private):
    """An (ε, δ): ``epsilon = inf`` means no privacy, and every report says so."""

    epsilon: Epsilon
    delta: Delta


class Training(Private):
    """How the site trains; q, steps and divisor follow from the first two alone."""

    batch_size: AtLeastOne = Field(description="Expected size b of a Poisson batch.")
    declared_records: AtLeastOne = Field(description="The N the site plans with, a constant.")
    physical_batch: AtLeastOne = Field(256, description="Records held in memory at once.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    engine: Literal["auto", "linear", "bookkeeping", "vmap", "opacus"] = "auto"
    torch_threads: Annotated[int, Field(ge=0)] = Field(0, description="0: as many as cores.")


class Policy(Private):
    """What a server may propose; empty lists of strategies mean any."""

    strategies: Annotated[tuple[str, ...], AList] = ()
    models: Annotated[tuple[str, ...], AList] = Field(
        (), description="module:function models that may be built."
    )
    max_rounds: AtLeastOne = 1000
    max_local_epochs: AtLeastOne = 100
    max_local_steps: AtLeastOne = 10_000
    max_steps: AtLeastOne = Field(
        1_000_000, description="Noisy steps that a run's plan may pay for, all rounds together."
    )
    min_clip_norm: Annotated[float, Field(gt=0)] = 1e-4
    max_clip_norm: Annotated[float, Field(gt=0)] = 1e4
    max_payload_mb: Annotated[float, Field(gt=0)] = 512.0
    runs: Annotated[int, Field(ge=0)] = Field(0, description="Runs that may be charged; 0: any.")
    client_noise: bool = Field(
        False, description="Whether terms may ask for noise = 'client': the unit is the update."
    )


TABLES = ("csv", "parquet")
"""The formats of ``[data]`` whose records have columns, and so may have an id."""


class DataSource(Private):
    """Where the site's records lie."""

    format: Literal["csv", "parquet", "npz", "images"]
    path: AFile
    holdout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the rows kept out of training, for the site's own test."
    )
    id: str = Field(
        "",
        description="Column of the protected unit, such as a patient's number: the "
        "run's schema must name the same one; empty: a row is a unit, and a schema may name none.",
    )

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if self.id and self.format not in TABLES:
            raise ValueError(
                "'data.id' names a column, and only the 'data.format' csv or parquet has columns: "
                "remove it, or store the records as a table"
            )
        return self


class LedgerPaths(Private):
    """Where the budget ledger lies; ``anchor`` belongs on other storage."""

    path: AFile
    anchor: AFile | None = None


class State(Private):
    """The site's own folder: the final model of the last run, and its personal models."""

    path: AFile


class Simulation(Private):
    """Marks a node as simulated: its noise comes from a seed and protects nobody."""

    seed: Annotated[int, Field(ge=0)]


class Profile(Private):
    """Everything a site decides for itself. Frozen, validated, redacted."""

    budget: Budget
    run: Budget
    training: Training
    policy: Policy = Policy()
    data: DataSource | None = None
    ledger: LedgerPaths | None = None
    state: State | None = None
    simulation: Simulation | None = None
    disclose: Annotated[tuple[Disclosure, ...], AList] = ()
    trust_server: bool = Field(
        False, description="Send clipped updates without noise where the terms ask for it."
    )
    reply_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="Seconds after a request at which every reply leaves; 0: when it is ready."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        records = self.training.declared_records
        if self.training.batch_size > records:
            raise ValueError(
                "'training.batch-size' is larger than 'training.declared-records'; "
                "lower the batch size"
            )
        for section, budget in (("run", self.run), ("budget", self.budget)):
            if budget.delta * records >= 1:
                raise ValueError(
                    f"'{section}.delta' is not below 1 / 'training.declared-records': "
                    "it would allow publishing a record; lower it"
                )
        if self.run.epsilon > self.budget.epsilon or self.run.delta > self.budget.delta:
            raise ValueError(
                "[run] asks for more than [budget] holds; lower 'run.epsilon' and "
                "'run.delta', or raise the cap"
            )
        if "noise-std" in self.disclose and self.simulation is None:
            raise ValueError(
                "'disclose' may name 'noise-std' only where [simulation] is given: remove it"
            )
        if "personal-metrics" in self.disclose and "metrics" not in self.disclose:
            raise ValueError(
                "'disclose' names 'personal-metrics' without 'metrics', which they stand beside: "
                "add 'metrics', or remove it"
            )
        return self

    @property
    def simulated(self) -> bool:
        """Whether this node is a simulation, which gives no privacy to anybody."""
        return self.simulation is not None

    @classmethod
    def parse(cls, data: dict[str, Any], source: str = "profile") -> Self:
        """Return the profile written in ``data`` (TOML tables as dictionaries).

        Raises:
            ProfileError: keys missing, unknown or out of range, named without their values.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ProfileError(f"{source}: {describe(error, _keys(cls))}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the profile in the TOML file at ``path``; its relative paths start there.

        Raises:
            ProfileError: the file is missing, readable by others, not TOML, or wrong.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ProfileError(
                f"profile {path} is not there; write one, see docs/profile.md"
            ) from None
        except (OSError, UnicodeDecodeError):
            raise ProfileError(f"profile {path} cannot be read as text by this user") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ProfileError(f"profile {path} can be read by others; run: chmod 600 {path}")
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            raise ProfileError(
                f"profile {path} is not valid TOML; check it with a TOML linter"
            ) from None
        for section, key in (
            ("data", "path"),
            ("ledger", "path"),
            ("ledger", "anchor"),
            ("state", "path"),
        ):
            table = data.get(section)
            if isinstance(table, dict) and isinstance(table.get(key), str):
                table[key] = str(path.absolute().parent / Path(table[key]).expanduser())
        return cls.parse(data, f"profile {path}")


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key of a profile as users write it, ``section.key``."""
    for name, field in model.model_fields.items():
        key = prefix + kebab(name)
        yield key
        for candidate in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                yield from _keys(candidate, f"{key}.")
