"""Plan of a run at one site: its sampling, clipping, noise and charge.

A plan is made from the profile's constants and the run's public terms before the first round, and
frozen in the ledger. Its sampling probability, steps and divisor never depend on the data, so that
adding or removing a record changes nothing public (docs/project/decisions.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hdpfl_flower import formats
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError, Declined, Reason
from hdpfl_flower.privacy.accounting import (
    ExtraRelease,
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    event_of,
)
from hdpfl_flower.releases.base import Basis, Cost
from hdpfl_flower.releases.of_run import choices_of, models_of, paid_kinds
from hdpfl_flower.releases.rounds import Update, rounds_asked

if TYPE_CHECKING:
    import dp_accounting

NominalNoise = Callable[[int], float]
"""Rounds → noise multiplier of a paper's formula."""
OF_A_RECORD, OF_AN_UPDATE = 1.0, 2.0
"""Sensitivity of a release in clip norms: a step's clipped sum under one record more or less,
and a client's clipped update under any change of its records, which may turn it round (C to −C)."""


@dataclass(frozen=True, repr=False)
class RoundPlan:
    """One round of a site.

    Attributes:
        steps: how many, and the probability that a record is in a step's batch.
        clip_norm: C.
        noise_std: f·z·s·C, the standard deviation of the noise on each coordinate of the release, a
            step's sum or a client's clipped update; f is the steps' ``noise_factor``, s the plan's
            sensitivity.
        divisor: b, the constant a noisy sum is divided by.
    """

    steps: Steps
    clip_norm: float
    noise_std: float
    divisor: float


@dataclass(frozen=True, repr=False)
class Plan:
    """Privacy plan of a run: accounting and training read it.

    Attributes:
        epsilon: ε charged for the whole run; ``inf`` means no privacy.
        delta: δ charged for the whole run.
        noise_multiplier: z, the noise over the sensitivity: a step adds N(0, (f·z·s·C)²) to every
            coordinate of the clipped sum, f its ``noise_factor``; f·z alone is accounted.
        divisor: expected batch size b, the constant a noisy sum is divided by.
        steps: for each round that is paid for, the steps it takes and their sampling probability.
        min_clip_norm: least C the run may use.
        max_clip_norm: largest C the run may use.
        last_round: the last round that the server may ask for; 0: as many as are paid for. Where
            it may ask for more of them than are paid for, all rounds are alike, and whichever come
            first use the plan up (the ledger counts them).
        first_divisor: the expected batch size of round 1, where it is another one; else 0.
        models: models that a round trains, each with the round's steps: two with a private
            second model.
        releases: price of each kind of release beside the rounds, by its name in the ledger, in
            order: steps with the run's noise, or releases with noise of their own.
        sensitivity: s, by how many C the release moves: ``OF_A_RECORD`` for the sums of DP-SGD and
            ``OF_AN_UPDATE`` for a client's update.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    divisor: float
    steps: tuple[Steps, ...]
    min_clip_norm: float
    max_clip_norm: float
    last_round: int = 0
    first_divisor: float = 0.0
    models: int = 1
    sensitivity: float = OF_A_RECORD
    releases: tuple[tuple[str, Cost], ...] = ()

    def __post_init__(self) -> None:
        """Raise ``AccountingError`` for unequal rounds or another sensitivity.

        With less of it there would be less noise than z says, which alone is accounted.
        """
        if self.sensitivity not in (OF_A_RECORD, OF_AN_UPDATE):
            raise AccountingError("a plan's sensitivity is that of a record or of an update")
        if self.last_round > len(self.steps) and len(set(self.steps)) != 1:
            raise AccountingError("a plan for some of the rounds needs them all alike")
        names = [name for name, _ in self.releases]
        if names != sorted(set(names)):
            raise AccountingError("a plan names each kind of release once, in order")

    def __repr__(self) -> str:
        return "Plan(<private>)"

    @property
    def rounds(self) -> int:
        """Rounds the plan pays for; no more of them may be released."""
        return len(self.steps)

    @property
    def schedule(self) -> tuple[Steps, ...]:
        """All steps of the run, of every model that it trains."""
        beside = (cost for _, cost in self.releases if isinstance(cost, Steps))
        return (*self.steps * self.models, *beside)

    @property
    def beside(self) -> tuple[ExtraRelease, ...]:
        """Releases besides the steps."""
        return tuple(cost for _, cost in self.releases if not isinstance(cost, Steps))

    def cost_of(self, release: str) -> Cost | None:
        """Return the price of a kind of release; None: the plan pays for none."""
        return dict(self.releases).get(release)

    def gaussian(self, release: str) -> Gaussians:
        """Return the Gaussian releases of a kind; raises ``AccountingError`` if unpaid."""
        cost = self.cost_of(release)
        if not isinstance(cost, Gaussians):
            raise AccountingError(f"no plan pays for noise of '{release}'")
        return cost

    def paid(self, release: str) -> int:
        """Return how many releases of a kind the plan pays for; 0: none."""
        if release == Update.release:
            return self.rounds
        cost = self.cost_of(release)
        return cost.count if isinstance(cost, ExtraRelease) else int(cost is not None)

    def covers(self, server_round: int) -> bool:
        """Return whether ``server_round`` may be one of the rounds that the plan pays for."""
        return 1 <= server_round <= (self.last_round or self.rounds)

    def event(self) -> dp_accounting.DpEvent:
        """Return the run's mechanisms, for any accountant."""
        return event_of(self.schedule, self.noise_multiplier, self.beside)

    def round(self, server_round: int, clip_norm: float) -> RoundPlan:
        """Return round ``server_round`` (from 1) at ``clip_norm``."""
        # With `participations` a round's number may exceed those paid for; all are alike then.
        steps = self.steps[min(server_round, self.rounds) - 1]
        first = self.first_divisor if server_round == 1 else 0.0
        return RoundPlan(steps, clip_norm, self._noise_std(steps, clip_norm), first or self.divisor)

    def steps_beside(self, release: str, clip_norm: float) -> RoundPlan:
        """Return the steps of a kind beside the rounds; raises if unpaid."""
        steps = self.cost_of(release)
        if not isinstance(steps, Steps):
            raise AccountingError("no plan pays for steps beside the rounds")
        return RoundPlan(steps, clip_norm, self._noise_std(steps, clip_norm), self.divisor)

    def _noise_std(self, steps: Steps, clip_norm: float) -> float:
        return self.noise_multiplier * steps.noise_factor * (self.sensitivity * clip_norm)

    def update_noise_std(self, server_round: int, clip_norm: float, learning_rate: float) -> float:
        """Return the standard deviation of the noise in each coordinate of a round's update.

        The update of plain SGD holds the sum of the steps' noises: √k · η · z·C / b
        (Robust-HDP, σᵢ² for effective clipping, per coordinate).

        Raises:
            AccountingError: the plan is of a client's update, with the noise of :meth:`round`
                alone for any η.
        """
        if self.sensitivity != OF_A_RECORD:
            raise AccountingError("a client's update has the noise of its round, not of its steps")
        this = self.round(server_round, clip_norm)
        return math.sqrt(this.steps.count) * learning_rate * this.noise_std / this.divisor

    def to_json(self) -> str:
        """Return the plan as JSON with its format's number, for the ledger."""
        return json.dumps({"format": formats.PLAN.newest, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            AccountingError: the text is no plan: a field is missing or unknown, or is wrong.
            LedgerError: the plan has no number, or that of a newer version.
        """
        return _parse_plan(text)


@lru_cache(maxsize=256)
def _parse_plan(text: str) -> Plan:
    try:
        data = json.loads(text)
        formats.PLAN.check(data.pop("format", None))  # before other keys, which may be newer
        if data.keys() != {field.name for field in fields(Plan)}:
            raise ValueError("fields")
        data["steps"] = tuple(Steps(**steps) for steps in data["steps"])
        data["releases"] = tuple((str(name), _read_cost(cost)) for name, cost in data["releases"])
        return Plan(**data)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise AccountingError("the text in the ledger is no plan; restore the ledger") from None


def _read_cost(cost: dict[str, Any]) -> Cost:
    """Return a price; its fields alone tell the mechanisms apart."""
    if "sampling_prob" in cost:
        return Steps(**cost)
    return (Gaussians if "noise_multiplier" in cost else PureSelections)(**cost)


def make_plan(
    profile: Profile,
    terms: RunTerms,
    *,
    nominal_noise: NominalNoise | None = None,
) -> Plan:
    """Return the plan of ``terms`` at ``profile``'s site.

    It pays for all rounds of the run, or for ``participations`` of them, the first with all records
    in a batch where ``first-batch`` asks for that, with noise that falls where ``spend`` asks for
    that, and for the private choices. With a ``noise-multiplier`` the noise is given: the plan pays
    for as many of those rounds as the profile's (ε, δ) affords, and is charged their cost. With
    ``noise = client`` a round is one Gaussian release of the clipped update, its noise made for 2C.

    Args:
        profile: the site's.
        terms: the run's.
        nominal_noise: a paper's formula, of a simulated site under terms that name one; else None.

    Guarantees:
        With ``noise = client`` (ε, δ) holds for any change of the site's records, one record or
        all of them; else for one unit more or less (``unit.py``).
        Computed from the profile's constants and the public terms alone; ε and δ never exceed
        ``profile.run``, whatever the terms say: absurd terms make the update noisier, not dearer.
        Only a simulated profile is planned by a paper's formula; its ε is nominal then.

    Raises:
        Declined: the ε pays for no round at the given noise, or a site that is no simulation is
            asked to take a paper's formula for its noise.
        AccountingError: no noise can pay for the terms.
    """
    # A paper's formula may under-protect: it is for simulated sites alone, under any terms.
    nominal = nominal_noise if profile.simulated and terms.source.per_record else None
    refusals = list(work_refusals(profile, terms))
    if (terms.calibration == "pld") != (nominal is None):
        formula = "'calibration' is a paper's formula, which gives no privacy"
        refusals.insert(0, (Reason.TERMS, formula))
    if refusals:
        raise Declined(*refusals[0])
    training = profile.training
    # The terms can only lower a site's ε.
    epsilon = min(profile.run.epsilon, terms.epsilon_cap or math.inf)
    steps = Steps(
        sampling_prob=training.batch_size / training.declared_records,
        count=_steps_of_round(profile, terms),
    )
    # Before any calibration: its cost grows with the steps that the server asks for.
    divisor, sensitivity = float(training.batch_size), OF_A_RECORD
    if not terms.source.per_record:  # one release of the whole update; no sampling is claimed
        steps, divisor = Steps(sampling_prob=1.0, count=1), 1.0
        sensitivity = OF_AN_UPDATE
    rounds, noise_multiplier = rounds_asked(terms), 0.0
    if terms.noise_multiplier:
        noise_multiplier = terms.noise_multiplier
        rounds, epsilon = _leave_early(profile, terms, steps, rounds, epsilon, nominal)
    schedule, first_divisor = (steps,) * rounds, 0.0
    if first := _full_steps(terms):
        schedule = (Steps(1.0, first), *schedule[1:])
        first_divisor = float(training.declared_records)
    schedule = tuple(
        replace(steps, noise_factor=terms.noise_factor(server_round))
        for server_round, steps in enumerate(schedule, start=1)
    )
    models, delta = models_of(terms), profile.run.delta
    basis = Basis(terms, steps, epsilon, delta)
    costs = {kind.release: kind.cost(basis) for kind in paid_kinds(terms)}
    releases: dict[str, Cost] = {}
    releases |= {name: cost for name, cost in costs.items() if isinstance(cost, Steps)}
    if nominal is not None:
        noise_multiplier = noise_multiplier or nominal(rounds)
    elif not noise_multiplier:
        # Of all models together: two models of a round share one (ε, δ).
        beside_steps = (cost for _, cost in sorted(releases.items()) if isinstance(cost, Steps))
        paid = (*schedule * models, *beside_steps)
        extra = {name: cost for name, cost in costs.items() if isinstance(cost, ExtraRelease)}
        beside = [extra[name] for name in sorted(extra)] if epsilon < math.inf else []
        noise_multiplier = calibrate(paid, epsilon, delta, beside)
        releases |= extra
    return Plan(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        divisor=divisor,
        steps=schedule,
        min_clip_norm=profile.policy.min_clip_norm,
        max_clip_norm=profile.policy.max_clip_norm,
        last_round=terms.last_round,
        first_divisor=first_divisor,
        models=models,
        sensitivity=sensitivity,
        releases=tuple(sorted(releases.items())),
    )


def _steps_of_round(profile: Profile, terms: RunTerms) -> int:
    """Return the noisy steps of a round: k = ``local-steps``, or ⌈K·N/b⌉, and those of its work.

    Of a sum of sites k is 1.
    """
    training, steps = profile.training, 1
    if not terms.source.is_summed:
        steps = terms.local_steps or math.ceil(
            terms.local_epochs * training.declared_records / training.batch_size
        )
    return steps + terms.work.extra_steps


def _full_steps(terms: RunTerms) -> int:
    """Return the steps of a round 1 of K full batches, in place of its sampled ones; 0: none."""
    work = terms.work
    return terms.local_epochs + work.extra_steps if work.full_first else 0


def planned_steps(profile: Profile, terms: RunTerms) -> int:
    """Return the run's noisy steps of all models, uncalibrated.

    At most: a run with ``noise-multiplier`` may end early.
    """
    rounds = rounds_asked(terms)
    if not terms.source.per_record:
        return rounds
    first, of_a_round = _full_steps(terms), _steps_of_round(profile, terms)
    beside = sum(kind.noisy_steps(terms) for kind in paid_kinds(terms))
    return models_of(terms) * (rounds * of_a_round + first) + beside


def work_refusals(profile: Profile, terms: RunTerms) -> Iterator[tuple[Reason, str]]:
    """Yield more steps than an accountant can handle, and more choices than rounds.

    Their cost is computed on a grid that grows with them: a million steps take seconds, ten million
    minutes.
    """
    if planned_steps(profile, terms) > profile.policy.max_steps:
        yield (
            Reason.POLICY,
            "the steps of the run, 'rounds' times the local steps, are above "
            "'policy.max-steps'; ask for fewer rounds or less local work, or raise it",
        )
    if choices_of(terms) > terms.rounds:
        yield Reason.TERMS, "'choice.times' is more often than 'rounds', and a round has one"


def _leave_early(
    profile: Profile,
    terms: RunTerms,
    steps: Steps,
    most: int,
    epsilon: float,
    nominal: NominalNoise | None,
) -> tuple[int, float]:
    """Return the affordable rounds of ``most``, and their charge."""
    given, delta = terms.noise_multiplier, profile.run.delta
    if nominal is not None:  # charged by the formula, nominally: all of ε
        # From the most rounds down: the formula's noise grows with the rounds, so the first that
        # fits is the most.
        paid = (r for r in range(most, 0, -1) if nominal(r) <= given)
        rounds = next(paid, 0)
    else:
        from hdpfl_flower.privacy.affordable_rounds import affordable_rounds, charge_for

        rounds = affordable_rounds(steps, given, epsilon, delta, most)
        epsilon = charge_for(steps, rounds, given, epsilon, delta)
    if not rounds:
        raise Declined(Reason.BUDGET, "'noise-multiplier' is too small for a single round")
    return rounds, epsilon
