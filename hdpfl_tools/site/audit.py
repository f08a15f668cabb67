"""Audit: canaries through the site's batches, clipping and noise.

A canary is a record with a clipped gradient of C in a coordinate of its own: features 2¹³·eⱼ of a
linear model, and a target so far off that every gradient is far above C. The bias receives 2⁻¹³ of
it and is ignored. The update moves along that coordinate if the record took part, so the coordinate
is the score; with all the batch in every step the scores are independent.

It reads no record, opens no ledger and spends no budget: it trains on canaries alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hdpfl_flower.config.profile import Profile, Training
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.engines.unit_engines import UnitEngine
from hdpfl_flower.errors import AccountingError, ModelError
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.audit import Evidence, Guesses, evidence_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.system.devices import available_cores, present

ENGINES = ("linear", "bookkeeping", "vmap", "opacus")
DELTA = 1e-5
CONFIDENT, SURE = 0.05, 1e-6
"""Chances that the two bounds exceed a true claim, in a run."""
MIN_CANARIES, WIDTH = 1_000, 2_500
"""Range of useful numbers of canaries: fewer show no ε; more than WIDTH are spread over several
releases, for the work grows with the canaries times the parameters."""
CLIP_NORM = 3.0
"""Not 1: else a noise that forgets C would pass."""
_LENGTH, _TARGET, _STEP = 2.0**13, 2.0**20, 2.0**-20
"""Features, target and η·C/b: small steps keep residuals and gradients far above C."""
_EVERYTHING = {"batch-size": WIDTH, "declared-records": WIDTH}

_Advance = Callable[[], object]


@dataclass(frozen=True, repr=False)
class Finding:
    """Findings of the canaries about one mechanism.

    Attributes:
        engine: the engine that clipped, or the rule of the release.
        plan: the mechanism, with the (ε, δ) that it claims.
        evidence: of the scores.
        canaries: how many there were.
        width: how many of them in a release.
    """

    engine: str
    plan: Plan
    evidence: Evidence | Guesses
    canaries: int
    width: int

    @property
    def estimate(self) -> float:
        """The estimate of ε."""
        return self.evidence.epsilon(self.plan.delta)

    def bound(self, error_rate: float) -> float:
        """Return a lower bound on ε, too high in ``error_rate`` of runs."""
        return self.evidence.epsilon_bound(self.plan.delta, error_rate)

    @property
    def violates(self) -> bool:
        """Whether the claim is false, except for one run in a million."""
        return self.bound(SURE) > self.plan.epsilon


def attack(
    plan: Plan,
    engine: str,
    canaries: int,
    training: Training,
    *,
    clip_norm: float = CLIP_NORM,
    most: int = 1,
    advance: _Advance = lambda: None,
) -> Finding:
    """Return the findings of ``canaries`` about ``plan`` and ``engine``.

    Args:
        plan: the mechanism; every round of it is released.
        engine: a name of :data:`ENGINES`.
        canaries: how many, at least; rounded up to fill every release.
        training: with the device and the physical batch.
        clip_norm: C.
        most: records of a unit; above 1 each canary is as many equal ones, clipped as one.
        advance: called after every release.

    Raises:
        ModelError: the engine cannot train the canaries' model, or the device is not there.
        AccountingError: a released number is not finite.
    """
    releases = math.ceil(canaries / WIDTH)
    width = math.ceil(canaries / releases)
    trained = canary_engine(engine, width, training.device, most)
    members = np.random.default_rng().random((releases, width)) < 0.5  # seeded by the system
    scores = np.zeros((releases, width))
    with _threads(training.torch_threads or available_cores()):
        for release, server_round in itertools.product(range(releases), range(plan.rounds)):
            update = train(
                trained,
                np.zeros(width + 1, np.float32),
                canary_records(members[release], most),
                plan.round(server_round + 1, clip_norm),
                # η with η·C/b = _STEP: the move of a member's own coordinate.
                _STEP * plan.divisor / clip_norm,
                ReleaseStreams.fresh(),
                max(1, training.physical_batch // most),
            )
            # The last number of the update is the bias.
            scores[release] += update[:width]
            advance()
    return Finding(engine, plan, evidence_of(scores, members), releases * width, width)


def releases_of(plan: Plan, canaries: int) -> int:
    """Return how many releases :func:`attack` will make."""
    return math.ceil(canaries / WIDTH) * plan.rounds


def default_training() -> Training:
    """Return the training of canaries without a profile: one core.

    Steps this small gain little from a second one, and lose much where it is busy.
    """
    return Training.model_validate({**_EVERYTHING, "torch-threads": 1})


def claimed(epsilon: float, delta: float = DELTA) -> Plan:
    """Return the plan of one full-batch step, calibrated for (ε, δ).

    Raises:
        AccountingError: ε is not a positive number, or no noise fits it.
    """
    if not 0 < epsilon < math.inf:
        raise AccountingError("an epsilon to audit must be a positive, finite number")
    budget = {"epsilon": epsilon, "delta": delta}
    profile = Profile.parse({"budget": budget, "run": budget, "training": _EVERYTHING})
    return make_plan(profile, RunTerms(rounds=1))


def canary_engine(name: str, width: int, device: str, most: int = 1) -> Engine:
    """Return the engine ``name`` over a linear model; raises ModelError."""
    return engine_for("logreg", Task((width,), 1, "squared"), name, present(device), most)


def engine_of(terms: RunTerms, training: Training, *, code: bool = False) -> str:
    """Return the name of the engine that trains the model of ``terms``.

    Args:
        terms: the run's public terms.
        training: with the device and the engine that the site asks for.
        code: whether a ``module:function`` may be built: a policy lists it.

    Raises:
        ModelError: no engine trains the model, or one that canaries are not made for.
        DataError: the terms do not name the model's inputs.
    """
    backbone = terms.backbone.code if terms.backbone else ""
    for name in (backbone, terms.model if is_user_code(terms.model) else ""):
        if name and not code:
            raise ModelError(f"'{name}' is code: add a --profile whose 'policy.models' lists it")
    device = present(training.device)
    wanted = type(engine_for(terms.model, task_for(terms), training.engine, device))
    if issubclass(wanted, UnitEngine):
        return "vmap"
    for name in ENGINES:
        if type(canary_engine(name, MIN_CANARIES, device)) is wanted:
            return name
    raise ModelError(
        f"model '{terms.model}' is trained by {wanted.__name__}, which cannot be audited: its "
        "canaries would need a linear layer"
    )


def canary_records(members: npt.NDArray[np.bool_], most: int = 1) -> Records:
    """Return the canaries that take part, of ``len(members)``."""
    places = np.flatnonzero(members)
    features = np.zeros((len(places), len(members)), np.float32)
    # Orthogonal features: the gradient of a canary lies in its own coordinate, and in the bias.
    features[np.arange(len(places)), places] = _LENGTH
    if most > 1:
        targets = np.full((len(places), most, 2), [_TARGET, 1 / most], np.float32)
        return Records(np.repeat(features[:, None], most, axis=1), targets)
    return Records(features, np.full(len(places), _TARGET, np.float32))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
