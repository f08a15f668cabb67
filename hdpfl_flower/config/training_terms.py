"""The public terms of any run: the model, its data, the local steps, and where it is tested."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hdpfl_flower.config.validation import FROZEN

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TrainingTerms(BaseModel):
    """The part of ``RunTerms`` that knows nothing of rules."""

    model_config = FROZEN

    run_id: str = Field("", description="Name of the run; empty: the server makes one.")
    strategy: str = Field("robust-hdp", description="Aggregation rule: a row of the table.")
    rounds: AtLeastOne = Field(20, description="Rounds E; a site plans for all of them.")
    local_epochs: AtLeastOne = Field(1, description="Local epochs K a round.")
    local_steps: Count = Field(0, description="Local steps a round; 0: from local-epochs.")
    clip_norm: Positive = Field(1.0, description="Bound C on a record's gradient (l2).")
    learning_rate: Positive = Field(0.1, description="Learning rate of local SGD.")
    model: str = Field(
        "logreg",
        description="logreg, mlp:WIDTH[:WIDTH…], cnn, resnet18, or "
        "module:function (a site's policy must list it).",
    )
    dataset: str = Field(
        "digits",
        description="A named data set, split over the sites; or "
        "'site': every site reads its own, against the public schema.",
    )
    data_dir: str = Field(
        "",
        description="Folder of the named data sets (simulation, and the server's public test set).",
    )
    schema_text: str = Field(
        "",
        alias="schema",
        description="Public schema of the sites' tables: "
        "TOML text, or the name of a built-in one (heart).",
    )
    partition: str = Field(
        "contiguous",
        description="How a named data set is split: contiguous, "
        "iid, iid:RECORDS, dirichlet:ALPHA, pathological:CLASSES, shards:NUMBER, "
        "sizes:WEIGHT:WEIGHT…, natural.",
    )
    groups: str = Field(
        "",
        description="Simulation: groups of sites, by their sizes, whose data differ: "
        "rotation:SIZE:SIZE… (quarter turns), label-shift:SIZE:SIZE… (y + m mod C); empty: none.",
    )
    evaluation: Literal["none", "server", "sites"] = Field(
        "server",
        description="Where models are tested: on the server's public test set (in simulations "
        "also for each site, on test records like its own), at the sites that disclose it, or "
        "nowhere.",
    )
