"""Signal and noise of an update, for plans and series."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.reports.units import half_of


@dataclass(frozen=True, repr=False)
class SignalToNoise:
    """Signal and noise of one round's update.

    Attributes:
        std: standard deviation of the noise in each coordinate of the update, √k·η·z·C/b.
        noise: expected length of the noise, √d·std.
        signal: k·η·C, the largest length of an update from batches of the expected size.
        of: what these are of, in words.
    """

    std: float
    noise: float
    signal: float
    of: str = "of an update"

    @property
    def ratio(self) -> float:
        """Signal to noise; ``inf`` without noise."""
        return self.signal / self.noise if self.noise else math.inf


def signal_to_noise(planned: Plan, run: RunTerms, size: int) -> SignalToNoise:
    """Return last-round signal and noise of an update of ``size`` numbers."""
    # The last round stands for all: the first may have batches of another size.
    std = planned.update_noise_std(planned.rounds, run.clip_norm, run.learning_rate)
    signal = planned.steps[-1].count * run.learning_rate * run.clip_norm
    half = half_of(run)
    if half is None:
        return SignalToNoise(std, math.sqrt(size) * std, signal)
    std = half.noise_of_mean(std, run)
    return SignalToNoise(std, math.sqrt(size) * std, signal, "of the mean over sites like this one")
