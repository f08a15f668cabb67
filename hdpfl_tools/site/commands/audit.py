"""``hdpfl-site audit``: planted records, to test the claimed privacy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.system.extras import is_installed
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.options import TERMS_HELP, ProfileOption, open_profile
from hdpfl_tools.site.reports.formatting import floor_digits

if TYPE_CHECKING:
    from hdpfl_tools.site.audit import Finding

EPSILONS = (1.0, 4.0, 8.0)
CANARIES = 50_000


def audit(
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="A claimed ε to audit; may be repeated. Default: 1, 4 and 8."),
    ] = None,
    canaries: Annotated[int, typer.Option(help="Planted records for each claim.")] = CANARIES,
    profile: ProfileOption = None,
    terms: Annotated[Path | None, typer.Option("--terms", "--run-config", help=TERMS_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test this build's clipping and noise by an attack.

    The command plants records in one full-batch step and infers from its release which of them took
    part. It prints the ε that this attack shows beside the ε that is claimed. The exit status is 1
    if a claim is violated. With --terms the command audits only the engine that trains the run's
    model; without it, all engines. With --terms and --profile it also prints an estimate for the
    site's own run. No record is read, and nothing is charged.
    """
    site = open_profile(profile) if profile is not None else None
    run = RunConfig.load(terms, mailed=True).terms if terms is not None else None
    findings, estimate = _attack(epsilon or list(EPSILONS), canaries, site, run)
    if as_json:
        text = json.dumps(_facts(findings, estimate), indent=2)
    else:
        text = text_of(
            "audit",
            findings=findings,
            claims=[_row(finding) for finding in findings],
            estimate=estimate,
            site=site,
            run=run,
            opacus=is_installed("opacus"),
            infinity=math.inf,
        )
    typer.echo(text)
    if any(finding.violates for finding in findings):
        raise typer.Exit(1)


def _attack(
    epsilons: list[float], canaries: int, site: Profile | None, run: RunTerms | None
) -> tuple[list[Finding], Finding | None]:
    """Return the findings of each claim and of the site's own run.

    Whatever can be refused is refused before any work.
    """
    from client_app.site.site import allowed_layout
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_tools.site.audit import (
        ENGINES,
        MIN_CANARIES,
        WIDTH,
        attack,
        claimed,
        default_training,
        engine_of,
        releases_of,
    )

    if canaries < MIN_CANARIES:
        raise AccountingError(f"'--canaries' must be at least {MIN_CANARIES}: fewer say nothing")
    training = site.training if site else default_training()
    engines = [name for name in ENGINES if name != "opacus" or is_installed(name)]
    if run is not None:
        if site is not None:
            check_policy(site, run)
            allowed_layout(site, run.model, task_for(run))
        engines = [engine_of(run, training, code=site is not None)]
    most = min(2, site.data.records_per_unit) if site is not None and site.data else 1
    engines = ["vmap"] if most > 1 else engines  # the only one that clips units as one
    planned = None
    if site is not None and run is not None and run.source.per_record:
        planned = None if math.isinf(site.run.epsilon) else make_plan(site, run)
    plans = [claimed(epsilon) for epsilon in epsilons]
    few = min(canaries, WIDTH)  # an estimate needs no more, and a run may have many steps
    total = len(engines) * len(plans) * releases_of(plans[0], canaries)
    with _bar(total + (releases_of(planned, few) if planned else 0)) as advance:
        findings = [
            attack(plan, engine, canaries, training, most=most, advance=advance)
            for engine in engines
            for plan in plans
        ]
        if planned is None or run is None:
            return findings, None
        estimate = attack(
            planned, engines[0], few, training, clip_norm=run.clip_norm, most=most, advance=advance
        )
        return findings, estimate


def _row(finding: Finding) -> tuple[str, ...]:
    """Return a finding's row of a table."""
    from hdpfl_tools.site.audit import CONFIDENT, SURE

    return (
        finding.engine,
        f"{finding.plan.epsilon:.4g}",
        f"{finding.estimate:.4g}",
        floor_digits(finding.bound(CONFIDENT)),
        floor_digits(finding.bound(SURE)),
        "VIOLATES the claim" if finding.violates else "consistent with the claim",
    )


def _facts(findings: list[Finding], estimate: Finding | None) -> dict[str, Any]:
    """Return the answer as named values; the site's run gets no verdict."""
    run = estimate and {
        "engine": estimate.engine,
        "epsilon": estimate.plan.epsilon,
        "delta": estimate.plan.delta,
        "canaries": estimate.canaries,
        "estimate": estimate.estimate,
    }
    return {"claims": [_claim(finding) for finding in findings], "run": run}


def _claim(finding: Finding) -> dict[str, Any]:
    """Return the findings of one claim, by name."""
    from hdpfl_tools.site.audit import CONFIDENT, SURE

    return {
        "engine": finding.engine,
        "claim": finding.plan.epsilon,
        "delta": finding.plan.delta,
        "canaries": finding.canaries,
        "estimate": finding.estimate,
        "bound-95": finding.bound(CONFIDENT),
        "bound-sure": finding.bound(SURE),
        "violates": finding.violates,
    }


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], object]]:
    """Show a bar on a terminal's stderr; yields its update function."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("audit", total=total)
        yield lambda: progress.advance(task)
