"""``hdpfl-site model``: the final model of the last run, for the site's own use."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from client_app.commands.options import ProfileOption, open_profile, write_file
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.measures.concordance import survival_of
from hdpfl_flower.system.printable import printable
from hdpfl_flower.system.terminal import new_app

if TYPE_CHECKING:
    from client_app.personal.final_model import FinalModel
    from client_app.personal.personal_model import Kind, PersonalModel
    from hdpfl_flower.data.schema import Label
    from hdpfl_flower.models.task import Task

app = new_app("The final model of the last run.")

FOR_SITES = frozenset({
    "run-id", "strategy", "rounds", "participations", "local-epochs", "local-steps", "clip-norm",
    "learning-rate", "prox-lambda", "model", "dataset", "schema", "task",
    "input-shape", "classes", "intervals", "noise", "noise-multiplier",
    "first-batch", "selections", "selection-share", "selection-mechanism", "personal-lambda",
    "personal-noise", "epsilon-cap", "evaluation", "personal-part", "personal-training",
    "personal-steps", "personal-rate", "shared-mask", "mask-share", "tuning-steps", "tuning-part",
    "personal-prior", "personal-shrink", "score-share", "upload", "download", "coordinator",
    "purpose",
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
KeptOption = Annotated[
    bool, typer.Option("--kept", help="The model of that run that was tuned at home instead.")
]
LABELS = {
    "private": "private: made of noisy releases alone; it may be shown like this site's updates",
    "kept": "kept: trained on this site's records without noise; no ε covers it, keep it like them",
}
"""What the two kinds of a site's own model mean."""
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


@app.command()
def show(
    profile: ProfileOption = None, personal: PersonalOption = False, kept: KeptOption = False
) -> None:
    """Print the run, the round and the terms of the model.

    Its run and the terms by which sites trained and, where the profile keeps a holdout, how good
    it is on it.
    """
    from client_app.personal.personal_model import PersonalModel

    site = open_profile(profile)
    model, task = chosen_model(site, personal, kept)
    size = sum(array.size for array in model.arrays.values())
    own = isinstance(model, PersonalModel)
    kind, run = "personal" if own else "final", model.terms.run_id
    typer.echo(printable(f"{kind} model of run '{run}': {model.terms.model}, {size} parameters"))
    if isinstance(model, PersonalModel):
        typer.echo(LABELS[model.kind])
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
    to: Annotated[Path, typer.Option("--to", "--out", help="File to write, FILE.safetensors.")],
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    kept: KeptOption = False,
    force: ForceOption = False,
) -> None:
    """Write the model to a safetensors file.

    Its metadata hold the run's terms, and of a model of the site's own its kind. What a prior adds
    is in the bias of the last layer, or where there is none in an array 'outputs', to be added.
    """
    from safetensors.numpy import save

    from client_app.personal.final_model import metadata_of
    from client_app.personal.personal_model import PersonalModel, folded

    model, task = chosen_model(open_profile(profile), personal, kept)
    arrays, metadata = model.arrays, metadata_of(model.terms)
    if isinstance(model, PersonalModel):
        model = folded(model, task)
        left = {"outputs": model.added} if model.added.any() else {}
        arrays, metadata = {**model.arrays, **left}, {**metadata, "kind": model.kind}
    write_file(to, save(arrays, metadata), force=force)
    typer.echo(f"wrote {to}")


@app.command()
def predict(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet table with the schema's columns; of a run without a schema an "
            ".npz file with an array x, or a folder of images."
        ),
    ],
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    kept: KeptOption = False,
    out: Annotated[Path | None, typer.Option(help="File to write; else the terminal.")] = None,
    force: ForceOption = False,
) -> None:
    """Predict the label of each row of a table, or each record of a file without a schema.

    The table has the columns of the run's schema, or the site's own as its profile maps them; it
    needs no label. The rows count from 1, blank lines and the header left out; a row that cannot be
    cut into cells has no prediction. Without a schema a class is its number, an image has its
    path in the place of a row, and what is not finite, or no readable image, has no prediction; of
    survival there is the chance of no event up to the end of each interval.
    """
    site = open_profile(profile)
    model, task = chosen_model(site, personal, kept)
    features, rows, label = _unlabelled(file, site, model, task)
    text = _as_csv(rows, task, model_outputs(model, task, features), label)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_file(out, text.encode(), force=force)
    typer.echo(f"wrote {out}: {len(rows)} predictions")


@app.command()
def tune(
    profile: ProfileOption = None,
    part: Annotated[str, typer.Option(help="head (the last layer), or all.")] = "all",
    epochs: Annotated[int, typer.Option(help="Passes over the training records.", min=1)] = 5,
    learning_rate: Annotated[
        float, typer.Option(help="Of SGD without noise; 0: the run's.", min=0)
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Tune the model of the last run at home, without noise.

    The ledger closes that run first: this site releases nothing more of it. The result is a file of
    its own in the state folder, for this site's eyes alone; no later run reads it.
    """
    import contextlib

    from client_app.personal.home_tuning import Tuning, tune_without_noise
    from client_app.reports.ledger_view import ledger_paths
    from hdpfl_flower.data.site_data import read_site_data
    from hdpfl_flower.ledger.ledger import Ledger

    if part not in ("head", "all"):
        raise ProfileError("'--part' must be head or all")
    site = open_profile(profile)
    if site.data is None:
        raise ProfileError("profile: [data] is missing; it says where the records lie")
    model, task = _start_of_tuning(site)
    run = model.terms.run_id
    if not yes:
        question = f"Close run '{run}' at this site, for good, and tune its model without noise?"
        typer.confirm(printable(question), abort=True)
    records = read_site_data(site.data, task, model.terms.schema_text).train
    how = Tuning(part, epochs, learning_rate or model.terms.learning_rate)
    paths = ledger_paths(site)
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        tuned = tune_without_noise(site, ledger, model, records, how)
    typer.echo(printable(f"run '{run}' is closed at this site; its tuned model is kept"))
    typer.echo(LABELS["kept"])
    typer.echo(_on_held_out(site, tuned, task))


def _start_of_tuning(site: Profile) -> tuple[PersonalModel, Task]:
    """Return the site's own model of its last run, or the final one; raises as `chosen_model`."""
    from client_app.personal.kept_model import read_kept_model
    from client_app.personal.personal_model import (
        PersonalModel,
        kept_model_path,
        read_personal_model,
    )

    final, task = read_kept_model(site)
    own = None
    if site.state is not None:
        own = read_personal_model(kept_model_path(site.state.path, final.terms.run_id))
    if own is None and final.terms.sent_part:
        raise DataError("the part of the model that stays here is missing; nothing can be tuned")
    none = np.zeros(task.outputs, np.float32)
    return own or PersonalModel(final.terms, final.arrays, none, "private"), task


def model_outputs(
    model: FinalModel | PersonalModel, task: Task, features: np.ndarray
) -> np.ndarray:
    """Return the model's outputs, what a prior adds included."""
    from client_app.personal.personal_model import PersonalModel
    from hdpfl_flower.models.evaluation import predict as outputs_of

    if isinstance(model, PersonalModel):
        return model.outputs(task, features)
    if model.terms.sent_part:
        raise DataError(
            "the final model lacks the part that stays at each site; add --personal to use the "
            "whole of this site's"
        )
    return outputs_of(model.terms.model, task, model.arrays, features)


def chosen_model(
    site: Profile, personal: bool, kept: bool
) -> tuple[FinalModel | PersonalModel, Task]:
    """Return the final model that the site keeps, or its own one of that run.

    Raises:
        ProfileError, ModelError: as :func:`client_app.personal.kept_model.read_kept_model`.
        DataError: there is no such model yet, or it is damaged.
    """
    from client_app.personal.home_tuning import home_tuned_path
    from client_app.personal.kept_model import own_arrays, read_kept_model
    from client_app.personal.personal_model import (
        PersonalModel,
        kept_model_path,
        read_personal_model,
    )

    model, task = read_kept_model(site)
    if not (personal or kept) or site.state is None:
        return model, task
    folder, terms = site.state.path, model.terms
    if kept:
        tuned = read_personal_model(home_tuned_path(folder, terms.run_id))
        if tuned is None:
            raise DataError(
                f"no kept model of run '{terms.run_id}' in {folder}; make it: hdpfl-site model tune"
            )
        return tuned, task
    found = read_personal_model(kept_model_path(folder, terms.run_id))
    if found is not None:
        return found, task
    own = own_arrays(folder, model) if not terms.sent_part else None
    if own is None:
        raise DataError(
            f"no personal model of run '{terms.run_id}' in {folder}: its terms must set "
            "'personal-lambda', a personal part, a prior or 'tuning-steps', and this site must "
            "have taken part"
        )
    kind: Kind = "private" if terms.personal_noise == "records" else "kept"
    return PersonalModel(terms, own, np.zeros(task.outputs, np.float32), kind), task


def _unlabelled(
    file: Path, site: Profile, model: FinalModel | PersonalModel, task: Task
) -> tuple[np.ndarray, list[str], Label | None]:
    """Return the features in a file or folder, what names each row, and the schema's label, if any.

    Raises:
        DataError: it cannot be read, or is not what the model takes.
    """
    from hdpfl_flower.data.image_folder import read_unlabelled
    from hdpfl_flower.data.own_table import OwnTable
    from hdpfl_flower.data.schema import Schema
    from hdpfl_flower.data.site_data import load_features
    from hdpfl_flower.data.table_records import features_only

    kind = {".parquet": "parquet", ".pq": "parquet", ".npz": "npz"}.get(file.suffix.lower(), "csv")
    if not model.terms.schema_text:
        if file.is_dir():
            return *read_unlabelled(file, task), None
        if kind == "npz":
            return *load_features(file, task), None
        raise DataError(
            "the model's run has no 'schema', so no table can be read for it; give an .npz file "
            "with an array 'x', or a folder of images"
        )
    schema = Schema.load(model.terms.schema_text)
    if schema.task != task:
        raise DataError("the 'schema' of the model's run does not describe what the model takes")
    own = OwnTable.of(site.data) if site.data is not None else OwnTable()
    features, positions = features_only(file, "csv" if kind == "npz" else kind, schema, own)
    return features, [str(row) for row in positions + 1], schema.label


def _on_held_out(site: Profile, model: FinalModel | PersonalModel, task: Task) -> str:
    if getattr(model, "kind", "") == "" and model.terms.sent_part:
        return "no test: the final model lacks the part that stays at each site; see --personal"
    if site.data is None or site.data.holdout == 0:
        return "no test: 'data.holdout' keeps no record out of training"
    from hdpfl_flower.data.site_data import read_site_data
    from hdpfl_flower.models.evaluation import measures

    records = read_site_data(site.data, task, model.terms.schema_text).test
    if records is None or not len(records):
        return "no test: 'data.holdout' keeps no record of this table"
    found = measures(task, model_outputs(model, task, records.features), records.targets)
    words = {"accuracy": "accuracy" if task.classes else "R²", "mse": "MSE", "mae": "MAE"}
    measured = ", ".join(f"{words.get(name, name)} {value:.4f}" for name, value in found.items())
    return (
        f"on this site's {len(records)} held-out records: {measured}\n"
        "That is for this site alone: ε does not cover it where it is disclosed."
    )


def _as_csv(rows: list[str], task: Task, outputs: np.ndarray, label: Label | None) -> str:
    """Return the predictions as CSV text: row, prediction and, for classes, its probability.

    For survival the probability to survive each edge of the schema, or each interval.

    Args:
        rows: what names each row.
        task: of the model.
        outputs: shape ``(n, task.outputs)``.
        label: the schema's; None: classes are numbers, and numbers as the model has them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if task.intervals:
        ends = label.edges if label else range(1, task.intervals + 1)
        writer.writerow(["row", *(f"survives-{end:g}" for end in ends)])
        shares = survival_of(outputs)
        writer.writerows(
            (row, *(f"{share:.4f}" for share in own)) for row, own in zip(rows, shares, strict=True)
        )
        return text.getvalue()
    if not task.classes:
        writer.writerow(["row", "prediction"])
        numbers = label.unscale(outputs[:, 0]) if label else outputs[:, 0]
        writer.writerows((row, f"{n:.6g}") for row, n in zip(rows, numbers, strict=True))
        return text.getvalue()
    writer.writerow(["row", "prediction", "probability"])
    chosen, probability = most_likely(task, outputs)
    for row, index, share in zip(rows, chosen, probability, strict=True):
        writer.writerow((row, label.classes[index][0] if label else index, f"{share:.4f}"))
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
