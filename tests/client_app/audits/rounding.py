"""The audit's second attack: weights with which rounding decides what other records contribute.

A hostile server sends huge weights whose logits are zero for every record but for their rounding:
the order of additions alone decides the class of a record, and with it the sign of its gradient. If
that order depended on the number of records, or on the place of one, one record more would change
what all others contribute. The attack makes up records in such a position, with and without the
first of them, chooses of many weights those for which the clipped sum moves most, and guesses from
noisy releases whether the record was there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hdpfl_flower.config.profile import Training
from hdpfl_flower.engines.dpsgd import settle, train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.audit import evidence_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.system.devices import available_cores, present
from hdpfl_tools.site.audit import CLIP_NORM, Finding, _Advance, _threads

RELEASES = 600
"""Releases a row, each with or without the record, by a coin of its own."""
TASK = Task((13,), 4, "softmax")
"""Rows of 13 floats begin at addresses of every alignment."""
SIZES = (15, 19, 31)
"""Records of a batch; no power of two divides them, so that there are rows left over."""
_SEARCHED = 25
"""Weights that are tried for each size."""
_SCALE, _STEP = 1e9, 2.0**50
"""Of the weights, and η·C/b: an update must not drown in the weights that it is added to."""


def attack_by_rounding(
    plan: Plan, engine: str, training: Training, *, advance: _Advance = lambda: None
) -> Finding:
    """Return what a tester learns of one record from hostile weights and ``RELEASES`` releases.

    Args:
        plan: the mechanism of one step over all records.
        engine: a name of :data:`hdpfl_tools.site.audit.ENGINES`.
        training: with the device, the threads and the physical batch.
        advance: called at the end.

    Raises:
        ModelError: the device is not there.
        AccountingError: a released number is not finite.
    """
    trained = engine_for("logreg", TASK, engine, present(training.device))
    members = np.random.default_rng().random((1, RELEASES)) < 0.5  # seeded by the system
    scores = np.zeros((1, RELEASES))
    with _threads(training.torch_threads or available_cores()):
        settle(trained, plan.divisor, training.physical_batch)
        start, records, direction = _worst(trained)
        without = records.take(np.arange(1, len(records)))
        for release, member in enumerate(members[0]):
            update = train(
                trained,
                start,
                records if member else without,
                plan.round(1, CLIP_NORM),
                _STEP * plan.divisor / CLIP_NORM,
                ReleaseStreams.fresh(),
                training.physical_batch,
            )
            # A step goes against the gradient sum: hence the minus.
            scores[0, release] = -update.astype(np.float64) @ direction
    advance()
    return Finding(
        f"{engine}, rounding", plan, evidence_of(scores, members), RELEASES, len(records)
    )


def _worst(engine: Engine) -> tuple[npt.NDArray[np.float32], Records, npt.NDArray[np.float64]]:
    """Return weights and records whose first one moves the sum most, and the way it moves."""
    found, worst = 0.0, None
    for size in SIZES:
        for seed in range(_SEARCHED):
            generator = np.random.default_rng([size, seed])
            records = hostile_records(generator, size)
            start = hostile_weights(generator, records)
            sums = [_sum(engine, start, records.take(np.arange(i, size))) for i in (0, 1)]
            # The first record's own contribution, and what its presence changes in all others'.
            moved = sums[0] - sums[1]
            length = float(np.linalg.norm(moved))
            if length > found:
                found, worst = length, (start, records, moved / length)
    if worst is None:
        raise RuntimeError("audit: no record moves a sum")
    return worst


def hostile_records(generator: np.random.Generator, size: int) -> Records:
    """Return records of whole numbers in a space of five dimensions, shape ``(size, 13)``."""
    directions = generator.integers(-3, 4, (5, TASK.input_shape[0]))
    features = generator.integers(-3, 4, (size, 5)) @ directions
    return Records(features.astype(np.float32), generator.integers(0, TASK.outputs, size))


def hostile_weights(generator: np.random.Generator, records: Records) -> npt.NDArray[np.float32]:
    """Return a ``logreg``'s weights, then biases: every logit is zero, but for its rounding."""
    # [X, 1] in float64, shape (n, 14): the bias is one more weight on a feature of 1.
    rows = np.c_[records.features.astype(np.float64), np.ones(len(records))]
    _, values, directions = np.linalg.svd(rows, full_matrices=True)
    # The null space of [X, 1]: any weights in it have logits of 0 for every record.
    free = directions[int((values > 1e-9 * values[0]).sum()) :]
    drawn = _SCALE * generator.normal(size=(TASK.outputs, len(free))) @ free
    return np.concatenate([drawn[:, :-1].ravel(), drawn[:, -1]]).astype(np.float32)


def _sum(
    engine: Engine, start: npt.NDArray[np.float32], records: Records
) -> npt.NDArray[np.float64]:
    """Return the clipped sum without noise, at ``start``; the records are made up."""
    device = engine.theta.device
    engine.theta.copy_(torch.from_numpy(start))
    total = torch.zeros_like(engine.theta)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    engine.add_clipped_sum(total, x.to(device), y.to(device), len(records), CLIP_NORM)
    found: npt.NDArray[np.float64] = total.double().cpu().numpy()
    return found
