"""A personal model trained with noise: Ditto's steps, and the noise of the plan in each of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from client_app.training import dpsgd
from client_app.training.ditto import train_personal_privately
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from tests.client_app.training.oracle import make_engine, one_thread  # noqa: F401
from tests.client_app.training.updates import RATE, plan_of, records_of, start_of

FALSE_ALARM = 1e-6
"""Chance that the statistical test below fails on right code (its seed is fixed all the same)."""

TABLE = Task.classification((300,), 8)
SIZE = 8 * 301


def personal(
    plan: RoundPlan, strength: float, shared: np.ndarray, own: np.ndarray | None = None
) -> np.ndarray:
    streams = ReleaseStreams.simulated(5, "site", 1, "personal")
    own = start_of("logreg", TABLE) if own is None else own
    engine, records = make_engine("linear", "logreg", TABLE), records_of(TABLE, 40)
    return train_personal_privately(
        engine, own, records, plan, RATE, streams, 16, pull=(strength, shared)
    )


def noise_p_value(said_std: float) -> float:
    """Chance of noise as large or small as is in the model, if each step's had this std."""
    plan, shared = plan_of(q=1e-9, noise_std=3.0), np.zeros(SIZE, np.float32)
    change = personal(plan, 0.0, shared).astype(np.float64) - start_of("logreg", TABLE)
    std = math.sqrt(plan.steps.count) * RATE * said_std / plan.divisor
    tail = stats.chi2.cdf(np.square(change / std).sum(), SIZE)
    return float(2 * min(tail, 1 - tail))


def test_every_step_has_the_noise_of_the_plan() -> None:
    assert noise_p_value(3.0) > FALSE_ALARM
    assert noise_p_value(2.5) < FALSE_ALARM
    assert noise_p_value(3.5) < FALSE_ALARM


def test_rounds_go_on_from_the_sites_own_model_towards_the_global_one() -> None:
    """Without a record in a batch k steps leave (1 − ηλ)ᵏ of the way from the global model."""
    shared, plan = np.full(SIZE, 2, np.float32), plan_of(q=1e-9)
    start, left = start_of("logreg", TABLE), (1 - 2 * RATE) ** plan.steps.count
    first = personal(plan, 2.0, shared)
    np.testing.assert_allclose(first, shared + left * (start - shared), atol=1e-5)
    second = personal(plan, 2.0, -shared, first)
    np.testing.assert_allclose(second, -shared + left * (first + shared), atol=1e-5)
    assert first.dtype == second.dtype == np.float32


def test_it_learns_from_its_own_records_and_leaves_what_it_got() -> None:
    records, shared = records_of(TABLE, 40), start_of("logreg", TABLE)
    own, engine = shared.copy(), make_engine("linear", "logreg", TABLE)
    found = personal(plan_of(q=1.0, divisor=40.0), 0.5, shared, own)
    update = dpsgd.train(
        engine, own, records, plan_of(q=1.0, divisor=40.0), RATE,
        ReleaseStreams.simulated(1, "other", 9, "update"), 16, pull=(0.5, shared),
    )  # fmt: skip
    assert np.abs(update).max() > 1e-3  # full batches without noise: streams do not matter
    np.testing.assert_allclose(found, own + update, atol=1e-6)
    np.testing.assert_array_equal(own, shared)


def test_a_pull_that_cannot_be_is_refused() -> None:
    with pytest.raises(TermsError, match="at most 1"):
        personal(plan_of(), 11.0, np.zeros(SIZE, np.float32))
    with pytest.raises(TermsError, match="another size"):
        personal(plan_of(), 1.0, np.zeros(3, np.float32))
