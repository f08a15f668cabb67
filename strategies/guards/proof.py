"""Proofs against a site, for guards ``cap`` and ``content``.

Each proof has its rate of false alarms, under which no honest site is refused whatever the others
hold, learn or send; so no number of liars is too large to be refused for one.

- **Less noise than the floor** that the run's terms state.
- **No new noise**: the upload hardly differs from the site's last one.
- **Copied noise**: another site's, by ``copied_noise.py``. Where the model has a softmax head the
  updates' silent sums (``softmax_head.py``) are noise and nothing else; where the terms state a
  floor two updates differ by that much noise at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.noise_level import sample_coordinates
from hdpfl_flower.estimators.softmax_head import Head, silent_sums
from hdpfl_flower.linalg.sums import inner_products, square_sum
from hdpfl_flower.linalg.types import Vector
from strategies.guards.copied_noise import copied_noise, too_near

Rows = npt.NDArray[np.float32]
REPEATS = "guard: repeats one of its own uploads"

Ints = npt.NDArray[np.int64]

SURE = 5.0
"""Standard deviations of the noise test: 3e-7 per site, round."""
STILL = 1e-4
"""Least changed share of an upload's square; below it, no noise was drawn."""
SKETCH = 1024
"""Coordinates kept of each site's last upload, drawn by a hash of all uploads."""

QUIET = "guard: less noise than the run's floor"
SHARED = "guard: has the same noise as another site"
"""Permanent reasons for refusal of a site."""


@dataclass(frozen=True)
class ProofState:
    """Data of the proofs, kept between rounds.

    Attributes:
        coordinates: of an update, those that sketches consist of; None before the first round.
        sketches: site → its last upload at these coordinates.
        shared: sites with proven noise of another, sorted.
    """

    coordinates: Ints | None = None
    sketches: dict[str, Vector] = field(default_factory=dict)
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Floor:
    """Terms of a run that proofs depend on.

    Attributes:
        rounds: of the run, for the thresholds.
        noise: least noise of an honest update, standard deviation a coordinate; 0: unknown.
    """

    rounds: int
    noise: float = 0.0


def refuse_proven(
    state: ProofState,
    sites: Sequence[str],
    updates: Rows,
    floor: Floor,
    head: Head | None = None,
) -> tuple[ProofState, dict[str, str]]:
    """Return the state after a round, and the refused sites with reasons.

    Args:
        state: after the last round, at first empty; not changed.
        sites: the clients of the rows, by names that stay the same over the run.
        updates: float32, shape ``(n, d)``; no row of zeros, no exact copies.
        floor: see there.
        head: where the softmax layer lies, if there is one.

    Without a floor nothing but the head and 1,024 coordinates of the updates is read.
    """
    silent = None if head is None else silent_sums(updates, head)
    after, refused = _still(state, sites, updates)
    refused |= _quiet(sites, updates if silent is None else silent, floor.noise)
    pairs = []
    if floor.noise:
        pairs += too_near(inner_products(updates), updates.shape[1], floor.noise, floor.rounds)
    if head is not None and silent is not None:
        lengths = np.sqrt([square_sum(row[head.start :]) for row in updates])
        pairs += copied_noise(silent, lengths, floor.rounds)
    sharing = {sites[i] for pair in pairs for i in pair}
    after = ProofState(after.coordinates, after.sketches, tuple(sorted({*state.shared, *sharing})))
    return after, refused | {site: SHARED for site in sites if site in after.shared}


def _quiet(sites: Sequence[str], noise: Rows, floor: float) -> dict[str, str]:
    """Return sites with a mean square below the floor beyond chance."""
    if not floor:
        return {}
    # The mean square of p normals of variance σ² deviates by σ²·√(2/p).
    least = floor**2 * (1 - SURE * math.sqrt(2 / noise.shape[1]))
    levels = [float(np.mean(np.square(row, dtype=np.float64))) for row in noise]
    return {site: QUIET for site, level in zip(sites, levels, strict=True) if level < least}


def _still(
    state: ProofState, sites: Sequence[str], updates: Rows
) -> tuple[ProofState, dict[str, str]]:
    """Return the state with sketches, and sites that hardly moved."""
    chosen, sketches, refused = state.coordinates, dict(state.sketches), {}
    if chosen is None:
        chosen = sample_coordinates(updates, SKETCH).astype(np.int64)
    for site, row in zip(sites, updates, strict=True):
        now, before = row[chosen].astype(np.float64), sketches.get(site)
        # Fresh noise changes an upload by about twice its noise's square, wherever the signal is.
        if before is not None and np.sum((now - before) ** 2) < STILL * np.sum(now**2):
            refused[site] = REPEATS
        sketches[site] = now
    return ProofState(chosen, sketches, state.shared), refused
