"""Content of the class rows: what noise alone makes of it, and what public means explain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators.softmax_head import Head
from strategies.guards.head_content import (
    PublicMeans,
    content_scores,
    fit_to_public,
    head_rows,
    public_means,
)

CLASSES, INPUTS, SIGMA = 4, 24, 0.3
HEAD = Head(3, CLASSES, INPUTS)


def drawn(seed: int, records: int = 400) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return records of four classes around means of their own."""
    generator = np.random.default_rng(seed)
    middles = 1 + np.random.default_rng(0).standard_normal((CLASSES, INPUTS))
    labels = np.arange(records) % CLASSES
    spread = 0.5 * generator.standard_normal((records, INPUTS))
    return (middles[labels] + spread).astype(np.float32), labels


def public() -> PublicMeans:
    found = public_means(*drawn(1), CLASSES)
    assert found is not None
    return found


def gradient_rows(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return Σ (1[y = c] − 1/C)·x of records, shape (1, classes, inputs + 1)."""
    x = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    rows: npt.NDArray[np.float64] = (np.eye(CLASSES)[labels] - 1 / CLASSES).T @ x
    return rows[None]


def test_content_of_pure_noise_has_the_stated_variance() -> None:
    noise = SIGMA * np.random.default_rng(2).standard_normal((4000, HEAD.start + 4 * 25))
    means = public()
    scores = content_scores(
        head_rows(noise.astype(np.float32), HEAD) @ means.inverse,
        SIGMA**2 * np.broadcast_to(means.noise, (4000, CLASSES)),
        0.0,
    )
    # 4,000 normal numbers a pair: their variances lie within 5·√(2/4000) = .11 of 1.
    np.testing.assert_allclose(scores.var(axis=0), 1, atol=0.11)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=5 / np.sqrt(4000))


@pytest.mark.parametrize("held", [(0, 1, 2, 3), (1, 2), (3,)])
def test_honest_content_is_right_whatever_labels_a_site_holds(held: tuple[int, ...]) -> None:
    features, labels = drawn(3)
    mine = np.isin(labels, held)
    content = (gradient_rows(features[mine], labels[mine]) @ public().inverse)[0]
    side = np.where(np.eye(CLASSES, dtype=bool), -1, 1) * content
    assert side.max() < 0.1 * np.abs(content).max()


@pytest.mark.parametrize("sigma", [1e-6, 3.0])
def test_public_means_explain_records_of_their_kind_alone(sigma: float) -> None:
    """Under noise they explain nobody for sure: then nobody is judged."""
    features, labels = drawn(5)
    turned = features[:, np.random.default_rng(1).permutation(INPUTS)]
    clean = np.concatenate([gradient_rows(features, labels), gradient_rows(turned, labels)])
    noise = sigma * np.random.default_rng(6).standard_normal(clean.shape)
    length = float(np.sqrt(np.sum(clean[0] ** 2)))
    rows = clean / length + noise
    found = fit_to_public(rows, np.full(2, sigma**2), public(), 0.3, 3.0)
    assert found.fits.tolist() == [sigma < 1, False]
