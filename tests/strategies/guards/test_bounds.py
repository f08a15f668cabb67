"""What every guard refuses, and the bound of weights: caps by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.guards.cap import cap_weights
from strategies.guards.guard import COPY, ZEROS, Digests, refuse_copies
from strategies.guards.proof import REPEATS

SITES = ("a", "b", "c", "d")


def rows(seed: int, n: int = 4, d: int = 50) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def test_zeros_are_refused_and_minus_zero_is_zero() -> None:
    updates = rows(1)
    updates[1], updates[3] = 0.0, -0.0
    _, refused = refuse_copies({}, SITES, updates)
    assert refused == {"b": ZEROS, "d": ZEROS}


def test_of_two_equal_updates_both_are_refused() -> None:
    updates = rows(2)
    updates[0, 7] = 0.0
    updates[2] = updates[0]
    updates[2, 7] = -0.0
    _, refused = refuse_copies({}, SITES, updates)
    assert refused == {"a": COPY, "c": COPY}


def test_who_repeats_itself_is_refused_every_time_but_the_first() -> None:
    digests: Digests = {}
    same = rows(3)[0]
    for server_round in range(3):
        updates = rows(10 + server_round)
        updates[1] = same
        before = dict(digests)
        digests, refused = refuse_copies(digests, SITES, updates)
        assert refused == ({"b": REPEATS} if server_round else {})
        assert before.keys() <= digests.keys()
    _, refused = refuse_copies(digests, SITES, rows(20))
    assert refused == {}


def test_what_is_cut_off_is_shared_in_proportion() -> None:
    weights = np.array([0.6, 0.3, 0.06, 0.04])
    np.testing.assert_allclose(cap_weights(weights, 0.5), [0.5, 0.375, 0.075, 0.05])
    np.testing.assert_allclose(cap_weights(weights, 0.35), [0.35, 0.35, 0.18, 0.12])


@settings(max_examples=50)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-6),
    st.floats(0.01, 1.5),
)
def test_capped_weights_stay_convex_and_ordered(given_weights: list[float], limit: float) -> None:
    weights = np.array(given_weights) / sum(given_weights)
    capped = cap_weights(weights, limit)
    assert abs(capped.sum() - 1) < 1e-9
    assert (capped >= 0).all()
    assert capped.max() <= max(limit, 1 / len(weights)) * (1 + 1e-9)
    order = np.argsort(weights, kind="stable")
    assert (np.diff(capped[order]) >= -1e-12).all()
    if weights.max() <= limit:
        np.testing.assert_allclose(capped, weights, atol=1e-12)
