"""The lines of ``hdpfl-site plan --expect``: what the records would reach alone, before a run."""

from __future__ import annotations

from collections.abc import Iterator

from client_app.commands.worth import shown_progress
from client_app.reports.formatting import table
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import Plan

READING = """\
How to read it: each figure is of records that the model was not trained on. The home model has no
noise and is never sent: joining must beat it. With the plan's noise, and no other site, the records
reach the last row; what other sites add comes on top. Nothing was charged or written. These figures
are of this site's records: no ε covers them where they are disclosed."""


def expectation_lines(site: Profile, run: RunTerms, made: Plan) -> Iterator[str]:
    """Yield the expectation of a run at this site; errors as ``worth.expectation.expect``."""
    from client_app.worth.expectation import expect, in_words
    from client_app.worth.judgement import Question
    from client_app.worth.wording import on_which, rows

    question = Question()
    expectation = expect(site, run, made, question, shown_progress)
    found = expectation.found
    yield (
        f"\nwhat to expect, {question.folds}-fold cross-validated over this site's "
        f"{on_which(found)} for training (gains {100 * found.confidence:g} %, all at once):"
    )
    yield from table([*rows(found, verdicts=False)])
    yield (
        f"{in_words(expectation)} (means of {expectation.seeds} simulations, {found.measure} ± "
        f"{expectation.spread:.3f} from one to another)"
    )
    yield READING
