"""``hdpfl-site plan``: cost and noise of a run, before it starts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from client_app.commands.options import TERMS_HELP, ProfileOption, open_profile
from client_app.reports.client_level import client_level_lines
from client_app.reports.formatting import ROUNDING, ceil_digits, floor_digits, table
from client_app.reports.ledger_view import (
    LedgerView,
    exact_answers,
    most_exact,
    notes_on_cap,
    read_ledger,
)
from client_app.reports.lifetime import (
    BudgetStatus,
    RunsThatFit,
    budget_status,
    empty_ledger,
    fit_line,
    fit_of,
    promise_lines,
    rounds_that_fit,
    spent_by_unit,
)
from client_app.reports.units import unit_of_terms
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError, DataError, TermsError
from hdpfl_flower.privacy.accounting import ExtraRelease, calibrate
from hdpfl_flower.privacy.plan import Plan, make_plan, planned_steps
from hdpfl_flower.privacy.policy import check_policy, check_unchanged
from hdpfl_flower.system.printable import printable

READING = """\
How to read it: the signal is the longest update that batches of the expected size can give, every
gradient as long as C and all of them pointing one way; real updates are a fraction of it. Well
above 1, one update says something by itself; below 1 it drowns in its noise, and learning rests on
the mean over many sites and rounds, whose noise shrinks with the square root of their number."""

DOES_NOT_FIT = "this run does NOT fit: the site will decline it"
ALL_ROUNDS = """\
'all rounds' is signal to noise of the sum of all updates. Where it grows little, more rounds buy
little: each of them becomes noisier instead."""


@dataclass(frozen=True, repr=False)
class SignalToNoise:
    """Signal and noise of one round's update.

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
    terms: Annotated[Path, typer.Option("--terms", "--run-config", help=TERMS_HELP)],
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print cost and noise alone, for machines.")
    ] = False,
) -> None:
    """Print the cost of a run at this site.

    What it would sample, noise and charge, what is left after it, and what more rounds would cost
    in noise; exit status 1 if it does not fit into what is left. Nothing is charged and no record
    read.
    """
    site, run = open_profile(profile), RunConfig.load(terms).terms
    check_policy(site, run)
    if run.noise != "records":
        if as_json:
            raise TermsError("'--json' needs noise on records: 'noise' of the terms is another")
        _plan_of_clients(site, run)
        return
    # A frozen plan is the run's cost, even after changes of the profile.
    view, lines = ledger_view(site)
    frozen = view.account.plans.get(run.run_id)
    if frozen is not None:
        made, before = frozen.read(), frozen.read_terms()
        check_unchanged(before, run, made)
    else:
        made = make_plan(site, run)
    size = _parameters(site, run)
    if as_json:
        typer.echo(json.dumps(_facts(site, view, run, made, size), indent=1))
        _end_unless_it_fits(site, view, run, made)
        return
    typer.echo("\n".join([
        *_what_runs(site, run, made, size),
        *_what_it_costs(site, view, run, made),
        *(f"it also asks for {answers}" for answers in tests_of(site, run)),
        *lines,
    ]))  # fmt: skip
    if run.noise_multiplier:
        typer.echo("more rounds cost no noise here: the run sets it, and the site leaves early")
    elif frozen is None and not math.isinf(made.epsilon):
        typer.echo("\n".join(_more_rounds(site, run, size)))
    typer.echo("\n".join(["", *_losses(site, run), ROUNDING]))
    _end_unless_it_fits(site, view, run, made)


def _losses(site: Profile, run: RunTerms) -> Iterator[str]:
    """Yield lines on lost rows and cells of the site's table, if it has one and a schema."""
    from hdpfl_flower.config.data_source import TABLES
    from hdpfl_flower.data.site_check import about_losses

    if site.data is None or site.data.format not in TABLES or not run.schema_text:
        return
    try:
        yield from map(printable, about_losses(site.data, run.schema_text))
    except DataError as error:
        yield printable(f"the records cannot be read: {error}")
    yield ""


def _facts(
    site: Profile, view: LedgerView, run: RunTerms, made: Plan, size: int
) -> dict[str, object]:
    """Return a run's cost and noise here; None without noise."""
    strength = signal_to_noise(made, run, size)
    charged, fit = run.run_id in view.account.plans, _fit(site, view, made)
    return {
        "run-id": run.run_id,
        "strategy": run.strategy,
        "rounds": made.rounds,
        "epsilon": made.epsilon if math.isfinite(made.epsilon) else None,
        "delta": made.delta,
        "noise-multiplier": made.noise_multiplier,
        "parameters": size,
        "update-noise-std": strength.std,
        "signal-to-noise": strength.ratio if math.isfinite(strength.ratio) else None,
        "charged": charged,
        "fits": charged or fit.runs > 0,
        "runs-that-fit": fit.runs,
        "rounds-that-fit": made.rounds if fit.runs else fit.rounds,
        "runs-by-sum": fit.by_sum,
        "share": fit.share,
        "full": budget_status(view.account, site.budget).full,
    }


def _plan_of_clients(site: Profile, run: RunTerms) -> None:
    """Print the plan of a run with the client as unit."""
    tests = (f"it also asks for {answers}" for answers in tests_of(site, run))
    typer.echo("\n".join([*client_level_lines(site, run), *tests]))
    if run.noise == "client":  # a trusted server charges nothing here
        view, made = ledger_view(site)[0], make_plan(site, run)
        fit = _fit(site, view, made)
        if run.run_id not in view.account.plans and not fit.runs:
            typer.echo(DOES_NOT_FIT + rounds_that_fit(fit, made.rounds))
        _end_unless_it_fits(site, view, run, made)


def _end_unless_it_fits(site: Profile, view: LedgerView, run: RunTerms, made: Plan) -> None:
    """End with status 1 if the run is neither charged nor affordable."""
    if run.run_id not in view.account.plans and not _runs(site, view, made):
        raise typer.Exit(1)


def _fit(site: Profile, view: LedgerView, made: Plan) -> RunsThatFit:
    return fit_of(view.account, site, (made.epsilon, made.delta), made)


def _runs(site: Profile, view: LedgerView, made: Plan) -> int:
    return _fit(site, view, made).runs


def _more_rounds(site: Profile, run: RunTerms, size: int) -> Iterator[str]:
    yield "\nwhat more rounds cost in noise, at the same ε and δ:"
    yield from (f"  {line}" for line in table([*_rounds_rows(site, run, size)]))
    yield ALL_ROUNDS


def signal_to_noise(made: Plan, run: RunTerms, size: int) -> SignalToNoise:
    """Return last-round signal and noise of an update of ``size`` numbers."""
    # The last round stands for all: the first may have batches of another size.
    std = made.update_noise_std(made.rounds, run.clip_norm, run.learning_rate)
    signal = made.steps[-1].count * run.learning_rate * run.clip_norm
    return SignalToNoise(std, math.sqrt(size) * std, signal)


def ledger_view(site: Profile) -> tuple[LedgerView, list[str]]:
    """Return the ledger's view, or that of a new ledger, with remarks."""
    if site.ledger is None:
        return empty_ledger(site), ["no [ledger] in the profile: counted from [budget]"]
    if not site.ledger.path.exists():
        return empty_ledger(site), [
            "no ledger yet: counted from [budget]; create it: hdpfl-site ledger init"
        ]
    view = read_ledger(site)
    return view, list(notes_on_cap(view.account, site.budget))


def tests_of(site: Profile, run: RunTerms) -> list[str]:
    """Return the values that site tests would answer without noise, or empty."""
    if run.evaluation != "sites" or "metrics" not in site.disclose:
        return []
    account = ledger_view(site)[0].account
    said = exact_answers(account.exact_answers, most_exact(site))
    return [f"accuracy and loss on its own held-out records after each round, exactly ({said})"]


def _parameters(site: Profile, run: RunTerms) -> int:
    from client_app.site.site import allowed_layout
    from hdpfl_flower.data.datasets import task_for

    layout = allowed_layout(site, run.model, task_for(run))
    return sum(array.size for array in layout.values())


def _what_runs(site: Profile, run: RunTerms, made: Plan, size: int) -> Iterator[str]:
    steps, snr = made.steps[-1], signal_to_noise(made, run, size)
    yield printable(f"{run.strategy}, model {run.model} with {size} parameters")
    batch, records = site.training.batch_size, site.training.declared_records
    rows = [
        ("sampling probability q", f"{steps.sampling_prob:.4g}", f"b / N = {batch} / {records}"),
        ("steps a round k", f"{steps.count}", f"{made.rounds} rounds, "
         f"{sum(s.count for s in made.schedule)} steps in all"),
        *_rounds_paid(run, made),
        *_beside_equal_steps(made),
        ("noise multiplier z", ceil_digits(made.noise_multiplier), "noise of a step: z·C"),
        (
            "noise in a coordinate",
            ceil_digits(snr.std),
            "of an update, standard deviation √k·η·z·C/b",
        ),
        ("noise, length", ceil_digits(snr.noise), "of an update, √d times that"),
        ("signal, length", f"{snr.signal:.4g}", "of an update, at most k·η·C"),
        ("signal to noise", floor_digits(snr.ratio), "of an update, at most"),
    ]  # fmt: skip
    for name, number, meaning in rows:
        yield f"{name:<24}{number:>10}   {meaning}"
    yield READING
    yield ""


def _beside_equal_steps(made: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each charge of a plan beyond equal steps."""
    if made.first_divisor:
        yield "steps of round 1", f"{made.steps[0].count}", "each on all records"
    if made.steps[0].noise_factor > 1:
        factor = f"{made.steps[0].noise_factor:.4g}"
        yield "noise of round 1", factor, "times that of the last one, which is below"
    if made.models > 1:
        yield "models a round", f"{made.models}", "the update's, and a private personal one"
    if made.choices and made.choices.count:
        yield "private choices", f"{made.choices.count}", "of one of the server's models"
    if made.tuning:
        yield "tuning steps", f"{made.tuning.count}", "after the last round, on this site's model"
    if made.counts:
        noise = ceil_digits(made.counts.noise_multiplier)
        meaning = "noise of the one count a class (or residual) of the prior, never sent"
        yield "noise of the counts", noise, meaning
        cost = _cost_without(made, made.counts)
        yield "what they cost", cost, "of the noise multiplier z, beside none"
    if made.scores:
        noise = ceil_digits(made.scores.noise_multiplier)
        meaning = "noise of a count in the histogram of scores, sent once, after the last round"
        yield "noise of the scores", noise, meaning
        cost = _cost_without(made, made.scores)
        yield "what they cost", cost, "of the noise multiplier z, beside none"


def _cost_without(made: Plan, release: ExtraRelease) -> str:
    """Return the relative increase of the steps' noise by a release."""
    if math.isinf(made.epsilon):
        return "0 %"
    beside = [one for one in made.beside if one is not release]
    without = calibrate(made.schedule, made.epsilon, made.delta, beside)
    return f"{100 * max(0.0, made.noise_multiplier / without - 1):.1f} %"


def _rounds_paid(run: RunTerms, made: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row with the reason if a plan covers some rounds only."""
    if made.rounds < run.rounds:
        capped = made.rounds == run.participations
        why = "the run's 'participations'" if capped else "what ε affords at this z"
        yield "rounds paid for", f"{made.rounds}", f"of {run.rounds}: {why}; then it declines"


def _what_it_costs(site: Profile, view: LedgerView, run: RunTerms, made: Plan) -> Iterator[str]:
    charged = run.run_id in view.account.plans
    now, fit = budget_status(view.account, site.budget), _fit(site, view, made)
    price = f"ε {ceil_digits(made.epsilon)}, δ {ceil_digits(made.delta)}"
    if charged:
        yield f"charged already: {price}; its plan is frozen"
    elif now.order:
        yield f"reserved whole when the run starts: {price}; at its end what did not leave returns"
    else:
        yield f"charged, once, when the run starts: {price}; no refund"
    if math.isinf(made.epsilon):
        yield "ε is infinite: no noise is added, and this run has no privacy"
    if now.order:
        yield from promise_lines(now, view.account, "" if charged else unit_of_terms(run))
        yield fit_line(now, fit)
    else:
        yield from _by_the_sum(now, made, fit, charged=charged)
        yield from spent_by_unit(view.account)
    if not (charged or fit.runs):
        yield DOES_NOT_FIT + rounds_that_fit(fit, made.rounds)


def _by_the_sum(now: BudgetStatus, made: Plan, fit: RunsThatFit, *, charged: bool) -> Iterator[str]:
    yield (
        f"cap ε {floor_digits(now.cap[0])}, δ {floor_digits(now.cap[1])}; "
        f"spent ε {ceil_digits(now.spent[0])}, δ {ceil_digits(now.spent[1])}; "
        f"left ε {floor_digits(now.left[0])}, δ {floor_digits(now.left[1])}"
    )
    if charged:
        yield f"runs of this cost that still fit: {fit.runs}"
    elif fit.runs:
        after = [
            floor_digits(left if math.isinf(left) else max(0.0, left - each))
            for left, each in zip(now.left, (made.epsilon, made.delta), strict=True)
        ]
        yield (
            f"left after it: ε {after[0]}, δ {after[1]}; "
            f"runs of this cost that fit: {fit.runs}, this one counted"
        )


def _rounds_rows(site: Profile, run: RunTerms, size: int) -> Iterator[tuple[str, ...]]:
    """Yield a header and rows for ×½, ×1, ×2, ×4 paid rounds."""
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
        snr = signal_to_noise(made, run, size)
        yield (
            name,
            ceil_digits(made.noise_multiplier),
            ceil_digits(snr.noise),
            floor_digits(snr.ratio),
            # Over T rounds the signal adds up to T times one, and independent noise of equal
            # rounds to √T times one.
            floor_digits(rounds / math.hypot(*(s.noise_factor for s in made.steps)) * snr.ratio),
        )
