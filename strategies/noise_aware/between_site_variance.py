"""How far sites drift apart: the variance of their updates that noise does not explain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def between_site_variance(
    moments: npt.NDArray[np.float64], variances: npt.NDArray[np.float64]
) -> float:
    """Return τ², the between-site variance per coordinate; below 0 where noise explains it all.

    The model: coordinate by coordinate uᵢ = μ + δᵢ + εᵢ with Var δᵢ = τ² and Var εᵢ = sᵢ². With
    aᵢ = 1/sᵢ² and ū the mean by these weights, Q = Σ aᵢ(uᵢ − ū)² has mean
    n − 1 + τ²·(Σa − Σa²/Σa); τ² is solved for, with Q averaged over the coordinates.

    Args:
        moments: uᵢ·uⱼ/d of every two updates, shape ``(n, n)``.
        variances: sᵢ², each site's noise variance per coordinate, positive, shape ``(n,)``.

    Returns:
        τ² unclipped, so that its mean over rounds is not biased upwards; 0 for one site.

    Reference: DerSimonian and Laird, Meta-analysis in clinical trials (Controlled Clinical Trials,
    1986).
    """
    if len(variances) < 2:
        return 0.0
    unit = float(variances.min())  # in units of the quietest site no weight overflows
    weights = unit / variances
    total = float(weights.sum())
    # Q = Σ aᵢ‖uᵢ‖² − ‖Σ aᵢuᵢ‖²/Σa, from inner products alone; `unit` cancels in the quotient.
    spread = float(weights @ np.diag(moments)) - float(weights @ moments @ weights) / total
    scale = total - float(weights @ weights) / total
    return (spread - (len(variances) - 1) * unit) / scale
