"""Private choice of a model by the exponential mechanism.

As in ``noisy_max.py`` the client counts, for each of M models, the records that the model gets
right; here it adds independent Gumbel noise of scale 1/ε to each, and releases which is largest.

**A choice costs ε, with δ = 0.** The largest of c_m + Gumbel/ε is model m with probability
p_m(c) = e^{ε·c_m} / Σ_k e^{ε·c_k} (the exponential mechanism; McSherry and Talwar, FOCS 2007).
Adding a record adds v ∈ {0, 1}^M to c, so

    ln p_m(c) − ln p_m(c + v) = ln(Σ_k e^{ε·(c_k + v_k)} / Σ_k e^{ε·c_k}) − ε·v_m.

The logarithm lies within [0, ε], because each term of the sum grows by 1 to e^ε, and so does
ε·v_m: the difference lies within [−ε, ε], whichever of the two data sets is the larger one. In
general the scale must be 2/ε (Dwork and Roth, The Algorithmic Foundations of Differential Privacy,
Theorem 3.10): the factor 2 pays for scores of which some rise while others fall. Under add/remove
all counts move one way. Replacing a record moves them both ways, and costs 2ε.

R-DPCFL (Malekmohammadi, Taik and Farnadi, TMLR 2025) takes the factor 2, on the accuracy, and sums
ε²/8-zCDP. Here the choices are charged as any releases that are ε-DP (``PureSelections``), in one
privacy-loss distribution with the training.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.profile import MIN_DELTA
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import PureSelections
from hdpfl_flower.privacy.noise import RandomStream

Counts = npt.NDArray[np.int64]


def choose_model_by_gumbel(correct: Counts, epsilon: float, stream: RandomStream) -> int:
    """Return the index of the largest count after Gumbel noise of scale 1/ε.

    Args:
        correct: records that each model gets right, whole numbers, shape ``(M,)``; all counted on
            the same records, every record of the client once.
        epsilon: of this choice, :func:`pure_selections`; ``inf``: the first of the largest, no
            privacy.
        stream: the noise stream of this release alone.

    Guarantees:
        ε-DP under adding or removing one record, for exact Gumbels; those of float64 end where
        their tails are below 2⁻⁵³.

    Raises:
        AccountingError: no counts, not whole numbers, or ε ≤ 0.
    """
    check_counts(correct)
    if not epsilon > 0:
        raise AccountingError("the epsilon of a choice must be positive")
    return int(np.argmax(correct + stream.gumbel(len(correct)) / epsilon))


def check_counts(correct: Counts) -> None:
    """Refuse invalid counts; raises ``AccountingError``."""
    if correct.ndim != 1 or not len(correct) or not np.issubdtype(correct.dtype, np.integer):
        raise AccountingError("a choice needs one whole number a model")


def pure_selections(epsilon: float, delta: float, count: int) -> PureSelections:
    """Return the dearest ``count`` choices within (ε, δ).

    Args:
        epsilon: of all choices; ``inf``: each costs ``inf``.
        delta: of all choices.
        count: ≥ 0.

    Guarantees:
        The ε of each is rounded down at the sixth significant digit.

    Raises:
        AccountingError: ε or δ out of range, or a negative count.

    >>> pure_selections(1.0, 1e-5, 20)
    PureSelections(epsilon=0.0635734, count=20)
    """
    if not epsilon > 0 or not MIN_DELTA <= delta < 1 or count < 0:
        raise AccountingError(
            "choices need an epsilon above 0, a delta in [1e-10, 1), a count >= 0"
        )
    if math.isinf(epsilon) or not count:
        return PureSelections(math.inf, count)
    # Basic composition affords ε/count with no δ at all: a lower end that always fits.
    low, high = epsilon / count, 2 * epsilon / count
    while composed_delta(high, count, epsilon) <= delta:
        low, high = high, 2 * high
    while high > low * (1 + 1e-9):
        middle = (low + high) / 2
        if composed_delta(middle, count, epsilon) <= delta:
            low = middle
        else:
            high = middle
    # `low` fits, and rounding down keeps it so.
    digits = 5 - math.floor(math.log10(low))
    return PureSelections(math.floor(low * 10.0**digits) / 10.0**digits, count)


def composed_delta(per_release: float, count: int, epsilon: float) -> float:
    """Return the exact δ of ``count`` pure-ε releases at ``epsilon``.

    With e the ε of a release: δ = Σ_l C(k, l)·max(0, exp((k−l)·e) − exp(epsilon + l·e)) / (1 +
    exp(e))^k (Kairouz, Oh and Viswanath, The Composition Theorem for Differential Privacy, ICML
    2015, Theorem 3.3).

    >>> round(composed_delta(1.0, 1, 0.0), 6)  # (e − 1)/(e + 1)
    0.462117
    """
    total = 0.0
    # ln (1 + exp(per_release))^count, without the exponential, which may overflow.
    whole = count * (per_release + math.log1p(math.exp(-per_release)))
    for failed in range(count + 1):
        # The exponents' difference; it falls with `failed`, so that no later term is positive.
        over = (count - 2 * failed) * per_release - epsilon
        if over <= 0:
            break
        ways = math.lgamma(count + 1) - math.lgamma(failed + 1) - math.lgamma(count - failed + 1)
        # e^a − e^b = −e^a·(e^(b−a) − 1), with expm1 where the two are nearly equal.
        total -= math.exp(ways + (count - failed) * per_release - whole) * math.expm1(-over)
    return total
