"""The plan of a run at one site: what will be sampled, clipped, noised and charged.

A plan is made from the profile's constants and the run's public terms before the first round, and
frozen in the ledger. Its sampling probability, steps and divisor never depend on the data, so that
adding or removing a record changes nothing public (PRIVACY.md §2).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hdpfl_flower.privacy.accounting import (
    Beside,
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    event_of,
)
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.affordable_rounds import affordable_rounds, charge_for
from hdpfl_flower.errors import AccountingError, Declined
from hdpfl_flower.models.networks import check_name, is_user_code
from hdpfl_flower.privacy.paper_formulas import pfa_multiplier, robust_hdp_multiplier
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.privacy.trust import check_client_noise, check_trust
from hdpfl_flower.unit import check_unit
from hdpfl_flower.up_front import reasons_for_equal_rounds, unlike_rounds

if TYPE_CHECKING:
    import dp_accounting

FREE_TERMS = frozenset(
    {"clip-norm", "quorum", "min-sites", "join-timeout", "round-timeout", "runs-dir", "data-dir"}
)
"""Terms that may change within a run: the clip norm, for the noise is a multiple of it, and what
concerns the server alone."""
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
    choices: Beside | None = None
    sensitivity: float = OF_A_RECORD

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
        return self.steps * self.models

    def covers(self, server_round: int) -> bool:
        """Tell whether ``server_round`` may be one of the rounds that the plan pays for."""
        return 1 <= server_round <= (self.last_round or self.rounds)

    def event(self) -> dp_accounting.DpEvent:
        """Return what happens in the whole run, for any accountant."""
        beside = [self.choices] if self.choices else []
        return event_of(self.schedule, self.noise_multiplier, beside)

    def round(self, server_round: int, clip_norm: float) -> RoundPlan:
        """Return what round ``server_round`` (from 1) does when its clip norm is ``clip_norm``."""
        noise_std = self.noise_multiplier * (self.sensitivity * clip_norm)
        steps = self.steps[min(server_round, self.rounds) - 1]
        first = self.first_divisor if server_round == 1 else 0.0
        return RoundPlan(steps, clip_norm, noise_std, first or self.divisor)

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
        """Return the plan as JSON, for the ledger."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that :meth:`to_json` wrote."""
        return _parse_plan(text)


@lru_cache(maxsize=256)
def _parse_plan(text: str) -> Plan:
    data = json.loads(text)
    data["steps"] = tuple(Steps(**steps) for steps in data["steps"])
    if data.get("choices"):
        gaussian = "noise_multiplier" in data["choices"]
        data["choices"] = (Gaussians if gaussian else PureSelections)(**data["choices"])
    return Plan(**data)


def make_plan(profile: Profile, terms: RunTerms) -> Plan:
    """Return the plan of ``terms`` at the site of ``profile``: q = b/N, k = ⌈K·N/b⌉ steps a round.

    It pays for all rounds of the run, or for ``participations`` of them, the first with all records
    in a batch where ``first-batch`` asks for that, and for ``selections`` private choices. With a
    ``noise-multiplier`` the noise is given, and the plan pays for as many of those rounds as the
    profile's (ε, δ) affords, and is charged what they cost. With ``noise = client`` a round is one
    Gaussian release of the clipped update, its noise made for 2C.

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
    if terms.calibration != "pld" and not (profile.simulated and terms.noise == "records"):
        raise Declined("terms: 'calibration' is a paper's formula, which protects nobody")
    training = profile.training
    epsilon = min(profile.run.epsilon, terms.epsilon_cap or math.inf)
    steps = Steps(
        sampling_prob=training.batch_size / training.declared_records,
        count=_local_steps(profile, terms),
    )
    _check_work(profile, terms)
    divisor, sensitivity = float(training.batch_size), OF_A_RECORD
    if terms.noise == "client":  # one Gaussian release of the whole update; no sampling is claimed
        steps, divisor = Steps(sampling_prob=1.0, count=1), 1.0
        sensitivity = OF_AN_UPDATE
    rounds, noise_multiplier = _rounds_asked(terms), 0.0
    if terms.noise_multiplier:
        noise_multiplier = terms.noise_multiplier
        rounds, epsilon = _leave_early(profile, terms, steps, rounds, epsilon)
    schedule, first_divisor, choices = (steps,) * rounds, 0.0, None
    if terms.first_batch == "full":
        schedule = (Steps(1.0, terms.local_epochs), *schedule[1:])
        first_divisor = float(training.declared_records)
    models = _models(terms)
    if terms.calibration != "pld":
        noise_multiplier = noise_multiplier or _by_paper(profile, terms, rounds, epsilon)
    elif not noise_multiplier:
        noise_multiplier, choices = _calibrated(
            schedule * models, epsilon, profile.run.delta, terms
        )
    return Plan(
        epsilon=epsilon,
        delta=profile.run.delta,
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
    first = terms.local_epochs if terms.first_batch == "full" else 0
    return _models(terms) * (rounds * _local_steps(profile, terms) + first)


def _check_work(profile: Profile, terms: RunTerms) -> None:
    """Refuse more steps than a site's accountant should be asked about.

    What they cost is computed on a grid that grows with them: a million steps take seconds, ten
    million minutes.

    Raises:
        Declined: names the terms and the key.
    """
    if planned_steps(profile, terms) > profile.policy.max_steps:
        raise Declined(
            "policy: the steps of the run, 'rounds' times the local steps, are above "
            "'policy.max-steps'; ask for fewer rounds or less local work, or raise it"
        )
    if terms.selections > terms.rounds:
        raise Declined("terms: 'selections' are more than 'rounds', and a round has one choice")


def _calibrated(
    schedule: tuple[Steps, ...], epsilon: float, delta: float, terms: RunTerms
) -> tuple[float, Beside | None]:
    """Return the noise multiplier of the steps, and the private choices beside them, if any."""
    if not (terms.selections and terms.selection_share):
        return calibrate(schedule, epsilon, delta), None
    from hdpfl_flower.privacy.noisy_max import calibrate_with_selections

    return calibrate_with_selections(
        schedule, epsilon, delta, terms.selections, terms.selection_share,
        mechanism=terms.selection_mechanism,
    )  # fmt: skip


def _leave_early(
    profile: Profile, terms: RunTerms, steps: Steps, most: int, epsilon: float
) -> tuple[int, float]:
    """Return how many of ``most`` rounds ε pays for at the given noise, and what to charge."""
    given, delta = terms.noise_multiplier, profile.run.delta
    if terms.calibration != "pld":  # charged by the formula, nominally: all of ε
        paid = (r for r in range(most, 0, -1) if _by_paper(profile, terms, r, epsilon) <= given)
        rounds = next(paid, 0)
    else:
        rounds = affordable_rounds(steps, given, epsilon, delta, most)
        epsilon = charge_for(steps, rounds, given, epsilon, delta)
    if not rounds:
        raise Declined("budget: 'noise-multiplier' is too small for a single round")
    return rounds, epsilon


def _by_paper(profile: Profile, terms: RunTerms, rounds: int, epsilon: float) -> float:
    """Return the noise multiplier of the paper that ``calibration`` names, for so many rounds.

    Its steps are K·N/b a round, not rounded up, as the papers' code counts them.
    """
    training = profile.training
    multiplier = robust_hdp_multiplier if terms.calibration == "robust-hdp" else pfa_multiplier
    a_round = terms.local_steps or (
        terms.local_epochs * training.declared_records / training.batch_size
    )
    sampling_prob = training.batch_size / training.declared_records
    return multiplier(epsilon, profile.run.delta, sampling_prob, rounds * a_round)


def check_policy(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms that the site's policy forbids.

    Raises:
        Declined: names the term, for the site's own log.
        DataError: the run's ``schema`` is none.
        ModelError: 'model' is no name of a model.
    """
    policy = profile.policy
    check_trust(profile, terms)
    check_client_noise(profile, terms)
    check_unit(profile, terms)
    _check_equal_steps(terms)
    if policy.strategies and terms.strategy not in policy.strategies:
        raise Declined("policy: 'strategy' is not in 'policy.strategies'")
    if is_user_code(terms.model) and terms.model not in policy.models:
        raise Declined("policy: 'model' names code that 'policy.models' does not list")
    if terms.rounds > policy.max_rounds:
        raise Declined("policy: 'rounds' is above 'policy.max-rounds'")
    if not policy.min_clip_norm <= terms.clip_norm <= policy.max_clip_norm:
        raise Declined("policy: 'clip-norm' is outside the policy's bounds")
    if terms.local_epochs > policy.max_local_epochs or terms.local_steps > policy.max_local_steps:
        raise Declined(
            "policy: the local work is above 'policy.max-local-epochs' or 'policy.max-local-steps'"
        )
    _check_work(profile, terms)
    check_name(terms.model)


def _check_equal_steps(terms: RunTerms) -> None:
    """Refuse more than equal steps where the account knows no others."""
    if unlike_rounds(terms) and reasons_for_equal_rounds(terms):
        raise Declined(
            "terms: 'first-batch', 'selections' and 'personal-noise' go with noise = 'records', "
            "noise of the site's own and all rounds alone"
        )


def check_unchanged(frozen: RunTerms, proposed: RunTerms, plan: Plan) -> None:
    """Refuse terms that differ from those the plan was frozen with, but for the clip norm.

    Raises:
        Declined: names the changed term, for the site's own log; or the plan is of a version that
            made the noise of a client's update for one C.
    """
    if frozen.noise == "client" and plan.sensitivity != OF_AN_UPDATE:
        raise Declined(
            "terms: the run was charged by an earlier version, whose noise for a client's update "
            "was half of what a changed record asks for; start a new run"
        )
    old, new = frozen.as_config(), proposed.as_config()
    changed = sorted(key for key in old if old[key] != new[key] and key not in FREE_TERMS)
    if changed:
        raise Declined(f"terms: '{changed[0]}' changed after the plan was frozen")
    if not plan.min_clip_norm <= proposed.clip_norm <= plan.max_clip_norm:
        raise Declined("terms: 'clip-norm' is outside the bounds frozen with the plan")
