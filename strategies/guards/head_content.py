"""Class content of updates, read from softmax heads with public records.

A step of cross-entropy moves row c of the last layer by Σ (1[y = c] − p_c(x))·x over the records x
of label y. If the records of class a lie near their mean P_a, the row is Σ_a Y[c, a]·P_a with

    Y[c, a] = Σ_{x of class a} (1[y = c] − p_c(x)),   estimated by Y = S·P⁺.

With any labels, honest training makes Y[c, a] negative off the diagonal and positive
on it: a record teaches its own class and unteaches the others. A positive Y[c, a], c ≠ a, shows
that records of class a were labelled c. Signal adds up over rounds and noise averages out, so
content is read from sums over uploads. P are the means of public records, at the inputs of the last
layer, with a 1 for the bias. New here; for a network P uses the features of the round's model.

Records of another distribution than the public ones (turned images) have no content in these means:
:func:`fit_to_public` finds how much of an update lies outside them, where public records vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head

Floats = npt.NDArray[np.float64]

BESIDE = 20
"""Maximum directions outside the class means that are examined."""


@dataclass(frozen=True)
class PublicMeans:
    """Public records at the last layer's inputs, with a bias 1.

    Attributes:
        means: P, of each class, shape ``(classes, inputs + 1)``.
        inverse: P⁺, shape ``(inputs + 1, classes)``.
        noise: the variance of a content at noise of variance 1, diag(P⁺ᵀP⁺), shape ``(classes,)``.
        span: orthonormal basis of the means, shape ``(inputs + 1, classes)``.
        beside: orthonormal, outside the span: where the records vary most, shape
            ``(inputs + 1, m)``, m ≤ ``BESIDE``.
        contrast: the means without their common part and without brightness, of norm 1, shape
            ``(classes, inputs + 1)``.
    """

    means: Floats
    inverse: Floats
    noise: Floats
    span: Floats
    beside: Floats
    contrast: Floats


def public_means(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int
) -> PublicMeans | None:
    """Return the means of public records; None if undetermined.

    They must determine a content of every class.

    Args:
        features: of the records at the inputs of the last layer, shape ``(r, inputs)``.
        labels: their classes, shape ``(r,)``.
        classes: number of classes, at least 2.

    >>> found = public_means(np.eye(3, dtype=np.float32), np.array([0, 0, 1]), 2)
    >>> found.means
    array([[0.5, 0.5, 0. , 1. ],
           [0. , 0. , 1. , 1. ]])
    >>> public_means(np.eye(3, dtype=np.float32), np.array([0, 0, 0]), 2) is None
    True
    """
    counts = np.bincount(labels, minlength=classes)
    if len(counts) > classes or not counts.all() or not np.isfinite(features).all():
        return None
    rows = np.concatenate([features, np.ones((len(features), 1), np.float32)], axis=1)
    rows = rows.astype(np.float64)
    means = np.array([rows[labels == label].mean(axis=0) for label in range(classes)])
    left, sizes, right = np.linalg.svd(means, full_matrices=False)
    if means.shape[1] < classes or sizes[-1] <= _RANK * sizes[0]:
        return None
    inverse = (right.T / sizes) @ left.T
    rest = rows - (rows @ right.T) @ right
    most = min(BESIDE, means.shape[1] - classes)
    beside = _main_directions(rest, most)
    common = means.mean(axis=0)
    contrast = means - common
    contrast = contrast - np.outer(contrast @ common, common) / (common @ common)
    length = float(np.linalg.norm(contrast))
    if not length:
        return None
    return PublicMeans(
        means,
        inverse,
        np.sum(np.square(inverse), axis=0),
        right.T.copy(),
        beside,
        contrast / length,
    )


def _main_directions(rows: Floats, most: int) -> Floats:
    """Return at most ``most`` orthonormal directions of largest variation, shape (k, m)."""
    from scipy.linalg import eigh

    last = rows.shape[1] - 1
    if most < 1:
        return np.zeros((last + 1, 0))
    spread, ways = eigh(rows.T @ rows, subset_by_index=[last + 1 - most, last])
    directions: Floats = ways[:, spread > _RANK**2 * np.sum(np.square(rows))]
    return directions


_RANK = 1e-6
"""Relative singular value below which float32 determines no content."""


def head_rows(updates: npt.NDArray[np.float32], head: Head) -> Floats:
    """Return each update's head rows with biases, ``(n, classes, inputs + 1)``.

    A head of one row (a logit of two classes) counts as two, ∓row/√2: of the same norm, each with
    half the noise.

    >>> head_rows(np.array([[9, 1, 2, 3, 4, 5, 6]], np.float32), Head(1, 2, 2))
    array([[[1., 2., 5.],
            [3., 4., 6.]]])
    """
    middle = head.start + head.classes * head.inputs
    weights = updates[:, head.start : middle].reshape(len(updates), head.classes, head.inputs)
    biases = updates[:, middle : middle + head.classes, None]
    rows = np.concatenate([weights, biases], axis=2).astype(np.float64)
    if head.classes == 1:
        rows = np.concatenate([-rows, rows], axis=1) / math.sqrt(2)
    return rows


def copies_of(head: Head) -> int:
    """Return how many :func:`head_rows` share the same noise.

    2 for a logit, else 1.

    Each has the update's variance over this number.
    """
    return 2 if head.classes == 1 else 1


def content_scores(content: Floats, noise: Floats, tolerance: float) -> Floats:
    """Return each content's wrong-side distance in standard errors.

    The shape is that of ``content``.

    (Y[c, a] − τ·max|Y|)/se off the diagonal and (−Y[a, a] − τ·max|Y|)/se on it: a model's error is
    in proportion to its content, so that τ of the largest content is tolerated for every client.

    Args:
        content: Y, shape ``(…, classes, classes)``.
        noise: the variances of Y[·, a], shape ``(…, classes)``.
        tolerance: τ.

    >>> Y = np.array([[2.0, -1.0], [1.0, 3.0]])
    >>> content_scores(Y, np.array([0.25, 0.25]), 0.0)
    array([[-4., -2.],
           [ 2., -6.]])
    """
    side = np.where(np.eye(content.shape[-1], dtype=np.bool_), -1.0, 1.0)
    largest = np.abs(content).max(axis=(-2, -1), keepdims=True)
    scores: Floats = (side * content - tolerance * largest) / np.sqrt(noise)[..., None, :]
    return scores


@dataclass(frozen=True)
class Fit:
    """Fit of an update's head to the public means.

    Attributes:
        explained: ‖S·span‖, its noise included, shape ``(n,)``.
        fits: where the part outside the means is surely no more than public records of
            the same classes would leave there, shape ``(n,)``.
    """

    explained: Floats
    fits: npt.NDArray[np.bool_]


def fit_to_public(
    rows: Floats, noise: Floats, public: PublicMeans, most: float, sure: float, copies: int = 1
) -> Fit:
    """Return which sums of head rows the public means explain.

    Squared lengths of s + noise over k coordinates have mean ‖s‖² + k·V and variance
    2k·V² + 4V·‖s‖².

    Args:
        rows: S, sums of :func:`head_rows`, shape ``(n, classes, inputs + 1)``.
        noise: V, their variance a coordinate, shape ``(n,)``.
        public: the public records.
        most: largest ratio of the squared length outside the means to that along them.
        sure: standard errors by which both lengths are shifted against the guard, which then must
            prove its suspicion.
        copies: see :func:`copies_of`.
    """
    classes = rows.shape[1]
    along, beside = (
        np.sum(np.square(rows @ basis), axis=(1, 2)) for basis in (public.span, public.beside)
    )

    def moments(square: Floats, ways: int) -> tuple[Floats, Floats]:
        free = classes * ways
        doubt = np.sqrt(copies * (2 * free * noise**2 + 4 * noise * square))
        return square - free * noise, doubt

    inside, doubt = moments(along, public.span.shape[1])
    outside, further = moments(beside, public.beside.shape[1])
    fits = outside + sure * further < most * (inside - sure * doubt)
    return Fit(np.sqrt(along), fits)
