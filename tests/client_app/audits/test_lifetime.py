"""Audit of a whole ledger: canaries over all the runs that a filter admits, chosen as they go.

A server picks each run's noise after seeing the last update, lets that of some fall over the
rounds, leaves half of the runs before their end, and goes on until nothing fits. The same canaries
are in all of it, or out of all of it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger import renyi
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.audit import Evidence, evidence_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.audit import (
    _STEP,
    CLIP_NORM,
    SURE,
    canary_engine,
    canary_records,
    default_training,
)
from hdpfl_tools.site.reports.lifetime import order_for

EPSILON, DELTA = 3.0, 1e-5
LIVES, WIDTH = 16, 1_250
"""Ledgers, and the canaries of each: 20,000 in all."""
NOISES = (3.0, 4.0, 5.0, 7.0)


def life(
    folder: Path, seed: int, engine: Engine, members: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the canaries' scores over the life of a ledger, in σ, and what the runs' μ is."""
    path = folder / f"{seed}.sqlite"
    ledger = Ledger.create(path, EPSILON, DELTA, order=order_for(EPSILON, DELTA))
    records, training = canary_records(members), default_training()
    scores, precision, pick = np.zeros(WIDTH), 0.0, seed
    too_dear: set[int] = set()
    for run in range(1000):
        pick = next(
            (n for n in range(pick, pick + len(NOISES)) if n % len(NOISES) not in too_dear), -1
        )
        if pick < 0:
            ledger.close()
            return scores / math.sqrt(precision), math.sqrt(precision)
        z = NOISES[pick % len(NOISES)]
        first = 1.0 + run // 2 % 2 / 2
        plan = Plan(1.0, 1e-6, z, WIDTH, (Steps(1.0, 1, first), Steps(1.0, 1)), 0.1, 10.0)
        frozen = ChargedPlan(plan.to_json(), "{}", 1.0, 1e-6)
        for server_round in range(1, 3 - run % 2):
            try:
                reserved = ledger.reserve(
                    Request(f"run-{run}", server_round, "update", "d"), frozen
                )
            except Declined:
                too_dear.add(pick % len(NOISES))
                break
            assert not isinstance(reserved, bytes)
            with reserved:
                update = train(
                    engine,
                    np.zeros(WIDTH + 1, np.float32),
                    records,
                    plan.round(server_round, CLIP_NORM),
                    _STEP * plan.divisor / CLIP_NORM,
                    ReleaseStreams.simulated(seed, f"{run}", server_round, "update"),
                    training.physical_batch,
                )[:WIDTH]
                reserved.seal(b"update")
            std = z * plan.steps[server_round - 1].noise_factor
            scores += update / _STEP / std**2
            precision += 1 / std**2
            pick += 1 + int(update.sum() > 0)  # the next mechanism follows from what was seen
        else:
            ledger.close_run(f"run-{run}")
    raise AssertionError


def audited(folder: Path) -> tuple[Evidence, float]:
    """Return what the canaries of all lives say, and the largest μ of one."""
    engine = canary_engine("linear", WIDTH, "cpu")
    members = np.random.default_rng(7).random((LIVES, WIDTH)) < 0.5
    lives = [life(folder, seed, engine, members[seed]) for seed in range(LIVES)]
    return evidence_of(np.array([scores for scores, _ in lives]), members), max(
        mu for _, mu in lives
    )


def test_the_sure_bound_of_a_life_is_below_its_cap(tmp_path: Path) -> None:
    evidence, mu = audited(tmp_path)
    assert EPSILON / 2 < evidence.epsilon_bound(DELTA, SURE) <= EPSILON
    assert evidence.mu == pytest.approx(mu, rel=0.1), "the canaries see what ran"


def test_a_doubled_filter_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hdpfl_flower.ledger.account.capacity", lambda *cap: 2 * renyi.capacity(*cap)
    )
    evidence, _ = audited(tmp_path)
    assert evidence.epsilon_bound(DELTA, SURE) > EPSILON
