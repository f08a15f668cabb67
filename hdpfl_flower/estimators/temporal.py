"""Noise levels over a run: what pairs of a client's uploads show, added up.

A client's own signal hardly changes from one round to the next, and its noise is drawn anew: half
the mean square of the difference is its noise, also where the labels of the clients differ and no
single round identifies it. Two uploads count up to 32 rounds apart; what their signal moved
meanwhile is found and subtracted (``gaps.py``). Only rounds under the same plan and learning rate
count, in units of the public clip norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.credible import FLAT, flat_updates, require_finite
from hdpfl_flower.gaps import CLASSES, FIELDS, LARGEST, GapLevels, class_of, levels_of_pairs
from hdpfl_flower.estimators.softmax_head import Head, informed, quietest_part, silent_squares
from hdpfl_flower.estimators.noise_level import (
    SHARED,
    SURE_OF_HEAD,
    NoiseLevels,
    Updates,
    difference_levels,
    head_notes,
    mean_squares,
    measure_noise,
    sample_coordinates,
)
from hdpfl_flower.pairs import COPIES
from hdpfl_flower.linalg.threads import one_thread

KEPT = 10_000
"""Coordinates kept of each client's last upload; 10,000 cost less than 0.001 in q."""
_REPEATED = 1e-6
"""A difference of less than this share of the upload is a repetition, not a measurement."""
_SILENCE = 1e-9
"""An update of less than this share of the median mean square counts as one of zeros."""
TEMPORAL = "temporal: differences of consecutive uploads"
DRIFTED = "; what drifted over larger gaps is subtracted"
UNSURE = "; drift over larger gaps may be more than a quarter of it"
SILENT = "none: an update of zeros"
_ALARM = 1e-3
"""Chance that a difference of pure noise seems to exceed the upload, in a round."""

Memory = Mapping[str, npt.NDArray[np.float64]]
"""What is kept between rounds, arrays by name, all of it in units of the clip norm:

``coordinates``: which ones are kept, where not all are; ``upload/SITE``: that part of its last
upload; ``facts/SITE``: the round of that upload, the pairs of consecutive uploads so far and the
sum of their variances, all uploads so far, the level after the last one, and the sum of the
uploads' silent squares (``softmax_head.py``); ``gaps/SITE``: for each class of gaps but the first, one
after another, the pairs so far, the sum of their variances and that of the later uploads' mean
squares (``gaps.py``), where a site has such pairs.
"""
_FACTS = 6
_ROUND, _PAIRS, _SUM, _UPLOADS, _LEVEL, _SILENT = range(_FACTS)


@dataclass(frozen=True)
class Tracked:
    """The noise of a round's clients, and where each number comes from.

    Attributes:
        variances: σ² per coordinate, shape ``(n,)``, positive; infinite for an update of zeros, or
            next to zeros, which no noise leaves: it is worth nothing.
        reasons: the estimator of each client, and why that one.
        pairs: pairs of uploads that the run has seen of each, shape ``(n,)``.
        identified: for each, False where the number may be far from its noise, shape ``(n,)``.
    """

    variances: npt.NDArray[np.float64]
    reasons: tuple[str, ...]
    pairs: npt.NDArray[np.float64]
    identified: npt.NDArray[np.bool_]


def track(  # noqa: PLR0913 - by name but for the first four
    memory: Memory,
    server_round: int,
    sites: Sequence[str],
    updates: Updates,
    *,
    method: str = "auto",
    clip_norm: float = 1.0,
    uploads: int = 0,
    head: Head | None = None,
) -> tuple[Memory, Tracked]:
    """Return the memory after a round and the noise of its updates.

    Args:
        memory: as the last round left it, at first empty; not changed.
        server_round: from 1.
        sites: the clients of the rows, by names that stay the same over the run.
        updates: float32, shape ``(n, d)``.
        method: an estimator of :func:`~hdpfl_flower.estimators.noise_level.measure_noise`. ``temporal`` and
            ``auto`` take what pairs of uploads show, and before a client's second upload what
            ``auto`` finds in one round; ``auto`` also does so where the differences exceed the
            uploads, which noise cannot: then the signal is moving.
        clip_norm: the round's public clip norm.
        uploads: of a client, after which its level stays as it is; 0: never.
        head: where the model's softmax layer lies. ``auto`` weighs what the head's silent sums say
            over all uploads against the rest, see :func:`~hdpfl_flower.estimators.softmax_head.informed`.

    Raises:
        EstimationError: a number that is not finite, or too large to be squared.
        StrategyError: an unknown method.
    """
    kept, rows = _kept(memory, updates, clip_norm)
    flat = flat_updates(rows)
    found = _heard(rows)
    if np.all(flat[found]):  # nobody to compare them with
        flat &= ~found
    heard = np.flatnonzero(found & ~flat)
    variances, reasons = np.full(len(sites), np.inf), [SILENT] * len(sites)
    pairs, identified = np.zeros(len(sites)), np.zeros(len(sites), dtype=np.bool_)
    after = {**memory, **kept}
    if len(heard):
        told = _track(
            after, server_round, [sites[int(i)] for i in heard], rows[heard],
            (updates, heard), (method, clip_norm, uploads), head,
        )  # fmt: skip
        variances[heard], pairs[heard] = told.variances, told.pairs
        identified[heard] = told.identified
        for i, reason in zip(heard, told.reasons, strict=True):
            reasons[i] = reason
        for i in np.flatnonzero(found & flat):
            variances[i], reasons[i] = told.variances.max(), f"none: {FLAT}"
    return after, Tracked(variances, tuple(reasons), pairs, identified)


def _heard(rows: Updates) -> npt.NDArray[np.bool_]:
    """Return which updates hold anything: one of zeros, or nearly, would pass for noiseless."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = mean_squares(rows)
    require_finite(squares)
    if not squares.any():
        return np.zeros(len(rows), dtype=np.bool_)
    heard: npt.NDArray[np.bool_] = squares > _SILENCE * np.median(squares[squares > 0])
    return heard


def _track(
    memory: dict[str, npt.NDArray[np.float64]],
    server_round: int,
    sites: Sequence[str],
    rows: Updates,
    whole: tuple[Updates, npt.NDArray[np.intp]],
    how: tuple[str, float, int],
    head: Head | None,
) -> Tracked:
    """Do what :func:`track` does for updates that hold something; ``memory`` is written to.

    ``whole`` is all updates and which of them these are.
    """
    method, clip_norm, uploads = how
    facts = np.array([memory.get(f"facts/{site}", np.zeros(_FACTS)) for site in sites])
    repeated, copies, sure = _add_pairs(facts, memory, server_round, sites, rows)
    facts[:, _ROUND] = server_round

    variances = facts[:, _LEVEL].copy()
    reasons = [f"kept after {uploads} uploads"] * len(sites)
    identified = np.ones(len(sites), dtype=np.bool_)
    frozen = (uploads > 0) & (facts[:, _UPLOADS] >= uploads)
    paired = _paired(facts, memory, sites, rows.shape[1])
    timed = ~frozen & (paired.pairs > 0) & (method in ("auto", "temporal"))
    moving = timed & (method == "auto") & _exceeds(paired, rows)
    timed &= ~moving
    variances[timed], identified[timed] = paired.variances[timed], (paired.sure & sure)[timed]
    copies[~timed] = 1
    rest = np.flatnonzero(~frozen & ~timed)
    if len(rest):
        found = _of_one_round(method, rows, whole, clip_norm)
        among = np.ones(len(sites)) if found.copies is None else found.copies
        variances[rest], identified[rest] = (found.variances / among)[rest], found.identified
        copies[rest] = among[rest]
    for i in np.flatnonzero(timed):
        further = paired.pairs[i] > facts[i, _PAIRS]
        reasons[i] = TEMPORAL
        if further:
            reasons[i] += DRIFTED if paired.sure[i] else UNSURE
        reasons[i] += "" if sure[i] else SHARED
    for i in rest:
        reasons[i] = f"{found.method}: {found.why}" + _why_not_timed(
            method, bool(moving[i]), bool(repeated[i])
        )
    if head is not None and method == "auto":
        facts[:, _SILENT] += silent_squares(whole[0], head)[whole[1]] / clip_norm**2
        fresh = np.flatnonzero(~frozen)
        variances[fresh], notes, spoken = _with_head(
            variances[fresh], timed[fresh], (facts[fresh], paired.pairs[fresh]), rows[fresh], head
        )
        identified[fresh] |= spoken
        for i, note in zip(fresh, notes, strict=True):
            reasons[i] += note
    for i in np.flatnonzero(copies > 1):
        variances[i], identified[i] = variances[i] * copies[i], False
        reasons[i] += f"; {COPIES}" if timed[i] else ""
    facts[~frozen, _LEVEL] = variances[~frozen]
    facts[:, _UPLOADS] += 1
    for site, row, fact in zip(sites, rows, facts, strict=True):
        memory[f"upload/{site}"], memory[f"facts/{site}"] = row.astype(np.float64), fact
    return Tracked(variances * clip_norm**2, tuple(reasons), paired.pairs, identified)


def _kept(memory: Memory, updates: Updates, clip_norm: float) -> tuple[Memory, Updates]:
    """Return what to remember of the choice of coordinates, and the rows there."""
    if updates.shape[1] <= KEPT:
        return {}, updates / np.float32(clip_norm)
    found = memory.get("coordinates")
    chosen = sample_coordinates(updates, KEPT) if found is None else found.astype(np.intp)
    rows = np.take(updates, chosen, axis=1) / np.float32(clip_norm)
    return {"coordinates": chosen.astype(np.float64)}, rows


def _add_pairs(
    facts: npt.NDArray[np.float64],
    memory: dict[str, npt.NDArray[np.float64]],
    server_round: int,
    sites: Sequence[str],
    rows: Updates,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Add this round's pairs to ``facts`` and ``memory``.

    Return which clients repeated themselves, among how many near copies each stands, and whether
    what it shares with others leaves this round's level sure.
    """
    repeated, copies = np.zeros(len(sites), dtype=np.bool_), np.ones(len(sites))
    sure = ~repeated
    gaps = server_round - facts[:, _ROUND]
    paired = np.flatnonzero((facts[:, _ROUND] > 0) & (gaps >= 1) & (gaps <= LARGEST))
    if not len(paired):
        return repeated, copies, sure
    before = np.array([memory[f"upload/{sites[int(i)]}"] for i in paired], dtype=np.float32)
    squares = mean_squares(rows[paired])
    share = mean_squares(rows[paired] - before) / squares
    repeated[paired] = share < _REPEATED
    new = share >= _REPEATED
    if not new.any():
        return repeated, copies, sure
    with one_thread():
        told = difference_levels(rows[paired[new]], before[new])
    copies[paired[new]], sure[paired[new]] = told.copies, told.sure
    for i, level, square in zip(paired[new], told.variances, squares[new], strict=True):
        place = class_of(int(gaps[i]))
        if place == 0:
            facts[i, [_PAIRS, _SUM]] += 1, level
            continue
        sums = memory.get(f"gaps/{sites[int(i)]}", np.zeros((CLASSES - 1) * FIELDS)).copy()
        sums[(place - 1) * FIELDS : place * FIELDS] += 1, level, square
        memory[f"gaps/{sites[int(i)]}"] = sums
    return repeated, copies, sure


def _paired(
    facts: npt.NDArray[np.float64], memory: Memory, sites: Sequence[str], dimension: int
) -> GapLevels:
    """Return what the pairs of these sites show; how signals drift is read from all of the run."""
    known = dict(zip(sites, facts, strict=True))
    others = sorted(  # in the one order that a checkpoint keeps
        name.removeprefix("gaps/")
        for name in memory
        if name.startswith("gaps/") and name.removeprefix("gaps/") not in known
    )
    everybody = [*sites, *others]
    sums = np.zeros((len(everybody), CLASSES, FIELDS))
    for place, site in enumerate(everybody):
        fact = known[site] if site in known else memory[f"facts/{site}"]
        sums[place, 0, :2] = fact[[_PAIRS, _SUM]]
        further = memory.get(f"gaps/{site}")
        if further is not None:
            sums[place, 1:] = further.reshape(CLASSES - 1, FIELDS)
            mean = sums[place, 1:, 2].sum() / sums[place, 1:, 0].sum()
            sums[place, 0, 2] = mean * fact[_PAIRS]
    found = levels_of_pairs(sums, dimension)
    n = len(sites)
    return GapLevels(found.variances[:n], found.pairs[:n], found.sure[:n], found.drift)


def _with_head(
    levels: npt.NDArray[np.float64],
    timed: npt.NDArray[np.bool_],
    history: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    rows: Updates,
    head: Head,
) -> tuple[npt.NDArray[np.float64], list[str], npt.NDArray[np.bool_]]:
    """Return the levels with what the head says, a note on each, and whether it may be believed.

    ``history`` is the clients' facts, and their pairs.
    """
    if not len(levels):
        return levels, [], timed
    facts, pairs = history[0], np.maximum(history[1], 1)
    uploads = facts[:, _UPLOADS] + 1
    silent = 2 / ((head.inputs + 1) * uploads)
    errors = np.where(timed, (3 * pairs - 1) / pairs**2, 2) / rows.shape[1]
    spoken = informed(
        levels,
        errors,
        facts[:, _SILENT] / uploads,
        silent,
        quietest_part(rows),
    )
    return spoken.variances, head_notes(spoken), ~spoken.forged & (silent <= SURE_OF_HEAD)


def _exceeds(paired: GapLevels, rows: Updates) -> npt.NDArray[np.bool_]:
    """Return where the differences hold more than the uploads by more than chance."""
    from scipy.special import ndtri

    pairs = np.maximum(paired.pairs, 1)
    # Relative variances over d coordinates: 2/d of a mean square, and (2m + m − 1)/m² / d of the
    # mean over m pairs, of which neighbours share an upload.
    error = np.sqrt((2 + (3 * pairs - 1) / pairs**2) / rows.shape[1])
    bound = mean_squares(rows) * np.exp(-ndtri(_ALARM / len(rows)) * error)
    exceeds: npt.NDArray[np.bool_] = np.nan_to_num(paired.variances) > bound
    return exceeds


def _of_one_round(
    method: str, rows: Updates, whole: tuple[Updates, npt.NDArray[np.intp]], clip_norm: float
) -> NoiseLevels:
    """Return the levels in units of the clip norm; what needs all coordinates gets them."""
    if method in ("rpca", "column-norm"):
        updates, chosen = whole
        updates = updates if len(chosen) == len(updates) else updates[chosen]
        found = measure_noise(updates, method)
        return replace(found, variances=found.variances / clip_norm**2)
    return measure_noise(rows, "auto" if method == "temporal" else method)


def _why_not_timed(method: str, moving: bool, repeated: bool) -> str:
    if method not in ("auto", "temporal"):
        return ""
    if repeated:
        return "; the upload repeats the one before"
    return "; differences exceed the uploads" if moving else "; no pair of uploads yet"
