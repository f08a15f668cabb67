"""Noise level of each update of a round, from updates alone.

The model: the columns of the (d, n) matrix of updates share a low-rank signal and have each their
own noise, so that their Gram matrix over d is ΛΛᵀ + diag(σ²). This is factor analysis, and the
n × n Gram matrix is enough: one pass over the updates, for any d.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.credible import FLAT, flat_updates, levels_of_flat, require_finite
from hdpfl_flower.estimators.factor_analysis import (
    FactorModel,
    effective_dimension,
    factor_analysis,
)
from hdpfl_flower.estimators.identification import MAD_NOISE, doubt
from hdpfl_flower.estimators.near_copies import (
    COPIES,
    LEFT_OF_DIFFERENCES,
    counts_of,
    near_copies,
    one_of_each,
    shared_out,
)
from hdpfl_flower.estimators.residual_mad import heavy_tailed, residual_mad
from hdpfl_flower.estimators.robust_pca import sampled_rpca
from hdpfl_flower.linalg.sums import mean_squares, second_moments
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

_SAMPLE = 20_000
"""Coordinates sampled for a distribution's shape; more cost memory without gain."""
_GLIMPSE = 2_000
"""Coordinates that show a flat update, if no larger sample is needed."""
_LINE = 16
"""Coordinates drawn together: a cache line of float32."""

_HUNDREDTH = 0.01

ESTIMATORS = ("auto", "factor-analysis", "residual-mad", "rpca", "column-norm")
"""All estimators by name; users choose ``auto`` or ``rpca``."""


@dataclass(frozen=True)
class NoiseLevels:
    """Result of a noise estimator.

    Attributes:
        variances: σ² per coordinate, shape ``(n,)``, positive.
        method: the estimator of these values; for ``auto``, its choice.
        why: the reason for that choice, or the quality of the values.
        identified: whether the weights ∝ 1/σ² are nearly those of the true noise: q ≤ 1.1 in 95 %
            of rounds where it is True (``identification.py``). Where False, ``why`` is the reason,
            and the values are mostly upper bounds.
        copies: number of near copies of each update, itself included; ``variances`` has
            been multiplied by it. Shape ``(n,)``; None: there are no copies.
    """

    variances: Vector
    method: str
    why: str
    identified: bool = True
    copies: Vector | None = None


def estimate_noise_levels(
    updates: Updates, method: str = "factor-analysis", *, copies: bool = True
) -> Vector:
    """Return the variances of :func:`measure_noise`, shape ``(n,)``."""
    return measure_noise(updates, method, copies=copies).variances


def measure_noise(updates: Updates, method: str = "auto", *, copies: bool = True) -> NoiseLevels:
    """Return each update's noise variance per coordinate.

    Args:
        updates: float32, shape ``(n, d)``, a client per row; no row of zeros.
        method: ``factor-analysis``; ``residual-mad`` (the middle of its residuals: a sparse private
            signal does no harm); ``rpca`` (the paper's: principal component pursuit);
            ``column-norm`` (the whole update counts as noise); or ``auto``: ``residual-mad`` if the
            residuals are heavy-tailed, else ``factor-analysis``.
        copies: whether near copies count as one client. False if agreeing clients are
            sought, as for clusters.

    Returns:
        The levels. Two clients or fewer do not identify their noise in one round, and get their
        mean squares: upper bounds. A flat update gets the largest level of the others
        (``credible.py``), near copies count as one client (``near_copies.py``); with either of
        these no level is called identified.

    Raises:
        EstimationError: a number that is not finite, or too large to be squared.
        StrategyError: an unknown method, or a row of zeros.
    """
    if method not in ESTIMATORS:
        raise StrategyError(
            f"'{method}' is not an estimator; choose one of {', '.join(ESTIMATORS)}"
        )
    if not all(row.any() for row in updates):
        raise StrategyError("an update of zeros has no noise to estimate; leave it out")
    size = _GLIMPSE if method in ("rpca", "column-norm") else _SAMPLE
    sample = np.take(updates, sample_coordinates(updates, size), axis=1)
    with one_thread():
        estimate = _measure(updates, sample, method, copies)
    if estimate.copies is not None:
        estimate = replace(
            estimate,
            variances=estimate.variances * estimate.copies,
            why=f"{estimate.why}; {COPIES}",
            identified=False,
        )
    flat = flat_updates(sample)
    if flat.any():
        levels = levels_of_flat(estimate.variances, flat)
        estimate = replace(
            estimate, variances=levels, why=f"{estimate.why}; {FLAT}", identified=False
        )
    return estimate


def sample_coordinates(updates: Updates, size: int) -> npt.NDArray[np.intp]:
    """Return about ``size`` coordinates, ascending, or all.

    They are drawn in runs of a cache line, so that reading them needs no pass over the updates,
    and by a hash of all clients' updates: no client can predict the sample.
    """
    d = updates.shape[1]
    if d <= size + _LINE:
        return np.arange(d)
    glimpse = np.ascontiguousarray(updates[:, :: max(d // 256, 1)])
    generator = np.random.default_rng(list(hashlib.sha256(glimpse.tobytes()).digest()))
    lines = np.sort(generator.choice(d // _LINE, size // _LINE, replace=False))
    return (lines[:, None] * _LINE + np.arange(_LINE)).ravel()


def _measure(updates: Updates, sample: Updates, method: str, copies: bool) -> NoiseLevels:
    """Return the levels, not yet multiplied by the number of copies."""
    if method == "column-norm" or len(updates) < 3:
        few = method != "column-norm"
        why = "fewer than 3 clients, upper bounds" if few else "all of an update taken for noise"
        return NoiseLevels(_finite_squares(updates), "column-norm", why, identified=False)
    if method == "rpca":
        _finite_squares(updates)
        pursuit = sampled_rpca(updates)
        require_finite(pursuit.variances)
        why = f"{pursuit.sweeps} sweeps, never checked for signal in the noise"
        return NoiseLevels(pursuit.variances, method, why, identified=False)
    return _one_round(updates, sample, method, copies)


def _finite_squares(updates: Updates) -> Vector:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = mean_squares(updates)
    require_finite(squares)
    return squares


def _one_round(updates: Updates, sample: Updates, method: str, copies: bool) -> NoiseLevels:
    """Return the levels by factor analysis or its residuals' MAD."""
    d = updates.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        moments = second_moments(updates)
    squares = np.diag(moments)
    require_finite(squares)
    share = effective_dimension(sample, second_moments(sample)) / sample.shape[1]
    model = factor_analysis(moments, d, share * d)
    groups = near_copies(moments, d, model, share * d) if copies else []
    if not groups:
        return _by_model(model, moments, sample, share * d, method)
    rows = one_of_each(groups, len(updates))
    rest, counts = moments[np.ix_(rows, rows)], counts_of(groups, len(updates))
    if len(rows) < 3:
        why = "fewer than 3 clients but for copies, upper bounds"
        estimate = NoiseLevels(np.diag(rest), "column-norm", why, identified=False)
    else:
        model = factor_analysis(rest, d, share * d)
        estimate = _by_model(model, rest, sample[rows], share * d, method)
    levels = shared_out(estimate.variances, rows, groups, squares)
    return replace(estimate, variances=levels, copies=counts)


def _by_model(
    model: FactorModel, moments: Matrix, sample: Updates, effective: float, method: str
) -> NoiseLevels:
    """Return the levels of the model or residuals, and whether identified."""
    levels, used, why = model.variances, "factor-analysis", ""
    if method != "factor-analysis":
        variances, scores = residual_mad(sample, model)
        heavy = heavy_tailed(scores)
        if method == "residual-mad" or heavy:
            levels, used = variances, "residual-mad"
            why = f", {'heavy-tailed' if heavy else 'normal'} residuals"
            effective = min(effective, sample.shape[1]) / MAD_NOISE
    problem = doubt(model, levels, moments, effective)
    factors = f"shared factors {model.loadings.shape[1]}"
    return NoiseLevels(
        levels, used, (f"{problem}, upper bounds" if problem else factors) + why, not problem
    )


@dataclass(frozen=True)
class Differences:
    """Levels from two uploads of each client.

    Attributes:
        variances: σ² per coordinate, shape ``(n,)``, positive.
        copies: number of near copies of each, shape ``(n,)``; the variances are not
            multiplied by it.
        sure: whether a hundredth of the change that counts as shared would be less than a quarter
            of the level, shape ``(n,)``.
    """

    variances: Vector
    copies: Vector
    sure: npt.NDArray[np.bool_]


def difference_levels(
    updates: npt.NDArray[np.floating], previous: npt.NDArray[np.floating]
) -> Differences:
    """Return noise variances from differences of each client's two uploads.

    A client's own signal hardly changes between rounds and cancels; a change shared by
    many clients is removed by factor analysis of the differences, but never more than 99 % of
    a client's difference: a factor may be one client's own (a Heywood case).

    Raises:
        EstimationError: a number that is not finite, or too large to be squared.
    """
    n, d = updates.shape
    with np.errstate(over="ignore", invalid="ignore"):
        differences = (updates - previous) / np.sqrt(np.float32(2))
        moments = second_moments(differences)
        floor = 1e-12 * float(np.max(mean_squares(updates)))
    squares = np.diag(moments)
    require_finite(np.append(squares, floor))
    levels, counts = np.maximum(squares, floor), np.ones(n)
    if n > 2 and np.all(squares > floor):
        model = factor_analysis(moments, d)
        groups = near_copies(moments, d, model, most_left=LEFT_OF_DIFFERENCES)
        levels, counts = model.variances, counts_of(groups, n)
        if groups:
            rows = one_of_each(groups, n)
            rest = moments[np.ix_(rows, rows)]
            rest_levels = factor_analysis(rest, d).variances if len(rows) > 2 else np.diag(rest)
            levels = shared_out(rest_levels, rows, groups, squares)
    sure = _HUNDREDTH * (squares - levels) <= 0.25 * levels
    return Differences(np.maximum(levels, _HUNDREDTH * squares), counts, sure)
