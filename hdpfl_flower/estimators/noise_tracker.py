"""Noise levels of clients over a run, for stateless callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import EstimationError
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, TrackOptions, even, track


class NoiseTracker:
    """Estimate of each client's noise over the rounds.

    The first update of a client is judged by a factor analysis of all updates of its round, and its
    later updates by their differences (:mod:`hdpfl_flower.estimators.temporal`). A client may miss
    rounds.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> tracker, signal = NoiseTracker(), draw.normal(size=20_000)
    >>> for _ in range(6):
    ...     noisy = {f"{s}": signal + s * draw.normal(size=20_000) for s in (1, 2, 4)}
    ...     found = tracker.update(noisy)
    >>> [round(found[name], 1) for name in ("1", "2", "4")]
    [1.0, 2.0, 4.0]

    Attributes:
        rounds: number of rounds so far.
        estimate: estimate of the last round, with the reason for each number; None before round 1.
    """

    def __init__(
        self,
        clip_norm: float = 1.0,
        method: str = "auto",
        noise_factor: Callable[[int], float] = even,
    ) -> None:
        """Start without updates.

        Args:
            clip_norm: public bound that clients clip to; a change of it rescales the stored state.
            method: ``auto``, or ``rpca`` as in Robust-HDP's paper.
            noise_factor: round → its noise over that of the last, the same for all clients.
        """
        self._options = TrackOptions(method, clip_norm, noise_factor=noise_factor)
        self._memory = NoiseMemory()
        self.rounds = 0
        self.estimate: NoiseEstimate | None = None

    def update(self, updates: Mapping[str, npt.NDArray[np.floating]]) -> dict[str, float]:
        """Return client → standard deviation of its noise per coordinate.

        Args:
            updates: client → local model − global model, shape ``(d,)``, with the same d for all.

        Returns:
            client → σ̂ > 0; infinite for an update of zeros.

        Raises:
            EstimationError: there is no update, the shapes differ, or a number is not finite.
        """
        names = sorted(updates)
        shapes = {updates[name].shape for name in names}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise EstimationError("updates must be vectors of one length, one per client")
        rows = np.stack([updates[name] for name in names]).astype(np.float32)
        self.rounds += 1
        self._memory, self.estimate = track(self._memory, self.rounds, names, rows, self._options)
        return dict(zip(names, np.sqrt(self.estimate.variances).tolist(), strict=True))
