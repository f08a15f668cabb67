"""Guard around a strategy: refuses updates, may bound weights.

A class a value of the key ``guard``, each with its own state: :class:`Guard` is ``none``, and
refuses updates of zeros and exact copies; ``cap.py`` and ``by_content.py`` refuse these too. Such
an update seems to carry no noise, and a strategy that weighs by noise gives it all the weight
(measured: weight 1.0000, progress 0). No honest site sends one: noise is drawn anew for every
release. ``registry.py`` makes the guard of a run.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.temporal import NoiseEstimate
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.guards.proof import REPEATS, Floor, ProofState, Rows, refuse_proven

Digests = dict[str, npt.NDArray[np.int64]]
"""Site → digests of its distinct uploads, shape ``(k, 2)``."""
ZEROS = "guard: an update of zeros"
COPY = "guard: a copy of another site's update"
_TOLD = 1024
"""Numbers of an update that identify it among noisy updates."""
FEW = 4
"""Size below which honest updates may be equal by chance."""

Gauges = dict[str, float | npt.NDArray[np.float64]]


@dataclass(frozen=True)
class CopiesState:
    """State of the guard ``none`` between two rounds.

    Attributes:
        digests: site → the digests of its uploads so far.
    """

    digests: Digests = field(default_factory=dict)


@dataclass(frozen=True)
class ProvenState(CopiesState):
    """State of a guard that refuses proven liars.

    Attributes:
        proof: the proofs, and the data that they rest on.
    """

    proof: ProofState = field(default_factory=ProofState)


BY_SITE: Mapping[str, str] = {
    "one_model": "leave it out",
    "common_start": "leave it out, or take 'fedprox'",
    "fresh_noise": "leave it out",
    "whole_updates": "leave it out, or take 'pfa'",
}
"""Needs of guards that compare or bound the sites' steps."""


class Guard:
    """Guard ``none``: refuses zeros and exact copies alone.

    Attributes:
        needs: properties that the strategy must offer, each with the remedy.
        state: after the last round; a checkpoint stores it.
        refused: site → why, of the round that was screened last.
        taken_back: site → the coefficients of its updates that the last outcome takes out of the
            model again, summed over its rounds: rate × scale × weight, the mean over the
            coordinates.
    """

    needs: ClassVar[Mapping[str, str]] = {}
    state: Any

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run.

        Args:
            config: of the run.
            sums: whether the strategy's update is a multiple of the sum of the updates by its
                weights, see ``Declaration``; from another one nothing can be taken out.
            linear_step: whether the server's step is linear, see ``ServerStep``, and the strategy's
                final, see ``Declaration``; after another one nothing can be taken out either.
        """
        del sums, linear_step
        source = config.terms.source
        self._screens = source.site_plans and not source.is_summed
        self._gauges: Gauges = {}
        self.state = CopiesState()
        self.refused: dict[str, str] = {}
        self.taken_back: dict[str, float] = {}

    def welcome(self, optional: frozenset[str], needs: frozenset[str]) -> frozenset[str]:
        """Return the ``optional`` facts and those of the guard.

        The guard does not hand its own on: some strategies weigh by whatever is there.
        """
        del needs
        return optional

    def screen(self, updates: RoundUpdates, model: Arrays | None = None) -> RoundUpdates:
        """Return the accepted updates; ``refused`` has reasons for others.

        Args:
            updates: of the round.
            model: from which the sites trained; ``content`` alone needs it.

        The rows that stay are moved together where they lie, for the server holds one copy of the
        updates: after a refusal ``updates`` is not to be used any more.

        With ``noise = server`` all of them: there no client's part may depend on another one's
        update, and a clipped update of zeros or a copy is no worse than any other.
        """
        del model
        if not self._screens:
            return updates
        digests, self.refused = refuse_copies(self.state.digests, updates.sites, updates.updates)
        self.state = replace(self.state, digests=digests)
        self._gauges = {}
        return without(updates, self.refused)

    def reweigh(self, outcome: Outcome, accepted: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome on ``accepted``, bounded, with gauges.

        ``rate`` is the server's, by which the outcome will be multiplied.

        The journal's ``weights`` are those that the aggregate was made with; ``capped`` is 1 where
        a weight was cut; ``taken_back`` counts the refused sites that lose their earlier part in
        the model with this update.
        """
        del accepted, rate
        return replace(outcome, gauges={**outcome.gauges, **self._gauges})


class ProvingGuard(Guard):
    """Base of guards that also refuse by ``proof.py``."""

    needs = BY_SITE

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run; see :class:`Guard`."""
        super().__init__(config, sums=sums, linear_step=linear_step)
        self._floor = Floor(config.terms.rounds, config.server.noise_floor)
        self.state = ProvenState()

    def _without_proven(self, updates: RoundUpdates) -> RoundUpdates:
        if not (self._screens and updates.sites):
            return updates
        proof, proven = refuse_proven(
            self.state.proof, updates.sites, updates.updates, self._floor, updates.head
        )
        self.state, self.refused = replace(self.state, proof=proof), self.refused | proven
        return without(updates, proven)


def without(updates: RoundUpdates, refused: dict[str, str]) -> RoundUpdates:
    """Return the updates without the ``refused``, in place."""
    stay, rows = [i for i, site in enumerate(updates.sites) if site not in refused], updates.updates
    if len(stay) == len(updates.sites):
        return updates
    # Rows move up only, so that none is overwritten before it is read.
    for row, former in enumerate(stay):
        if row != former:
            rows[row] = rows[former]

    def of(column: npt.NDArray[Any] | None) -> Any:
        return None if column is None else column[stay]

    return replace(
        updates,
        sites=tuple(updates.sites[i] for i in stay),
        updates=rows[: len(stay)],
        disclosed={fact: column[stay] for fact, column in updates.disclosed.items()},
        group=of(updates.group),
        chose=of(updates.chose),
        squares=of(updates.squares),
        projected=of(updates.projected),
        noise=updates.noise and _noise_of(updates.noise, stay),
    )


def _noise_of(noise: NoiseEstimate, stay: list[int]) -> NoiseEstimate:
    return NoiseEstimate(
        noise.variances[stay],
        tuple(noise.reasons[i] for i in stay),
        noise.pairs[stay],
        noise.identified[stay],
    )


def refuse_copies(
    digests: Mapping[str, npt.NDArray[np.int64]],
    sites: Sequence[str],
    updates: Rows,
) -> tuple[Digests, dict[str, str]]:
    """Return the digests after a round, and the sites refused for zeros or copies.

    Args:
        digests: of the rounds before, 96 bits an upload, see :func:`_digest`; not changed.
        sites: the rows' sites.
        updates: float32, shape ``(n, d)``.

    Guarantees:
        Exact copies of one round are all refused, since the copier is not known; a copy of an
        upload of an earlier round is refused alone. Two honest updates of d ≥ 4 numbers with noise
        of their own are taken for copies with probability below 1e-19 (float32 has about 2²² values
        within a standard deviation); of one number each, below 1e-6, and of fewer than four each is
        compared with those of its round and its own last one alone.
    """
    of_rows = [_digest(row) for row in updates]
    often = Counter(digest.tobytes() for digest in of_rows)
    distinct = updates.shape[1] >= FEW
    earlier = {site: rows[0 if distinct else -1 :] for site, rows in digests.items()}
    earlier_digests = {digest.tobytes() for rows in earlier.values() for digest in rows}
    after, refused = dict(digests), {}
    for site, row, digest in zip(sites, updates, of_rows, strict=True):
        # Digests of the site's own uploads, shape (k, 2); a repetition of any of them was not
        # noised anew.
        of_site = earlier.get(site, np.zeros((0, 2), np.int64))
        again = bool((of_site == digest).all(axis=1).any())
        if not row.any():
            refused[site] = ZEROS
        elif often[digest.tobytes()] > 1:
            refused[site] = COPY
        elif again:
            refused[site] = REPEATS
        elif distinct and digest.tobytes() in earlier_digests:
            refused[site] = COPY
        if not again:
            after[site] = np.vstack([of_site, digest] if distinct else [digest])
    return after, refused


def _digest(row: Rows) -> npt.NDArray[np.int64]:
    """Return a hash's 96 bits as two numbers; −0 counts as 0.

    It is the SHA-256 of a CRC of all numbers and of ``_TOLD`` of them: a tenth of the time of the
    SHA-256 of all. An update forged to look like a copy is refused like one, which harms its
    sender.
    """
    # −0 + 0 = 0: a copy with signs of zeros changed has the same digest.
    numbers = np.ascontiguousarray(row + np.float32(0))
    some = np.ascontiguousarray(numbers[:: max(len(numbers) // _TOLD, 1)])
    check = zlib.crc32(numbers.data).to_bytes(4, "big")
    digest = hashlib.sha256(check + some.tobytes()).digest()
    return np.array([int.from_bytes(digest[start : start + 6], "big") for start in (0, 6)])
