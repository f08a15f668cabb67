"""Direction of the global model's last step, for PFA+'s projection.

Server and client both know it.

PFA+ (Liu et al., VLDB 2021, Algorithms 4 and 5) lets a private site send its update's coordinates
in the subspace V of the round before, and the server has to send V to it: the downlink costs as
much as the uplink saves. A site that kept the last global model has one direction for free, the
step from that model to this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

_BLOCK = 65_536


@dataclass(frozen=True, eq=False)
class Direction:
    """Line through the origin, v = (now − before) / ‖now − before‖.

    The step is computed block by block where it is needed, and not kept.

    Attributes:
        before: a model, float32, shape ``(d,)``.
        now: a later one, not the same.
        norm: the length of the step between them.
    """

    before: Vector
    now: Vector
    norm: float

    @classmethod
    def between(cls, before: Vector, now: Vector) -> Self | None:
        """Return the direction between two models ``(d,)``, or None.

        Both sides call this with the same float32 numbers, so that they agree on v. None if
        there is no step of finite length: then no projection is possible.
        """
        with np.errstate(over="ignore"):
            squares = [
                float(np.sum(np.square(now[b] - before[b], dtype=np.float64)))
                for b in _blocks(len(now))
            ]
        norm = math.sqrt(sum(squares))
        return cls(before, now, norm) if 0 < norm < math.inf else None

    def project(self, update: Vector) -> Vector:
        """Return v·update, shape ``(1,)``, summed in float64, independent of threads.

        >>> line = Direction(np.zeros(2, np.float32), np.array([3, 4], np.float32), 5.0)
        >>> line.project(np.array([5, 10], np.float32))
        array([11.], dtype=float32)
        """
        total = 0.0
        for b in _blocks(len(update)):
            step = (self.now[b] - self.before[b]).astype(np.float64)
            total += float(np.sum(step * update[b]))
        return np.array([total / self.norm], np.float32)

    def lift(self, coordinate: float) -> Vector:
        """Return v·coordinate, shape ``(d,)``: the inverse of :meth:`project` on the line.

        >>> line = Direction(np.zeros(2, np.float32), np.array([3, 4], np.float32), 5.0)
        >>> line.lift(10.0)
        array([6., 8.], dtype=float32)
        """
        row = self.now - self.before
        row *= np.float32(coordinate / self.norm)
        return row


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))
