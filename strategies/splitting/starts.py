"""Splittings with β ≠ 1: the server keeps a start uᵢ per client.

The broadcast model is ū = Σ λᵢuᵢ over the clients that answered so far, and the server keeps the
duals dᵢ = uᵢ − ū, so that client i is sent ū + dᵢ and its update is δᵢ = P(uᵢ) − uᵢ. In terms of
these the scheme of ``scheme.py`` is, with δ̄ = Σ λᵢδᵢ and all clients present,

    ū⁺ = ū + αγδ̄;  dᵢ⁺ = (1 − γβ)dᵢ + αγ(1 − β)(δᵢ − δ̄);  P_H z = ū + αδ̄

and Σ λᵢdᵢ = 0 stays so. A client that is absent has no δᵢ. As in the thesis its zᵢ stays, P_H is
over all clients, and its uᵢ moves on as the scheme has it: with eᵢ = zᵢ − ū and ē = Σ λᵢeᵢ,

    ū⁺ = ū + γē;  dᵢ⁺ = (1 − γ)dᵢ + γ(1 − β)(eᵢ − ē)

This keeps Σ λᵢdᵢ = 0, and the fixed points of FedSplit and FedPi, where all P(uᵢ) are equal; P_H
over those present alone has none. Noise is averaged over all clients in place of those present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategies.splitting.scheme import Scheme

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Starts:
    """Starts of the clients that answered, beside the broadcast model ū.

    Attributes:
        shares: site → λ, up to a common factor; it stays as it was at the site's first answer.
        duals: site → u − ū, float64, shape ``(d,)``; a site that is not there starts from ū.
        answers: site → z − ū of its last answer, float32: it adds nothing up, and was sent in
            float32.
    """

    shares: dict[str, float] = field(default_factory=dict)
    duals: dict[str, Floats] = field(default_factory=dict)
    answers: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Move:
    """Effect of a round on the models.

    Attributes:
        mean: ū⁺ − ū, shape ``(d,)``.
        agreed: P_H z − ū, shape ``(d,)``.
    """

    mean: Floats
    agreed: Floats


def with_shares(
    shares: Mapping[str, float], sites: Sequence[str], weights: Floats
) -> dict[str, float]:
    """Return the unnormalised λ of all sites so far, with new ones.

    P_H must be one projection in every round, so that a λ that was given stays; a new site's stands
    to those of the others present as its weight does to theirs.

    >>> with_shares({"a": 1.0}, ["a", "b"], np.array([0.25, 0.75]))
    {'a': 1.0, 'b': 3.0}
    """
    with_share = [i for i, site in enumerate(sites) if site in shares]
    there, given = float(weights[with_share].sum()), sum(shares[sites[i]] for i in with_share)
    if there and given:
        factor = given / there
    else:  # none to compare with: as much as the others have on average
        factor = sum(shares.values()) * len(sites) / len(shares) if any(shares.values()) else 1.0
    new = {site: factor * float(w) for site, w in zip(sites, weights, strict=True)}
    return {**new, **shares}


def weights_of(shares: Mapping[str, float], sites: Sequence[str]) -> Floats:
    """Return λ of ``sites``, shape ``(n,)``, sum 1; equal if all are 0."""
    weights = np.array([shares[site] for site in sites])
    total = float(weights.sum())
    return weights / total if total else np.full(len(sites), 1 / len(sites))


def next_starts(
    scheme: Scheme, starts: Starts, sites: Sequence[str], updates: Rows
) -> tuple[Starts, Move]:
    """Return the starts and the move of a round; absent sites keep their last answers.

    Args:
        scheme: its γ times the server's rate.
        starts: with the shares of all ``sites``; not changed.
        sites: those present.
        updates: δ, shape ``(n, d)``; not changed.
    """
    answers: dict[str, Rows] = {**starts.answers}
    for site, update in zip(sites, updates, strict=True):
        answer = scheme.alpha * update.astype(np.float64)
        if site in starts.duals:
            answer += starts.duals[site]
        answers[site] = answer
    agreed = np.zeros(updates.shape[1])
    for weight, answer in zip(
        weights_of(starts.shares, list(answers)), answers.values(), strict=True
    ):
        agreed += weight * answer
    gamma, duals, kept_answers = scheme.gamma, {}, {}
    mean = gamma * agreed
    for site in list(answers):
        answer = answers.pop(site)
        dual = answer - agreed
        dual *= gamma * (1 - scheme.beta)
        if gamma != 1 and site in starts.duals:
            dual += (1 - gamma) * starts.duals[site]
        duals[site] = dual
        # Beside the next ū.
        kept_answers[site] = (answer - mean).astype(np.float32)
    return Starts(starts.shares, duals, kept_answers), Move(mean, agreed)
