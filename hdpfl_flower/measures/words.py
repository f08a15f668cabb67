"""Names of a model's measures, for tables."""

from __future__ import annotations

from collections.abc import Mapping

SPECIFICITY = 0.9
"""Default specificity at which sensitivity is measured."""
WORDS: Mapping[str, str] = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "sensitivity": "sensitivity",
    "brier": "Brier score",
    "calibration-slope": "calibration slope",
    "calibration-intercept": "calibration intercept",
    "accuracy": "accuracy",
    "balanced-accuracy": "balanced accuracy",
    "macro-f1": "macro-F1",
    "concordance": "concordance",
    "log-loss": "log loss (nats)",
    "r2": "R²",
    "mse": "MSE",
    "mae": "MAE",
}
"""Names of the measures in tables; those of a task are in this order."""
