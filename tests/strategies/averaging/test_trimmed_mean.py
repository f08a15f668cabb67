"""The trimmed mean is the paper's, reads its setting, and is moved by no few liars."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import trim_mean

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import make_strategy
from strategies.averaging import trimmed_mean as module


def combine(rows: npt.NDArray[np.float32], **settings: object) -> Outcome:
    strategy = make_strategy(
        RunConfig.parse({"strategy": "trimmed-mean", "trimmed-mean": settings})
    )
    updates = RoundUpdates(1, tuple(map(str, range(len(rows)))), rows)
    before = rows.copy()
    _, outcome = strategy.combine(strategy.initial_state(), updates, RandomStream(bytes(32)))
    np.testing.assert_array_equal(rows, before)
    return outcome


def rows_of(n: int, d: int = 500, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.49])
@pytest.mark.parametrize("n", [1, 2, 9, 10, 20])
def test_coordinates_are_trimmed(share: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 64)
    rows = rows_of(n)
    expected = trim_mean(rows.astype(np.float64), share, axis=0)
    np.testing.assert_allclose(combine(rows, share=share).update, expected, atol=1e-6)


def test_as_many_liars_as_are_trimmed_move_no_coordinate_out_of_the_honest_values() -> None:
    rows = rows_of(20)
    for lie in (1e6, -1e6):
        lying = rows.copy()
        lying[:2] = lie
        found = combine(lying).update
        assert np.all((found >= rows[2:].min(axis=0)) & (found <= rows[2:].max(axis=0)))
        assert np.abs(found - rows[2:].mean(axis=0)).max() < 1
        lying[2] = lie  # one more than is trimmed
        assert np.abs(combine(lying).update).min() > 1e4


@pytest.mark.parametrize("share", [-0.1, 0.5, 1])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(TermsError, match=r"'trimmed-mean\.share' must be"):
        combine(rows_of(3), share=share)
