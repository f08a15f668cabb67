"""``hdpfl-site plan``: what a run would cost this site and how noisy it would be, beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from client_app.commands.ledger_view import (
    Books,
    empty_books,
    notes_on_cap,
    read_books,
    runs_that_fit,
    standing,
)
from client_app.commands.options import TERMS_HELP, ProfileOption, open_profile
from client_app.commands.plan_client_level import lines_of
from client_app.commands.formatting import ROUNDING, down, table, up
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.plan import (
    Plan,
    check_policy,
    check_unchanged,
    make_plan,
    planned_steps,
)
from hdpfl_flower.printable import printable
from hdpfl_flower.config.profile import Profile

READING = """\
How to read it: the signal is the longest update that batches of the expected size can give, every
gradient as long as C and all of them pointing one way; real updates are a fraction of it. Well
above 1, one update says something by itself; below 1 it drowns in its noise, and learning rests on
the mean over many sites and rounds, whose noise shrinks with the square root of their number."""

ALL_ROUNDS = """\
'all rounds' is signal to noise of the sum of all updates. Where it grows little, more rounds buy
little: each of them becomes noisier instead."""


@dataclass(frozen=True, repr=False)
class Loudness:
    """How loud the noise of one round's update is next to its signal.

    Attributes:
        std: standard deviation of the noise in each coordinate of the update, √k·η·z·C/b.
        noise: expected length of the noise, √d·std.
        signal: k·η·C, the largest length of an update from batches of the expected size.
    """

    std: float
    noise: float
    signal: float

    @property
    def ratio(self) -> float:
        """Signal to noise; ``inf`` without noise."""
        return self.signal / self.noise if self.noise else math.inf


def plan(
    terms: Annotated[Path, typer.Option(help=TERMS_HELP)], profile: ProfileOption = None
) -> None:
    """Say what a run would cost here.

    What it would sample, noise and charge, what is left after it, and what more rounds would cost
    in noise. Nothing is charged, and no record is read.
    """
    site, run = open_profile(profile), RunTerms.load(terms)
    check_policy(site, run)
    if run.noise != "records":
        typer.echo("\n".join(lines_of(site, run)))
        return
    books, lines = _books(site)
    frozen = books.account.plans.get(run.run_id)
    if frozen is not None:
        made, before = Plan.from_json(frozen.plan), RunTerms.from_json(frozen.terms)
        # The server fills in its own folder; whoever writes a terms file cannot know it.
        check_unchanged(before, run.updated(runs_dir=before.runs_dir), made)
    else:
        made = make_plan(site, run)
    size = _parameters(site, run)
    for line in (
        *_what_runs(site, run, made, size),
        *_what_it_costs(site, books, made, charged=frozen is not None),
        *lines,
    ):
        typer.echo(line)
    if run.noise_multiplier:
        typer.echo("more rounds cost no noise here: the run sets it, and the site leaves early")
    elif frozen is None and not math.isinf(made.epsilon):
        typer.echo("\nwhat more rounds cost in noise, at the same ε and δ:")
        for line in table([*_rounds_rows(site, run, size)]):
            typer.echo(f"  {line}")
        typer.echo(ALL_ROUNDS)
    typer.echo(f"\n{ROUNDING}")


def loudness(made: Plan, run: RunTerms, size: int) -> Loudness:
    """Return how loud the noise is in an update of ``size`` numbers, in the last round."""
    std = made.update_noise_std(made.rounds, run.clip_norm, run.learning_rate)
    signal = made.steps[-1].count * run.learning_rate * run.clip_norm
    return Loudness(std, math.sqrt(size) * std, signal)


def _books(site: Profile) -> tuple[Books, list[str]]:
    """Return the ledger's books, or those that 'ledger init' would start, and what to say of it."""
    if site.ledger is None:
        return empty_books(site.budget), ["no [ledger] in the profile: counted from [budget]"]
    if not site.ledger.path.exists():
        return empty_books(site.budget), [
            "no ledger yet: counted from [budget]; create it: hdpfl-site ledger init"
        ]
    books = read_books(site)
    return books, list(notes_on_cap(books.account, site.budget))


def _parameters(site: Profile, run: RunTerms) -> int:
    from client_app.training.trainer import allowed_layout

    return sum(array.size for array in allowed_layout(site, run).values())


def _what_runs(site: Profile, run: RunTerms, made: Plan, size: int) -> Iterator[str]:
    steps, loud = made.steps[-1], loudness(made, run, size)
    yield printable(f"{run.strategy}, model {run.model} with {size} parameters")
    batch, records = site.training.batch_size, site.training.declared_records
    rows = [
        ("sampling probability q", f"{steps.sampling_prob:.4g}", f"b / N = {batch} / {records}"),
        ("steps a round k", f"{steps.count}", f"{made.rounds} rounds, "
         f"{sum(s.count for s in made.schedule)} steps in all"),
        *_rounds_paid(run, made),
        *_beside_equal_steps(made),
        ("noise multiplier z", up(made.noise_multiplier), "noise of a step: z·C"),
        ("noise in a coordinate", up(loud.std), "of an update, standard deviation √k·η·z·C/b"),
        ("noise, length", up(loud.noise), "of an update, √d times that"),
        ("signal, length", f"{loud.signal:.4g}", "of an update, at most k·η·C"),
        ("signal to noise", down(loud.ratio), "of an update, at most"),
    ]  # fmt: skip
    for name, number, meaning in rows:
        yield f"{name:<24}{number:>10}   {meaning}"
    yield READING
    yield ""


def _beside_equal_steps(made: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each thing that a plan pays for beside equal steps of one model."""
    if made.first_divisor:
        yield "steps of round 1", f"{made.steps[0].count}", "each on all records"
    if made.models > 1:
        yield "models a round", f"{made.models}", "the update's, and a private personal one"
    if made.choices and made.choices.count:
        yield "private choices", f"{made.choices.count}", "of one of the server's models"


def _rounds_paid(run: RunTerms, made: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row where a plan pays for some of the run's rounds alone, and say why."""
    if made.rounds < run.rounds:
        capped = made.rounds == run.participations
        why = "the run's 'participations'" if capped else "what ε affords at this z"
        yield "rounds paid for", f"{made.rounds}", f"of {run.rounds}: {why}; then it declines"


def _what_it_costs(site: Profile, books: Books, made: Plan, *, charged: bool) -> Iterator[str]:
    cost = (made.epsilon, made.delta)
    now = standing(books.account, site.budget)
    fit = runs_that_fit(books.account, site, cost)
    if charged:
        yield f"charged already: ε {up(cost[0])}, δ {up(cost[1])}; its plan is frozen"
    else:
        yield f"charged, once, when the run starts: ε {up(cost[0])}, δ {up(cost[1])}; no refund"
    if math.isinf(made.epsilon):
        yield "ε is infinite: no noise is added, and this run gives no privacy"
    yield (
        f"cap ε {down(now.cap[0])}, δ {down(now.cap[1])}; spent ε {up(now.spent[0])}, "
        f"δ {up(now.spent[1])}; left ε {down(now.left[0])}, δ {down(now.left[1])}"
    )
    if charged:
        yield f"runs of this cost that still fit: {fit}"
    elif fit == 0:
        yield "this run does NOT fit: the site will decline it"
    else:
        after = [
            down(left if math.isinf(left) else max(0.0, left - each))
            for left, each in zip(now.left, cost, strict=True)
        ]
        yield (
            f"left after it: ε {after[0]}, δ {after[1]}; "
            f"runs of this cost that fit: {fit}, this one counted"
        )


def _rounds_rows(site: Profile, run: RunTerms, size: int) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row a number of rounds paid for: ×½, ×1, ×2, ×4."""
    yield ("rounds", "z", "noise a round", "signal to noise", "all rounds")
    paid = min(run.rounds, run.participations or run.rounds)
    for rounds in sorted({max(1, paid // 2), paid, 2 * paid, 4 * paid}):
        name = f"{rounds}" + (" (this run)" if rounds == paid else "")
        if rounds > site.policy.max_rounds:
            yield (name, "-", "-", "-", "refused: policy.max-rounds")
            continue
        more = run.updated(rounds=rounds, participations=0)
        if planned_steps(site, more) > site.policy.max_steps:
            yield (name, "-", "-", "-", "refused: policy.max-steps")
            continue
        try:
            made = make_plan(site, more)
        except AccountingError:
            yield (name, "-", "-", "-", "no noise suffices")
            continue
        loud = loudness(made, run, size)
        yield (
            name,
            up(made.noise_multiplier),
            up(loud.noise),
            down(loud.ratio),
            down(math.sqrt(rounds) * loud.ratio),
        )
