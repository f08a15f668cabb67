"""``hdpfl-site model``: the last run's final model, for the site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.settings import Value
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.measures.concordance import survival_of
from hdpfl_flower.system.printable import printable
from hdpfl_tools.shell.csv_text import csv_text
from hdpfl_tools.shell.terminal import new_app
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.options import ProfileOption, open_profile, write_file
from hdpfl_tools.tables.own_table import OwnTable

if TYPE_CHECKING:
    from client_app.after_run.final_model import FinalModel
    from client_app.after_run.personal_model import PersonalModel
    from hdpfl_flower.data.schema import Label
    from hdpfl_flower.models.task import Task

app = new_app("The final model of the last run.")

PersonalOption = Annotated[
    bool, typer.Option("--personal", help="Use this site's own model of that run.")
]
TunedOption = Annotated[
    bool, typer.Option("--tuned", help="Use the model of that run that was tuned at this site.")
]
LABELS = {
    "private": "private: made only of noisy releases; it may be shown like this site's updates",
    "kept": "kept: trained on this site's records without noise; no ε covers it, so protect it "
    "like the records",
}
"""Meanings of the two kinds of a site's own model."""
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


@app.command()
def show(
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    tuned: TunedOption = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", "--out", help="Write the model to this file, FILE.safetensors."),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Print the run and the terms of the model; with --to, write it to a safetensors file.

    The command prints the terms by which sites trained. If the profile keeps a holdout, it also
    prints how good the model is on the held-out records. The file's metadata hold the terms of the
    run; for a model of the site's own they also hold its kind.

    The prior is part of the last layer's bias. If that layer has no bias, the prior is the array
    'outputs': add it to the outputs. For a backbone with adapters the file holds all numbers, with
    the adapters added, under 'backbone.' and 'head.'.
    """
    from client_app.after_run.personal_model import PersonalModel

    site = open_profile(profile)
    model, task = chosen_model(site, personal, tuned)
    if to is not None:
        _write(to, model, task, force=force)
        return
    typer.echo(
        text_of(
            "model",
            model=model,
            size=sum(array.size for array in model.arrays.values()),
            meaning=LABELS[model.kind] if isinstance(model, PersonalModel) else "",
            terms={key: _shown(key, value) for key, value in model.terms.as_config().items()},
            test=_on_held_out(site, model, task),
        )
    )


def _shown(key: str, value: Value) -> str:
    """Return the value of a term as JSON; of a schema's text the number of lines."""
    if key == "schema" and isinstance(value, str) and "\n" in value:
        return f"({value.count(chr(10)) + 1} lines)"
    return json.dumps(value, ensure_ascii=False)


@app.command()
def predict(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet table with the schema's columns. For a run without a schema: "
            "an .npz file with an array x, or a folder of images."
        ),
    ],
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    tuned: TunedOption = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Print no row if any row has no prediction, or a cell that would be filled or "
            "clipped. Say how many rows and which columns, and exit with 1.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the terminal.")] = None,
    force: ForceOption = False,
) -> None:
    """Predict the label of each row of a table, or each record of a file without a schema.

    The table has the columns of the run's schema, or the site's own columns as its profile maps
    them. It needs no label. Rows are counted from 1, without blank lines and without the header.

    For classes the output has the likeliest class and the probability of the second class (the
    event), or, with more than two classes, of each. For a regression it has a number. For survival
    it has the chance of no event up to the end of each interval. Values have the words and units of
    the site's table; dates have those of the schema.

    The column 'cells' names those cells of the row that were missing, were clipped to the schema's
    bounds, or held an unknown value; missing and unknown values were filled. Without a schema, a
    class is its number, and the path of an image takes the place of the row. A row has no
    prediction if it cannot be cut into cells, is not finite, or is not a readable image; the
    command counts these rows.
    """
    site = open_profile(profile)
    model, task = chosen_model(site, personal, tuned)
    records = _unlabelled(file, site, model, task.of_records)
    if strict:
        records.refuse_changed()
    text = _as_csv(records, task, model_outputs(model, task, task.embed(records.features)))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_file(out, text.encode(), force=force)
        typer.echo(f"wrote {out}: {len(records.rows)} predictions")
    if records.lost:
        typer.echo(f"warning: {records.without()}", err=True)


@app.command()
def tune(
    profile: ProfileOption = None,
    layers: Annotated[
        str, typer.Option("--part", help="Part to tune: head (the last layer) or all.")
    ] = "all",
    epochs: Annotated[int, typer.Option(help="Passes over the training records.", min=1)] = 5,
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of SGD without noise; 0: that of the run.", min=0)
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Tune the last run's model at the site, without noise.

    First the ledger closes that run: this site releases nothing more of it. The result is a
    separate file in the state folder. It is only for this site, and no later run reads it.
    """
    import contextlib

    from hdpfl_flower.ledger.ledger import Ledger
    from hdpfl_tools.site.home_tuning import HomeTuning, tune_without_noise
    from hdpfl_tools.site.reports.ledger_view import ledger_paths
    from hdpfl_tools.tables.site_data import read_site_data

    if layers not in ("head", "all"):
        raise ProfileError("'--part' must be head or all")
    site = open_profile(profile)
    if site.data is None:
        raise ProfileError("profile: [data] is missing; it says where the records lie")
    model, task = _start_of_tuning(site)
    run = model.terms.run_id
    if not yes:
        question = f"Close run '{run}' at this site for good, and tune its model without noise?"
        typer.confirm(printable(question), abort=True)
    records = read_site_data(site.data, task, model.terms.schema_text).train
    how = HomeTuning(layers, epochs, learning_rate or model.terms.learning_rate)
    paths = ledger_paths(site)
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        tuned = tune_without_noise(site, ledger, model, records, how)
    typer.echo(printable(f"run '{run}' is closed at this site; its tuned model is kept"))
    typer.echo(LABELS["kept"])
    typer.echo("\n".join(_on_held_out(site, tuned, task)))


def _write(to: Path, model: FinalModel | PersonalModel, task: Task, *, force: bool) -> None:
    from safetensors.numpy import save

    from client_app.after_run.final_model import metadata_of
    from client_app.after_run.personal_model import PersonalModel
    from hdpfl_tools.site.stored_models import folded

    arrays, metadata = model.arrays, metadata_of(model.terms)
    if isinstance(model, PersonalModel):
        model = folded(model, task)
        left = {"outputs": model.added} if model.added.any() else {}
        arrays, metadata = {**model.arrays, **left}, {**metadata, "kind": model.kind}
    if task.body:
        from hdpfl_tools.site.stored_models import with_backbone

        arrays = with_backbone(model.terms.model, task, arrays)
    write_file(to, save(arrays, metadata), force=force)
    typer.echo(f"wrote {to}")


def _start_of_tuning(site: Profile) -> tuple[PersonalModel, Task]:
    """Return the site's own model, or the final one; raises as `chosen_model`."""
    from client_app.after_run.personal_model import (
        PersonalModel,
        personal_model_file,
        read_personal_model,
    )
    from hdpfl_tools.site.stored_models import checked_final_model

    final, task = checked_final_model(site)
    personal = None
    if site.state is not None:
        personal = read_personal_model(personal_model_file(site.state.path, final.terms.run_id))
    if personal is None and final.terms.work.sent_part:
        raise DataError("the part of the model that stays here is missing, so nothing can be tuned")
    nothing = np.zeros(task.outputs, np.float32)
    return personal or PersonalModel(final.terms, final.arrays, nothing, "private"), task


def model_outputs(
    model: FinalModel | PersonalModel, task: Task, features: np.ndarray
) -> np.ndarray:
    """Return the model's outputs, with the prior's part."""
    from client_app.after_run.personal_model import PersonalModel
    from hdpfl_flower.models.evaluation import predict as outputs_of

    if isinstance(model, PersonalModel):
        return model.outputs(task, features)
    if model.terms.work.sent_part:
        raise DataError(
            "the final model lacks the part that stays at each site; add --personal to use this "
            "site's whole model"
        )
    return outputs_of(model.terms.model, task, model.arrays, features)


def chosen_model(
    site: Profile, personal: bool, tuned: bool
) -> tuple[FinalModel | PersonalModel, Task]:
    """Return the stored final model, or the site's own model.

    Raises:
        ProfileError, ModelError: as :func:`hdpfl_tools.site.stored_models.checked_final_model`.
        DataError: the model is not there yet, or it is damaged.
    """
    from client_app.after_run.personal_model import (
        PersonalModel,
        kind_of,
        personal_model_file,
        read_personal_model,
    )
    from hdpfl_tools.site.home_tuning import home_tuned_path
    from hdpfl_tools.site.stored_models import checked_final_model, own_arrays

    model, task = checked_final_model(site)
    if not (personal or tuned) or site.state is None:
        return model, task
    folder, terms = site.state.path, model.terms
    if tuned:
        tuned_model = read_personal_model(home_tuned_path(folder, terms.run_id))
        if tuned_model is None:
            raise DataError(
                f"{folder} has no tuned model of run '{terms.run_id}'; make one: "
                "hdpfl-site model tune"
            )
        return tuned_model, task
    personal_model = read_personal_model(personal_model_file(folder, terms.run_id))
    if personal_model is not None:
        return personal_model, task
    arrays = own_arrays(folder, model) if not terms.work.sent_part else None
    if arrays is None:
        raise DataError(
            f"{folder} has no personal model of run '{terms.run_id}': the terms must set "
            "'second', a personal part, 'after.tuning' or 'after.prior', and this site must have "
            "taken part"
        )
    return PersonalModel(terms, arrays, np.zeros(task.outputs, np.float32), kind_of(terms)), task


@dataclass(frozen=True, repr=False, eq=False)
class _Unlabelled:
    """Records to predict.

    Attributes:
        features: shape ``(n, ...)``.
        rows: name of each record.
        lost: number of records that cannot be predicted.
        why: reason for them, after "they".
        changed: of each row of a table its changed cells, in words.
        columns: the columns with changed cells.
        label: the schema's; None: classes are numbers, and numbers as the model has them.
        own_table: how the site writes the label.
    """

    features: np.ndarray
    rows: list[str]
    lost: int
    why: str
    changed: list[list[str]] | None = None
    columns: tuple[str, ...] = ()
    label: Label | None = None
    own_table: OwnTable = field(default_factory=OwnTable)

    def without(self) -> str:
        """Return how many records have no prediction, and the reason."""
        every = len(self.rows) + self.lost
        return f"no prediction for {self.lost} of {every} records: they {self.why}"

    def refuse_changed(self) -> None:
        """Raise ``DataError`` if a cell was filled or clipped, or a row lost."""
        rows = sum(map(bool, self.changed or []))
        parts = []
        if rows:
            named = ", ".join(f"'{name}'" for name in self.columns)
            parts.append(
                f"{rows} of {len(self.rows)} rows have cells that are missing, unknown or out of "
                f"bounds, in {named}"
            )
        if self.lost:
            parts.append(self.without())
        if parts:
            raise DataError(f"{'; '.join(parts)}; correct the table, or leave out '--strict'")


def _unlabelled(
    file: Path, site: Profile, model: FinalModel | PersonalModel, task: Task
) -> _Unlabelled:
    """Return the records in a file or folder.

    Raises:
        DataError: it cannot be read, or does not fit the model.
    """
    from hdpfl_flower.data.schema import Schema
    from hdpfl_tools.tables.images.image_folder import read_unlabelled
    from hdpfl_tools.tables.site_data import load_features
    from hdpfl_tools.tables.table_records import features_only

    if not model.terms.schema_text:
        if file.is_dir():
            bits = site.data.bits if site.data else 16
            return _Unlabelled(*read_unlabelled(file, task, bits), "are no readable images")
        if file.suffix.lower() == ".npz":
            return _Unlabelled(*load_features(file, task), "are not finite")
        raise DataError(
            "the model's run has no 'schema', so no table can be read for it; give an .npz file "
            "with an array 'x', or a folder of images"
        )
    schema = Schema.load(model.terms.schema_text)
    if schema.task != replace(task, scaling=schema.task.scaling, reach=schema.task.reach):
        raise DataError("the 'schema' of the model's run does not describe the inputs of the model")
    own_table = OwnTable.of(site.data) if site.data is not None else OwnTable()
    why = "cannot be cut into the header's cells"
    features, positions, summary, changed = features_only(file, "table", schema, own_table)
    counts = {
        name: filled + summary.clipped.get(name, 0) for name, filled in summary.filled.items()
    }
    columns = tuple(name for name, count in counts.items() if count)
    rows, lost = [str(row) for row in positions + 1], summary.rows - len(positions)
    inputs = task.embed(features)
    return _Unlabelled(inputs, rows, lost, why, changed, columns, schema.label, own_table)


def _on_held_out(site: Profile, model: FinalModel | PersonalModel, task: Task) -> Iterator[str]:
    """Yield the model's measures on the site's held-out records, or the reason for none."""
    from client_app.after_run.final_model import FinalModel

    if isinstance(model, FinalModel) and model.terms.work.sent_part:
        yield "no test: the final model lacks the part that stays at each site; see --personal"
        return
    if site.data is None or site.data.holdout == 0:
        yield "no test: 'data.holdout' keeps no record out of training"
        return
    from hdpfl_flower.measures.words import WORDS
    from hdpfl_tools.measures.clinical import FEWEST, OF_NUMBERS, How
    from hdpfl_tools.site.worth.own_measures import HELD_OUT, measure_here
    from hdpfl_tools.site.worth.wording import size_of

    source, schema = site.data.model_copy(update={"subgroups": ()}), model.terms.schema_text
    how = How(draws=FEWEST)  # the same numbers as evaluate; their intervals are not shown
    outputs = partial(model_outputs, model, task)
    try:
        measured = measure_here(source, HELD_OUT, task, schema, outputs, how).whole
    except DataError as error:
        yield f"no test: {error}"
        return
    names = ("accuracy", "log-loss", *OF_NUMBERS, "concordance")
    values = (
        f"{WORDS[name]} {measured.estimates[name].value:.3f}"
        for name in names
        if name in measured.estimates
    )
    yield f"on this site's {size_of(measured)} held out of training: {', '.join(values)}"
    yield "These figures are only for this site: no ε covers them if you disclose them."


def _as_csv(records: _Unlabelled, task: Task, outputs: np.ndarray) -> str:
    """Return predictions as CSV; see :func:`predict`.

    Args:
        records: to predict.
        task: of the model.
        outputs: shape ``(n, task.outputs)``.
    """
    label, own_table = records.label, records.own_table
    columns = [("row", records.rows)]
    names, shares = [], np.zeros((len(outputs), 0))
    if task.intervals:
        edges = range(1, task.intervals + 1)
        ends = own_table.in_own_unit(label.column, label.edges) if label else edges
        names, shares = [f"survives-{end:g}" for end in ends], survival_of(outputs)
    elif task.classes:
        classes = [*map(str, range(task.classes))]
        classes = own_table.words(label.column, label.classes) if label else classes
        shares = probabilities(task, outputs)
        columns.append(("prediction", [classes[index] for index in shares.argmax(axis=1)]))
        first = 1 if task.classes == 2 else 0
        names, shares = [f"probability-{name}" for name in classes[first:]], shares[:, first:]
    else:
        numbers = outputs[:, 0]
        if label:
            numbers = own_table.in_own_unit(label.column, label.unscale(numbers))
        columns.append(("prediction", [f"{number:.6g}" for number in numbers]))
    for name, share in zip(names, shares.T, strict=True):
        columns.append((name, [f"{p:.4f}" for p in share]))
    if records.changed is not None:
        columns.append(("cells", ["; ".join(cells) for cells in records.changed]))
    header, values = zip(*columns, strict=True)
    return csv_text([header, *zip(*values, strict=True)])


def probabilities(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Return the probability of each class, shape ``(n, task.classes)``.

    Args:
        task: a classification task.
        outputs: logits, shape ``(n, task.outputs)``.
    """
    from scipy.special import softmax

    logits = outputs.astype(np.float64)
    if task.loss == "logistic":
        # One logit z is the pair (0, z): the softmax of the pair is the logistic function.
        logits = np.hstack([np.zeros_like(logits), logits])
    shares: np.ndarray = softmax(logits, axis=1)
    return shares
