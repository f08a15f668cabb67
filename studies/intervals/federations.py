"""Simulated federations with known coefficients: records, models, noisy messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from hdpfl_flower.data.record_moments import Floats
from hdpfl_flower.data.record_scores import Design, design_of
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.accounting import Steps, calibrate
from server_app.releases.coefficients import Stepped, fit_of, sums_of

SHARE, DELTA = 0.5, 1e-5
LABELS = {
    "logistic": 'classes = [["0"], ["1"]]',
    "squared": "bounds = [0, 10]",
    "hazard": 'edges = [1.0, 2.0, 3.0, 4.0]\n[label.event]\ncolumn = "event"\n'
    'occurred = ["1"]\ncensored = ["0"]',
}
NUMBERS = {"age": (20, 90, 50, 14), "bp": (40, 240, 125, 20), "bmi": (10, 70, 27, 5)}
"""Bounds, and typical mean and deviation; the records' own are others."""
LEVELS = {"sex": ("f", "m"), "smoker": ("never", "former", "current")}
EFFECTS = {
    "typical": (0.5, 0.3, 0.3, 0.5, 0.3, 0.7),
    "bounds": (1.2, 1.0, 0.8, 0.5, 0.3, 0.7),
}
"""Log odds of a feature; for a number tenths of a tenth of the label's bounds."""
OF_LABEL = 0.08
INTERCEPTS = {"logistic": (-0.2,), "squared": (0.4,), "hazard": (-2.6, -2.2, -2.0, -1.8)}


@dataclass(frozen=True)
class Federation:
    """Federation that is drawn again and again.

    Attributes:
        epsilons: of the sites, for the whole run; half of it pays for the message.
        records: of each site.
        rare: whether a tenth of the records are of class 1, and events as rare.
        wide: whether the schema states no typical values.
        apart: years by which the mean ages of neighbouring sites differ.
        bent: the true log odds' or mean's square in age, which no coefficient has.
        trained: share of the coefficients that the model has learned.
    """

    epsilons: tuple[float, ...] = (0.5, 1, 2, 4, 8)
    records: tuple[int, ...] = (2000,) * 5
    rare: bool = False
    wide: bool = False
    apart: float = 0.0
    bent: float = 0.0
    trained: float = 0.7


def schema(loss: str, *, wide: bool) -> str:
    """Return the schema of the simulated table."""
    numbers = "".join(
        f'[[columns]]\nname = "{name}"\ntype = "number"\nbounds = [{low}, {high}]\n'
        + ("" if wide else f"typical = [{mean}, {deviation}]\n")
        for name, (low, high, mean, deviation) in NUMBERS.items()
    )
    categories = "".join(
        f'[[columns]]\nname = "{name}"\ntype = "category"\ncategories = {list(levels)}\n'
        for name, levels in LEVELS.items()
    )
    return f'[label]\ncolumn = "y"\n{LABELS[loss]}\n{numbers}{categories}'


@cache
def design(loss: str, wide: bool) -> Design:
    """Return the design of the simulated table."""
    text = schema(loss, wide=wide)
    return design_of(text, Schema.parse(text).task)


def truth(loss: str, case: Federation) -> Floats:
    """Return the true intercepts and coefficients, shape ``(p,)``."""
    effects = np.array(EFFECTS["bounds" if case.wide else "typical"])
    rare = {"logistic": 2.7, "hazard": 1.2}.get(loss, 0.0) * case.rare
    scale = OF_LABEL if loss == "squared" else 1.0
    return np.concatenate([np.array(INTERCEPTS[loss]) - rare, scale * effects])


def site_records(
    loss: str, case: Federation, place: int, count: int, random: np.random.Generator
) -> Records:
    """Return the records of a site, as the model reads them."""
    age = random.normal(55 + case.apart * (place - len(case.records) / 2), 12, count)
    values = {
        "age": age,
        "bp": 120 + 0.6 * (age - 55) + random.normal(0, 14, count),
        "bmi": random.normal(26, 4, count),
    }
    schema_gain = 2.5 / np.sqrt(len(NUMBERS) + sum(map(len, LEVELS.values())))
    features = []
    for name, (low, high, mean, deviation) in NUMBERS.items():
        clipped = np.clip(values[name], low, high)
        scaled = schema_gain * np.clip((clipped - mean) / deviation, -4, 4)
        features.append((2 * clipped - low - high) / (high - low) if case.wide else scaled)
    levels = [random.integers(2, size=count), random.choice(3, count, p=(0.6, 0.3, 0.1))]
    groups = [
        np.eye(len(names))[drawn] for names, drawn in zip(LEVELS.values(), levels, strict=True)
    ]
    x = np.hstack([np.stack(features, 1), *groups])
    true = truth(loss, case)
    told = np.hstack([np.stack(features, 1), groups[0][:, 1:], groups[1][:, 1:]])
    intercepts = len(INTERCEPTS[loss])
    linear = told @ true[intercepts:]
    linear = linear + case.bent * np.square(features[0]) * (OF_LABEL if loss == "squared" else 1)
    targets = _targets(loss, true[:intercepts], linear, features[0], case, random)
    return Records(x.astype(np.float32), targets)


def _targets(
    loss: str,
    intercepts: Floats,
    linear: Floats,
    first: Floats,
    case: Federation,
    random: np.random.Generator,
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    count = len(linear)
    if loss == "logistic":
        chances: Floats = expit(intercepts[0] + linear)
        return np.asarray(random.random(count) < chances, np.int64)
    if loss == "squared":
        spread = 0.1 * np.exp(case.bent * first)
        noisy = intercepts[0] + linear + spread * random.standard_t(5, count)
        return np.asarray(noisy, np.float32)
    last, event = np.full(count, len(intercepts) - 1), np.zeros(count, np.int64)
    alive, censored = np.ones(count, np.bool_), random.integers(9, size=count)
    for interval, intercept in enumerate(intercepts):
        dies = alive & (random.random(count) < expit(intercept + linear))
        last[dies], event[dies] = interval, 1
        alive &= ~dies
        leaves = alive & (censored == interval)
        last[leaves] = interval
        alive &= ~leaves
    return 2 * last + event


@cache
def expected(loss: str, case: Federation) -> Floats:
    """Return the coefficients of the records of many such federations, shape ``(p,)``.

    The truth; of a bent one the solution on 400,000 records.
    """
    true = truth(loss, case)
    if not case.bent:
        return true
    random, of = np.random.default_rng(51), design(loss, case.wide)
    many = site_records(loss, case, 0, 400_000, random)
    for _ in range(20):
        sums = sums_of(of.sum(true, many)[None], of)
        true = true + np.linalg.solve(sums.information, sums.score)
    return true


def fitted(loss: str, case: Federation, seed: int) -> Stepped:
    """Return the coefficients of one federation, drawn anew with its noise."""
    random, of = np.random.default_rng([51, seed]), design(loss, case.wide)
    intercepts = len(INTERCEPTS[loss])
    scale = OF_LABEL if loss == "squared" else 1.0
    start = expected(loss, case).copy()
    start[intercepts:] *= case.trained
    start += 0.1 * scale * random.normal(size=len(start))
    rows = []
    for place, (epsilon, count) in enumerate(zip(case.epsilons, case.records, strict=True)):
        exact = of.sum(start, site_records(loss, case, place, count, random))
        rows.append(exact + _noise(epsilon) * random.normal(size=of.size))
    return fit_of(np.array(rows), of, start)


@cache
def _noise(epsilon: float) -> float:
    return calibrate([Steps(1.0, 1)], SHARE * epsilon, DELTA)
