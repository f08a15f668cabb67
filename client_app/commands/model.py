"""``hdpfl-site model``: the final model of the last run, for the site's own use."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from client_app.commands.options import ProfileOption, open_profile, write_file
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.printable import printable
from hdpfl_flower.system.terminal import new_app

if TYPE_CHECKING:
    from client_app.personal.final_model import FinalModel
    from hdpfl_flower.data.schema import Schema
    from hdpfl_flower.models.task import Task

app = new_app("The final model of the last run.")

FOR_SITES = frozenset({
    "run-id", "strategy", "rounds", "participations", "local-epochs", "local-steps", "clip-norm",
    "learning-rate", "prox-lambda", "model", "dataset", "schema", "noise", "noise-multiplier",
    "first-batch", "selections", "selection-share", "selection-mechanism", "personal-lambda",
    "personal-noise", "epsilon-cap", "evaluation",
})  # fmt: skip
"""The terms by which a site trained. The others say what the server does with what it gets, or what
a simulation draws: ``delta`` is no site's own, which stands in its profile."""

OTHERS = (
    "this site's own ε, δ and batch size stand in its profile and ledger; the run's terms that "
    "concern only simulations are left out here, and are in what 'hdpfl-site model export' writes"
)

PersonalOption = Annotated[
    bool, typer.Option("--personal", help="This site's own model of that run instead.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


@app.command()
def show(profile: ProfileOption = None, personal: PersonalOption = False) -> None:
    """Print the run, the round and the terms of the model.

    Its run and the terms by which sites trained and, where the profile keeps a holdout, how good
    it is on it.
    """
    site = open_profile(profile)
    model, task = _kept_model(site, personal)
    size = sum(array.size for array in model.arrays.values())
    kind = "personal" if personal else "final"
    run = model.terms.run_id
    typer.echo(printable(f"{kind} model of run '{run}': {model.terms.model}, {size} parameters"))
    for key, value in model.terms.as_config().items():
        if key not in FOR_SITES:
            continue
        text = json.dumps(value, ensure_ascii=False)
        if key == "schema" and "\\n" in text:
            text = f"({value.count(chr(10)) + 1} lines)" if isinstance(value, str) else text
        typer.echo(printable(f"  {key} = {text}"))
    typer.echo(OTHERS)
    typer.echo(_on_held_out(site, model, task))


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="File to write, FILE.safetensors.")],
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    force: ForceOption = False,
) -> None:
    """Write the model to a safetensors file.

    Its metadata hold the run's terms.
    """
    from safetensors.numpy import save

    from client_app.personal.final_model import metadata_of

    model, _ = _kept_model(open_profile(profile), personal)
    write_file(to, save(model.arrays, metadata_of(model.terms)), force=force)
    typer.echo(f"wrote {to}")


@app.command()
def predict(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet table with the schema's columns.")],
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    out: Annotated[Path | None, typer.Option(help="File to write; else the terminal.")] = None,
    force: ForceOption = False,
) -> None:
    """Predict the label of each row of a table.

    The table has the columns of the run's schema; it needs no label. The rows count from 1, blank
    lines and the header left out; a row that cannot be cut into cells has no prediction.
    """
    from hdpfl_flower.data.schema import Schema
    from hdpfl_flower.data.table_records import features_only
    from hdpfl_flower.models.evaluation import predict as outputs_of

    model, task = _kept_model(open_profile(profile), personal)
    if not model.terms.schema_text:
        raise DataError("the model's run has no 'schema', so no table can be read for it")
    schema = Schema.load(model.terms.schema_text)
    if schema.task != task:
        raise DataError("the 'schema' of the model's run does not describe what the model takes")
    kind = "parquet" if file.suffix.lower() in (".parquet", ".pq") else "csv"
    features, positions = features_only(file, kind, schema)
    outputs = outputs_of(model.terms.model, task, model.arrays, features)
    text = _as_csv(schema, task, positions, outputs)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_file(out, text.encode(), force=force)
    typer.echo(f"wrote {out}: {len(positions)} predictions")


def _kept_model(site: Profile, personal: bool) -> tuple[FinalModel, Task]:
    """Return the final model that the site keeps, or its own one of that run.

    Raises:
        ProfileError, ModelError: as :func:`client_app.personal.kept_model.read_kept_model`.
        DataError: there is no such model yet, or it is damaged.
    """
    from client_app.personal.kept_model import own_arrays, read_kept_model

    model, task = read_kept_model(site)
    if not personal and model.terms.sent_part:
        raise DataError(
            f"run '{model.terms.run_id}' leaves a part of its model at each site, so the final "
            "model is not whole; add --personal"
        )
    if not personal or site.state is None:
        return model, task
    own = own_arrays(site.state.path, model)
    if own is None:
        raise DataError(
            f"no personal model of run '{model.terms.run_id}' in {site.state.path}: its terms must "
            "set 'personal-lambda', and this site must have taken part"
        )
    return replace(model, arrays=own), task


def _on_held_out(site: Profile, model: FinalModel, task: Task) -> str:
    if site.data is None or site.data.holdout == 0:
        return "no test: 'data.holdout' keeps no record out of training"
    from hdpfl_flower.data.site_data import read_site_data
    from hdpfl_flower.models.evaluation import evaluate

    records = read_site_data(site.data, task, model.terms.schema_text).test
    if records is None or not len(records):
        return "no test: 'data.holdout' keeps no record of this table"
    found = evaluate(model.terms.model, task, model.arrays, records)
    words = {"accuracy": "accuracy" if task.classes else "R²", "mse": "MSE", "mae": "MAE"}
    measured = ", ".join(f"{words.get(name, name)} {value:.4f}" for name, value in found.items())
    return (
        f"on this site's {len(records)} held-out records: {measured}\n"
        "That is for this site alone: ε does not cover it where it is disclosed."
    )


def _as_csv(
    schema: Schema,
    task: Task,
    positions: np.ndarray,
    outputs: np.ndarray,
) -> str:
    """Return the predictions as CSV text: row, prediction and, for classes, its probability."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = (positions + 1).tolist()
    if not task.classes:
        writer.writerow(["row", "prediction"])
        numbers = schema.label.unscale(outputs[:, 0])
        writer.writerows((row, f"{n:.6g}") for row, n in zip(rows, numbers, strict=True))
        return text.getvalue()
    writer.writerow(["row", "prediction", "probability"])
    chosen, probability = most_likely(task, outputs)
    for row, index, share in zip(rows, chosen, probability, strict=True):
        writer.writerow((row, schema.label.classes[index][0], f"{share:.4f}"))
    return text.getvalue()


def most_likely(task: Task, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, each of shape ``(n,)``, the class that is most likely and its probability.

    Args:
        task: a classification task.
        outputs: logits, shape ``(n, task.outputs)``.
    """
    logits = outputs.astype(np.float64)
    if task.loss == "logistic":
        # One logit z is the pair (0, z): the softmax of the pair is the logistic function.
        logits = np.hstack([np.zeros_like(logits), logits])
    # Less the largest, so that no exponent overflows; the chosen class then has odds 1.
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    chosen = logits.argmax(axis=1)
    return chosen, 1 / odds.sum(axis=1)
