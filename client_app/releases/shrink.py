"""Shrinkage of a site's own noisy updates, free of charge.

Over a run a site's updates sum to the mean of all, which moved the global model, and to a deviation
S of the site's own. The personal model is the final one plus ``scale`` · c_b · S_b for
each tensor b, where c_b = (1 − d_b·v/‖S_b‖²)₊ is the positive-part factor of James and Stein (1961;
Baranchik 1964): v, the variance of the site's noise in a coordinate of the sum, is known to the
site exactly. A function of its noisy releases and of the server's messages, so it costs no ε.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from client_app.site.personal_state import PersonalState, Vector


def shrunk_deviation(
    state: PersonalState, shared: Vector, sizes: Iterable[int], last_round: int
) -> Vector:
    """Return Σ_b c_b · S_b, shape ``(d,)``; zeros for a site without a round.

    Args:
        state: of the site, after its last round.
        shared: the sent part of the final model, shape ``(d,)``.
        sizes: d_b, the numbers of each tensor of it, in order.
        last_round: the last round of the run.
    """
    if state.summed is None or state.first is None:
        return np.zeros_like(shared)
    # The site took part in some of the rounds: its share of the global path.
    elapsed = max(last_round, state.server_round) - state.first_round + 1
    moved = shared.astype(np.float64) - state.first
    deviation = state.summed - state.rounds / elapsed * moved
    begin = 0
    for size in sizes:
        block = deviation[begin : begin + size]
        energy = float(block @ block)
        block *= max(0.0, 1 - size * state.variance / energy) if energy else 0.0
        begin += size
    return np.asarray(deviation, np.float32)
