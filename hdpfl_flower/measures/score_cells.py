"""Public score cells for counting at sites, and exact record counts.

A score is the logit of the predicted probability of class 1 of a binary task. Its range is cut
at sinh(.22·k): steps of a fifth of a logit around 0, where models trained with a small budget have
their scores, and of a fifth of itself far out, where a rare disease has them. As probabilities
the borders are .5, .555, .61, .66, .72 and so on, and .055, .028, .011, .004 at the end. The cells
do not depend on the data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from hdpfl_flower.models.task import Task

Floats = npt.NDArray[np.float64]

BINS = 24
"""Score bins for each of the two classes."""
EMPTY = 32
"""Cells without records, whose content is noise and measures it."""
CELLS = 2 * BINS + EMPTY
"""Numbers sent by a site: class 0, class 1, empty cells."""
_STEP = 0.22
BORDERS: Floats = np.sinh(_STEP * np.arange(1 - BINS // 2, BINS // 2))
"""Upper-inclusive borders between bins, logits, shape ``(BINS - 1,)``."""
LOGITS: Floats = np.sinh(_STEP * (np.arange(BINS) - (BINS - 1) / 2))
"""Logit representing each bin (its middle), shape ``(BINS,)``."""
MIDDLES: Floats = expit(LOGITS)
"""The same as probabilities."""
MOST = 2.0**24
"""Largest cell count, up to which float32 holds whole numbers."""


def count_cells(
    task: Task, outputs: npt.NDArray[np.float32], targets: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return exact record counts per cell, shape ``(CELLS,)``.

    Args:
        task: of two classes.
        outputs: logits, shape ``(n, task.outputs)``; a record with the score NaN is not counted.
        targets: classes, shape ``(n,)``.

    Guarantees:
        One record more or less changes one cell by at most 1, and none of the empty ones.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # hostile weights make any number
        numbers = outputs.astype(np.float64)
        scores = numbers[:, 0] if task.outputs == 1 else numbers[:, 1] - numbers[:, 0]
    is_number = ~np.isnan(scores)
    bins = np.searchsorted(BORDERS, scores[is_number], side="left")
    cells = np.bincount(bins + BINS * (targets[is_number] == 1), minlength=CELLS)
    return np.minimum(cells, MOST).astype(np.float32)
