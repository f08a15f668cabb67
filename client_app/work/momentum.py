"""Work with local momentum: heavy-ball steps of a site's own noisy updates.

Post-processing of what the site has released: the plan pays for the steps alone, as without it.
"""

from __future__ import annotations

import numpy as np

from client_app.work.base import Course, LocalWork, OwnRound, Train, Vector
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Task
from hdpfl_flower.work.momentum import Momentum


class MomentumWork(LocalWork):
    """Steps on the whole model, with β times the last update."""

    settings: Momentum

    def __init__(self, terms: RunTerms, task: Task, sent: int) -> None:
        """Prepare for an own vector of the model's size: the last update."""
        super().__init__(terms, task, sent)
        self.own_size = sent

    def course(self, round_: OwnRound, steps: int, shared: Vector, train: Train) -> Course:
        """Return the steps with their movement besides."""
        del steps, shared, train
        return Course(offset=np.float32(self.settings.beta) * round_.own)

    def moved(self, own: Vector, update: Vector) -> Vector:
        """Return the last update in place of the one before."""
        del own
        return update
