"""``hdpfl-site plan``: cost and noise of a run, before it starts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError, DataError, TermsError
from hdpfl_flower.privacy.accounting import Gaussians, Steps, calibrate
from hdpfl_flower.privacy.plan import Plan, make_plan, planned_steps
from hdpfl_flower.privacy.policy import check_policy, check_unchanged
from hdpfl_flower.releases import RELEASES
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.options import TERMS_HELP, ProfileOption, open_profile
from hdpfl_tools.site.reports.client_level import client_level_lines
from hdpfl_tools.site.reports.formatting import ROUNDING, ceil_digits, floor_digits
from hdpfl_tools.site.reports.ledger_view import (
    LedgerView,
    exact_answers,
    most_exact,
    notes_on_cap,
    read_ledger,
)
from hdpfl_tools.site.reports.lifetime import (
    Amount,
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
from hdpfl_tools.site.reports.signal_to_noise import signal_to_noise
from hdpfl_tools.site.reports.units import promise_of, unit_of_terms


@dataclass(frozen=True, repr=False)
class RunCost:
    """Cost of a run beside the budget of its site.

    Attributes:
        plan: of the run; the frozen one if the run is charged.
        charged: the ledger has charged the run.
        budget: taken and left.
        fit: number of runs like it that fit into the rest.
        view: of the ledger.
        notes: remarks on the ledger.
    """

    plan: Plan
    charged: bool
    budget: BudgetStatus
    fit: RunsThatFit
    view: LedgerView
    notes: list[str]

    @property
    def fits(self) -> bool:
        """Whether the run is charged, or fits into the rest of the budget."""
        return self.charged or self.fit.runs > 0

    @property
    def rounds_only(self) -> str:
        """Rounds that fit where the whole run does not, in words."""
        return "" if self.charged else rounds_that_fit(self.fit, self.plan.rounds)

    @property
    def left_after(self) -> Amount:
        """(ε, δ) of the cap that is left after the run, by the sum."""
        epsilon, delta = self.budget.left
        if not math.isinf(epsilon):
            epsilon = max(0.0, epsilon - self.plan.epsilon)
        return epsilon, max(0.0, delta - self.plan.delta)

    def facts(self) -> dict[str, Any]:
        """Return the run's place in the budget, for JSON."""
        return {
            "fits": self.fits,
            "runs-that-fit": self.fit.runs,
            "rounds-that-fit": self.plan.rounds if self.fit.runs else self.fit.rounds,
            "runs-by-sum": self.fit.by_sum,
            "share": self.fit.share,
            "full": self.budget.full,
        }


def plan(
    terms: Annotated[Path, typer.Option("--terms", "--run-config", help=TERMS_HELP)],
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only cost and noise, as JSON.")
    ] = False,
) -> None:
    """Print the cost of a run at this site.

    The command prints the sampling, the noise and the price of the run, the budget that is left
    after it, and the noise of more rounds. The exit status is 1 if the run does not fit into the
    budget that is left. Nothing is charged or sent. If the site has a table and the run has a
    schema, the command also reads the table, to print which rows and cells the run would lose.
    """
    site, run = open_profile(profile), RunConfig.load(terms, mailed=True).terms
    check_policy(site, run)
    tests = tests_of(site, run)
    if not run.source.per_record:
        if as_json:
            raise TermsError("'--json' needs noise on records: 'noise' of the terms is another")
        # A trusted server charges nothing here.
        cost = cost_of(site, run) if run.source.site_plans else None
        lines = client_level_lines(site, run)
        typer.echo(text_of("plan_of_client", lines=lines, tests=tests, cost=cost))
    else:
        cost, size = cost_of(site, run), _parameters(site, run)
        if as_json:
            typer.echo(json.dumps(_facts(run, cost, size), indent=1))
        else:
            typer.echo(_in_words(site, run, cost, size, tests))
    if cost is not None and not cost.fits:
        raise typer.Exit(1)


def cost_of(site: Profile, run: RunTerms) -> RunCost:
    """Return the cost of a run that the policy allows.

    Raises:
        AccountingError: no noise pays for the terms.
        Declined: the run is charged, and its terms have changed since.
        LedgerError: the ledger is damaged, or older than its anchor.
    """
    view, notes = ledger_view(site)
    frozen = view.account.plans.get(run.run_id)
    if frozen is None:
        planned = make_plan(site, run)
    else:  # the run's cost, even after changes of the profile
        planned = frozen.read()
        check_unchanged(frozen.read_terms(), run, planned)
    fit = fit_of(view.account, site, (planned.epsilon, planned.delta), planned)
    budget = budget_status(view.account, site.budget)
    return RunCost(planned, frozen is not None, budget, fit, view, notes)


def _in_words(site: Profile, run: RunTerms, cost: RunCost, size: int, tests: list[str]) -> str:
    account = cost.view.account
    promise = spent_by_unit(account)
    if cost.budget.order:
        coming = "" if cost.charged else unit_of_terms(run)
        promise = [*promise_lines(cost.budget, account, coming), fit_line(cost.budget, cost.fit)]
    asks_for_more = not (cost.charged or math.isinf(cost.plan.epsilon) or run.noise_multiplier)
    return text_of(
        "plan",
        site=site,
        run=run,
        cost=cost,
        size=size,
        strength=signal_to_noise(cost.plan, run, size),
        releases=[*release_rows(cost.plan)],
        promise=promise,
        beside=promise_of(cost.plan, run),
        tests=tests,
        rounds=[*_rounds_rows(site, run, size)] if asks_for_more else [],
        losses=_losses(site, run),
        rounding=ROUNDING,
        infinity=math.inf,
    )


def _losses(site: Profile, run: RunTerms) -> Iterator[str]:
    """Yield lines on lost rows and cells of the site's table, if it has one and a schema."""
    from hdpfl_flower.config.data_source import TABLES
    from hdpfl_tools.tables.site_check import about_losses

    if site.data is None or site.data.format not in TABLES or not run.schema_text:
        return
    try:
        yield from about_losses(site.data, run.schema_text)
    except DataError as error:
        yield f"the records cannot be read: {error}"
    yield ""


def _facts(run: RunTerms, cost: RunCost, size: int) -> dict[str, Any]:
    """Return a run's cost and noise here; None without noise."""
    planned, strength = cost.plan, signal_to_noise(cost.plan, run, size)
    beside = promise_of(planned, run)
    return {
        "run-id": run.run_id,
        "strategy": run.strategy,
        "rounds": planned.rounds,
        "epsilon": planned.epsilon if math.isfinite(planned.epsilon) else None,
        "delta": planned.delta,
        "noise-multiplier": planned.noise_multiplier,
        "parameters": size,
        "update-noise-std": strength.std,
        "signal-to-noise": strength.ratio if math.isfinite(strength.ratio) else None,
        "charged": cost.charged,
        "noise-promise": beside.facts() if beside else None,
        **cost.facts(),
    }


def ledger_view(site: Profile) -> tuple[LedgerView, list[str]]:
    """Return the ledger's view, or that of a new ledger, with remarks."""
    if site.ledger is None:
        return empty_ledger(site), ["no [ledger] in the profile: counted from [budget]"]
    if not site.ledger.path.exists():
        return empty_ledger(site), [
            "no ledger yet: counted from [budget]; create it: hdpfl-site ledger --init"
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
    from hdpfl_flower.data.run_task import task_for

    layout = allowed_layout(site, run.model, task_for(run))
    return sum(array.size for array in layout.values())


def release_prices(planned: Plan) -> dict[str, float]:
    """Return the relative increase of the steps' noise by each Gaussian release beside them."""
    prices = {}
    for name, release in planned.releases:
        if isinstance(release, Gaussians) and not (name in RELEASES and RELEASES[name].plural):
            beside = [other for other in planned.beside if other is not release]
            without = planned.noise_multiplier
            if not math.isinf(planned.epsilon):
                without = calibrate(planned.schedule, planned.epsilon, planned.delta, beside)
            prices[name] = max(0.0, planned.noise_multiplier / without - 1) if without else 0.0
    return prices


def release_rows(planned: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row or two for each kind of release beside the rounds: name, number, meaning."""
    prices = release_prices(planned)
    for name, cost in planned.releases:
        kind = RELEASES.get(name)
        meaning = kind.price if kind else "of a kind that this version does not know"
        if kind and kind.plural:
            yield kind.plural, f"{planned.paid(name)}", meaning
        elif isinstance(cost, Steps):
            yield f"{name} steps", f"{cost.count}", meaning
        elif isinstance(cost, Gaussians):
            yield f"noise of the {name}", ceil_digits(cost.noise_multiplier), meaning
            beside = "of the noise multiplier z, beside none"
            yield "what they cost", f"{100 * prices[name]:.1f} %", beside
        else:
            yield f"ε of the {name}", ceil_digits(cost.epsilon), meaning


def _rounds_rows(site: Profile, run: RunTerms, size: int) -> Iterator[tuple[str, ...]]:
    """Yield rows for ×½, ×1, ×2, ×4 paid rounds."""
    paid = min(run.rounds, run.participations or run.rounds)
    for rounds in sorted({max(1, paid // 2), paid, 2 * paid, 4 * paid}):
        name = f"{rounds}" + (" (this run)" if rounds == paid else "")
        more = run.updated(rounds=rounds, participations=0)
        try:
            if rounds > site.policy.max_rounds:
                refusal = "refused: policy.max-rounds"
            elif planned_steps(site, more) > site.policy.max_steps:
                refusal = "refused: policy.max-steps"
            else:
                refusal, planned = "", make_plan(site, more)
        except AccountingError:
            refusal = "no noise suffices"
        if refusal:
            yield (name, "-", "-", "-", refusal)
            continue
        strength = signal_to_noise(planned, run, size)
        # Over T rounds the signal adds up to T times one, and independent noise of equal rounds
        # to √T times one.
        noise = math.hypot(*(steps.noise_factor for steps in planned.steps))
        yield (
            name,
            ceil_digits(planned.noise_multiplier),
            ceil_digits(strength.noise),
            floor_digits(strength.ratio),
            floor_digits(rounds / noise * strength.ratio),
        )
