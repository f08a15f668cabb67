"""Plan of a run at one site: its sampling, clipping, noise and charge.

A plan is made from the profile's constants and the run's public terms before the first round, and
frozen in the ledger. Its sampling probability, steps and divisor never depend on the data, so that
adding or removing a record changes nothing public (docs/project/decisions.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from hdpfl_flower import formats
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.recorded_terms import recorded_terms
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
from hdpfl_flower.privacy.affordable_rounds import affordable_rounds, charge_for
from hdpfl_flower.privacy.plan_table import calibrate_among_many

if TYPE_CHECKING:
    import dp_accounting

NominalNoise = Callable[[int], float]
"""Rounds → the noise multiplier that a paper's formula has for them."""
OF_A_RECORD, OF_AN_UPDATE = 1.0, 2.0
"""How far what is released moves, in clip norms: a step's clipped sum by one record more or less,
and a client's clipped update by any change of its records, which may turn it round (C to −C)."""


@dataclass(frozen=True, repr=False)
class RoundPlan:
    """What one round does at one site.

    Attributes:
        steps: how many, and the probability that a record is in a step's batch.
        clip_norm: C.
        noise_std: z·s·C, the standard deviation of the noise on each coordinate of what is
            released, s the plan's sensitivity: of a step's sum, or of a client's clipped update.
        divisor: b, the constant a noisy sum is divided by.
    """

    steps: Steps
    clip_norm: float
    noise_std: float
    divisor: float


@dataclass(frozen=True, repr=False)
class Plan:
    """One frozen mechanism. What is accounted is what runs: both read this object.

    Attributes:
        epsilon: ε charged for the whole run; ``inf`` means no privacy.
        delta: δ charged for the whole run.
        noise_multiplier: z, the noise over the sensitivity: a step adds N(0, (z·s·C)²) to every
            coordinate of the clipped sum; what is accounted is z alone.
        divisor: expected batch size b, the constant a noisy sum is divided by.
        steps: for each round that is paid for, the steps it takes and their sampling probability.
        min_clip_norm: least C the run may use.
        max_clip_norm: largest C the run may use.
        last_round: the last round that the server may ask for; 0: as many as are paid for. Where
            it may ask for more of them than are paid for, all rounds are alike, and whichever come
            first use the plan up (the ledger counts them).
        first_divisor: the expected batch size of round 1, where it is another one; else 0.
        models: models that a round trains, each with the round's steps: two with a private
            personal model.
        choices: private choices of a model that are paid for beside the steps, and their noise.
        tuning: steps on the site's own records after the last round; None: there are none.
        counts: the one release of noisy counts for the personal prior; None: there is none.
        scores: the one release of a noisy histogram of scores; None: there is none.
        sensitivity: s, by how many C what is released moves: ``OF_A_RECORD`` for the sums of
            DP-SGD and ``OF_AN_UPDATE`` for a client's update. A plan in a ledger that does not
            say it is of a version that planned every release with 1.
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
    choices: ExtraRelease | None = None
    sensitivity: float = OF_A_RECORD
    tuning: Steps | None = None
    counts: Gaussians | None = None
    scores: Gaussians | None = None

    def __post_init__(self) -> None:
        """Raise ``AccountingError`` for another sensitivity, or rounds of which it matters which.

        With less of it there would be less noise than z says, which alone is accounted.
        """
        if self.sensitivity not in (OF_A_RECORD, OF_AN_UPDATE):
            raise AccountingError("a plan's sensitivity is that of a record or of an update")
        if self.last_round > len(self.steps) and len(set(self.steps)) != 1:
            raise AccountingError("a plan for some of the rounds needs them all alike")

    def __repr__(self) -> str:
        return "Plan(<private>)"

    @property
    def rounds(self) -> int:
        """Rounds the plan pays for; no more of them may be released."""
        return len(self.steps)

    @property
    def schedule(self) -> tuple[Steps, ...]:
        """All steps of the run, of every model that it trains."""
        return self.steps * self.models + ((self.tuning,) if self.tuning else ())

    @property
    def beside(self) -> tuple[ExtraRelease, ...]:
        """What is released, or kept as if it were, besides the steps."""
        return tuple(one for one in (self.choices, self.counts, self.scores) if one)

    def covers(self, server_round: int) -> bool:
        """Return whether ``server_round`` may be one of the rounds that the plan pays for."""
        return 1 <= server_round <= (self.last_round or self.rounds)

    def event(self) -> dp_accounting.DpEvent:
        """Return what happens in the whole run, for any accountant."""
        return event_of(self.schedule, self.noise_multiplier, self.beside)

    def round(self, server_round: int, clip_norm: float) -> RoundPlan:
        """Return what round ``server_round`` (from 1) does when its clip norm is ``clip_norm``."""
        # With `participations` a round's number may exceed those paid for; all are alike then.
        steps = self.steps[min(server_round, self.rounds) - 1]
        first = self.first_divisor if server_round == 1 else 0.0
        return RoundPlan(steps, clip_norm, self._noise_std(clip_norm), first or self.divisor)

    def tuning_round(self, clip_norm: float) -> RoundPlan:
        """Return what the steps after the last round do; raises where none are paid for."""
        if self.tuning is None:
            raise AccountingError("no plan pays for steps after the last round")
        return RoundPlan(self.tuning, clip_norm, self._noise_std(clip_norm), self.divisor)

    def _noise_std(self, clip_norm: float) -> float:
        return self.noise_multiplier * (self.sensitivity * clip_norm)

    def update_noise_std(self, server_round: int, clip_norm: float, learning_rate: float) -> float:
        """Return the standard deviation of the noise in each coordinate of a round's update.

        The update of plain SGD holds the sum of the steps' noises: √k · η · z·C / b
        (Robust-HDP, σᵢ² for effective clipping, per coordinate).

        Raises:
            AccountingError: the plan is of a client's update, whose noise is that of
                :meth:`round` alone, whatever η.
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
        """Return the plan that :meth:`to_json` wrote, of this version or an earlier one.

        Raises:
            AccountingError: the text is no plan.
            LedgerError: the plan is of a newer version.
        """
        return _parse_plan(text)


@lru_cache(maxsize=256)
def _parse_plan(text: str) -> Plan:
    """Read a plan of any format up to ``formats.PLAN.newest``.

    Format 0 has no number, and may lack fields that were added before there were numbers; their
    defaults are what every plan without them meant. A field that no format has is refused: what
    it asks for would not be done.
    """
    try:
        data = json.loads(text)
        format_of_plan(text)
        data.pop("format", None)
        data["steps"] = tuple(Steps(**steps) for steps in data["steps"])
        if data.get("tuning"):
            data["tuning"] = Steps(**data["tuning"])
        for key in ("counts", "scores"):
            if data.get(key):
                data[key] = Gaussians(**data[key])
        if data.get("choices"):
            # The two kinds of choices differ by their fields alone.
            gaussian = "noise_multiplier" in data["choices"]
            data["choices"] = (Gaussians if gaussian else PureSelections)(**data["choices"])
        return Plan(**data)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise AccountingError("the text in the ledger is no plan; restore the ledger") from None


def format_of_plan(text: str) -> int:
    """Return the format's number of a plan's JSON.

    Raises:
        AccountingError: the text is no plan.
        LedgerError: the plan is of a newer version.
    """
    try:
        data = json.loads(text)
        number = data.get("format")
    except (ValueError, AttributeError):
        raise AccountingError("the text in the ledger is no plan; restore the ledger") from None
    if number is not None and type(number) is not int:
        raise AccountingError("the plan's format is no number; restore the ledger")
    return formats.PLAN.check(number)


def charged_terms(plan: str, terms: str) -> RunTerms:
    """Return the terms that a ledger holds with a plan; both are its JSON.

    Raises:
        TermsError: a key or a value is wrong.
        AccountingError, LedgerError: see :func:`format_of_plan`.
    """
    return recorded_terms(terms, format_of_plan(plan))


def make_plan(
    profile: Profile,
    terms: RunTerms,
    *,
    nominal_noise: NominalNoise | None = None,
    among_many: bool = False,
) -> Plan:
    """Return the plan of ``terms`` at the site of ``profile``: q = b/N, k = ⌈K·N/b⌉ steps a round.

    It pays for all rounds of the run, or for ``participations`` of them, the first with all records
    in a batch where ``first-batch`` asks for that, and for ``selections`` private choices. With a
    ``noise-multiplier`` the noise is given, and the plan pays for as many of those rounds as the
    profile's (ε, δ) affords, and is charged what they cost. With ``noise = client`` a round is one
    Gaussian release of the clipped update, its noise made for 2C.

    Args:
        profile: the site's.
        terms: the run's.
        nominal_noise: of a simulated site whose terms name a paper's formula; else None.
        among_many: of a simulated site: whether many of them take these steps, so that a table of
            their noise is worth its searches; z may differ within the tolerance of the search.

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
    # A paper's formula may under-protect: it is for simulated sites alone, whatever the terms say.
    nominal = nominal_noise if profile.simulated and terms.noise == "records" else None
    if (terms.calibration == "pld") != (nominal is None):
        raise Declined(Reason.TERMS, "'calibration' is a paper's formula, which protects nobody")
    training = profile.training
    # The terms can only lower a site's ε.
    epsilon = min(profile.run.epsilon, terms.epsilon_cap or math.inf)
    steps = Steps(
        sampling_prob=training.batch_size / training.declared_records,
        count=_local_steps(profile, terms) + _mask_steps(terms),
    )
    # Before any calibration, whose cost grows with the steps that the server asks for.
    check_work(profile, terms)
    divisor, sensitivity = float(training.batch_size), OF_A_RECORD
    if terms.noise == "client":  # one Gaussian release of the whole update; no sampling is claimed
        steps, divisor = Steps(sampling_prob=1.0, count=1), 1.0
        sensitivity = OF_AN_UPDATE
    rounds, noise_multiplier = _rounds_asked(terms), 0.0
    if terms.noise_multiplier:
        noise_multiplier = terms.noise_multiplier
        rounds, epsilon = _leave_early(profile, terms, steps, rounds, epsilon, nominal)
    schedule, first_divisor = (steps,) * rounds, 0.0
    charged = terms.tuning_steps if terms.noise == "records" else 0
    tuning = replace(steps, count=charged) if charged else None
    if terms.first_batch == "full":
        # K full batches in round 1, in place of its sampled ones.
        schedule = (Steps(1.0, terms.local_epochs + _mask_steps(terms)), *schedule[1:])
        first_divisor = float(training.declared_records)
    models, delta = _models(terms), profile.run.delta
    choices, counts, scores = None, None, None
    if nominal is not None:
        noise_multiplier = noise_multiplier or nominal(rounds)
    elif not noise_multiplier:
        choices = _choices(terms, epsilon, delta)
        # Every record counts, so that no sampling amplifies; one more or less moves one count by 1.
        counts = _once(terms.personal_prior, epsilon, delta)
        scores = _once(terms.score_share, epsilon, delta)
        # Of all models together: two models of a round share one (ε, δ).
        paid = (*schedule * models, *((tuning,) if tuning else ()))
        beside = [one for one in (choices, counts, scores) if one and epsilon < math.inf]
        find = calibrate_among_many if among_many and profile.simulated else calibrate
        noise_multiplier = find(paid, epsilon, delta, beside)
    return Plan(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        divisor=divisor,
        steps=schedule,
        min_clip_norm=profile.policy.min_clip_norm,
        max_clip_norm=profile.policy.max_clip_norm,
        last_round=terms.rounds,
        first_divisor=first_divisor,
        models=models,
        choices=choices,
        sensitivity=sensitivity,
        tuning=tuning,
        counts=counts,
        scores=scores,
    )


def _local_steps(profile: Profile, terms: RunTerms) -> int:
    """Return k, the local steps of a round: ``local-steps``, or ⌈K·N/b⌉."""
    training = profile.training
    return terms.local_steps or math.ceil(
        terms.local_epochs * training.declared_records / training.batch_size
    )


def _rounds_asked(terms: RunTerms) -> int:
    """Return the rounds that a site is to pay for: all, or ``participations`` of them."""
    return min(terms.rounds, terms.participations or terms.rounds)


def _models(terms: RunTerms) -> int:
    """Return the models that a round trains under the plan: two with a private personal model."""
    return 2 if terms.personal_lambda and terms.personal_noise == "records" else 1


def planned_steps(profile: Profile, terms: RunTerms) -> int:
    """Return the noisy steps of the whole run here, of all its models; nothing is calibrated.

    At most: a run with ``noise-multiplier`` may end early.
    """
    rounds = _rounds_asked(terms)
    if terms.noise != "records":
        return rounds
    first = terms.local_epochs + _mask_steps(terms) if terms.first_batch == "full" else 0
    of_a_round = _local_steps(profile, terms) + _mask_steps(terms)
    return _models(terms) * (rounds * of_a_round + first) + terms.tuning_steps


def check_work(profile: Profile, terms: RunTerms) -> None:
    """Refuse more steps than a site's accountant should be asked about.

    What they cost is computed on a grid that grows with them: a million steps take seconds, ten
    million minutes.

    Raises:
        Declined: names the terms and the key.
    """
    if planned_steps(profile, terms) > profile.policy.max_steps:
        raise Declined(
            Reason.POLICY,
            "the steps of the run, 'rounds' times the local steps, are above "
            "'policy.max-steps'; ask for fewer rounds or less local work, or raise it",
        )
    if terms.selections > terms.rounds:
        raise Declined(
            Reason.TERMS, "'selections' are more than 'rounds', and a round has one choice"
        )


def _mask_steps(terms: RunTerms) -> int:
    """Return the steps a round whose noisy gradient selects the mask, and moves no parameter."""
    return int(terms.shared_mask == "charged-top-k")


def _choices(terms: RunTerms, epsilon: float, delta: float) -> ExtraRelease | None:
    """Return the private choices of the run, which alone would cost their share of ε, if any."""
    if not (terms.selections and terms.selection_share):
        return None
    from hdpfl_flower.privacy.noisy_max import selections_of

    return selections_of(
        terms.selections, terms.selection_share, epsilon, delta,
        mechanism=terms.selection_mechanism,
    )  # fmt: skip


def _once(share: float, epsilon: float, delta: float) -> Gaussians | None:
    """Return one release of counts, which alone would cost ``share`` of ε; None of nothing."""
    return Gaussians(calibrate([Steps(1.0, 1)], share * epsilon, delta), 1) if share else None


def _leave_early(
    profile: Profile,
    terms: RunTerms,
    steps: Steps,
    most: int,
    epsilon: float,
    nominal: NominalNoise | None,
) -> tuple[int, float]:
    """Return how many of ``most`` rounds ε pays for at the given noise, and what to charge."""
    given, delta = terms.noise_multiplier, profile.run.delta
    if nominal is not None:  # charged by the formula, nominally: all of ε
        # From the most rounds down: the formula's noise grows with the rounds, so the first that
        # fits is the most.
        paid = (r for r in range(most, 0, -1) if nominal(r) <= given)
        rounds = next(paid, 0)
    else:
        rounds = affordable_rounds(steps, given, epsilon, delta, most)
        epsilon = charge_for(steps, rounds, given, epsilon, delta)
    if not rounds:
        raise Declined(Reason.BUDGET, "'noise-multiplier' is too small for a single round")
    return rounds, epsilon
