"""What ``identified`` is worth: signals of many kinds, tuned on some seeds, measured on others.

q is the aggregate's noise over the least there is, 1 being as good as told. Thresholds of
``identification.py`` and ``near_copies.py`` were chosen without ``HELD_OUT``: on ``TUNING``, and
those of ``near_copies.py`` on seeds up to 1,600 too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.recorded import excess
from benchmarks.timing import show
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.linalg.types import Vector

TUNING, HELD_OUT = range(400), range(30_000, 30_400)
BEYOND = "mostly private"
"""A hundredth to all of the signal is a client's own, dense and normal: noise to everybody else. No
estimator of one round can know; told apart from the others, and not among ``all``."""
LOOKED_AT = range(400, 1_600)
"""And the seeds that the rule on copies was looked at on."""
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


def main() -> None:
    """Print what is identified, what the rule on copies costs the honest, and what liars gain."""
    _identified()
    _honest()
    _liars()


def _honest() -> None:
    """Print where the rule on copies acts on honest rounds, and what q is with and without it."""
    acted, rounds = [], 0
    for seed in LOOKED_AT:
        kind, rows, true = draw(seed)
        if kind == "copy":
            continue
        rounds += 1
        found = measure_noise(rows)
        if found.copies is not None:
            without = measure_noise(rows, copies=False)
            acted.append(excess(found.variances, true) / excess(without.variances, true))
    mean = f"{np.exp(np.mean(np.log(acted))):.2f}" if acted else "–"
    show(
        "The rule on copies, on honest rounds",
        ["rounds", "it acted in", "q with / without it, geometric mean"],
        [[str(rounds), str(len(acted)), mean]],
    )


def _liars() -> None:
    """Print the weight that liars among ten clients have, and of one honest client, if told."""
    rows = []
    for name in ("honest", "identical", "jittered by 0.1 %", "jittered by 5 %", "three, by 0.1 %",
                 "constant"):  # fmt: skip
        cells = []
        for method in ("auto", "temporal"):
            generator = np.random.default_rng(0)
            true = 10 ** generator.uniform(-2, 0, 10)
            signal = generator.standard_normal(8_000)
            now, before = (_with_liars(name, signal, true, generator) for _ in range(2))
            found = measure_noise(now, method, before if method == "temporal" else None)
            share = (1 / found.variances) / (1 / found.variances).sum()
            liars = {"honest": 1, "constant": 1, "three, by 0.1 %": 3}.get(name, 2)
            cells.append(f"{share[:liars].sum():.3f}")
        rows.append([name, *cells, f"{(1 / true)[0] / (1 / true).sum():.3f}"])
    show(
        "Weight of the liars among 10 clients",
        ["liars", "auto", "temporal", "one honest client's, if told"],
        rows,
    )


def _with_liars(name: str, signal: Vector, true: Vector, generator: np.random.Generator) -> Rows:
    d = len(signal)
    rows = signal + np.sqrt(true)[:, None] * generator.standard_normal((len(true), d))
    jitter = {"identical": 0.0, "jittered by 0.1 %": 1e-3, "jittered by 5 %": 0.05,
              "three, by 0.1 %": 1e-3}  # fmt: skip
    for i in range(1, 3 if name.startswith("three") else 2):
        if name in jitter:
            rows[i] = rows[0] + jitter[name] * rows[0].std() * generator.standard_normal(d)
    if name == "constant":
        rows[0] = 1e-3
    return rows.astype(np.float32)


def _identified() -> None:
    for name, seeds in (("tuning", TUNING), ("held out", HELD_OUT)):
        kinds, identified, q = judge(seeds)
        rows = []
        for kind in ("all", *KINDS):
            here = np.array([k == kind or (kind == "all" and k != BEYOND) for k in kinds])
            said = here & np.array(identified)
            rows.append([
                kind, str(here.sum()), f"{said.sum() / here.sum():.0%}",
                *(_of(q[part]) for part in (said, here & ~said)),
            ])  # fmt: skip
        show(
            f"`identified`, {len(kinds)} rounds {name}: q ≤ 1.1 in 95 %",
            ["signal", "rounds", "identified", "q ≤ 1.1; 95 % of q; most; where it is",
             "and where it is not"],
            rows,
        )  # fmt: skip


def _of(q: Vector) -> str:
    if not len(q):
        return "–"
    return f"{np.mean(q <= 1.1):.1%}; {np.quantile(q, 0.95):.3f}; {q.max():.3f}"
