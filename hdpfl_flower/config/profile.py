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
    """An (ε, δ). ``epsilon = inf`` means no privacy, and every report says so."""

    epsilon: Epsilon = Field(
        description="ε of all runs together in `[budget]`, and of one run in `[run]`. `inf` means "
        "no privacy, and every report says so."
    )
    delta: Delta = Field(
        description="δ of all runs together in `[budget]`, and of one run in `[run]`. It "
        "must be below 1 / `training.declared-records`; 1e-5 or less is usual."
    )


class LifetimeBudget(Budget):
    """The (ε, δ) of all runs together, and the number of answers without noise."""

    exact_answers: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Answers **without noise** that may ever leave, for all runs together, if "
        "`disclose` lists `metrics`. Each model that is tested on the held-out records takes one; "
        "lost answers count, too. ε does not cover them. A simulated site has no such bound.",
    )


class Training(RedactedModel):
    """How the site trains; q, steps and divisor follow only from the first two keys.

    The true number of records never enters: it would disclose a single one.
    """

    batch_size: AtLeastOne = Field(
        description="Expected size b of a Poisson batch: each step takes every record with "
        'probability b / N. Larger batches suffer a little less from the noise. `"all"` means b = '
        "N; it is best if sites send parts of one sum."
    )
    declared_records: AtLeastOne = Field(
        description="The N that the site plans with. It is a constant and counts as public: round "
        "it. It should be close to the number of records for training."
    )

    @model_validator(mode="before")
    @classmethod
    def _all(cls, data: Any) -> Any:
        """Write N for a batch of all records."""
        takes_all = isinstance(data, dict) and data.get("batch-size") == "all"
        return {**data, "batch-size": data.get("declared-records")} if takes_all else data

    physical_batch: AtLeastOne = Field(
        256, description="Records that are in memory at once. A lower number gives the same result."
    )
    device: str = Field(
        "auto", description="`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."
    )
    engine: Literal["auto", "linear", "bookkeeping", "vmap", "opacus"] = Field(
        "auto",
        description="How the gradients of single records are computed. `auto` takes the fastest "
        "engine that the model allows.",
    )
    torch_threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads of a training process; 0: as many as there are cores."
    )


class Policy(SharingPolicy):
    """Bounds on proposed runs, beyond which the site declines."""

    strategies: Annotated[tuple[str, ...], AList] = Field(
        (), description="Strategies that this site allows; empty: any."
    )
    models: Annotated[tuple[str, ...], AList] = Field(
        (),
        description="Models `module:function` that may be built here. They are code that runs "
        "beside the records. The package's own models need no entry.",
    )
    weights: Annotated[tuple[str, ...], AList] = Field(
        (),
        description="Digests `sha256:…` of the files of weights that a frozen `backbone` may use "
        "here. `hdpfl-site approve FILE` prints them.",
    )
    max_rounds: AtLeastOne = Field(1000, description="The most rounds of a run.")
    max_local_epochs: AtLeastOne = Field(100, description="The most local epochs of a round.")
    max_local_steps: AtLeastOne = Field(
        10_000, description="The most local steps of a round, if the terms set steps."
    )
    max_steps: AtLeastOne = Field(
        1_000_000,
        description="The most noisy steps of a run. All rounds count, and both models if a "
        "private personal model is trained. The site checks this before it calibrates the noise, "
        "because that takes minutes for ten million steps.",
    )
    min_clip_norm: Annotated[float, Field(gt=0)] = Field(
        1e-4, description="The least bound on a gradient (`clip-norm`)."
    )
    max_clip_norm: Annotated[float, Field(gt=0)] = Field(
        1e4, description="The largest bound on a gradient (`clip-norm`)."
    )
    max_payload_mb: Annotated[float, Field(gt=0)] = Field(
        512.0,
        description="The largest model in megabytes. It bounds the messages, and the network that "
        "the terms name; the site computes the network's size before the network takes memory. It "
        "is never above 2,048.",
    )
    runs: Annotated[int, Field(ge=0)] = Field(
        0,
        description="How many runs may ever be charged, or may send clipped updates without noise "
        "(`trust-server`). 0: as many as the budget holds.",
    )
    client_noise: bool = Field(
        False,
        description='Whether terms may set `noise = "client"`. Then the site clips its whole '
        "update and adds noise to it, and the protected unit is all of the site's records. If "
        "this is false, the site declines such a run. A simulated site allows it.",
    )
    min_count: Annotated[int, Field(ge=0)] = Field(
        0,
        description="The least count that a first message may show. A smaller noisy count leaves "
        "as 0, and a site with fewer records sends only zeros. If this is set, the site declines "
        "a run that sums the sites.",
    )
    extra_releases: bool = Field(
        True,
        description="Whether terms may ask for charged mechanisms beside the noisy steps of the "
        "rounds: the tables of `first`, those of `after` except `shrink`, and `choice`. The run's "
        "ε covers them in either case. If this is false, the site declines such a run; other "
        "sites may take part.",
    )
    only_named: Annotated[str, Field(pattern=rf"^({FINGERPRINT.pattern})?$")] = Field(
        "",
        description="The fingerprint `SHA256:…` of this node's public key, as `ssh-keygen -lf "
        "SITE.pub` prints it. The site declines a run whose `sites` do not list it, and stores no "
        "request for it. Empty: such a run waits for approval like every other run.",
    )


class Standing(RedactedModel):
    """Bounds on unattended approval, where `approval` is `standing`."""

    until: date | None = Field(
        None,
        description="The last day by the site's clock, such as `2027-12-31`. Later runs and later "
        "rounds wait for approval. Without it there is no last day.",
    )
    max_rounds: AtLeastOne | None = Field(
        None, description="The most rounds of such a run. Default: `policy.max-rounds`."
    )


class LedgerPaths(RedactedModel):
    """Where the budget ledger lies. ``anchor`` should lie on other storage."""

    path: AFile = Field(
        description="The SQLite file of the budget, on a local disk. Use one ledger for "
        "everything that uses the same records. `hdpfl-site ledger --init` creates it."
    )
    anchor: AFile | None = Field(
        None,
        description="A small file, best on other storage. It reveals that an older copy "
        "of the ledger was put back.",
    )


class State(RedactedModel):
    """The site's own folder: the final model of the last run, and its personal models."""

    path: AFile = Field(description="The folder's path.")


class Simulation(RedactedModel):
    """Mark of a simulated node, whose noise comes from a seed and gives no privacy."""

    seed: Annotated[int, Field(ge=0)] = Field(description="Seed of the noise and the batches.")


class Profile(RedactedModel):
    """Everything a site decides for itself. Frozen, validated, redacted."""

    format: Annotated[int, Field(ge=1)] = Field(
        1,
        description="Number of the profile's format. A version of hdpfl-flower refuses a "
        "number that it does not know.",
    )
    name: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field(
        "",
        description="Name of this site, such as the hospital's name, for the head of its own "
        "report. It is never sent.",
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
        description="Which runs this site takes part in. `each-run`: the runs that `hdpfl-site "
        "approve` approved. `standing`: all runs that `[policy]`, `[run]`, `[budget]` and "
        "`[standing]` allow. A simulated site needs no approval.",
    )
    disclose: Annotated[tuple[Disclosure, ...], AList] = Field(
        (),
        description="What may leave the site although ε does not cover it. Listed constants of "
        "the profile leave when the site joins a run. `metrics` are figures of a model on the "
        "held-out records; `personal-metrics`, listed beside `metrics`, are those of the site's "
        "own model. A strategy that needs one of these values leaves out a site that does not "
        "disclose it. `noise-std` is the noise in a coordinate of an update; over time the "
        "updates show it anyway.",
    )
    trust_server: bool = Field(
        False,
        description="Whether clipped updates **without noise** may leave if the terms set `noise "
        '= "server"`. Then the server adds the noise and keeps the account, and the ε of this '
        "ledger does not cover these updates. If this is false, the site declines such a run.",
    )
    reply_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="Every reply, also a refusal, leaves so many seconds after its request, so "
        "that its time reveals nothing about the records. Choose more seconds than the longest "
        "round needs: a reply that is late leaves at the next multiple. The value must be below "
        "the run's `round-timeout`. 0: a reply leaves when it is ready, and the report names this "
        "gap.",
    )
    notify: AFile | None = Field(
        None,
        description="Where the exporter sends a notice (JSON) when a request waits, or when the "
        "budget admits no further run like the last one. It is the path of a program that reads "
        "the notice from standard input, or of a file with the URL to which the notice is posted.",
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
