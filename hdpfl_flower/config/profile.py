"""Private terms of a site: budget, batch size, data, disclosure.

A profile is a TOML file on the site's own disk, readable by its owner alone. It never crosses the
network: ``repr`` and ``str`` of every part are redacted, and errors name keys, never values.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from hdpfl_flower import formats
from hdpfl_flower.config.data_source import AFile, AList, DataSource, OwnColumn, QueryTable
from hdpfl_flower.config.redacted import RedactedModel
from hdpfl_flower.config.toml_text import BOM
from hdpfl_flower.config.validation import describe, kebab
from hdpfl_flower.errors import ProfileError
from hdpfl_flower.shared_noise.keys import SharingPolicy
from hdpfl_flower.system.fingerprints import FINGERPRINT
from hdpfl_flower.system.paths import expanded

MIN_DELTA = 1e-10
"""Below this the privacy-loss distribution under-reports (docs/project/decisions.md); refused."""

Epsilon = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(ge=MIN_DELTA, lt=1)]
AtLeastOne = Annotated[int, Field(ge=1)]
Disclosure = Literal[
    "batch-size", "declared-records", "epsilon", "noise-std", "metrics", "personal-metrics"
]


class Budget(RedactedModel):
    """An (ε, δ): ``epsilon = inf`` means no privacy, and every report says so."""

    epsilon: Epsilon = Field(
        description="ε: of all runs together in `[budget]`, of one run in `[run]`; `inf`: no "
        "privacy, and every report says so."
    )
    delta: Delta = Field(
        description="δ, likewise; below 1 / `training.declared-records`. 1e-5 or less is usual."
    )


class LifetimeBudget(Budget):
    """An (ε, δ) of all runs together, and the number of answers without noise beside it."""

    exact_answers: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Answers **without noise** that may ever leave, of all runs together, where "
        "`disclose` lists `metrics`: one for each model that is tested on the held-out records, "
        "lost ones counted. ε does not cover them. A simulated site has no such bound.",
    )


class Training(RedactedModel):
    """How the site trains; q, steps and divisor follow from the first two alone.

    The true number of records never enters: it would disclose a single one.
    """

    batch_size: AtLeastOne = Field(
        description="Expected size b of a Poisson batch: each step takes every record with "
        "probability b / N. Larger batches suffer a little less from the noise; 'all': b = N, best "
        "where sites send parts of one sum."
    )
    declared_records: AtLeastOne = Field(
        description="The N that the site plans with, a constant that counts as public: round it. "
        "It should be close to the number of records for training."
    )

    @model_validator(mode="before")
    @classmethod
    def _all(cls, data: Any) -> Any:
        """Write N for a batch of all records."""
        takes_all = isinstance(data, dict) and data.get("batch-size") == "all"
        return {**data, "batch-size": data.get("declared-records")} if takes_all else data

    physical_batch: AtLeastOne = Field(
        256, description="Records in memory at once; a lower number gives the same result."
    )
    device: str = Field("auto", description="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    engine: Literal["auto", "linear", "bookkeeping", "vmap", "opacus"] = Field(
        "auto",
        description="How gradients of single records are computed; auto: the fastest that the "
        "model allows.",
    )
    torch_threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads of a training process; 0: as many as cores."
    )


class Policy(SharingPolicy):
    """Bounds on proposed runs, beyond which the site declines."""

    strategies: Annotated[tuple[str, ...], AList] = Field(
        (), description="Strategies that are allowed; empty: any."
    )
    models: Annotated[tuple[str, ...], AList] = Field(
        (),
        description="`module:function` models that may be built here: they are code of yours. "
        "The package's own models need no entry.",
    )
    weights: Annotated[tuple[str, ...], AList] = Field(
        (),
        description="Digests, `sha256:…`, of the files of weights that a frozen `backbone` may "
        "have here, as `hdpfl-site approve FILE` prints them.",
    )
    max_rounds: AtLeastOne = Field(1000, description="Most rounds of a run.")
    max_local_epochs: AtLeastOne = Field(100, description="Most local epochs of a round.")
    max_local_steps: AtLeastOne = Field(
        10_000, description="Most local steps of a round, where the terms set steps."
    )
    max_steps: AtLeastOne = Field(
        1_000_000,
        description="Most noisy steps of a run: all rounds, and both models where a private "
        "personal model is trained. Checked before the noise is calibrated, which takes minutes "
        "for ten million steps.",
    )
    min_clip_norm: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="Least bound on a gradient."
    )
    max_clip_norm: Annotated[float, Field(gt=0)] = Field(
        1e4, description="Largest bound on a gradient."
    )
    max_payload_mb: Annotated[float, Field(gt=0)] = Field(
        512.0,
        description="Largest model in megabytes: of the messages, and of the network that the "
        "terms name, whose size is computed before it takes memory. Never above 2,048.",
    )
    runs: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Runs that may ever be charged, or send clipped updates without noise "
        "(`trust-server`); 0: any number that the budget holds.",
    )
    client_noise: bool = Field(
        False,
        description='Whether terms may set `noise = "client"`: the site clips and noises its '
        "whole update, and the unit is all of its records. Without it the site declines such a "
        "run; a simulated site allows it.",
    )
    min_count: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Least count that a first message may show: smaller noisy ones leave as 0, and "
        "a site with fewer records sends zeros alone. A run that sums the sites is declined.",
    )
    extra_releases: bool = Field(
        True,
        description="Whether terms may ask for charged mechanisms beside the rounds' noisy steps: "
        "the tables of `first`, those of `after` but `shrink`, and `choice`. They are part of the "
        "run's ε either way. With false the site declines such a run; other sites may take part.",
    )
    only_named: Annotated[str, Field(pattern=rf"^({FINGERPRINT.pattern})?$")] = Field(
        "",
        description="The fingerprint of this node's public key, as `ssh-keygen -lf SITE.pub` "
        "prints it: `SHA256:…`. A run whose `sites` do not list it is declined, and is no request "
        "that waits here. Empty: such runs wait for approval like all others.",
    )


class Standing(RedactedModel):
    """Bounds on unattended approval, where `approval` is `standing`."""

    until: date | None = Field(
        None,
        description="Last day, `2027-12-31`, of the site's clock; later runs, and rounds, wait for "
        "approval. Without it: no last day.",
    )
    max_rounds: AtLeastOne | None = Field(
        None, description="Most rounds of such a run; without it: `policy.max-rounds`."
    )


class LedgerPaths(RedactedModel):
    """Where the budget ledger lies; ``anchor`` belongs on other storage."""

    path: AFile = Field(
        description="The SQLite file of the budget, on a local disk: one for all that uses the "
        "same records. `hdpfl-site ledger --init` creates it."
    )
    anchor: AFile | None = Field(
        None, description="A small file, best on other storage, that reveals an older ledger."
    )


class State(RedactedModel):
    """The site's own folder: the final model of the last run, and its personal models."""

    path: AFile = Field(description="The folder.")


class Simulation(RedactedModel):
    """Mark of a simulated node: seeded noise without protection."""

    seed: Annotated[int, Field(ge=0)] = Field(description="Seed of the noise and the batches.")


class Profile(RedactedModel):
    """Everything a site decides for itself. Frozen, validated, redacted."""

    format: Annotated[int, Field(ge=1)] = Field(
        1, description="Number of the profile's form; a version refuses those it does not know."
    )
    name: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field(
        "",
        description="Name of this site, such as a hospital's, for the head of its own report. "
        "It is never sent.",
    )
    budget: LifetimeBudget
    run: Budget
    training: Training
    policy: Policy = Policy()
    standing: Standing = Standing()
    data: DataSource | None = None
    ledger: LedgerPaths | None = None
    state: State | None = None
    simulation: Simulation | None = None
    approval: Literal["each-run", "standing"] = Field(
        "each-run",
        description="Which runs this site takes part in: those that `hdpfl-site approve RUN` "
        "approved (each-run), or all that `[policy]`, `[run]`, `[budget]` and `[standing]` allow "
        "(standing). A simulated site needs no approval.",
    )
    disclose: Annotated[tuple[Disclosure, ...], AList] = Field(
        (),
        description="What may leave the site although ε does not cover it: constants of the "
        "profile when the site joins, and metrics of a model on held-out records "
        "(`personal-metrics`, beside `metrics`: also those of the site's own model). A strategy "
        "that needs one of them leaves out a site that does not disclose it. `noise-std` is the "
        "noise of an update's coordinate, which updates show in time anyway.",
    )
    trust_server: bool = Field(
        False,
        description="Whether clipped updates **without noise** may leave where the terms set "
        '`noise = "server"`: the server then adds the noise and keeps the account, and this '
        "ledger's ε does not cover them. Without it the site declines such a run.",
    )
    reply_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="Seconds after a request at which every reply leaves, a refusal too, so that "
        "its time reveals nothing of the records. Take more than the longest round needs: later "
        "work leaves at the next multiple. It must be below the run's `round-timeout`. 0: a reply "
        "leaves when it is ready, and the report names that gap.",
    )
    notify: AFile | None = Field(
        None,
        description="Told by the exporter of requests that wait and of a budget that admits no "
        "further run like the last: path of a program that reads a notice (JSON) from standard "
        "input, or of a file with a URL to post it to.",
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
            # δ = 1/N allows a mechanism that publishes one record drawn at random.
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
        if self.standing != Standing() and self.approval != "standing":
            raise ValueError(
                "[standing] bounds nothing while 'approval' is 'each-run'; set 'approval' = "
                "'standing', or remove the section"
            )
        if "personal-metrics" in self.disclose and "metrics" not in self.disclose:
            raise ValueError(
                "'disclose' names 'personal-metrics' without 'metrics', which they stand beside: "
                "add 'metrics', or remove it"
            )
        return self

    _file: Path | None = PrivateAttr(None)

    @property
    def file(self) -> Path | None:
        """The file that the profile was loaded from; None for a parsed one."""
        return self._file

    @property
    def simulated(self) -> bool:
        """Whether this node is a simulation, without any privacy."""
        return self.simulation is not None

    @classmethod
    def parse(cls, data: dict[str, Any], source: str = "profile") -> Self:
        """Return the profile written in ``data`` (TOML tables as dictionaries).

        Raises:
            ProfileError: keys missing, unknown or out of range, named without their values.
        """
        try:
            formats.PROFILE.check(data.get("format", 1))  # before other keys, which may be newer
        except ProfileError as error:
            raise ProfileError(f"{source}: {error}") from None
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            keys = [*_keys(cls), *_keys_of_columns(data)]
            raise ProfileError(f"{source}: {describe(error, lambda _: keys)}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the profile at ``path``, with its relative paths resolved.

        Raises:
            ProfileError: the file is missing, readable by others, not TOML, or wrong.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8").removeprefix(BOM)
        except FileNotFoundError:
            raise ProfileError(
                f"profile {path} is not there; write one: hdpfl-site profile new"
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
        _resolve_paths(data, path.absolute().parent)
        profile = cls.parse(data, f"profile {path}")
        profile._file = path.absolute()
        return profile


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    """Make the paths of a profile absolute: relative to it, wherever the process starts."""

    def resolve(table: object, key: str) -> None:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(folder / expanded(table[key]))

    for section, key in (("data", "path"), ("ledger", "path"), ("ledger", "anchor")):
        resolve(data.get(section), key)
    resolve(data.get("state"), "path")
    resolve(data, "notify")
    source = data.get("data")
    tables = source.get("tables") if isinstance(source, dict) else None
    for name, table in tables.items() if isinstance(tables, dict) else ():
        resolve(
            tables if isinstance(table, str) else table, name if isinstance(table, str) else "path"
        )


def _keys_of_columns(data: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of the tables ``[data.columns.NAME]`` and ``[data.tables.NAME]``."""
    section = data.get("data")
    for key, model in (("columns", OwnColumn), ("tables", QueryTable)):
        named = section.get(key) if isinstance(section, dict) else None
        for name in named if isinstance(named, dict) else ():
            yield from _keys(model, f"data.{key}.{name}.")


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key of a profile as users write it, ``section.key``."""
    for name, field in model.model_fields.items():
        key = prefix + kebab(name)
        yield key
        for candidate in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                yield from _keys(candidate, f"{key}.")
