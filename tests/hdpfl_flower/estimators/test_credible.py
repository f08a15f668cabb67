"""Updates that are not finite are refused; those that are flat get no weight worth having."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators.credible import FLAT, flat_updates
from hdpfl_flower.estimators.noise_level import ESTIMATORS, measure_noise

Rows = npt.NDArray[np.float32]


def rows_of(seed: int, d: int = 3_000) -> Rows:
    generator = np.random.default_rng(seed)
    scale = np.sqrt(10 ** np.random.default_rng(0).uniform(-1, 0, 6))[:, None]
    shared = 0.3 * np.random.default_rng(1).standard_normal(d)
    return (shared + scale * generator.standard_normal((6, d))).astype(np.float32)


def flattened(rows: Rows, kind: str, seed: int) -> Rows:
    """Return ``rows`` with a flat one as the third."""
    generator, changed = np.random.default_rng(seed), rows.copy()
    size = 1e-3 * np.ones(rows.shape[1])
    if kind == "signs":
        size *= generator.choice([-1, 1], rows.shape[1])
    if kind == "jittered":
        size *= 1 + 0.1 * generator.standard_normal(rows.shape[1])
    changed[2] = size
    return changed


@pytest.mark.parametrize("kind", ["constant", "signs", "jittered"])
@pytest.mark.parametrize("method", ESTIMATORS)
def test_a_flat_update_is_the_noisiest_of_the_round(method: str, kind: str) -> None:
    rows = flattened(rows_of(2), kind, 3)
    found = measure_noise(rows, method)
    others = np.delete(found.variances, 2)
    assert found.variances[2] == others.max()
    assert not found.identified
    assert FLAT in found.why


def test_normal_noise_is_not_flat_nor_a_signal_in_few_coordinates() -> None:
    """400,000 draws of 16 had a kurtosis of 1.14 or more; of 3 with the best of chances here."""
    generator = np.random.default_rng(6)
    for d in (1, 4, 15, 16, 40, 5_000):
        assert not flat_updates(generator.standard_normal((500, d)).astype(np.float32)).any()
    sparse = (generator.random((20, 500)) < 0.1).astype(np.float32)
    assert not flat_updates(sparse).any()
    tiny = np.full((1, 500), 1e-30, np.float32)
    assert flat_updates(tiny).all(), "squares that underflow hide nothing"
