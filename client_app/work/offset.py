"""Work with an offset of the site's own: PPSGD (Bietti et al., ICML 2022)."""

from __future__ import annotations

import numpy as np

from client_app.work.base import LocalWork, Vector
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.work.offset import Offset


class OffsetWork(LocalWork):
    """Steps on the sum of the shared model and the site's offset."""

    settings: Offset

    def __init__(self, terms: RunTerms, task: Task, sent: int) -> None:
        """Prepare the coordinates; raises ``ModelError`` without a head apart from a body."""
        super().__init__(terms, task, sent)
        self.own_size = sent
        place = self.settings.of
        self._place = parts_of(terms.model, task).of(place) if place else slice(0, sent)

    def whole(self, shared: Vector, offset: Vector) -> Vector:
        """Return the shared model plus the offset."""
        return shared + offset

    def moved(self, offset: Vector, update: Vector) -> Vector:
        """Return the offset with its share of the update."""
        step = np.zeros(self.size, np.float32)
        step[self._place] = np.float32(self.settings.rate) * update[self._place]
        return offset + step
