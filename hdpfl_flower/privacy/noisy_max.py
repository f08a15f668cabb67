"""Private choice of a client's best model by noisy counts.

The client counts, for each of M models, the records that the model gets right, adds N(0, s²) to
every count, and releases the index of the largest, and nothing else.

**Cost of a choice.** Adding a record adds v ∈ {0, 1}^M to the counts c. The largest of c + noise
is the largest of P(c + noise), where P takes the mean over the models off, and P·noise is Gaussian
of variance s² within P's image. So a choice is post-processing of a Gaussian mechanism of
sensitivity max ‖Pv‖. With k ones in v, ‖Pv‖² = k − k²/M, which is largest at k = ⌊M/2⌋:
⌊M²/4⌋/M ≤ M/4. Its noise multiplier is therefore s/√(⌊M²/4⌋/M), at least 2s/√M; without P it would
be half of that. (Adding or removing a record; replacing one has twice the sensitivity.)

R-DPCFL (Malekmohammadi, Taik and Farnadi, TMLR 2025) draws Gumbel noise instead:
``exponential_mechanism.py``.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import ExtraRelease, Gaussians, Steps, calibrate
from hdpfl_flower.privacy.exponential_mechanism import check_counts, pure_selections
from hdpfl_flower.privacy.noise import RandomStream

Counts = npt.NDArray[np.int64]


def choose_model(correct: Counts, noise_std: float, stream: RandomStream) -> int:
    """Return the index of the largest noisy count.

    Args:
        correct: records that each model gets right, whole numbers, shape ``(M,)``; all counted on
            the same records, every record of the client once.
        noise_std: s, see :func:`selection_noise_std`; 0: the first of the largest, no privacy.
        stream: the noise stream of this release alone.

    Guarantees:
        A Gaussian release of multiplier s/:func:`selection_sensitivity` under adding or removing
        one record.

    Raises:
        AccountingError: no counts, not whole numbers, or noise that is negative or not finite.
    """
    check_counts(correct)
    if not 0 <= noise_std < math.inf:
        raise AccountingError("the noise of a choice must be finite and not negative")
    noise = stream.normal(len(correct)).numpy()
    return int(np.argmax(correct + noise_std * noise))


def selection_sensitivity(models: int) -> float:
    """Return the sensitivity of centred counts: √(⌊M²/4⌋/M).

    Raises:
        AccountingError: fewer than one model.

    >>> [round(selection_sensitivity(m), 3) for m in (1, 2, 3, 4)]
    [0.0, 0.707, 0.816, 1.0]
    """
    if models < 1:
        raise AccountingError("a choice needs at least one model")
    return math.sqrt(models**2 // 4 / models)


def selection_noise_std(noise_multiplier: float, models: int) -> float:
    """Return s for a choice among ``models`` that costs a Gaussian of ``noise_multiplier``.

    In records; rounded up. One model needs none: its choice reveals nothing.
    """
    std = noise_multiplier * selection_sensitivity(models)
    return math.nextafter(std, math.inf) if std else 0.0


def selections_of(
    selections: int,
    share: float,
    epsilon: float,
    delta: float,
    *,
    mechanism: Literal["gaussian", "gumbel"] = "gaussian",
) -> ExtraRelease:
    """Return the selections that alone would cost ``share``·ε at δ.

    Args:
        selections: rounds in which the client chooses, all that may be executed.
        share: of ε, within (0, 1).
        epsilon: the run's ε; ``inf``: no noise.
        delta: the run's δ.
        mechanism: the noise of the choices: Gaussian, for :func:`choose_model`, or Gumbel, for
            :func:`hdpfl_flower.privacy.exponential_mechanism.choose_model_by_gumbel`.

    Raises:
        AccountingError: a number or a mechanism out of range.
    """
    if not 0 < share < 1 or selections < 0:
        raise AccountingError("selections need a share of epsilon within (0, 1), and a count >= 0")
    if mechanism not in ("gaussian", "gumbel"):
        raise AccountingError("the noise of selections is 'gaussian' or 'gumbel'")
    if mechanism == "gumbel":
        return pure_selections(share * epsilon, delta, selections)
    # With q = 1: a choice counts every record, so that no sampling amplifies it.
    return Gaussians(calibrate([Steps(1.0, selections)], share * epsilon, delta), selections)
