"""``hdpfl-site evaluate`` and ``worth``: models on the site's own records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.site.commands.model import PersonalOption, TunedOption, chosen_model, model_outputs
from hdpfl_tools.site.options import ProfileOption, check_free, open_profile, write_file

if TYPE_CHECKING:
    from hdpfl_flower.config.profile import Profile
    from hdpfl_tools.site.worth.comparison import Question


def evaluate(  # noqa: PLR0913, PLR0917 - options of a command line
    run: Annotated[
        str,
        typer.Argument(help="The run's id. It is an error if the kept model is of another run."),
    ] = "",
    profile: ProfileOption = None,
    personal: PersonalOption = False,
    tuned: TunedOption = False,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Another labelled table, such as later patients. Default: the profile's data."
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Use all records of the profile's data, also those of training."
        ),
    ] = False,
    specificity: Annotated[
        float,
        typer.Option(min=0.01, max=0.999, help="Specificity at which the sensitivity is measured."),
    ] = 0.9,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Confidence of each interval.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Measure the last run's model on the site's own records.

    The measures are AUROC, AUPRC, Brier score, calibration, sensitivity and others; for a
    regression they are R², MSE and MAE, for survival the concordance. Each has an interval over
    persons, or over rows if there is no id. The command measures on the held-out records, and on
    the subgroups that 'data.subgroups' of the profile names. Nothing is charged or sent.
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


def worth(  # noqa: PLR0913, PLR0917 - options of a command line
    profile: ProfileOption = None,
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            "--run-config",
            help="The run config of a future run: print what to expect of this run.",
        ),
    ] = None,
    run: Annotated[
        str, typer.Option(help="The run's id. It is an error if the kept model is of another run.")
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            help="Measure to compare by: log-loss, auroc, brier, accuracy, concordance, mse or mae."
        ),
    ] = "",
    folds: Annotated[int, typer.Option(min=0, max=50, help="Folds of home training; 0: none.")] = 5,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Confidence of the intervals.")
    ] = 0.95,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of home training, folds and resamples.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture to write, FILE.png.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Judge whether the last run was worth joining; with --terms, predict a run's worth.

    On the site's own held-out records the command compares these models: the best constant; the
    site's own model, trained at home without noise; the joined model; and the personal models that
    the run left here. It prints paired confidence intervals and a verdict in words. A second table
    cross-validates home training over all records of the site.

    With --terms every figure is cross-validated, and the run's models are replaced by a model that
    DP-SGD trains on only this site's records with the plan's noise. Nothing is charged or sent, and
    only --plot writes a file.
    """
    from hdpfl_tools.site.worth.comparison import Question
    from hdpfl_tools.site.worth.judgement import WorthJudgement
    from hdpfl_tools.site.worth.wording import size_of, words

    site = open_profile(profile)
    if folds == 1:
        raise typer.BadParameter("--folds is 0 or at least 2")
    question = Question(run, by, folds, confidence, seed)
    if terms is not None:
        if run or plot is not None or not folds:
            raise typer.BadParameter("--terms goes without --run and --plot, and with --folds")
        _expect(site, terms, question, as_json=as_json)
        return
    if plot is not None:
        from hdpfl_tools.site.worth.picture import check_pictures

        check_pictures()
        check_free(plot, force=force)
    judgement = WorthJudgement(site, question)
    run_id = judgement.model.terms.run_id
    # The table that decides is shown first: it stands where the other one is interrupted.
    decides = judgement.on_held_out(shown_progress)
    if plot is not None:
        from hdpfl_tools.site.worth.picture import draw

        title = f"Run '{run_id}' on this site's {size_of(decides)} held out: {decides.verdict}"
        write_file(plot, draw(decides, title), force=force)
    if not as_json:
        typer.echo(words("held out", decides, run=run_id, plot=str(plot or "")))
    home = judgement.at_home(shown_progress) if folds else None
    if as_json:
        facts = {
            "run": run_id,
            "verdict": decides.verdict,
            "held-out": decides.facts(),
            "cross-validated-at-home": {"folds": folds, **home.facts()} if home else None,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(words("at home", home, folds=folds))


@contextmanager
def shown_progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal's stderr, else its title alone; yields its update function."""
    with typer.progressbar(length=total, label=title, file=sys.stderr) as bar:
        yield lambda: bar.update(1)


def _expect(site: Profile, terms: Path, question: Question, *, as_json: bool) -> None:
    """Print the expected model of the site's records alone, under a run's plan."""
    from hdpfl_flower.privacy.plan import make_plan
    from hdpfl_flower.privacy.policy import check_policy
    from hdpfl_tools.site.worth.expectation import expect, in_words
    from hdpfl_tools.site.worth.wording import words

    run = RunConfig.load(terms, mailed=True).terms
    check_policy(site, run)
    expectation = expect(site, run, make_plan(site, run), question, shown_progress)
    comparison = expectation.comparison
    if as_json:
        facts = {"spread": expectation.spread, **comparison.facts()}
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(
        words(
            "expected",
            comparison,
            folds=question.folds,
            seeds=expectation.seeds,
            spread=f"{expectation.spread:.3f}",
            conclusion=in_words(expectation),
        )
    )
