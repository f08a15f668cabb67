"""Local steps: what the terms or the sites tell, the median for the silent, bounds for liars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.local_steps import WIDEST, facts_needed, local_steps
from hdpfl_flower.privacy.plan import make_plan

NAN = math.nan


def counts(terms: RunTerms, batches: list[float], records: list[float]) -> list[float]:
    return local_steps(terms, np.array(batches), np.array(records)).counts.tolist()


def test_the_terms_say_it_for_all() -> None:
    terms = RunTerms().updated(local_steps=7)
    found = local_steps(terms, np.array([NAN, 4.0]), np.array([100.0, NAN]))
    assert found.counts.tolist() == [7, 7]
    assert found.known.all()
    assert facts_needed(terms) == frozenset()
    assert facts_needed(RunTerms()) == {"batch-size", "declared-records"}


@pytest.mark.parametrize(("batch", "records", "epochs"), [(16, 2400, 1), (7, 100, 3), (5, 5, 2)])
def test_disclosed_steps_are_those_of_the_plan(batch: int, records: int, epochs: int) -> None:
    no_privacy = {"epsilon": math.inf, "delta": 1e-5}
    profile = Profile.parse(
        {
            "budget": no_privacy,
            "run": no_privacy,
            "training": {"batch-size": batch, "declared-records": records},
        }
    )
    terms = RunTerms().updated(local_epochs=epochs)
    assert counts(terms, [batch], [records]) == [make_plan(profile, terms).steps[0].count]


def test_a_site_that_does_not_say_counts_as_the_median() -> None:
    found = local_steps(
        RunTerms(), np.array([10.0, 20.0, 50.0, NAN, 5.0]), np.array([100.0, 100, 100, 100, NAN])
    )
    assert found.counts.tolist() == [10, 5, 2, 5, 5]
    assert found.known.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("lie", [1e-9, 0.0, 1.0, 1e300])
def test_a_lie_scales_a_sites_steps_tenfold_at_most(lie: float) -> None:
    for batches, records in (([20] * 4, [100.0, 100, 100, lie]), ([20] * 3 + [lie], [100.0] * 4)):
        found = np.array(counts(RunTerms(), batches, records))
        assert found[:3].tolist() == [5, 5, 5]
        assert 5 / WIDEST <= found[3] <= 5 * WIDEST
        assert found[3] >= 1
