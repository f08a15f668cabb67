"""``hdpfl-site evaluate``: the last model's measures on the site's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_tools.site.commands.model import PersonalOption, TunedOption, chosen_model, model_outputs
from hdpfl_tools.site.commands.options import ProfileOption, open_profile, write_file


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
    from hdpfl_tools.measures.clinical import How
    from hdpfl_tools.site.worth.judgement import check_run
    from hdpfl_tools.site.worth.own_measures import measure_here, source_of
    from hdpfl_tools.site.worth.wording import which_records, words

    site = open_profile(profile)
    model, task = chosen_model(site, personal, tuned)
    terms = model.terms
    check_run(terms.run_id, run)
    source, which = source_of(site, table, every=every)
    measures = measure_here(
        source,
        which,
        task,
        terms.schema_text,
        lambda features: model_outputs(model, task, features),
        How(confidence, specificity, seed),
    )
    if as_json:
        text = json.dumps({"run": terms.run_id, **measures.facts()}, indent=2)
    else:
        text = words("measured", measures, run=terms.run_id, which=which_records(measures))
    if out is None:
        typer.echo(text)
        return
    write_file(out, f"{text}\n".encode(), force=force)
    typer.echo(f"wrote {out}")
