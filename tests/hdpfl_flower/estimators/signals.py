"""What ``identified`` is worth: signals of many kinds, tuned on some seeds, measured on others.

q is the aggregate's noise over the least there is, 1 being as good as told. Thresholds of
``identification.py`` and ``near_copies.py`` were chosen without ``HELD_OUT``: on ``TUNING``, and
those of ``near_copies.py`` on seeds up to 1,600 too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.linalg.types import Vector

TUNING, HELD_OUT = range(400), range(30_000, 30_400)
BEYOND = "mostly private"
"""A hundredth to all of the signal is a client's own, dense and normal: noise to everybody else. No
estimator of one round can know; told apart from the others, and not among ``all``."""
KINDS = ("none", "shared", "clusters", "factors", "labels", "dense private", "sparse private",
         "heavy tail", "copy", BEYOND)  # fmt: skip
Rows = npt.NDArray[np.float32]


def draw(seed: int) -> tuple[str, Rows, Vector]:
    """Return the kind of a random round, its updates, shape ``(n, d)``, and its noise's variances.

    3 to 24 clients, 1,000 to 30,000 coordinates, a spread of 10 to 10⁶ in variance, a signal of a
    hundredth of the median noise to a hundred times that.
    """
    generator = np.random.default_rng(seed)
    kind = KINDS[generator.integers(len(KINDS))]
    n = int(generator.choice([3, 4, 5, 6, 8, 12, 16, 20, 24]))
    d = int(10 ** generator.uniform(3, 4.5))
    variances = 10 ** generator.uniform(-generator.uniform(1, 6), 0, n)
    size = np.sqrt(np.median(variances) * 10 ** generator.uniform(-2, 2))
    rows = size * _signals(kind, n, d, generator)
    rows += np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    if kind == "copy":
        rows[1] = rows[0] + 1e-3 * rows[0].std() * generator.standard_normal(d)
        variances[1] = variances[0]
    return kind, rows.astype(np.float32), variances


def _signals(kind: str, n: int, d: int, generator: np.random.Generator) -> Vector:
    """Return the signals of a kind, of mean square 1 or about, shape ``(n, d)``."""
    shared = generator.standard_normal(d)
    signals: Vector = np.tile(shared, (n, 1))
    match kind:
        case "none":
            signals = np.zeros((n, d))
        case "clusters":  # a cluster of one is a signal that nobody shares
            centres = generator.standard_normal((int(generator.integers(1, n // 2 + 1)), d))
            signals = centres[np.arange(n) % len(centres)]
        case "factors":
            factors = int(generator.integers(1, 6))
            loadings = generator.standard_normal((n, factors)) / np.sqrt(factors)
            signals = loadings @ generator.standard_normal((factors, d))
        case "labels":
            classes = generator.standard_normal((10, d)) * (generator.random(d) < 0.1) * np.sqrt(5)
            held = np.array([generator.choice(10, 2, replace=False) for _ in range(n)])
            signals = classes[held].sum(axis=1)
        case "dense private" | "mostly private":
            least, most = (-4, -2) if kind == "dense private" else (-2, 0)
            part = 10 ** generator.uniform(least, most)
            signals += np.sqrt(part) * generator.standard_normal((n, d))
        case "sparse private":
            signals += (generator.random((n, d)) < 0.01) * generator.standard_normal((n, d))
        case "heavy tail":
            signals += 0.03 * generator.standard_t(2.5, (n, d))
    return signals


def excess(estimated: npt.NDArray[np.float64], true: npt.NDArray[np.float64]) -> float:
    """Return q = Σw²σ² · Σ1/σ² of w ∝ 1/``estimated``; 1 is the least."""
    weights = estimated.min() / estimated
    weights /= weights.sum()
    return float((weights**2 * true).sum() * (1 / true).sum())


def quality(kind: str, found: Vector, true: Vector) -> float:
    """Return q; of a copy and its model the two weights count as one client's."""
    if kind != "copy":
        return excess(found, true)
    weights = found.min() / found
    weights /= weights.sum()
    merged, noise = np.append(weights[0] + weights[1], weights[2:]), true[1:]
    return float((merged**2 * noise).sum() * (1 / noise).sum())


def judge(seeds: Sequence[int], method: str = "auto") -> tuple[list[str], list[bool], Vector]:
    """Return for each seed the kind, whether the round is called identified, and q."""
    kinds, identified, found = [], [], []
    for seed in seeds:
        kind, rows, true = draw(seed)
        levels = measure_noise(rows, method)
        kinds.append(kind)
        identified.append(levels.identified)
        found.append(quality(kind, levels.variances, true))
    return kinds, identified, np.array(found)
