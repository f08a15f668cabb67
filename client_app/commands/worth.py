"""``hdpfl-site worth``: models compared on the site's own records, after a run or before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from client_app.commands.options import ProfileOption, check_free, open_profile, write_file
from client_app.reports.formatting import table
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.system.printable import printable

if TYPE_CHECKING:
    from client_app.worth.comparison import ModelComparison
    from client_app.worth.judgement import Question
    from hdpfl_flower.config.profile import Profile

MOST_EPOCHS = 64
SECONDS_A_LINE = 10.0
"""Between lines of progress where stderr is no terminal."""
READING_EXPECTATION = """\
How to read it: each figure is of records that the model was not trained on. The home model has no
noise and is never sent: joining must beat it. With the plan's noise, and no other site, the records
reach the last row; what other sites add comes on top. Nothing was charged or written. These figures
are of this site's records: no ε covers them where they are disclosed."""


def worth(  # noqa: PLR0913, PLR0917 - options of a command line
    profile: ProfileOption = None,
    terms: Annotated[
        Path | None,
        typer.Option("--terms", "--run-config", help="Of a run to come: what to expect of it."),
    ] = None,
    run: Annotated[
        str, typer.Option(help="The run's id; refused if another run's model is kept.")
    ] = "",
    by: Annotated[
        str,
        typer.Option(help="log-loss, auroc, brier, accuracy, concordance, mse or mae."),
    ] = "",
    folds: Annotated[int, typer.Option(min=0, max=50, help="Folds of home training; 0: none.")] = 5,
    epochs: Annotated[
        int, typer.Option(min=1, max=10_000, help="Most epochs of a training at home.")
    ] = MOST_EPOCHS,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of home training, folds and resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture to write, FILE.png.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Judge whether the last run was worth joining; with --terms predict a run's worth.

    On the site's own held-out records: the best constant, the site's own model trained at home
    without noise, the joined model, and the personal models that the run left here, with paired
    confidence intervals and a verdict in words. Below it home training is cross-validated over all
    records of the site. With --terms all is cross-validated, and in place of a run's models stands
    DP-SGD with the plan's noise on these records alone. Everything stays here: nothing is written,
    charged or sent.
    """
    from client_app.worth.judgement import Question, WorthJudgement
    from client_app.worth.verdict import verdict_on_run
    from client_app.worth.wording import READING, facts, on_which, rows

    site = open_profile(profile)
    if folds == 1:
        raise typer.BadParameter("--folds is 0 or at least 2")
    question = Question(run, by, folds, epochs, confidence, seed)
    if terms is not None:
        if run or plot is not None or not folds:
            raise typer.BadParameter("--terms goes without --run and --plot, and with --folds")
        _expect(site, terms, question, as_json=as_json)
        return
    if plot is not None:
        from client_app.worth.picture import check_pictures

        check_pictures()
        check_free(plot, force=force)
    judgement = WorthJudgement(site, question)
    run_id = judgement.model.terms.run_id
    # The part that decides is shown first: it stands where the rest is interrupted.
    decides = judgement.on_held_out(shown_progress)
    answer = verdict_on_run(one.verdict for one in decides.models if one.verdict)
    if plot is not None:
        from client_app.worth.picture import draw

        title = f"Run '{run_id}' on this site's {on_which(decides)} held out: {answer}"
        write_file(plot, draw(decides, title), force=force)
    if not as_json:
        typer.echo(printable(
            f"run '{run_id}', on this site's {on_which(decides)} held out of training "
            f"(gains in {decides.measure}, {100 * confidence:g} % for all of them at once):"
        ))  # fmt: skip
        _print(rows(decides))
        typer.echo(f"\nshould we join? {answer}\n")
        if plot is not None:
            typer.echo(f"wrote {plot}\n")
    home = judgement.at_home(shown_progress) if folds else None
    if as_json:
        found = {
            "run": run_id,
            "verdict": answer,
            "held-out": facts(decides),
            "cross-validated-at-home": {"folds": folds, **facts(home)} if home else None,
        }
        typer.echo(json.dumps(found, indent=2))
        return
    if home is not None:
        _print_home(home, folds, on_which(home), confidence)
    typer.echo(READING)


def _print_home(home: ModelComparison, folds: int, records: str, confidence: float) -> None:
    from client_app.worth.wording import rows

    typer.echo(
        f"home training, {folds}-fold cross-validated over all of this site's {records}\n"
        "(the run's models were trained on most of these, so they are not in it; its gain has an "
        f"interval of {100 * confidence:g} %):"
    )
    _print(rows(home))
    typer.echo("")


def _print(lines: Iterator[tuple[str, ...]]) -> None:
    for line in table([*lines]):
        typer.echo(line)


@contextmanager
def shown_progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal's stderr; yields its update function."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _told(title, total)
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


def _told(title: str, total: int) -> Callable[[], None]:
    """Return an update that writes a line to stderr every ten seconds, for logs."""
    done, last = 0, monotonic()

    def advance() -> None:
        nonlocal done, last
        done += 1
        if monotonic() - last >= SECONDS_A_LINE:
            last = monotonic()
            typer.echo(f"{title}: {done} of {total}", err=True)

    return advance


def _expect(site: Profile, terms: Path, question: Question, *, as_json: bool) -> None:
    """Print the expected model of the site's records alone, under a run's plan."""
    from client_app.worth.expectation import expect, in_words
    from client_app.worth.wording import facts, on_which, rows
    from hdpfl_flower.privacy.plan import make_plan
    from hdpfl_flower.privacy.policy import check_policy

    run = RunConfig.load(terms).terms
    check_policy(site, run)
    expectation = expect(site, run, make_plan(site, run), question, shown_progress)
    found = expectation.found
    if as_json:
        typer.echo(json.dumps({"spread": expectation.spread, **facts(found)}, indent=2))
        return
    typer.echo(
        f"what to expect, {question.folds}-fold cross-validated over this site's "
        f"{on_which(found)} for training (gains {100 * found.confidence:g} %, all at once):"
    )
    _print(rows(found, verdicts=False))
    typer.echo(
        f"{in_words(expectation)} (means of {expectation.seeds} simulations, {found.measure} ± "
        f"{expectation.spread:.3f} from one to another)"
    )
    typer.echo(READING_EXPECTATION)
