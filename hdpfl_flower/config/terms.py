"""Terms of a run, sent with every message and consented to.

Everything here is known to the server and to every site, and a site's ledger keeps it for years.
Nothing private belongs in it: a site's own ε, δ and batch size lie in its profile (``profile.py``).
Keys of the server alone or of a simulation alone are in ``server_terms.py`` and
``simulation_terms.py``; ``run_config.py`` holds all groups.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from hdpfl_flower.config.kind import KindT, read_kind, write_kind
from hdpfl_flower.config.settings import (
    AtLeastOne,
    Count,
    NotNegative,
    Positive,
    Value,
)
from hdpfl_flower.config.tables_of_terms import (
    OPEN,
    Pairs,
    flattened,
    gathered,
    read_pairs,
    tables_of,
)
from hdpfl_flower.config.tasks import TASKS, ClassWeights, StatedTask, check_scales
from hdpfl_flower.errors import TermsError
from hdpfl_flower.noise_sources import SOURCES, NoiseSource, by_source
from hdpfl_flower.shared_noise.keys import SharingTerms
from hdpfl_flower.system.fingerprints import check_listed
from hdpfl_flower.work import Auto, Work, read_work
from hdpfl_flower.work.backbone import BACKBONES, Backbone, Weights
from hdpfl_flower.work.choice import CHOICES, Choice
from hdpfl_flower.work.second import SECONDS, SecondModel
from hdpfl_flower.work.spend import SPENDS, Spend

AUTO: Final = OPEN
"""Value of a term left to the strategy; unlike an explicit 0."""


MOST_TERMS = 256_000
"""Characters of a run's terms as JSON. A site reads them before its operator has consented, so each
part is bounded and its size is looked at first; the parts together cannot exceed this."""
MOST_SCHEMA = 65_536
"""Bytes of a schema's text in UTF-8: about a thousand columns, or 1,600 on a line each."""
MOST_RUN_ID, MOST_CHARACTERS = 64, 500
"""Characters of a run's name, which ledgers keep for ever, and of any other text of the terms."""
MOST_SITES = 16_384
"""Characters of the list of sites: 321 fingerprints."""

MOST_SCALES = 65_536
"""Characters of the scales of number columns: about 5,000."""
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _one_line(value: str) -> str:
    # Operators read it before they approve: no character of it may hide or move others.
    if not value.isprintable():
        raise ValueError("must be one line of printable characters")
    return value


def _table(kinds: Mapping[str, type[KindT]]) -> tuple[PlainValidator, PlainSerializer]:
    return PlainValidator(partial(read_kind, kinds)), PlainSerializer(write_kind)


def _read_spend(value: object) -> Spend:
    return read_kind(SPENDS, value) or Spend()


Backbones = Annotated[Backbone | None, *_table(BACKBONES)]
Tasks = Annotated[StatedTask | None, *_table(TASKS)]
Spends = Annotated[Spend, PlainValidator(_read_spend), PlainSerializer(write_kind)]
Works = Annotated[Work, PlainValidator(read_work), PlainSerializer(write_kind)]
Seconds = Annotated[SecondModel | None, *_table(SECONDS)]
Choices = Annotated[Choice | None, *_table(CHOICES)]
First = Annotated[
    Pairs, PlainValidator(partial(read_pairs, table="first")), PlainSerializer(tables_of)
]
After = Annotated[Pairs, PlainValidator(read_pairs), PlainSerializer(tables_of)]

Line = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_one_line)]
"""Text of the server: it enters ledgers, logs and pages of a site."""
Sites = Annotated[str, Field(max_length=MOST_SITES), AfterValidator(check_listed)]
"""Fingerprints of nodes, between commas."""
Scales = Annotated[str, Field(max_length=MOST_SCALES), AfterValidator(check_scales)]
"""Scales of number columns, as text."""
RunId = Annotated[str, Field(max_length=MOST_RUN_ID), AfterValidator(_one_line)]


def schema_fault(text: str) -> str:
    """Return the fault of a schema's text; empty for none."""
    if len(text) > MOST_SCHEMA or len(text.encode(errors="surrogatepass")) > MOST_SCHEMA:
        return f"is longer than {MOST_SCHEMA} bytes; remove comments or columns"
    if _UNSEEN.search(text):
        return "holds a control character, or half of a character; remove it"
    return ""


def _check_schema(text: str) -> str:
    if fault := schema_fault(text):
        raise ValueError(fault)
    return text


class RunTerms(SharingTerms):
    """Terms of a run, which the server proposes to every site. Frozen; keys are checked.

    >>> RunTerms().updated(rounds=3).rounds
    3
    """

    run_id: RunId = Field("", description="Name of the run. Empty means that the server makes one.")
    strategy: Line = Field(
        "mmse",
        json_schema_extra={"default": AUTO},
        description=f"Name of the aggregation strategy. auto means {by_source('strategy')}.",
    )
    rounds: AtLeastOne = Field(20, description="Number of rounds E. A site plans for all of them.")
    local_epochs: AtLeastOne = Field(1, description="Number of local epochs K in each round.")
    local_steps: Count = Field(
        0, description="Number of local steps in each round. 0 means that local-epochs decides."
    )
    clip_norm: Positive = Field(1.0, description="Bound C on a record's gradient (l2).")
    learning_rate: Positive = Field(
        0.1,
        json_schema_extra={"default": AUTO},  # of a run config; no site is sent it
        description="Learning rate of local SGD. auto means 0.3 / clip-norm if the server "
        "finds its own rate, and else 0.1 / clip-norm. If the noise is not per record, clip-norm "
        "counts as 1 here.",
    )
    model: Line = Field(
        "logreg",
        description="Network to train: logreg, mlp:WIDTH[:WIDTH…], cnn, resnet18, or "
        "module:function (a site's policy must list it).",
    )
    backbone: Backbones = Field(
        None,
        description=(
            "Public function that turns each record into the inputs of the model. Empty means none."
        ),
    )
    start: Weights = Field(
        "",
        description="File of the model from which round 1 starts (.safetensors, or a file of "
        "torch), such as the model.safetensors of an earlier run. Sites see its "
        "SHA-256. Empty means that the seed draws the model.",
    )
    start_parts: Literal["all", "body"] = Field(
        "all",
        description="Part of 'start' that is used: the whole model (all), or its body "
        "under a new last layer (body).",
    )
    dataset: Line = Field(
        "digits",
        description="A named data set, which is split over the sites; or 'site', where every "
        "site reads its own records by the public schema or by 'task'. In "
        "simulations it may be your own: file:PATH.npz, or module:function.",
    )
    task: Tasks = Field(
        None,
        description="Task of records that have no schema. A simulation fills in open settings "
        "from your own data. Empty means the task of the schema, of the named data "
        "set, or of your own data.",
    )
    class_weights: ClassWeights = Field(
        "",
        description="Public weights of the classes in the loss. Each record's gradient is "
        "multiplied by the weight before it is clipped. Write one number per "
        "class, such as '1,4', or 'balanced:0.8,0.2' with the public shares p of "
        "the classes, which gives the weights min(p)/p. Empty means no weights.",
    )
    schema_text: Annotated[str, AfterValidator(_check_schema)] = Field(
        "",
        alias="schema",
        description="Public schema of the sites' tables: TOML text, or the name of a built-in "
        "schema (heart), or the path of a file that ends in .toml. Sites are sent "
        "the text of that file.",
    )
    evaluation: Literal["none", "server", "sites"] = Field(
        "server",
        description="Where models are tested: on the server's public test set (server), which "
        "in simulations also gives a test for each site on records like its own; "
        "at the sites that disclose the result (sites); or nowhere (none).",
    )
    participations: Count = Field(
        0,
        description=(
            "Most rounds in which a site takes part; it plans for as many. 0 means all rounds."
        ),
    )
    noise_multiplier: NotNegative = Field(
        0.0,
        description="Noise multiplier of every site. A site leaves the run when its ε is used "
        "up. 0 means that each site finds its own noise multiplier for all rounds.",
    )
    spend: Spends = Field(
        Spend(),
        description="How the noise changes over the rounds, at the same ε.",
    )
    noise: Literal["records", "shared", "server", "client"] = Field(
        "records",
        description="Source of the noise. "
        + "; ".join(f"{source.name}: {source.meaning}" for source in SOURCES.values())
        + ".",
    )
    work: Works = Field(
        Auto(),
        description=(
            "Local work of a site. Settings without a kind change the work of the strategy."
        ),
    )
    second: Seconds = Field(
        None,
        description="Second model of each site, pulled to the global one (Ditto). Empty means "
        "that the strategy decides.",
    )
    choice: Choices = Field(
        None,
        description="Private choices among models. Empty means that the strategy decides.",
    )
    first: First = Field(
        (),
        json_schema_extra={"default": {}},
        description="Releases before round 1, with one table for each kind.",
    )
    scales: Scales = Field(
        "",
        description="Scales of the number columns, as MEAN:DEVIATION with commas between, in "
        "units in which the column's bounds are [-1, 1]. The server of a run fills "
        "them in from its first message. Empty means the scales of the schema.",
    )
    after: After = Field(
        (),
        json_schema_extra={"default": {}},
        description=(
            "Releases beside the updates and after the last round, with one table for each kind."
        ),
    )
    epsilon_cap: NotNegative = Field(
        0.0,
        description=(
            "No site spends more than this ε. 0 means no cap. The strategy 'minimum' sets it."
        ),
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5,
        description=("In a simulation: δ of every site. With noise = server: δ of every level."),
    )
    calibration: Literal["pld", "robust-hdp", "pfa"] = Field(
        "pld",
        description="How the noise multiplier is found: with our accountant (pld), or in "
        "simulations with the formula of a paper, to reproduce it. A real site "
        "declines a formula.",
    )
    simulated_epsilon: Line = Field(
        "",
        description="In a simulation: ε of every simulated site, in place of 'epsilons'. The "
        "strategies 'maximum' and 'non-private' set it and so violate what the "
        "sites ask for.",
    )

    purpose: Line = Field(
        "",
        description="Purpose of the run, in one line of at most 500 characters. The operators "
        "of the sites read it before they approve the run.",
    )
    coordinator: Line = Field(
        "",
        description="Name and address of the coordinator, in one line. The operators read it "
        "too. It is what the server states, and nobody verifies it.",
    )
    sites: Sites = Field(
        "",
        description="The sites that are asked, as fingerprints of their nodes' public keys "
        "with commas between: SHA256:…, as 'ssh-keygen -lf SITE.pub' prints them. "
        "No other node takes part. Empty means every node that is online.",
    )

    @classmethod
    def parse(cls, data: Mapping[str, Any], prefix: str = "") -> Self:
        """Return the terms in ``data``, with tables as such or as dotted keys."""
        return super().parse(gathered(data), prefix)

    def as_config(self) -> dict[str, Value]:
        """Return the terms as Flower's flat run config; tables as dotted keys."""
        config = flattened(super().as_config())
        return {key: value for key, value in config if value is not None and value != {}}

    @property
    def source(self) -> NoiseSource:
        """Source of the noise, with its properties."""
        return SOURCES[self.noise]

    @property
    def last_round(self) -> int:
        """Number of the last round that may be asked for, the spare ones of a sum counted."""
        spare = math.ceil(self.spare_rounds * self.rounds) if self.source.is_summed else 0
        return self.rounds + spare

    def noise_factor(self, server_round: int) -> float:
        """Return the noise of a round over that of the last, which all sites share; at least 1."""
        return self.spend.noise_factor(server_round, self.rounds)

    @staticmethod
    def from_json(text: str) -> RunTerms:
        """Return the terms of :meth:`to_json`; raises ``TermsError``."""
        return _from_json(text)

    def to_json(self) -> str:
        """Return the canonical text: the same terms give the same bytes."""
        # The wire's digest covers this text: another order would be another request.
        return json.dumps(self.as_config(), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=64)
def _from_json(text: str) -> RunTerms:
    return RunTerms.parse(read_object(text))


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``, its content unchecked.

    Raises:
        TermsError: there is none, or it is longer than :data:`MOST_TERMS`.
    """
    if len(text) > MOST_TERMS:
        raise TermsError(f"run config: the terms are longer than {MOST_TERMS} characters")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise TermsError("run config: the terms are not a JSON object")
    return data
