"""Clusters of clients by their first updates, as in R-DPCFL.

Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning (TMLR 2025):
a mixture of spherical normals on a two-dimensional picture of the updates, and the separation of
its components. The picture follows the authors' code step by step: the coordinates are
standardised over the clients, two principal components are fitted to them, the original updates,
not standardised, are projected on them, and each axis is scaled to [0, 1]. Only noisy updates are
read, so that clustering costs no privacy.

Its measure of separation is valid if all clients have the same noise. Under unequal noise the two
components are the noisiest clients' own noise, and a client in a cluster of its own separates from
the rest without end: ``noise_mixture.py`` is for that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

SEPARATED = 2.0
"""MSS above which all clusters of the paper were right, at equal noise."""
STARTS = 10
"""Starts of a mixture's fit, with a fixed seed; the likeliest counts."""

ONE, LABEL_SKEW, SEVERAL, UNCHECKED = "one cluster", "label skew", "clusters", "labels not checked"
"""Claims, see ``claims.py``; the last: labels may explain the clusters."""

_BLOCK = 16_384
_MOST = 10
"""Maximum clusters tried if not set, as in the authors' code."""


@dataclass(frozen=True)
class Clusters:
    """Clients and their clusters.

    Attributes:
        shares: πᵢₘ, each client's probability of each cluster, shape ``(n, M)``, rows sum to 1.
        positions: the picture that was clustered, shape ``(n, k)``.
        separations: SS of each pair of clusters, shape ``(M, M)``; the diagonal is infinite.
        above_noise: whether the picture shows more than noise, as far as the method can test it.
        claim: ``ONE``, ``LABEL_SKEW``, ``SEVERAL`` or ``UNCHECKED``, as ``claims.py`` finds it;
            empty: not checked.
    """

    shares: Matrix
    positions: Matrix
    separations: Matrix
    above_noise: bool = True
    claim: str = ""

    @property
    def assignment(self) -> npt.NDArray[np.int64]:
        """Likeliest cluster of each client, shape ``(n,)``."""
        likeliest: npt.NDArray[np.int64] = np.argmax(self.shares, axis=1)
        return likeliest

    @property
    def confidence(self) -> Vector:
        """Probability of that cluster, shape ``(n,)``."""
        highest: Vector = np.max(self.shares, axis=1)
        return highest

    @property
    def misplaced(self) -> float:
        """Expected number of clients outside their likeliest cluster."""
        return float(np.sum(1 - self.confidence))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of clients in each cluster, shape ``(M,)``."""
        return np.bincount(self.assignment, minlength=self.shares.shape[1])

    @property
    def mss(self) -> float:
        """Least separation of two clusters."""
        return float(self.separations.min())

    @property
    def mpo(self) -> float:
        """Largest pairwise overlap, 2·Q(MSS), within [0, 1]."""
        # 2·Q(x) = erfc(x/√2).
        return math.erfc(self.mss / math.sqrt(2))

    @property
    def separated(self) -> bool:
        """Whether to trust the clusters: MSS > 2, sizes > 1, above noise.

        A component on one client has almost no width: its separation is meaningless. If a claim
        was checked, it must be that of clusters.
        """
        several = self.claim in ("", SEVERAL, UNCHECKED)
        apart = self.above_noise and self.mss > SEPARATED and int(self.sizes.min()) > 1
        return several and apart


def cluster_updates(updates: Updates, models: int = 0) -> Clusters:
    """Return the clusters of the paper's map.

    Args:
        updates: the noisy first updates from one common model, float32, shape ``(n, d)``.
        models: M; 0: the number from 2 to 10 with the largest MSS.

    Guarantees:
        One pass over the updates. The same updates in the same order return the same clusters.

    Raises:
        StrategyError: fewer than 2 clients, or M is not between 2 and their number.
    """
    candidates = candidate_models(len(updates), models)
    positions = pca_picture(updates)
    return select_best_separated([_fit(positions, count) for count in candidates])


def pca_picture(updates: Updates) -> Matrix:
    """Return the authors' picture of the updates, float64 ``(n, 2)``, within [0, 1].

    With Z the standardised updates and Z = U S Vᵀ, the updates X lie at X V = (X Zᵀ) U S⁻¹: the
    n × n products are enough, and one pass in blocks computes both. (Z has mean 0 over the clients,
    so that the fitted mean does not change X.) The free sign of each axis makes its largest |U|
    positive; a coordinate in which all clients agree counts as 0, as does an axis without extent.
    """
    n, d = updates.shape
    # Z Zᵀ and X Zᵀ, summed over blocks of coordinates: no second matrix of n × d is in memory.
    standardised, mixed = np.zeros((n, n)), np.zeros((n, n))
    with one_thread():
        for start in range(0, d, _BLOCK):
            block = updates[:, start : start + _BLOCK].astype(np.float64)
            centred = block - block.mean(axis=0)
            spread = np.sqrt(np.square(centred).mean(axis=0))
            centred /= np.where(spread > 0, spread, 1)
            standardised += centred @ centred.T
            mixed += block @ centred.T
        # Z Zᵀ = U S² Uᵀ. eigh returns ascending eigenvalues: the last two are the first axes.
        values, vectors = np.linalg.eigh(standardised)
        positions = mixed @ fix_signs(vectors[:, ::-1][:, :2])
        values = values[::-1][:2]
        positions /= np.sqrt(np.where(values > 0, values, 1))
    positions -= positions.min(axis=0)
    extent = positions.max(axis=0)
    # An axis below this share of the trace is rounding error; scaling would spread it over [0, 1].
    real = values > 1e-12 * max(float(np.trace(standardised)), 1e-300)
    picture: Matrix = np.where(
        real & (extent > 0), positions / np.where(extent > 0, extent, 1), 0.0
    )
    return picture


def last_soft_round(mpo: float, rounds: int) -> int:
    """Return Ec = ⌊(1 − MPO)·E/2⌋, the last round of soft clustering.

    >>> last_soft_round(0.0, 200), last_soft_round(0.31, 200)
    (100, 69)
    """
    return int((1 - mpo) * rounds / 2)


def separations_of(means: Matrix, widths: Vector) -> Matrix:
    """Return SS(m, m') = ‖μₘ − μₘ'‖ / (2·max(sₘ, sₘ')), shape ``(M, M)``; ∞ for m = m'.

    Args:
        means: shape ``(M, k)``.
        widths: standard deviations, positive, shape ``(M,)``.

    >>> separations_of(np.array([[0.0], [6.0]]), np.array([1.0, 1.5]))
    array([[inf,  2.],
           [ 2., inf]])
    """
    apart = np.linalg.norm(means[:, None] - means[None, :], axis=2)
    separations: Matrix = apart / (2 * np.maximum(widths[:, None], widths[None, :]))
    np.fill_diagonal(separations, np.inf)
    return separations


def candidate_models(clients: int, models: int) -> Sequence[int]:
    """Return the cluster numbers to try: ``models``, or 2 to 10.

    Raises:
        StrategyError: fewer than 2 clients, or M is not between 2 and their number.
    """
    if clients < 2 or (models and not 2 <= models <= clients):
        raise StrategyError(
            f"{models} clusters of {clients} clients; with at least 2 clients ask for 2 to as many "
            "as they are, or 0 to have the number found"
        )
    return (models,) if models else range(2, max(2, min(_MOST, clients - 1)) + 1)


def select_best_separated(fits: Sequence[Clusters]) -> Clusters:
    """Return the clusters with the largest MSS; on ties the fewest."""
    return max(fits, key=lambda clusters: clusters.mss)


def fix_signs(vectors: Matrix) -> Matrix:
    """Return the columns with their largest entry made positive."""
    largest = np.argmax(np.abs(vectors), axis=0)
    fixed: Matrix = vectors * np.where(vectors[largest, range(vectors.shape[1])] < 0, -1, 1)
    return fixed


def _fit(positions: Matrix, models: int) -> Clusters:
    """Return the mixture of spherical normals, equally weighted as in the code."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(
        models,
        covariance_type="spherical",
        init_params="k-means++",
        tol=1e-6,
        max_iter=1000,
        n_init=STARTS,
        random_state=0,
    )
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the best fit reached is used
        mixture.fit(positions)
        mixture.weights_ = np.full(models, 1 / models)
        shares = mixture.predict_proba(positions)
    widths = np.sqrt(mixture.covariances_)
    return Clusters(shares, positions, separations_of(mixture.means_, widths))
