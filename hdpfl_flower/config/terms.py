"""The public terms of a run, parsed once from Flower's ``run_config``.

Everything here is known to the server and to every site. Nothing private belongs in it: a site's
own ε, δ and batch size live in its profile (``profile.py``).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PlainValidator, ValidationError, field_validator, model_validator

from hdpfl_flower.errors import TermsError
from hdpfl_flower.config.training_terms import (
    AtLeastOne,
    Count,
    NotNegative,
    Positive,
    TrainingTerms,
)
from hdpfl_flower.config.validation import describe, kebab

AUTO: Final = "auto"
"""What a term holds that is left to the rule; an explicit 0 is no such thing."""


def _read_pull(value: object) -> float | Literal["auto"]:
    if value == AUTO:
        return "auto"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError("must be a number of at least 0, or 'auto'")
    return float(value)  # type: ignore[arg-type]


Pull = Annotated[float | Literal["auto"], PlainValidator(_read_pull)]


class RunTerms(TrainingTerms):
    """What a run proposes to every site. Frozen; unknown keys and wrong types are refused by name.

    Keys are written in kebab-case in ``pyproject.toml`` and on the command line.
    """

    weights: Literal["uniform", "records"] = Field(
        "uniform", description="FedAvg: equal weights, or by the records that sites declare."
    )
    public_split: str = Field(
        "auto",
        description="PFA: whose ε are loose (public), among all sites that joined: auto (gmm, or "
        "nobody where a single site's leaving moves others across), gmm (PFA's), kmeans, "
        "top:SHARE or threshold:EPSILON.",
    )
    subspace: Literal["span", "centred", "mean"] = Field(
        "span",
        description="PFA: the directions kept: of the public updates, of those less their mean, "
        "or of their weighted mean alone.",
    )
    subspace_rank: AtLeastOne = Field(
        1, description="PFA: directions kept, k; the public updates may have fewer."
    )
    subspace_scope: Literal["vector", "tensor"] = Field(
        "vector", description="PFA: project the whole update, or each parameter on its own."
    )
    estimator: Literal[
        "auto", "factor-analysis", "residual-mad", "rpca", "column-norm", "temporal"
    ] = Field(
        "auto",
        description="Robust-HDP: what finds the noise of an update: factor-analysis, "
        "residual-mad, rpca, column-norm, temporal (consecutive uploads), or auto.",
    )
    frozen_after: Count = Field(
        0,
        description="Robust-HDP: uploads of a site after which its noise level is kept; "
        "0: never, 1: as the paper's authors do.",
    )
    guard: Literal["none", "cap", "centred-clipping", "evidence"] = Field(
        "none",
        description="Against sites that lie: none, cap (on a site's weight), centred-clipping, or "
        "evidence (gathered over the rounds).",
    )
    max_liars: Count = Field(
        2,
        description="Guard evidence: sites refused at most on suspicion, by the others' votes; "
        "what is proven (no noise, shared noise) is refused whatever the limit.",
    )
    noise_floor: NotNegative = Field(
        0.0,
        description="Guard evidence: least standard deviation of an honest update's noise, a "
        "coordinate; 0: not known.",
    )
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Share of the sites asked each round; amplification with noise = server alone.",
    )
    require_public: bool = Field(
        False,
        description="Draw a round's sites again until one of them is public, whatever the "
        "strategy; sites must disclose their ε.",
    )
    participations: Count = Field(
        0, description="Rounds that a site plans for and takes part in at most; 0: all of them."
    )
    noise_multiplier: NotNegative = Field(
        0.0,
        description="Every site's noise multiplier: a site leaves when its ε is used up; "
        "0: each site's own, for all rounds.",
    )
    noise: Literal["records", "server", "client"] = Field(
        "records",
        description="Who adds the noise: each site's DP-SGD (unit: a record), a trusted server "
        "(unit: a client; sites must set trust-server), or each client to its update (unit: all "
        "records of a client, against any change; sites must set policy.client-noise).",
    )
    levels: str = Field(
        "",
        description="FedHDP: the menu of ε, such as 1,3.6,inf: a site is in the loosest that it "
        "allows; empty: the strictest disclosed ε, and inf.",
    )
    level_ratio: str = Field(
        "auto",
        description="FedHDP: what a client of a stricter level counts, from 0 to 1: auto, one "
        "number, one for each level but the loosest, or precision (by noise alone, to compare).",
    )
    clip_quantile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="noise = server: share of the updates that clip-norm moves towards."
    )
    clip_lr: NotNegative = Field(
        0.2, description="noise = server: rate at which clip-norm moves; 0: it stays."
    )
    clip_floor: Positive = Field(1e-3, description="noise = server: least clip-norm.")
    clip_ceiling: Positive = Field(100.0, description="noise = server: largest clip-norm.")
    bit_noise: Positive = Field(
        5.0,
        description="noise = server: standard deviation of the noise on the sum of clipping bits; "
        "raised where a level needs more.",
    )
    server_learning_rate: Positive = Field(
        1.0, description="FedHDP, DP-FedAvg: what the server multiplies the averaged update by."
    )
    server_schedule: Literal["constant", "linear"] = Field(
        "constant", description="Of server-learning-rate: constant, or linear down to 0."
    )
    personal_lambda: str = Field(
        "",
        description="Personal models (Ditto): pull λ towards the global model: one number, or "
        "PRIVATE,OPTED-OUT; empty: no personal model, but 0.1 for ditto.",
    )
    clusters: Count = Field(
        0,
        description="Rules with clusters: models M; 0: found by separation (r-dpcfl and "
        "late-clusters).",
    )
    cluster_map: Literal["mixture", "pca"] = Field(
        "mixture",
        description="R-DPCFL: what finds the clusters: a mixture that knows each client's noise, "
        "or the paper's two principal components.",
    )
    first_batch: Literal["auto", "full", "same"] = Field(
        "auto",
        description="Batches of round 1: full (all records, an exact first update), or the same "
        "as later; auto: full for r-dpcfl.",
    )
    selections: Count = Field(
        0,
        description="Rules with clusters: private choices that a site plans for; 0: a tenth of "
        "the rounds.",
    )
    selection_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1,
        description="Share of a site's ε that its private choices alone would cost; 0: no choices.",
    )
    selection_mechanism: Literal["gaussian", "gumbel"] = Field(
        "gaussian",
        description="Noise of a private choice: gaussian, or gumbel (the exponential mechanism, "
        "as in R-DPCFL's paper).",
    )
    prox_lambda: Pull = Field(
        "auto",
        description="Pull λ of the local steps: towards the round's global model (FedProx), or "
        "the mean of the sites' models (mr-mtl); auto: 0.1 for mr-mtl, else 0, no pull.",
    )
    personal_noise: Literal["auto", "none", "records"] = Field(
        "auto",
        description="Personal models: none (plain SGD that stays at home), or records (DP-SGD "
        "whose steps are charged like the round's); auto: records for ditto, else none.",
    )
    quorum: Count = Field(0, description="Updates a round needs; 0: two thirds of those asked.")
    min_sites: AtLeastOne = Field(2, description="Sites to wait for before the first round.")
    join_timeout: Positive = Field(120.0, description="Seconds to wait for min-sites.")
    round_timeout: Positive = Field(3600.0, description="Seconds to wait for a round's replies.")
    epsilon_cap: NotNegative = Field(
        0.0, description="No site spends more than this ε; 0: no cap (the rule 'minimum' sets it)."
    )
    seed: Count = Field(
        1,
        description="Seed of the initial model, the client sampling, and "
        "everything a simulation draws.",
    )
    epsilons: str = Field(
        "uniform:0.3:8",
        description="Simulation: the sites' ε. dist1…dist9, "
        "dist1-published…, mixgauss1…4, uniform:A:B, normal:MEAN:STD, "
        "pareto:SCALE:SHAPE, levels:E:E…, file:PATH, a list, or one number; "
        "+opt-out:SHARE after any.",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Simulation: every site's δ. noise = server: that of every level."
    )
    calibration: Literal["pld", "robust-hdp", "pfa"] = Field(
        "pld",
        description="Simulation: what finds the noise multiplier: our accountant, or the formula "
        "of a paper, to reproduce it.",
    )
    batch_sizes: str = Field(
        "16,32,64,128", description="Simulation: expected batch sizes to draw from, or 'published'."
    )
    torch_threads: Count = Field(
        1,
        description="Simulation: torch threads of a client; 1 gives "
        "the same arrays everywhere, 0 takes the actor's CPUs.",
    )
    runs_dir: str = Field("", description="Folder of the runs; empty: $HDPFL_HOME/runs.")

    @model_validator(mode="before")
    @classmethod
    def _numbers_as_texts(cls, data: Any) -> Any:
        """Take a number where a text is asked for: who writes 0.1 for '0.1' means the same."""
        if not isinstance(data, dict):
            return data
        texts = {f.alias or kebab(n) for n, f in cls.model_fields.items() if f.annotation is str}
        return {
            key: repr(value) if key in texts and type(value) in (int, float) else value
            for key, value in data.items()
        }

    @field_validator("personal_lambda")
    @classmethod
    def _without_blanks(cls, value: str) -> str:
        return value.strip()  # blanks alone are no λ: nobody is to pay for a model of it

    @field_validator(
        "rounds", "local_epochs", "subspace_rank", "min_sites",
        "local_steps", "frozen_after", "max_liars", "quorum", "participations", "seed",
        "torch_threads", "clusters", "selections",
    )  # fmt: skip
    @classmethod
    def _fits_flower(cls, value: int) -> int:
        if value >= 2**63:
            raise ValueError("must be below 2**63")
        return value

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> Self:
        """Return the terms written in ``run_config``.

        Raises:
            TermsError: a key is unknown, or a value has the wrong type or range; every mistake
                is named in one line.
        """
        try:
            return cls.model_validate(dict(run_config))
        except ValidationError as error:
            raise TermsError(f"run config: {describe(error, cls.keys())}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the terms in the TOML file at ``path``: run config keys, outside of any table.

        Raises:
            TermsError: the file is missing or not TOML, or the terms are wrong.
        """
        try:
            return cls.parse(tomllib.loads(path.read_text(encoding="utf-8")))
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

    @property
    def pull(self) -> float:
        """λ of ``prox-lambda``; 0 where the rule left it open."""
        return 0.0 if self.prox_lambda == AUTO else self.prox_lambda

    @classmethod
    def keys(cls) -> list[str]:
        """Return every key as users write it."""
        return [field.alias or kebab(name) for name, field in cls.model_fields.items()]

    @staticmethod
    def from_json(text: str) -> RunTerms:
        """Return the terms that :meth:`to_json` wrote; raises ``TermsError`` for anything else."""
        return _from_json(text)

    def to_json(self) -> str:
        """Return the canonical text: the same terms give the same bytes."""
        return json.dumps(self.as_config(), sort_keys=True, separators=(",", ":"))

    def as_config(self) -> dict[str, bool | int | float | str]:
        """Return the terms as Flower's flat run config, keys in kebab-case."""
        return self.model_dump(by_alias=True)

    def updated(self, **changes: object) -> Self:
        """Return the same terms with some fields changed, validated again.

        >>> RunTerms().updated(rounds=3).rounds
        3
        """
        data = self.as_config()
        for name, value in changes.items():
            data[type(self).model_fields[name].alias or kebab(name)] = value  # type: ignore[assignment]
        return self.parse(data)


@lru_cache(maxsize=64)
def _from_json(text: str) -> RunTerms:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise TermsError("run config: the terms are not a JSON object")
    return RunTerms.parse(data)
