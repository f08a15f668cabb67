"""Near copies count as one client, and honest clients are left alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators.near_copies import COPIES
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.estimators.temporal import NoiseMemory, track
from hdpfl_flower.linalg.types import Vector
from tests.hdpfl_flower.estimators.signals import draw

Rows = npt.NDArray[np.float32]
METHODS = ("factor-analysis", "residual-mad", "auto")


def honest(seed: int, n: int = 10, d: int = 6_000) -> tuple[Rows, Vector]:
    """Return updates with a shared signal, as strong as the loudest noise."""
    generator = np.random.default_rng(seed)
    variances = 10 ** np.random.default_rng(0).uniform(-2, 0, n)
    signal = np.random.default_rng(1).standard_normal(d)
    noise = np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    return (signal + noise).astype(np.float32), variances


def copied(rows: Rows, copies: int, jitter: float, seed: int) -> Rows:
    """Return ``rows`` of which the first ones are copies of row 0, jittered by that share."""
    generator, changed = np.random.default_rng(seed), rows.copy()
    for i in range(1, copies):
        noise = generator.standard_normal(rows.shape[1])
        changed[i] = rows[0] + jitter * rows[0].std() * noise
    return changed


def share(levels: Vector, rows: int) -> float:
    return float((1 / levels)[:rows].sum() / (1 / levels).sum())


@pytest.mark.parametrize("jitter", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_copies_weigh_together_as_one(method: str, copies: int, jitter: float) -> None:
    """A level's standard error is 2 or 3 % here: 1.5 leaves ten of them."""
    rows, variances = honest(2)
    found = measure_noise(copied(rows, copies, jitter, 5), method)
    kept = np.append(variances[:1], variances[copies:])
    assert share(found.variances, copies) <= 1.5 * share(kept, 1)
    assert not found.identified
    assert COPIES in found.why
    others = found.variances[copies:] / variances[copies:]
    assert np.all(np.abs(others - 1) < 0.5), "the others keep their levels"


@pytest.mark.parametrize("jitter", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("copies", [2, 3])
def test_copies_in_two_rounds_weigh_together_as_one_client(copies: int, jitter: float) -> None:
    rows, variances = honest(2)
    sites = [f"site-{i}" for i in range(len(rows))]
    memory, _ = track(NoiseMemory(), 1, sites, copied(honest(3)[0], copies, jitter, 4))
    _, tracked = track(memory, 2, sites, copied(rows, copies, jitter, 5))
    weights = np.append(variances[:1], variances[copies:])
    assert share(tracked.variances, copies) <= 1.5 * share(weights, 1)
    assert not tracked.identified[:copies].any()
    assert all(reason.startswith("temporal") for reason in tracked.reasons)
    assert all(COPIES in reason for reason in tracked.reasons[:copies])
    others = tracked.variances[copies:] / variances[copies:]
    assert np.all(np.abs(others - 1) < 0.5), "the others keep their levels"


def test_honest_signals_hold_no_copies() -> None:
    for kind, rows, _ in map(draw, range(30_000, 30_100)):
        assert kind == "copy" or measure_noise(rows).copies is None, kind
