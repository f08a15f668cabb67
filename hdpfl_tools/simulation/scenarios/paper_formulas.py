"""Noise multipliers of papers, by their own formulas, for reproduction.

None of these protects privacy. They round to the nearest and follow the formula's cost, not
that of the steps, and only a simulation may use them (``calibration = "robust-hdp"`` or
``"pfa"``). The protecting function is :func:`hdpfl_flower.privacy.accounting.calibrate`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.system.extras import extra

ROBUST_HDP_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 65))
"""Rényi orders 1.1, 1.2 … 10.9, 12 … 64.

The cap at 64 alone costs ln(1/δ)/63: 0.146 of ε at δ = 1e-4, so a client of ε ≤ 0.2 gets several
times the noise that it needs.
"""

R_DPCFL_ORDERS = tuple(range(2, 65))
"""Rényi orders of R-DPCFL's check values."""

Stages = tuple[tuple[float, float], ...]
"""Pairs (q, steps) of a run; steps may be fractional, as in papers."""

_MIN_LOG, _MAX_LOG = math.log(0.1), math.log(1e4)
"""Search range of the log noise multiplier."""


@lru_cache(maxsize=4096)
def robust_hdp_multiplier(
    epsilon: float, delta: float, sampling_prob: float, steps: float
) -> float:
    """Return Robust-HDP's noise multiplier z, rounded to two decimals.

    As its authors' code does.

    Malekmohammadi, Yu and Cao (ICML 2024): add/remove Rényi accounting of the subsampled Gaussian
    at ``ROBUST_HDP_ORDERS`` and the conversion ε = rdp + ln(1/δ)/(α − 1) of Mironov (2017). It
    never takes less noise than a tight accountant, apart from rounding to two decimals.

    Args:
        epsilon: the run's ε; ``inf`` is no noise.
        delta: the run's δ.
        sampling_prob: q = b/N.
        steps: noisy steps of the whole run; the authors take E·N/b, which need not be whole.

    Raises:
        AccountingError: a number out of range, or no z up to 10,000 reaches ``epsilon``: the
            formula has the floor ln(1/δ)/63 (ε 0.146 at δ = 1e-4).

    >>> robust_hdp_multiplier(5.45, 1e-4, 32 / 2400, 200 * 75)
    1.62
    """
    _check(epsilon, delta, sampling_prob, steps)
    if math.isinf(epsilon):
        return 0.0
    multiplier = _least(ROBUST_HDP_ORDERS, epsilon, delta, ((sampling_prob, steps),))
    if math.isinf(multiplier):
        raise AccountingError(
            "calibration 'robust-hdp': the paper's accountant cannot reach this epsilon; its "
            "floor is ln(1/delta)/63; take a larger epsilon or delta, or calibration 'pld'"
        )
    return round(multiplier, 2)


@lru_cache(maxsize=4096)
def r_dpcfl_multiplier(epsilon: float, delta: float, stages: Stages) -> float:
    """Return R-DPCFL's noise multiplier z for all stages, unrounded.

    Malekmohammadi, Taik and Farnadi (TMLR 2025): as :func:`robust_hdp_multiplier`, at whole orders
    2 to 64, summed over a first round of large batches and later rounds of small ones.

    Args:
        epsilon: the run's ε; ``inf`` is no noise.
        delta: the run's δ.
        stages: (q, steps): (b¹/N, K·N/b¹) and (b/N, K·(E − 1)·N/b).

    Raises:
        AccountingError: a number out of range, or no z up to 10,000 reaches ``epsilon``.

    >>> first, later = (1.0, 1.0), (32 / 6600, 199 * 6600 / 32)
    >>> round(r_dpcfl_multiplier(5.0, 1e-4, (first, later)), 3)
    1.444
    """
    for sampling_prob, steps in stages:
        _check(epsilon, delta, sampling_prob, steps)
    if math.isinf(epsilon):
        return 0.0
    multiplier = _least(R_DPCFL_ORDERS, epsilon, delta, stages)
    if math.isinf(multiplier):
        raise AccountingError(
            "the paper's accountant cannot reach this epsilon; take a larger epsilon or delta"
        )
    return multiplier


def pfa_multiplier(epsilon: float, delta: float, sampling_prob: float, steps: float) -> float:
    """Return PFA's noise multiplier: z = 10·q·√(T·log₁₀(1/δ)) / ε.

    Liu, Lou, Xiong, Liu and Meng (VLDB 2021) claim a moments accountant; their code has this
    formula, and reads its budget by the same one. At ε ≤ 1 it takes far more noise than needed
    (N = 1,200, b = 8: a nominal 1 is 0.14); where z gets small it takes too little (N = 2,000,
    b = 4: a nominal 10 is 19.8).

    Args:
        epsilon: the run's nominal ε; ``inf`` is no noise.
        delta: the run's δ.
        sampling_prob: q = b/N.
        steps: T, noisy steps of the whole run that the site takes part in.

    Raises:
        AccountingError: a number out of range.

    >>> round(pfa_multiplier(1.0, 1e-5, 8 / 1200, 8000), 3)
    13.333
    """
    _check(epsilon, delta, sampling_prob, steps)
    return 10 * sampling_prob * math.sqrt(steps * math.log10(1 / delta)) / epsilon


def _least(orders: tuple[float, ...], epsilon: float, delta: float, stages: Stages) -> float:
    """Return the least z in 0.1 to 10,000 reaching ε, or ``inf``."""
    # The other orders cannot reach epsilon: their conversion alone exceeds it.
    useful = tuple(a for a in orders if math.log(1 / delta) / (a - 1) < epsilon)
    given = (useful, epsilon, delta, stages)
    if not useful or _excess(_MAX_LOG, *given) > 0:
        return math.inf
    if _excess(_MIN_LOG, *given) <= 0:
        return math.exp(_MIN_LOG)
    from scipy.optimize import brentq

    return math.exp(brentq(_excess, _MIN_LOG, _MAX_LOG, given, xtol=1e-6))


def _excess(
    log_z: float,
    orders: tuple[float, ...],
    epsilon: float,
    delta: float,
    stages: Stages,
) -> float:
    """Return ln(ε of noise e^log_z / ``epsilon``), falling almost linearly."""
    with extra("opacus", "a paper's own noise formula"):
        from opacus.accountants.analysis.rdp import compute_rdp

    # ε(α) = rdp(α) + ln(1/δ)/(α − 1), shape (orders,).
    costs = math.log(1 / delta) / (np.asarray(orders) - 1)
    for sampling_prob, steps in stages:
        # One step times any number: the authors' E·N/b need not be whole.
        step = compute_rdp(
            q=sampling_prob, noise_multiplier=math.exp(log_z), steps=1, orders=list(orders)
        )
        costs = costs + steps * np.asarray(step)
    # The cap keeps the root search finite if the RDP overflows.
    return math.log(min(float(np.min(costs)), 1e300) / epsilon)


def _check(epsilon: float, delta: float, sampling_prob: float, steps: float) -> None:
    if not (epsilon > 0 and 0 < delta < 1 and 0 < sampling_prob <= 1 and steps > 0):
        raise AccountingError(
            "a paper's noise formula needs epsilon > 0, delta in (0, 1), a sampling probability "
            "in (0, 1] and steps > 0"
        )
