"""``hdpfl-site evaluate``: the last model's measures on the site's records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_app.commands.model import (
    PersonalOption,
    TunedOption,
    chosen_model,
    model_outputs,
    size_of,
)
from client_app.commands.options import ProfileOption, open_profile, write_file
from client_app.reports.formatting import table as in_columns
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.printable import printable

if TYPE_CHECKING:
    from client_app.worth.own_measures import OwnMeasures
    from hdpfl_flower.measures.bootstrap import Estimate
    from hdpfl_flower.measures.clinical import Measured

PRIVATE = "These figures are of this site's records without noise: no ε covers them where shown."


def evaluate(  # noqa: PLR0913, PLR0917 - options of a command line
    run: Annotated[
        str, typer.Argument(help="The run's id; refused if another run's model is kept.")
    ] = "",
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    tuned: TunedOption = False,
    table: Annotated[
        Path | None,
        typer.Option(help="Another labelled table, such as later patients; else the profile's."),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="All records of the profile's data, those of training too."),
    ] = False,
    specificity: Annotated[
        float, typer.Option(min=0.01, max=0.999, help="At which sensitivity is measured.")
    ] = 0.9,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of each interval.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; else the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Measure the last run's model on the site's own records.

    AUROC, AUPRC, Brier score, calibration, sensitivity and so on (a regression: R², MSE, MAE;
    survival: concordance), each with an interval over persons (or rows, without an id), on the
    held-out records and on the subgroups that 'data.subgroups' of the profile names. Nothing is
    charged or sent.
    """
    from client_app.worth.own_measures import measure_here, source_of
    from hdpfl_flower.measures.clinical import How

    site = open_profile(profile)
    model, task = chosen_model(site, personal, tuned)
    terms = model.terms
    if run and run != terms.run_id:
        raise DataError(
            f"the model kept in [state] is that of run '{terms.run_id}', not of '{run}'; only the "
            "last run's is kept"
        )
    source, which = source_of(site, table, every=every)
    found = measure_here(
        source,
        which,
        task,
        terms.schema_text,
        lambda features: model_outputs(model, task, features),
        How(confidence, specificity, seed),
    )
    if as_json:
        text = json.dumps({"run": terms.run_id, **found.facts()}, indent=2)
    else:
        text = "\n".join(_lines(terms.run_id, found))
    if out is None:
        typer.echo(text)
        return
    write_file(out, f"{text}\n".encode(), force=force)
    typer.echo(f"wrote {out}")


def _lines(run_id: str, found: OwnMeasures) -> Iterator[str]:
    from client_app.worth.own_measures import EVERY, HELD_OUT

    where = {HELD_OUT: "held out of training", EVERY: "(those of training too)"}
    yield printable(
        f"run '{run_id}', on this site's {size_of(found.whole)} "
        f"{where.get(found.which, 'of another table')}, with {100 * found.whole.level:g} % "
        "intervals:"
    )
    yield from in_columns([("measure", "value", "interval"), *_rows(found.whole)])
    for column, groups in found.groups.items():
        small = found.small.get(column, 0)
        yield ""
        note = f"; {small} with fewer than {found.minimum} units not shown" if small else ""
        yield printable(f"by {column}{note}:")
        if groups:
            yield from in_columns([*_by_group(groups)])
    for name, why in found.whole.missing.items():
        yield f"no {_word(name, found.whole)}: {why}"
    yield ""
    yield PRIVATE


def _rows(found: Measured) -> Iterator[tuple[str, ...]]:
    for name, one in found.found.items():
        yield _word(name, found), f"{one.value:.3f}", _interval(one)


def _by_group(groups: Mapping[str, Measured]) -> Iterator[tuple[str, ...]]:
    """Yield a row a measure, a column a group."""
    yield ("measure", *(f"{group} ({size_of(one)})" for group, one in groups.items()))
    for name in dict.fromkeys(name for one in groups.values() for name in one.found):
        cells = (one.found.get(name) for one in groups.values())
        values = (f"{each.value:.3f} {_interval(each)}" if each else "–" for each in cells)
        yield _word(name, next(iter(groups.values()))), *values


def _word(name: str, found: Measured) -> str:
    from hdpfl_flower.measures.clinical import WORDS

    at = f" at {100 * found.specificity:g} % specificity" if name == "sensitivity" else ""
    return f"{WORDS[name]}{at}"


def _interval(one: Estimate) -> str:
    ends = (f"{end:.3f}" if math.isfinite(end) else "?" for end in (one.low, one.high))
    return f"[{', '.join(ends)}]"
