"""Noise that sites disclose (``noise-std``), believed where their updates do not contradict it.

``estimator = "disclosed"`` of ``robust-hdp`` and ``mmse`` takes it in place of the estimate. With
two to five sites no round shows their noise well: a site's statement is then worth more than an
estimate. The server could estimate the number anyway, in time.

With a softmax layer the test is exact. Of the m *silent sums* of an honest update
(``softmax_head.py``) nothing is signal, so that over the t uploads so far

    m·t·s²/σ²  is χ² of m·t degrees of freedom, s² their mean square, σ the disclosed noise.

Without one, signal may be all that an update shows beyond σ: there a claim is doubted that exceeds
the whole update (a χ² of d degrees with a signal is only larger), or that the estimate exceeds
``BELIEVED``-fold and by chance, so that a lie gains no more than half the noise would.

A doubted claim is not used in this round, and the estimate stands: 0, 10³⁰⁰, and a claim that is to
grab the weight with noisy updates. The probability is ``ALARM`` a run, R rounds and both sides
together: an honest site is doubted in one run of 1,000 at most (without a softmax layer if its
signal moves by less than √3 times its noise), and then loses nothing but its claim. Nor is a claim
believed of near copies, of flat updates, or of a head quieter than the rest of its update allows.

Without a softmax layer an estimate that is not identified may be signal: where one doubts a claim,
all sites have their estimates in that round. That is to be expected in round 1.

Known limits: under ``guard = "content"`` no claim is used. Little noise, truly sent and truly
claimed, is believed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.credible import FLAT
from hdpfl_flower.estimators.near_copies import COPIES
from hdpfl_flower.estimators.softmax_head import BELIEVED, FORGED
from hdpfl_flower.estimators.temporal import KEPT, NoiseEstimate, NoiseMemory
from hdpfl_flower.updates import RoundUpdates

NOISE = "noise-std"
"""The fact: the standard deviation of a coordinate's noise in an update of round 1."""
ALARM = 1e-3
"""Probability that an honest site's claim is doubted in a run."""
DISCLOSED = "disclosed by the site, and not contradicted by its updates"
_DOUBTFUL = (COPIES, FLAT, FORGED)


def with_claims(
    estimate: NoiseEstimate, uploads: NoiseMemory, updates: RoundUpdates, terms: RunTerms
) -> NoiseEstimate:
    """Return ``estimate`` with each believed claim in its place.

    Args:
        estimate: of the round.
        uploads: memory of the sites' uploads, this round's included.
        updates: the round's, with the claims.
        terms: of the run.
    """
    if NOISE not in updates.disclosed:
        return estimate
    from scipy.special import chdtr, chdtrc

    factor = terms.noise_factor(updates.server_round)
    unit = (terms.clip_norm * factor) ** 2  # of the sums of squares that are kept
    alarm = ALARM / (2 * terms.rounds)
    with np.errstate(over="ignore", under="ignore"):
        stated = np.maximum(updates.disclosed[NOISE], 0)  # below 0 nothing is
        claims = np.square(stated * factor / terms.noise_factor(1))
    variances, reasons = estimate.variances.copy(), list(estimate.reasons)
    identified = estimate.identified.copy()
    for i, (site, claim) in enumerate(zip(updates.sites, claims, strict=True)):
        memory = uploads.clients.get(site)
        is_doubtful = any(mark in reasons[i] for mark in _DOUBTFUL)
        if memory is None or is_doubtful or not (0 < claim < np.inf and variances[i] < np.inf):
            continue
        if updates.head is not None:
            silent = updates.head.inputs + 1
            freedom, ratio = silent * memory.uploads, silent * memory.silent * unit / claim
            chances = chdtr(freedom, ratio), chdtrc(freedom, ratio)
        else:
            size, row = updates.updates.shape[1], updates.updates[i]
            # The mean of m differences of neighbours has the variance of 2m/3 independent ones.
            freedom = min(size, KEPT) * max(1.0, 2 * estimate.pairs[i] / 3)
            chances = (
                chdtr(size, float(np.einsum("i,i->", row, row, dtype=np.float64)) / claim),
                chdtrc(freedom, freedom * variances[i] / (BELIEVED * claim)),
            )
        if min(chances) >= alarm:
            variances[i], reasons[i], identified[i] = claim, DISCLOSED, True
        elif updates.head is None and not identified[i]:
            return estimate  # a bound, beside which the others' noise would seem small
    return replace(estimate, variances=variances, reasons=tuple(reasons), identified=identified)
