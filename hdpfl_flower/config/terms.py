"""The terms of a run: what a site plans, trains, tests and consents by. Sent with every message.

Everything here is known to the server and to every site, and a site's ledger keeps it for years.
Nothing private belongs in it: a site's own ε, δ and batch size lie in its profile (``profile.py``).
What only the server or only a simulation uses is in ``server_terms.py`` and
``simulation_terms.py``; ``run_config.py`` holds all groups.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, PlainValidator, field_validator

from hdpfl_flower.config.settings import AtLeastOne, Count, NotNegative, Positive, Settings, Share
from hdpfl_flower.errors import TermsError

AUTO: Final = "auto"
"""What a term holds that is left to the rule; an explicit 0 is no such thing."""

Form = Literal["float32", "bfloat16", "int8"]
"""How the numbers of a vector are sent; ``rounding.py`` has the grids."""
FLOAT32: Final = "float32"


def _read_pull(value: object) -> float | Literal["auto"]:
    if value == AUTO:
        return "auto"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError("must be a number of at least 0, or 'auto'")
    return float(value)  # type: ignore[arg-type]


Pull = Annotated[float | Literal["auto"], PlainValidator(_read_pull)]


def _one_line(value: str) -> str:
    # Shown to the operator who approves: no character of it may hide or move others.
    if not value.isprintable():
        raise ValueError("must be one line of printable characters")
    return value


Line = Annotated[str, Field(max_length=500), AfterValidator(_one_line)]
"""Text of the server that people at a site read."""


class RunTerms(Settings):
    """What a run proposes to every site. Frozen; unknown keys and wrong types are refused by name.

    >>> RunTerms().updated(rounds=3).rounds
    3
    """

    run_id: str = Field("", description="Name of the run; empty: the server makes one.")
    strategy: str = Field("mmse", description="Aggregation rule: a row of the table.")
    rounds: AtLeastOne = Field(20, description="Rounds E; a site plans for all of them.")
    local_epochs: AtLeastOne = Field(1, description="Local epochs K a round.")
    local_steps: Count = Field(0, description="Local steps a round; 0: from local-epochs.")
    clip_norm: Positive = Field(1.0, description="Bound C on a record's gradient (l2).")
    learning_rate: Positive = Field(
        0.1,
        description="Learning rate of local SGD; auto (run config): 0.1 over clip-norm, just 0.1 "
        "where noise is not of records, and server-learning-rate is found.",
    )
    model: str = Field(
        "logreg",
        description="logreg, mlp:WIDTH[:WIDTH…], cnn, resnet18, or "
        "module:function (a site's policy must list it).",
    )
    dataset: str = Field(
        "digits",
        description="A named data set, split over the sites; "
        "'site': every site reads its own, by the public schema or by 'input-shape'; or, in "
        "simulations alone, your own: file:PATH.npz, or module:function.",
    )
    task: Literal["auto", "classification", "regression", "survival"] = Field(
        "auto",
        description="What is learned from records without a schema; auto: classification with "
        "'classes', survival with 'intervals'.",
    )
    input_shape: str = Field(
        "",
        description="Shape of a record without a schema, such as 13 or 1,28,28 (channels, height, "
        "width); empty: the schema's, or that of the named data set or of your own.",
    )
    classes: Count = Field(
        0, description="Number of classes of records without a schema; 0: none, or as above."
    )
    intervals: Count = Field(
        0, description="Number of intervals in which survival is observed; 0: none, or as above."
    )
    schema_text: str = Field(
        "",
        alias="schema",
        description="Public schema of the sites' tables: "
        "TOML text, the name of a built-in one (heart), or where the config is read the path of a "
        "file that ends in .toml: sites are sent its text.",
    )
    evaluation: Literal["none", "server", "sites"] = Field(
        "server",
        description="Where models are tested: on the server's public test set (in simulations "
        "also for each site, on test records like its own), at the sites that disclose it, or "
        "nowhere.",
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
    personal_lambda: str = Field(
        "",
        description="Personal models (Ditto): pull λ towards the global model: one number, or "
        "PRIVATE,OPTED-OUT; empty: no personal model, but 0.1 for ditto.",
    )
    first_batch: Literal["auto", "full", "same"] = Field(
        "auto",
        description="Batches of round 1, which a site plans for: full (all records, an exact "
        "first update), or the same as later; auto: full for r-dpcfl.",
    )
    selections: Count = Field(
        0,
        description="Private choices of a model that a site plans for; 0: a tenth of the rounds.",
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
        "the mean of the sites' models (mr-mtl); auto: 0.1 for mr-mtl, fedprox and the other "
        "splittings, else 0, no pull.",
    )
    personal_noise: Literal["auto", "none", "records"] = Field(
        "auto",
        description="Personal models: none (plain SGD that stays at home), or records (DP-SGD "
        "whose steps are charged like the round's); auto: records for ditto, else none.",
    )
    personal_part: Literal["", "head", "body"] = Field(
        "",
        description="Part of the model that stays at its site and is never sent: head (the last "
        "layer), or body (all else); empty: none, but the strategy's own where it has one.",
    )
    personal_training: Literal["auto", "joint", "alternate", "frozen", "offset"] = Field(
        "auto",
        description="Steps of a round: joint (all coordinates), alternate (the personal part "
        "first, then the shared one), frozen (the shared part alone), or offset (everything is "
        "shared, and the site adds an offset of its own); auto: the strategy's own, else joint. "
        "Each step is noisy.",
    )
    personal_steps: Count = Field(
        0, description="alternate: local steps of the personal part; 0: half of them, at least one."
    )
    personal_rate: NotNegative = Field(
        0.1,
        description="offset: how much of its own noisy update a site adds to its offset; all of "
        "it (1) has the noise of local training.",
    )
    shared_mask: Literal[
        "none", "noisy-updates", "charged-top-k", "random", "global-magnitude", "published"
    ] = Field(
        "none",
        description="Coordinates of the shared part that a site trains and sends: all (none), or "
        "those that its own noisy updates, a charged noisy gradient, chance or the global model "
        "select; published: its clean weights, which violates privacy: simulations alone.",
    )
    mask_share: Share = Field(
        0.5, description="Share of the shared coordinates that 'shared-mask' selects."
    )
    tuning_steps: Count = Field(
        0,
        description="Noisy steps of a site on its own records after the last round; charged like "
        "the round's. 0: none, but as many as a round's for fedbabu, dp-fedavg-fb and pmtl.",
    )
    tuning_part: Literal["auto", "head", "all"] = Field(
        "auto",
        description="What 'tuning-steps' trains: head (the last layer), or all; auto: all for "
        "pmtl, else head.",
    )
    personal_prior: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of a site's ε that one noisy count a class alone would cost; it stays "
        "at the site and corrects the model for its labels; 0: no counts.",
    )
    personal_shrink: NotNegative = Field(
        0.0,
        description="How much of its own summed deviation from the global model a site adds to "
        "its personal model, each tensor shrunk by the site's noise; costs no ε; 0: none.",
    )
    score_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of a site's ε that one noisy histogram of scores by class alone would "
        "cost: of the final model, on one record of each person that the site holds out of "
        "training. AUROC and calibration over all sites are estimated from it; two classes alone; "
        "0: no histogram.",
    )
    epsilon_cap: NotNegative = Field(
        0.0, description="No site spends more than this ε; 0: no cap (the rule 'minimum' sets it)."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="Simulation: every site's δ. noise = server: that of every level."
    )
    calibration: Literal["pld", "robust-hdp", "pfa"] = Field(
        "pld",
        description="What finds the noise multiplier: our accountant (pld), or in simulations the "
        "formula of a paper, to reproduce it; a site that is no simulation declines a formula.",
    )
    simulated_epsilon: str = Field(
        "",
        description="Simulation: the ε of every simulated site, in place of 'epsilons'; set by "
        "'maximum' and 'non-private', which violate what the sites ask for.",
    )

    upload: Form = Field(
        "float32",
        description="How a round's noisy updates are sent: float32, or rounded at random to "
        "bfloat16 (2 bytes a number) or int8 (1 byte, and 2 a block of 64), after the noise, which "
        "costs no ε.",
    )
    download: Form = Field(
        "float32",
        description="How models are sent for training: float32, bfloat16 or int8, as 'upload'; "
        "tests and the final model are of float32.",
    )

    purpose: Line = Field(
        "",
        description="What the run is for, in one line of at most 500 characters: the operators of "
        "the sites read it before they approve the run.",
    )
    coordinator: Line = Field(
        "",
        description="Who asks, likewise: a name and an address. Sites show it as the server's "
        "word, which nobody verified.",
    )

    @field_validator("personal_lambda")
    @classmethod
    def _without_blanks(cls, value: str) -> str:
        return value.strip()  # blanks alone are no λ: nobody is to pay for a model of it

    @property
    def pull(self) -> float:
        """λ of ``prox-lambda``; 0 where the strategy leaves it open."""
        return 0.0 if self.prox_lambda == AUTO else self.prox_lambda

    @property
    def sent_part(self) -> str:
        """Which part of the model is sent: ``head``, ``body``, or empty for all of it."""
        if self.personal_training == "offset":
            return ""
        return {"head": "body", "body": "head", "": ""}[self.personal_part]

    @property
    def needs_head(self) -> bool:
        """Whether the run needs a model whose head can be told from its body."""
        return bool(self.personal_part or (self.tuning_steps and self.tuning_part != "all"))

    @property
    def has_phases(self) -> bool:
        """Whether a round's steps train or send other coordinates than all of the model's."""
        return bool(
            self.personal_part or self.personal_training == "offset" or self.shared_mask != "none"
        )

    @property
    def has_personal_state(self) -> bool:
        """Whether a site keeps a vector of its own from round to round, beside Ditto's model."""
        return bool(
            self.personal_part
            or self.personal_training == "offset"
            or self.shared_mask == "noisy-updates"
            or self.personal_shrink
        )

    @staticmethod
    def from_json(text: str) -> RunTerms:
        """Return the terms that :meth:`to_json` wrote; raises ``TermsError`` for anything else."""
        return _from_json(text)

    def to_json(self) -> str:
        """Return the canonical text: the same terms give the same bytes."""
        # The wire's digest covers this text: another order would be another request.
        return json.dumps(self.as_config(), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=64)
def _from_json(text: str) -> RunTerms:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise TermsError("run config: the terms are not a JSON object")
    return RunTerms.parse(data)
