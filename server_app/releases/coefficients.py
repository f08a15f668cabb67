"""Coefficients with intervals, one Newton step from the final model.

The weighted sums over the sites are s̃ = s + N_s and H̃ = H + N_H, of noise whose size the empty
coordinates show. With r(δ) what the score bends by on the way, the step δ̂ solves H̃δ + r(δ) = s̃.
Where s = Hδ + r(δ) + e, e the draw of the records, J·(δ̂ − δ) = e + N_s − N_H·δ with J = H̃ + r′, to
first order, *whatever noise J holds*: the variance of the right side, J⁻¹ on both sides, is that of
δ̂ (a one-step estimator, van der Vaart, Asymptotic Statistics, 1998, §5.7). It is

    Σ ssᵀ of the records (the sandwich of Huber 1967, and of noisy ssᵀ only as much as noise shows)
    + σ²I + σ_H²·(‖δ‖²I + δδᵀ − diag δ²).

The intervals are of the model that all sites' records give, a site weighted by 1/(σᵢ² + h), h the
mean information of a site in a coordinate: of sites with one truth that of the truth, of unlike
sites a mean of theirs in which those of more noise count less. Constants were chosen on seeds that
no test or study uses (``hdpfl reproduce intervals``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import expit, stdtrit  # scipy.stats takes .6 s to import

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_moments import Floats
from hdpfl_flower.data.record_scores import EMPTY, Coefficient, Design
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.coefficients import Coefficients
from server_app.releases import ServerHalf

LEVEL: Final = 0.95
LEAST_INFORMATION: Final = 0.6
"""Least eigenvalue of H̃, over 2σ_H√p, the largest of p coefficients' noise alone."""
LEFT: Final = 1.0
"""Standard deviation of the step of a coefficient that is left at the model's: log odds, or a fifth
of a residual's bound; of one feature."""
MOST_LEFT: Final = 0.2
"""Largest share of a variance that may be of coefficients left at the model's."""
MISFIT: Final = 0.3
"""Standard deviation of the scores' variance, over that of a true model, before any data."""
MOST_BENT: Final = 2.0
"""Largest correction of a coefficient by r, in standard errors; 1 of 6 of it may remain."""
MOST_BENT_IN_ALL: Final = 1.5
"""Largest root mean square of them: a model that has learned 7 or 13 tenths of coefficients is at
.8 and 1.3 of 21 coefficients, one with which the third order fails, as measured, at 10."""
FLATTEST: Final = 0.2
"""Least eigenvalue of J, over that of H̃."""
STEPS: Final = 6
WIDEST: Final = 20.0
"""Largest useful half width of an interval, in log odds."""
NO_SITE = "no site sent its message about coefficients"
SEVERAL = "the run ends with several models; take a strategy with one model"
HIDDEN = (
    "the noise hides the information of the records; ask for a larger share, or more sites or "
    "records"
)
FAR = (
    "the model is too far from what the records give; raise 'clip-norm' (clipped gradients go "
    "too far), or train longer"
)
ALONE = (
    "compared with the noise, the column hardly varies, is rare, or varies together with "
    "others; its coefficient stays as the model has it"
)
LEANS = "it depends on coefficients that stay as the model has them"


@dataclass(frozen=True)
class Sums:
    """Weighted sums over the sites, at the model.

    Attributes:
        score: s̃, shape ``(p,)``.
        information: H̃, shape ``(p, p)``; exact zeros between intercepts.
        twice: H with squared weights.
        variance: ssᵀ with squared weights.
        noise: of a number of s, of H, and of the weighted ssᵀ.
        freedom: degrees of freedom with which the noise is known.
    """

    score: Floats
    information: Floats
    twice: Floats
    variance: Floats
    noise: tuple[float, float, float]
    freedom: float


@dataclass(frozen=True)
class Stepped:
    """Intercepts and coefficients after the step, in the features' units.

    Attributes:
        values: shape ``(p,)``; left ones those of the model.
        errors: standard errors; NaN without an interval.
        reach: errors of an interval on either side.
        missing: place → reason why it has no interval.
    """

    values: Floats
    errors: Floats
    reach: float
    missing: Mapping[int, str]


def sums_of(rows: Floats, design: Design) -> Sums:
    """Return the weighted sums of the sites' messages, shape ``(sites, size)``."""
    p, (c, m), unit = design.numbers, design.factors, design.residual
    rows, triangle = rows * design.bound, len(design.triangle[0])
    diagonal = p + np.flatnonzero(design.triangle[0] == design.triangle[1])
    squares = np.square(rows[:, -EMPTY:]).mean(1)
    information = max(float(rows[:, diagonal].mean()) / c, 0.0)
    weights = 1 / np.maximum(squares + information, np.finfo(np.float64).tiny)
    weights /= weights.max()
    once, twice = weights @ rows, weights**2 @ rows
    total = float(weights**2 @ squares)
    freedom = math.inf
    if total:
        freedom = EMPTY * total**2 / float(np.square(weights**2 * squares).sum())
    noise, of_squares = math.sqrt(total), math.sqrt(float(weights**4 @ squares))
    pattern = design.pattern
    ends = p + triangle
    return Sums(
        unit * once[:p],
        design.matrix(once[p:ends]) / c * pattern,
        design.matrix(twice[p:ends]) / c * pattern,
        unit**2 / m * design.matrix(twice[ends : ends + triangle]),
        (unit * noise, noise / c, unit**2 * of_squares / m),
        freedom,
    )


def told_apart(sums: Sums, intercepts: int) -> tuple[list[int], list[int]]:
    """Return the places that H̃ identifies, and those left at the model's.

    While the least eigenvalue is not above the noise, the coefficient with the largest part in its
    direction is left. None: not even the intercepts can be told apart.
    """
    kept, left = list(range(len(sums.score))), list[int]()
    while kept:
        values, vectors = np.linalg.eigh(sums.information[np.ix_(kept, kept)])
        limit = LEAST_INFORMATION * 2 * sums.noise[1] * math.sqrt(len(kept))
        if values[0] > max(limit, 1e-9 * values[-1]):
            break
        parts = np.abs(vectors[intercepts:, 0])
        if not parts.any():
            return [], left
        left.append(kept.pop(intercepts + int(parts.argmax())))
    return kept, left


def fit_of(rows: Floats, design: Design, start: Floats) -> Stepped:
    """Return the coefficients of the sites' messages at the model ``start``.

    Args:
        rows: payloads, shape ``(sites, size)``, at least one.
        design: of the messages.
        start: :meth:`Design.start` of the model, shape ``(p,)``.
    """
    sums, p = sums_of(rows, design), design.numbers
    reach = float(stdtrit(sums.freedom, (1 + LEVEL) / 2))
    none = Stepped(start, np.full(p, np.nan), reach, dict.fromkeys(range(p), HIDDEN))
    kept, left = told_apart(sums, design.task.outputs)
    if not kept or not np.isfinite(start).all():
        return none
    step, information, bent = _step(sums, design, start, kept)
    if information is None:
        return replace(none, missing=dict.fromkeys(range(p), FAR))
    inverse = np.asarray(np.linalg.inv(information), np.float64)
    variances, of_left = _variances(sums, design, inverse, step, (kept, left))
    bent = bent / np.sqrt(np.maximum(variances, np.finfo(np.float64).tiny))
    if not np.square(bent).mean() <= MOST_BENT_IN_ALL**2:
        return replace(none, missing=dict.fromkeys(range(p), FAR))
    values, errors = start.copy(), np.full(p, np.nan)
    values[kept] += step
    missing = dict.fromkeys(left, ALONE)
    for place, variance, leaning, bend in zip(kept, variances, of_left, bent, strict=True):
        if not variance > 0 or reach * math.sqrt(variance) > WIDEST:
            missing[place] = HIDDEN
        elif leaning > MOST_LEFT * variance:
            missing[place] = LEANS
        elif abs(bend) > MOST_BENT:
            missing[place] = FAR
        else:
            errors[place] = math.sqrt(variance)
    return Stepped(values, errors, reach, missing)


def _step(
    sums: Sums, design: Design, start: Floats, kept: list[int]
) -> tuple[Floats, Floats | None, Floats]:
    """Return δ̂, J and the part of δ̂ by r; J is None where the step leads nowhere."""
    information, score = sums.information[np.ix_(kept, kept)], sums.score[kept]
    inverse = np.linalg.inv(information)
    first: Floats = inverse @ score
    step = first.copy()
    if design.task.loss == "squared":
        return step, information, np.zeros(len(kept))
    # The noise and the draw of the step itself, which bend nothing.
    noise, slope = sums.noise[0] ** 2 * inverse @ inverse + inverse, information
    for _ in range(STEPS):
        bent, bend = _bends(sums, design.task.outputs, (start, step, noise), kept)
        slope = information + bend
        if np.linalg.eigvalsh(slope)[0] <= FLATTEST * np.linalg.eigvalsh(information)[0]:
            return step, None, first
        step += np.asarray(np.linalg.solve(slope, score - information @ step - bent), np.float64)
    return step, slope, step - first


def _bends(
    sums: Sums, intercepts: int, at: tuple[Floats, Floats, Floats], kept: list[int]
) -> tuple[Floats, Floats]:
    """Return r(δ) to the third order, and its derivative.

    r is a mean over features weighted as in H, of which H has the mean and the covariance. They are
    taken as normal: outputs are sums of columns.
    """
    (start, step, noise), t = at, intercepts
    columns = [place for place in kept if place >= t]
    information = sums.information
    counts = np.diag(information)[:t]
    means = information[:t][:, columns] / counts[:, None]
    spread = information[np.ix_(columns, columns)] - means.T @ (counts[:, None] * means)
    values, vectors = np.linalg.eigh(spread / counts.sum())
    draws = np.random.default_rng(0).normal(size=(512, len(columns)))
    draws = np.concatenate([draws, -draws]) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    bent, slope = np.zeros(len(kept)), np.zeros((len(kept), len(kept)))
    for output, (count, mean) in enumerate(zip(counts, means, strict=True)):
        x = np.hstack([np.eye(t)[[output]].repeat(len(draws), 0), mean + draws])
        probability = expit(x @ np.concatenate([start[:t], start[columns]]))
        second, third = 1 - 2 * probability, 1 - 6 * probability * (1 - probability)
        moved = x @ step
        squared = moved**2 - ((x @ noise) * x).sum(1)
        bent += count / len(x) * ((second * squared / 2 + third * moved**3 / 6) @ x)
        slope += count / len(x) * (x.T * (second * moved + third * squared / 2)) @ x
    return bent, slope


def _variances(
    sums: Sums, design: Design, inverse: Floats, step: Floats, places: tuple[list[int], list[int]]
) -> tuple[Floats, Floats]:
    """Return the variances of δ̂, and their part by coefficients left at the model's."""
    kept, left = places
    among = np.ix_(kept, kept)
    of_score, of_information, of_squares = sums.noise
    true = np.diag(inverse @ sums.twice[among] @ inverse)
    if design.task.loss == "squared":
        scale = np.trace(sums.variance[among]) / np.trace(sums.twice[among])
        true = true * max(float(scale), 0.0)
    true = np.maximum(true, 0)
    measured = np.diag(inverse @ sums.variance[among] @ inverse)
    prior, error = np.square(MISFIT * true), 2 * np.square(of_squares * np.square(inverse).sum(0))
    trust = prior / np.maximum(prior + error, np.finfo(np.float64).tiny)
    sampling = np.maximum(true + trust * (measured - true), 0)
    between = sums.information[np.ix_(kept, left)]
    lean = LEFT * (design.residual / 5 if design.task.loss == "squared" else 1.0)
    of_left = lean**2 * np.square(inverse @ between).sum(1)
    without = of_score**2 * np.square(inverse).sum(0) + of_left + sampling
    # ‖δ̂‖² is larger than ‖δ‖² by the variances.
    share = max(0.0, 1 - without.sum() / max(float(step @ step), np.finfo(np.float64).tiny))
    pattern = design.pattern[among]
    moved = np.outer(step, step) * pattern
    np.fill_diagonal(moved, pattern @ np.square(step))
    of_step = share * of_information**2 * np.diag(inverse @ moved @ inverse)
    return without + of_step, of_left


# --- the reading of a run ------------------------------------------------------------------------

RATIOS: Mapping[str, str] = {"logistic": "odds ratio", "hazard": "hazard odds ratio"}


@dataclass(frozen=True)
class CoefficientsReading(ServerHalf):
    """Coefficients of the columns, and odds ratios.

    Attributes:
        model: that the sites were asked about.
    """

    model: Arrays | None = None

    def of_model(self, model: Arrays) -> CoefficientsReading:
        """Return the reading at ``model``."""
        return replace(self, model=model)

    def numbers(self, kind: ReleaseKind, terms: RunTerms, task: Task) -> int:
        """Return the public number of coordinates."""
        return _coefficients(kind).design(terms, task).size

    def read(
        self,
        kind: ReleaseKind,
        rows: npt.NDArray[np.float32],
        without: Mapping[str, str],
        terms: RunTerms,
    ) -> dict[str, Any]:
        """Return ratios or effects as measures, and the coefficients of one unit of a column."""
        design = _coefficients(kind).design(terms, task_for(terms))
        facts: dict[str, Any] = {
            "on": "records on which sites train",
            "sites": len(rows),
            "without": dict(without),
            "level": LEVEL,
            "references": [name for _, name in design.references],
        }
        if not len(rows) or self.model is None:
            names = [_name(design, coefficient) for coefficient in design.coefficients]
            return {**facts, "measures": {}, "missing": dict.fromkeys(names, NO_SITE)}
        if len(self.model) != 2:
            return {**facts, "measures": {}, "missing": {"all": SEVERAL}}
        fit = fit_of(rows.astype(np.float64), design, design.start(self.model))
        measures, missing, coefficients = {}, {}, {}
        for place, coefficient in enumerate(design.coefficients, design.task.outputs):
            name = _name(design, coefficient)
            if place in fit.missing:
                missing[name] = fit.missing[place]
                continue
            value, reach = float(fit.values[place]), float(fit.reach * fit.errors[place])
            ends = np.array([value, value - reach, value + reach])
            unit = coefficient.slope * design.width
            coefficients[coefficient.name] = Estimate(*(unit * ends).tolist()).facts()
            shown = coefficient.per * unit * ends
            shown = np.exp(shown) if design.task.loss in RATIOS else shown
            measures[name] = Estimate(*shown.tolist()).facts()
        facts |= {"measures": measures, "coefficients": coefficients}
        return {**facts, **({"missing": missing} if missing else {})}

    def about(self, facts: Mapping[str, Any]) -> str:
        """Return the sentence on the coefficients' sites, intervals and references."""
        levels = ", ".join(facts.get("references", ()))
        reference = f" Reference categories, with missing values: {levels}." if levels else ""
        return (
            "One step from the final model, computed from noisy sums of "
            f"{facts.get('sites', 0)} sites. Each interval of 95 % covers this noise and the "
            "sampling of the records, separately for each coefficient. Where sites differ, a "
            f"site with less noise counts more.{reference}"
        )


def _name(design: Design, coefficient: Coefficient) -> str:
    ratio = RATIOS.get(design.task.loss, "effect")
    per = f", per {coefficient.per:g}" if coefficient.reference < 0 else ""
    return f"{ratio} of {coefficient.name}{per}"


def _coefficients(kind: ReleaseKind) -> Coefficients:
    if not isinstance(kind, Coefficients):
        raise TypeError("a message on coefficients is of the kind 'coefficients'")
    return kind


HALF = CoefficientsReading()
