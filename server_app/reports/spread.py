"""A measure over several seeds, in print."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mean_and_sd(values: npt.NDArray[np.float64]) -> str:
    """Return mean over seeds and, for several, standard deviation (n − 1).

    >>> mean_and_sd(np.array([0.25, 0.75])), mean_and_sd(np.array([0.5]))
    ('0.5000 ± 0.3536', '0.5000')
    """
    if np.isnan(values).all():
        return "–"
    text = f"{values.mean():.4f}"
    return text if len(values) < 2 else f"{text} ± {values.std(ddof=1):.4f}"
