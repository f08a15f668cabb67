"""Noise levels over a run, from pairs of each client's uploads.

A client's own signal hardly changes from one round to the next, and its noise is drawn anew: half
the mean square of the difference is its noise, also where the labels of the clients differ and no
single round identifies it. Two uploads count up to 32 rounds apart; the motion of their signal is
estimated and subtracted (``upload_gaps.py``). Only rounds under the same plan and learning
rate count, in units of the public clip norm; where the noise falls by a public factor, in units of
its last round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.credible import FLAT, flat_updates, require_finite
from hdpfl_flower.estimators.near_copies import COPIES
from hdpfl_flower.estimators.noise_level import (
    NoiseLevels,
    difference_levels,
    measure_noise,
    sample_coordinates,
)
from hdpfl_flower.estimators.softmax_head import (
    SURE_OF_HEAD,
    Head,
    combine_with_head,
    head_notes,
    quietest_part,
    silent_squares,
)
from hdpfl_flower.estimators.upload_gaps import (
    CLASSES,
    FIELDS,
    LARGEST,
    GapLevels,
    class_of,
    levels_of_pairs,
)
from hdpfl_flower.linalg.sums import mean_squares
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Updates

KEPT = 10_000
"""Coordinates kept of each client's last upload; 10,000 cost less than 0.001 in q."""
_REPEATED = 1e-6
"""A difference of less than this share of the upload is a repetition, not a measurement."""
_SILENCE = 1e-9
"""An update of less than this share of the median mean square counts as one of zeros."""
TEMPORAL = "temporal: differences of consecutive uploads"
SHARED = "; most of a difference is a change that others share"
DRIFTED = "; what drifted over larger gaps is subtracted"
UNSURE = "; drift over larger gaps may be more than a quarter of it"
SILENT = "none: an update of zeros"
_ALARM = 1e-3
"""Chance that a difference of pure noise seems to exceed the upload, in a round."""

Floats = npt.NDArray[np.float64]

_FACTS = 5
_ROUND, _PAIRS, _SUM, _UPLOADS, _SILENT = range(_FACTS)


@dataclass(frozen=True)
class UploadHistory:
    """Summary of one client's uploads, in units of the clip norm and the noise's factor.

    Attributes:
        upload: the kept coordinates of its last upload, in units of its round.
        last_round: the round of that upload.
        pairs: pairs of consecutive uploads so far.
        pair_sum: the sum of their variances.
        uploads: all uploads so far.
        silent: the sum of the uploads' silent squares (``softmax_head.py``).
    """

    upload: Floats
    last_round: float = 0.0
    pairs: float = 0.0
    pair_sum: float = 0.0
    uploads: float = 0.0
    silent: float = 0.0

    @property
    def facts(self) -> Floats:
        """The numbers in the order of ``_ROUND`` … ``_SILENT``."""
        return np.array([self.last_round, self.pairs, self.pair_sum, self.uploads, self.silent])


@dataclass(frozen=True)
class NoiseMemory:
    """Summary of all clients' uploads between rounds.

    Attributes:
        clients: by name, of those that sent an upload.
        gaps: client → for each class of gaps but the first, one after another, the pairs so far,
            the sum of their variances and that of the later uploads' mean squares
            (``upload_gaps.py``); only of clients that have these pairs.
        coordinates: the kept coordinates; None where all are.
    """

    clients: dict[str, UploadHistory] = field(default_factory=dict)
    gaps: dict[str, Floats] = field(default_factory=dict)
    coordinates: npt.NDArray[np.intp] | None = None


def even(server_round: int) -> float:
    """Return 1: the factor of noise that is the same in all rounds."""
    del server_round
    return 1.0


@dataclass(frozen=True)
class TrackOptions:
    """How :func:`track` estimates.

    Attributes:
        method: ``temporal``, or of :func:`~hdpfl_flower.estimators.noise_level.measure_noise`.
            ``temporal`` and ``auto`` use pairs of uploads, and before a client's second upload
            ``auto``'s estimate of one round; ``auto`` also does so where the differences exceed the
            uploads, which noise cannot: then the signal is moving. A bound replaces no estimate.
        clip_norm: the round's public clip norm.
        noise_factor: round → its noise over that of the last, public and the same for all.
    """

    method: str = "auto"
    clip_norm: float = 1.0
    noise_factor: Callable[[int], float] = even


@dataclass(frozen=True)
class NoiseEstimate:
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


def track(
    memory: NoiseMemory,
    server_round: int,
    sites: Sequence[str],
    updates: Updates,
    options: TrackOptions | None = None,
    head: Head | None = None,
) -> tuple[NoiseMemory, NoiseEstimate]:
    """Return the memory after a round and the noise of its updates.

    Args:
        memory: as the last round left it, at first empty; not changed.
        server_round: from 1.
        sites: the clients of the rows, by names that stay the same over the run.
        updates: float32, shape ``(n, d)``.
        options: None: the defaults.
        head: where the model's softmax layer lies. ``auto`` combines the head's silent sums over
            all uploads with the other estimate, see
            :func:`~hdpfl_flower.estimators.softmax_head.combine_with_head`.

    Raises:
        EstimationError: a number that is not finite, or too large to be squared.
        StrategyError: an unknown method.
    """
    options = options or TrackOptions()
    # From here on the unit of the round: in it a client has the same noise in all rounds.
    options = replace(options, clip_norm=options.clip_norm * options.noise_factor(server_round))
    coordinates, rows = _kept(memory, updates, options.clip_norm)
    flat = flat_updates(rows)
    loud = _not_silent(rows)
    if np.all(flat[loud]):  # none to compare them with
        flat &= ~loud
    used = np.flatnonzero(loud & ~flat)
    variances, reasons = np.full(len(sites), np.inf), [SILENT] * len(sites)
    pairs, identified = np.zeros(len(sites)), np.zeros(len(sites), dtype=np.bool_)
    after = NoiseMemory(dict(memory.clients), dict(memory.gaps), coordinates)
    if len(used):
        round_ = _Round(server_round, [sites[int(i)] for i in used], rows[used], updates, used)
        measured = _track(after, round_, options, head)
        variances[used], pairs[used] = measured.variances, measured.pairs
        identified[used] = measured.identified
        for i, reason in zip(used, measured.reasons, strict=True):
            reasons[i] = reason
        for i in np.flatnonzero(loud & flat):
            variances[i], reasons[i] = measured.variances.max(), f"none: {FLAT}"
    return after, NoiseEstimate(variances, tuple(reasons), pairs, identified)


@dataclass(frozen=True)
class _Round:
    """The updates of a round that are neither zeros nor flat: the kept coordinates of each.

    Attributes:
        rows: in units of the clip norm, shape ``(m, k)``.
        updates: of all clients, whole.
        used: the rows of ``updates`` that these are.
    """

    server_round: int
    sites: list[str]
    rows: Updates
    updates: Updates
    used: npt.NDArray[np.intp]


def _not_silent(rows: Updates) -> npt.NDArray[np.bool_]:
    """Return which updates hold anything: one of zeros, or nearly, would pass for noiseless."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = mean_squares(rows)
    require_finite(squares)
    if not squares.any():
        return np.zeros(len(rows), dtype=np.bool_)
    loud: npt.NDArray[np.bool_] = squares > _SILENCE * np.median(squares[squares > 0])
    return loud


def _track(
    memory: NoiseMemory, round_: _Round, options: TrackOptions, head: Head | None
) -> NoiseEstimate:
    """Return :func:`track`'s estimate; ``memory``'s dictionaries are written to."""
    method, clip_norm = options.method, options.clip_norm
    sites, rows, server_round = round_.sites, round_.rows, round_.server_round
    new = UploadHistory(np.zeros(0))
    facts = np.array([memory.clients.get(site, new).facts for site in sites])
    repeated, copies, sure = _add_pairs(facts, memory, round_, options.noise_factor)
    facts[:, _ROUND] = server_round

    variances, reasons = np.zeros(len(sites)), [""] * len(sites)
    identified = np.ones(len(sites), dtype=np.bool_)
    paired = _paired(facts, memory, sites, rows.shape[1])
    timed = (paired.pairs > 0) & (method in ("auto", "temporal"))
    moving = timed & (method == "auto") & _exceeds(paired, rows)
    if np.any(~timed | moving):
        estimate = _of_one_round(round_, options)
        # A level that one round does not identify is a bound, and replaces no estimate.
        moving &= estimate.identified
        timed &= ~moving
        rest = np.flatnonzero(~timed)
        among = np.ones(len(sites)) if estimate.copies is None else estimate.copies
        variances[rest], identified[rest] = (estimate.variances / among)[rest], estimate.identified
        copies[rest] = among[rest]
        for i in rest:
            reasons[i] = f"{estimate.method}: {estimate.why}" + _why_not_timed(
                method, bool(moving[i]), bool(repeated[i])
            )
    variances[timed], identified[timed] = paired.variances[timed], (paired.sure & sure)[timed]
    for i in np.flatnonzero(timed):
        further = paired.pairs[i] > facts[i, _PAIRS]
        reasons[i] = TEMPORAL
        if further:
            reasons[i] += DRIFTED if paired.sure[i] else UNSURE
        reasons[i] += "" if sure[i] else SHARED
    if head is not None and method == "auto":
        facts[:, _SILENT] += silent_squares(round_.updates, head)[round_.used] / clip_norm**2
        variances, notes, combined = _with_head(variances, timed, (facts, paired.pairs), rows, head)
        identified |= combined
        reasons = [reason + note for reason, note in zip(reasons, notes, strict=True)]
    for i in np.flatnonzero(copies > 1):
        variances[i], identified[i] = variances[i] * copies[i], False
        reasons[i] += f"; {COPIES}" if timed[i] else ""
    facts[:, _UPLOADS] += 1
    for site, row, fact in zip(sites, rows, facts, strict=True):
        memory.clients[site] = UploadHistory(row.astype(np.float64), *fact.tolist())
    return NoiseEstimate(variances * clip_norm**2, tuple(reasons), paired.pairs, identified)


def _kept(
    memory: NoiseMemory, updates: Updates, clip_norm: float
) -> tuple[npt.NDArray[np.intp] | None, Updates]:
    """Return the kept coordinates, None for all, and the rows there."""
    if updates.shape[1] <= KEPT:
        return memory.coordinates, updates / np.float32(clip_norm)
    chosen = memory.coordinates
    if chosen is None:
        chosen = sample_coordinates(updates, KEPT)
    rows = np.take(updates, chosen, axis=1) / np.float32(clip_norm)
    return chosen, rows


def _add_pairs(
    facts: npt.NDArray[np.float64],
    memory: NoiseMemory,
    round_: _Round,
    noise_factor: Callable[[int], float],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Add this round's pairs to ``facts`` and ``memory``.

    Returns:
        For each client: its upload repeats the last one; its number of near copies; this round's
        level is sure in spite of the part shared with others.
    """
    server_round, sites, rows = round_.server_round, round_.sites, round_.rows
    repeated, copies = np.zeros(len(sites), dtype=np.bool_), np.ones(len(sites))
    sure = ~repeated
    gaps = server_round - facts[:, _ROUND]
    paired = np.flatnonzero((facts[:, _ROUND] > 0) & (gaps >= 1) & (gaps <= LARGEST))
    if not len(paired):
        return repeated, copies, sure
    before = np.array([memory.clients[sites[int(i)]].upload for i in paired], dtype=np.float32)
    # Uploads in units of this round: of two with unlike noise half the difference has the mean.
    last = np.array([noise_factor(int(facts[i, _ROUND])) for i in paired])
    ratios = last / noise_factor(server_round)
    before *= ratios.astype(np.float32)[:, None]
    means = (1 + ratios**2) / 2
    squares = mean_squares(rows[paired])
    share = mean_squares(rows[paired] - before) / squares
    repeated[paired] = share < _REPEATED
    new = share >= _REPEATED
    if not new.any():
        return repeated, copies, sure
    with one_thread():
        levels = difference_levels(rows[paired[new]], before[new])
    copies[paired[new]], sure[paired[new]] = levels.copies, levels.sure
    for i, level, square in zip(
        paired[new], levels.variances / means[new], squares[new] / means[new], strict=True
    ):
        place = class_of(int(gaps[i]))
        if place == 0:
            facts[i, [_PAIRS, _SUM]] += 1, level
            continue
        sums = memory.gaps.get(sites[int(i)], np.zeros((CLASSES - 1) * FIELDS)).copy()
        sums[(place - 1) * FIELDS : place * FIELDS] += 1, level, square
        memory.gaps[sites[int(i)]] = sums
    return repeated, copies, sure


def _paired(
    facts: npt.NDArray[np.float64], memory: NoiseMemory, sites: Sequence[str], dimension: int
) -> GapLevels:
    """Return the levels from these sites' pairs; the drift is estimated from all of the run."""
    facts_of = dict(zip(sites, facts, strict=True))
    others = sorted(
        memory.gaps.keys() - facts_of.keys()
    )  # in the one order that a checkpoint keeps
    everybody = [*sites, *others]
    sums = np.zeros((len(everybody), CLASSES, FIELDS))
    for place, site in enumerate(everybody):
        fact = facts_of[site] if site in facts_of else memory.clients[site].facts
        sums[place, 0, :2] = fact[[_PAIRS, _SUM]]
        further = memory.gaps.get(site)
        if further is not None:
            sums[place, 1:] = further.reshape(CLASSES - 1, FIELDS)
            mean = sums[place, 1:, 2].sum() / sums[place, 1:, 0].sum()
            sums[place, 0, 2] = mean * fact[_PAIRS]
    levels = levels_of_pairs(sums, dimension)
    n = len(sites)
    return GapLevels(levels.variances[:n], levels.pairs[:n], levels.sure[:n], levels.drift)


def _with_head(
    levels: npt.NDArray[np.float64],
    timed: npt.NDArray[np.bool_],
    history: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    rows: Updates,
    head: Head,
) -> tuple[npt.NDArray[np.float64], list[str], npt.NDArray[np.bool_]]:
    """Return the levels combined with the head, notes, and the levels that may be believed.

    ``history`` is the clients' facts, and their pairs.
    """
    facts, pairs = history[0], np.maximum(history[1], 1)
    uploads = facts[:, _UPLOADS] + 1
    silent = 2 / ((head.inputs + 1) * uploads)
    errors = np.where(timed, (3 * pairs - 1) / pairs**2, 2) / rows.shape[1]
    combined = combine_with_head(
        levels,
        errors,
        facts[:, _SILENT] / uploads,
        silent,
        quietest_part(rows),
    )
    return combined.variances, head_notes(combined), ~combined.forged & (silent <= SURE_OF_HEAD)


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


def _of_one_round(round_: _Round, options: TrackOptions) -> NoiseLevels:
    """Return the levels in units of the clip norm; an estimator of all coordinates gets them."""
    if options.method in ("rpca", "column-norm"):
        updates, used = round_.updates, round_.used
        updates = updates if len(used) == len(updates) else updates[used]
        estimate = measure_noise(updates, options.method)
        return replace(estimate, variances=estimate.variances / options.clip_norm**2)
    return measure_noise(round_.rows, "auto" if options.method == "temporal" else options.method)


def _why_not_timed(method: str, moving: bool, repeated: bool) -> str:
    if method not in ("auto", "temporal"):
        return ""
    if repeated:
        return "; the upload repeats the one before"
    return "; differences exceed the uploads" if moving else "; no pair of uploads yet"
