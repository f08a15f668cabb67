"""Empirical lower bound on ε from scores of planted canaries.

A tester plants records (canaries), each with a coin of its own that says whether it takes part, and
gives each a score from the releases. Where the mechanism is Gaussian and no canary touches
another's score, the scores are N(0, σ²) without and N(D, σ²) with the canary, and all that can be
known of one record is μ = D/σ (Gaussian differential privacy). So many canaries in one run give a
confidence bound on μ, and with it on ε at every δ. It can show that a claim is false; it can never
prove one, for another attack may see more.

Scores that are not Gaussian, as where a release shows which coordinates were chosen, become guesses
at a threshold that is fixed before: exact bounds on the rates of both errors bound ε.

References: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run (NeurIPS 2023);
Nasr et al., Tight Auditing of Differentially Private Machine Learning (USENIX Security 2023); Dong,
Roth and Su, Gaussian Differential Privacy (JRSS B 2022); Balle and Wang (ICML 2018), Theorem 8;
Kairouz, Oh and Viswanath, The Composition Theorem for Differential Privacy (ICML 2015), Theorem 2.1
(the region of both errors); Clopper and Pearson (Biometrika 1934).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, log_ndtr, ndtri

from hdpfl_flower.errors import AccountingError

_MAX_MU = 1e3
"""Largest μ, also for no noise: ε is about 500,000."""


@dataclass(frozen=True)
class Evidence:
    """Evidence on μ, the canary's distance in σ.

    Attributes:
        mu: the estimate of μ.
        standard_error: √(1/n_in + 1/n_out), that of the difference of means, in σ.
        freedom: degrees of freedom ν of the estimated σ.
    """

    mu: float
    standard_error: float
    freedom: int

    def mu_bound(self, error_rate: float) -> float:
        """Return a number that is above the true μ in at most ``error_rate`` of all runs.

        t = μ̂/standard_error is noncentral t with ν degrees of freedom. Its bound is taken from the
        normal approximation: Z − t·S has mean −t·E S and variance 1 + t²·Var S, S = √(χ²_ν/ν),
        E S > 1 − 1/(4ν), Var S < 1/(2ν). S is skewed to the right, so that the tail is lighter
        than the normal one: the error rate is at most the one asked for, and above 0.9 of it for
        ν = 25,000 and rates down to 1e-6 (Johnson and Welch 1940).
        """
        # The bound b solves P(T > t) = error_rate: Z − t·S is above −b in that share of runs.
        t, nu = self.mu / self.standard_error, self.freedom
        quantile = -float(ndtri(error_rate))
        spread = math.sqrt(1 + t * t / (2 * nu))
        return (t * (1 - 1 / (4 * nu)) - quantile * spread) * self.standard_error

    def epsilon(self, delta: float) -> float:
        """Return the estimate of ε at ``delta``."""
        return gaussian_epsilon(self.mu, delta)

    def epsilon_bound(self, delta: float, error_rate: float) -> float:
        """Return a number that is above the true ε in at most ``error_rate`` of all runs."""
        return gaussian_epsilon(self.mu_bound(error_rate), delta)


@dataclass(frozen=True)
class Guesses:
    """Evidence on μ of guesses at a fixed, distribution-free threshold.

    Attributes:
        members: canaries that took part.
        found: those of them that were guessed to.
        others: canaries that did not take part.
        mistaken: those of them that were guessed to.
        gaussian: whether the claim is that of a Gaussian mechanism. Then
            μ ≥ Φ⁻¹(found share) − Φ⁻¹(mistaken share) (Dong, Roth and Su), which proves more.
    """

    members: int
    found: int
    others: int
    mistaken: int
    gaussian: bool

    def epsilon(self, delta: float) -> float:
        """Return the estimate of ε at ``delta``; half a record is added to every count."""
        hits = (self.found + 0.5) / (self.members + 1)
        return self._epsilon(delta, hits, (self.mistaken + 0.5) / (self.others + 1))

    def epsilon_bound(self, delta: float, error_rate: float) -> float:
        """Return a number that is above the true ε in at most ``error_rate`` of all runs.

        Exact bounds on both shares (Clopper and Pearson), each at half the error rate; the guesses
        must be independent.
        """
        half = error_rate / 2
        hits = _least_share(self.found, self.members, half)
        mistaken = 1 - _least_share(self.others - self.mistaken, self.others, half)
        return self._epsilon(delta, hits, mistaken)

    def _epsilon(self, delta: float, hits: float, mistaken: float) -> float:
        if self.gaussian:
            if hits <= mistaken:
                return 0.0
            return gaussian_epsilon(float(ndtri(hits) - ndtri(mistaken)), delta)
        # P(guess | in) ≤ e^ε·P(guess | out) + δ, and the same of the opposite guess.
        ratios = ((hits - delta, mistaken), (1 - mistaken - delta, 1 - hits))
        return max(
            [0.0] + [math.log(above / below) for above, below in ratios if above > below > 0]
        )


def guesses_of(
    scores: npt.NDArray[np.float64],
    members: npt.NDArray[np.bool_],
    cut: float,
    *,
    gaussian: bool,
) -> Guesses:
    """Return guesses "took part" above ``cut``, fixed beforehand.

    Args:
        scores: of canaries, any shape.
        members: which of them took part, same shape; independent coins.
        cut: the threshold.
        gaussian: see :class:`Guesses`.

    Raises:
        AccountingError: a score is not finite, or all canaries are in, or out.
    """
    if not np.isfinite(scores).all():
        raise AccountingError("audit: a released number is not finite")
    guessed, count = scores > cut, int(members.sum())
    if not 0 < count < members.size:
        raise AccountingError("audit: too few canaries; some must be in and some out")
    hits, mistaken = int((guessed & members).sum()), int((guessed & ~members).sum())
    return Guesses(count, hits, members.size - count, mistaken, gaussian)


def _least_share(count: int, of: int, error_rate: float) -> float:
    """Return an upper binomial bound, wrong at most at ``error_rate``."""
    return float(betaincinv(count, of - count + 1, error_rate)) if count else 0.0


def evidence_of(scores: npt.NDArray[np.float64], members: npt.NDArray[np.bool_]) -> Evidence:
    """Return the evidence of ``scores`` on μ; σ from excluded canaries.

    Args:
        scores: a row a release, a column a canary, shape ``(releases, canaries)``, any unit.
        members: which canaries took part, same shape; fair coins.

    Each release is compared with itself: its difference of means gets the weight
    n_in·n_out/(n_in + n_out), and σ² is the variance within releases. Noise that a whole release
    shares hides nothing then.

    Raises:
        AccountingError: a score is not finite, or a release has too few canaries.
    """
    if not np.isfinite(scores).all():
        raise AccountingError("audit: a released number is not finite")
    # Shape (releases,), as the means and weights below.
    n_in = members.sum(1)
    n_out = members.shape[1] - n_in
    if min(n_in.min(), n_out.min()) < 2:
        raise AccountingError("audit: too few canaries; every release needs some in and some out")
    mean_in = np.where(members, scores, 0.0).sum(1) / n_in
    mean_out = np.where(members, 0.0, scores).sum(1) / n_out
    weights = n_in * n_out / (n_in + n_out)
    difference = float(np.average(mean_in - mean_out, weights=weights))
    # One mean a release is estimated, and takes one degree of freedom.
    freedom = int(n_out.sum()) - len(scores)
    residuals = np.where(members, 0.0, scores - mean_out[:, None])
    sigma = math.sqrt(float(np.square(residuals).sum()) / freedom)
    # Without noise σ is 0 and the ratio has no value: μ is then the largest that counts.
    if abs(difference) < _MAX_MU * sigma:
        mu = difference / sigma
    else:
        mu = math.copysign(_MAX_MU, difference) if difference else 0.0
    return Evidence(mu, 1 / math.sqrt(float(weights.sum())), freedom)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of a Gaussian of ``mu`` σ, rounded down.

    The least ε ≥ 0 with Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) ≤ δ, exact (Balle and Wang, Theorem 8);
    0 for μ ≤ 0.

    >>> round(gaussian_epsilon(1 / 4.224679, 1e-6), 5)
    1.0
    """
    mu = min(mu, _MAX_MU)
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # δ(ε) falls with ε. `low` keeps δ(low) above `delta`, so that ε is rounded down.
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    # Ends where no float lies between the two.
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return δ of a Gaussian of sensitivity ``mu`` > 0 σ."""
    inside = float(log_ndtr(mu / 2 - epsilon / mu))
    outside = float(log_ndtr(-mu / 2 - epsilon / mu))
    # In logarithms, for e^ε overflows where its product with a tiny Φ does not.
    return math.exp(inside) - math.exp(epsilon + outside)
